"""Refinement on probe plants whose best controller is known; when it begins and ends."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from agent.test_improvement import (
    ALPHA,
    STEPS,
    best_cost,
    cost_of,
    delayed_task,
    displaced,
    leaves,
    measured_rollout,
    random_policy,
    roll_out,
    scalar_task,
    toy,
    true_model,
)
from firsthand.agent.buffer import ImaginedStarts
from firsthand.agent.corrected_model import make_rollout_inputs, predict_rollout
from firsthand.agent.model_learning import ModelReport
from firsthand.agent.refinement import Refinement, refine_on_model, weighted_cost
from firsthand.agent.settings import Settings
from firsthand.agent.state import LearnerState
from firsthand.agent.update import update_policy
from firsthand.models import Dynamics, Policy
from firsthand.optim.gauss_newton import gauss_newton_step, linearise
from firsthand.optim.rollout import Rollout
from firsthand.plants.linear_quadratic import augmented_system
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant
from firsthand.robots.base import preview_indices
from firsthand.tasks.goals import Residuals
from firsthand_onboard.toy import toy_spec

__all__ = ["delayed_task", "scalar_task", "toy"]

HALF_RANGE = np.array([1.0, 1.5])  # of the toy's commands
EXACT = Settings().with_changes(
    {
        "policy_step.alpha": 0.02,
        "policy_step.epsilon": 0.1,
        "imagination.trajectories": 1,
        "refinement.steps": 1,
        "refinement.iterations": 400,
        "policy_step.cg_tolerance": 1e-12,
    }
)


def flat_of(policy):
    return ravel_pytree(eqx.filter(policy, eqx.is_array))[0]


def carried(policy, damping: float, direction: float = 0.0) -> Refinement:
    """What an earlier episode left: this damping, and a last solution with equal entries."""
    flat = flat_of(policy)
    return Refinement(jnp.full_like(flat, direction), jnp.asarray(damping), jnp.asarray(True), jnp.zeros_like(flat))


def test_a_step_is_that_of_the_optimiser_with_these_settings(float64, toy):
    """Commands count in half ranges; the solve begins at a share of the last solution."""
    policy, model, cost, rollout = toy
    again = ImaginedStarts(rollout.states[:2, 0], rollout.previews[:2])
    settings = EXACT.with_changes(
        {"refinement.batch": 1, "refinement.damping": 0.3, "refinement.iterations": 3, "policy_step.outlier": 1.5}
    )
    before = carried(policy, 0.3, direction=1.0)
    new, state, report = refine(policy, model, cost, rollout, again, 10.0, settings, before)
    assert int(report.steps_taken) == 1
    inputs = make_rollout_inputs(model, rollout, jax.tree.map(lambda a: a[:1], again))

    @eqx.filter_jit
    def expected():
        problem = linearise(policy, lambda p: predict_rollout(p, model, inputs), cost.residuals, outlier=1.5)
        return gauss_newton_step(
            policy,
            problem,
            damping=0.3,
            alpha=0.02,
            epsilon=0.1,
            begin=settings.refinement.memory * before.direction,
            iterations=3,
            tolerance=1e-12,
            stride=settings.policy_step.jacobian_stride,
            command_scale=jnp.asarray(HALF_RANGE),
        )

    step_policy, w, _ = expected()
    np.testing.assert_allclose(state.direction, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(leaves(new), leaves(step_policy), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("failed", "factor", "least", "most"),
    [(0, 1.0, 1.0, 1.0), (1, 20.0, 1.0, 1.5), (1, 1e4, 100.0, 1e4), (4, 100.0, 10.0, 100.0), (10, 9.0, 9.0, 9.0)],
)
def test_weighted_cost_ignores_one_odd_trajectory_but_not_several(scalar_task, failed, factor, least, most):
    """One trajectory that goes wrong is not a surprise; one that fails badly, four that fail, or all doing worse
    are."""
    steps = scalar_task.steps
    error = jnp.asarray(np.where(np.arange(10) < failed, np.sqrt(factor), 1.0), jnp.float32)
    size, points = scalar_task.spec.layout.size, 1 + len(scalar_task.spec.preview)
    states = jnp.zeros((10, steps + 1, size)).at[..., 0].set(error[:, None])
    still = jnp.zeros((10, steps, 1))
    rollout = Rollout(states, still, jnp.zeros((10, steps, points, 1)), still == 0, jnp.ones((10, steps), bool))
    cost = scalar_task.cost
    found = (
        float(weighted_cost(cost, rollout, Settings().with_changes({"policy_step.outlier": 3.0}))) * cost.goal.scale**2
    )
    assert least * (1 - 1e-5) <= found <= most * (1 + 1e-5)


def test_with_a_true_model_the_policy_comes_to_the_known_optimum(delayed_task):
    """Ten steps end nearer to the best of all controllers than 160 preconditioned ones, which have 2 %."""
    task, plant = delayed_task, DelayedDoubleIntegrator(gain=2.0, delay=2)
    system = augmented_system(plant, task.spec.layout.command_memory)
    model = true_model(system, task.spec)
    settings = Settings().with_changes(
        {
            "policy_step.alpha": ALPHA,
            "imagination.trajectories": 1,
            "refinement.steps": 10,
            "refinement.batch": 1,
            "refinement.damping": 1e-4,
        }
    )
    policy = random_policy(task.spec, key=jax.random.key(0))
    rollout, starts, references = measured_rollout(policy, model, task)
    optimum = best_cost(system, starts, references)
    # The imagined ones repeat the first measured trajectory, whose optimum is known, too.
    again = ImaginedStarts(jnp.tile(rollout.states[:1, 0], (11, 1)), jnp.tile(rollout.previews[:1], (11, 1, 1, 1)))
    known = (8 * optimum + best_cost(system, starts[:1], references[:1])) / 9
    new, state, report = refine(policy, model, task.cost, rollout, again, 10.0, settings)
    assert report.step.accepted
    assert bool(state.active)
    assert int(report.steps_taken) >= 5
    assert known * (1 - 1e-4) <= float(report.predicted_cost) <= 1.01 * known
    reached = float(cost_of(task.cost, roll_out(new, model, rollout.states[:, 0], rollout.previews)))
    assert reached <= 1.01 * optimum


@eqx.filter_jit
def refine(policy, model, cost, rollout, imagined, radius, settings, refinement=None):
    refinement = Refinement.initial(policy, settings) if refinement is None else refinement
    key = jax.random.key(0)
    return refine_on_model(policy, model, cost, rollout, imagined, jnp.asarray(radius), refinement, settings, key=key)


TWO = Settings().with_changes(
    {
        "policy_step.alpha": ALPHA,
        "imagination.trajectories": 1,
        "refinement.steps": 2,
        "refinement.batch": 3,
        "refinement.max_cost": 1e6,
    }
)
MEAN = TWO.with_changes({"refinement.newest_share": 0.3})


@pytest.fixture(scope="module")
def scalar(scalar_task):
    """A random policy on the scalar plant, whose model is right, and six imagined trajectories."""
    model = true_model(augmented_system(ScalarPlant(), 1), scalar_task.spec)
    policy = random_policy(scalar_task.spec, key=jax.random.key(0))
    rollout, _, _ = measured_rollout(policy, model, scalar_task)
    starts, references = displaced(scalar_task, 9, seed=1)
    previews = references[:, preview_indices(scalar_task.spec, rollout.commands.shape[1])]
    imagined = ImaginedStarts(jnp.asarray(starts, jnp.float32), jnp.asarray(previews, jnp.float32))
    # A joint-limit term that is felt: steepening it is another cost. Nothing is tracked: it acts in all of the margin.
    limits = dataclasses.replace(scalar_task.spec.limits, position_low=(-1.2,), position_high=(1.2,))
    spec = dataclasses.replace(scalar_task.spec, limits=limits)
    goal = Residuals(scalar_task.cost.goal.residuals)
    cost = dataclasses.replace(scalar_task.cost, spec=spec, goal=goal, limit_weight=10.0, limit_margin=0.45)
    assert float(cost_of(cost, rollout)) > 1.2 * float(cost_of(cost.with_steeper_limits(16), rollout))
    return policy, model, cost, rollout, imagined


def test_every_step_has_a_batch_of_its_own(scalar):
    policy, model, cost, rollout, imagined = scalar
    new, _, report = refine(policy, model, cost, rollout, imagined, 10.0, TWO)
    assert int(report.steps_taken) == 2
    other = eqx.tree_at(lambda i: i.previews, imagined, imagined.previews.at[3:].multiply(-1.0))
    different, _, _ = refine(policy, model, cost, rollout, other, 10.0, TWO)
    assert np.max(np.abs(leaves(different) - leaves(new))) > 1e-4


def test_steps_outside_the_radius_are_not_kept_and_damped(scalar):
    policy, model, cost, rollout, imagined = scalar
    new, state, report = refine(policy, model, cost, rollout, imagined, 1e-9, TWO)
    assert int(report.steps_taken) == 0
    assert report.step.accepted  # nothing was wrong: there was only no room
    np.testing.assert_array_equal(leaves(new), leaves(policy))
    np.testing.assert_array_equal(state.direction, 0.0)
    assert float(state.damping) == pytest.approx(16 * TWO.refinement.damping)


def test_the_newest_policy_runs_while_it_is_better_than_the_mean(scalar):
    """A random policy gains from every step: the mean would only hold it back."""
    policy, model, cost, rollout, imagined = scalar
    alone, _, _ = refine(policy, model, cost, rollout, imagined, 10.0, TWO)
    new, state, _ = refine(policy, model, cost, rollout, imagined, 10.0, MEAN)
    np.testing.assert_allclose(leaves(new), leaves(alone), rtol=1e-6)
    np.testing.assert_array_equal(state.ahead, 0.0)


@pytest.mark.parametrize(("behind", "best"), [(0.0, "what runs"), (0.3, "mean"), (1.0, "newest")])
def test_what_is_best_on_references_that_no_step_has_seen_runs(scalar, behind, best):
    """A good policy, and a direction that makes it worse to either side; the running one is `behind` along it.

    The newest is one such step ahead of it. Steps are too small to matter.
    """
    policy, model, cost, rollout, imagined = scalar
    same = jax.tree.map(lambda a: jnp.concat([a[6:]] * 3), imagined)
    good, state = policy, None
    for _ in range(6):
        good, state, _ = refine(good, model, cost, rollout, same, 10.0, TWO, state)
    flat, unravel = ravel_pytree(good)
    way = 0.5 * jax.random.normal(jax.random.key(3), flat.shape)
    running = flat - behind * way
    earlier = eqx.tree_at(lambda s: s.ahead, carried(good, 1e6), way)
    unmoved = MEAN.with_changes({"refinement.damping": 1e6})
    new, state, report = refine(unravel(running), model, cost, rollout, same, 10.0, unmoved, earlier)
    assert report.step.accepted
    share = {"what runs": 0.0, "mean": 0.3, "newest": 1.0}[best]
    np.testing.assert_allclose(flat_of(new), running + share * way, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(flat_of(new) + state.ahead, running + way, rtol=1e-3, atol=1e-4)  # goes on from there


class Cliff(Dynamics):
    """The scalar plant up to |x| = 1.1; from there it runs away faster than floating-point numbers go."""

    def __call__(self, state, command):
        beyond = jnp.maximum(jnp.abs(state[0]) - 1.1, 0.0)
        return jnp.stack([state[0] + 0.1 * command[0] + 1e3 * jnp.sign(state[0]) * beyond**3, command[0]])


def test_a_newest_policy_that_does_not_stay_finite_never_runs(scalar_task):
    """All steps see a robot at rest at its goal; only the unseen batch begins near the cliff."""
    model, spec = Cliff((), jnp.asarray([1.0]), scalar_task.spec), scalar_task.spec
    policy = random_policy(spec, key=jax.random.key(0))
    points = 1 + len(spec.preview)
    starts = jnp.zeros((9, 2)).at[6:, 0].set(1.0)
    imagined = ImaginedStarts(starts, jnp.zeros((9, STEPS, points, 1)))
    towards = policy(starts[-1], jnp.zeros((points, 1)))[0] < 0
    flat, unravel = ravel_pytree(policy)
    turned = ravel_pytree(eqx.tree_at(lambda p: p.layers[-1], policy, jax.tree.map(jnp.negative, policy.layers[-1])))[0]
    running, newest = (flat, turned) if towards else (turned, flat)
    rollout = roll_out(unravel(running), model, jnp.zeros((8, 2)), jnp.zeros((8, STEPS, points, 1)))
    earlier = carried(policy, MEAN.refinement.damping)
    earlier = eqx.tree_at(lambda s: s.ahead, earlier, newest - running)
    new, state, report = refine(unravel(running), model, scalar_task.cost, rollout, imagined, 10.0, MEAN, earlier)
    assert report.step.accepted
    assert np.isfinite(float(report.predicted_cost))
    assert np.abs(leaves(new) - np.asarray(newest)).max() > 0.01
    np.testing.assert_array_equal(state.ahead, 0.0)


def test_an_update_that_predicts_nothing_finite_is_refused(scalar):
    policy, model, cost, rollout, imagined = scalar
    far = eqx.tree_at(lambda i: i.starts, imagined, imagined.starts.at[6:, 0].set(1e30))
    _, _, report = refine(policy, model, cost, rollout, far, 10.0, MEAN)
    assert not report.step.accepted


def test_what_an_earlier_update_came_to_does_not_leave_the_radius(scalar):
    """The radius was halved since: neither the newest policy nor the mean runs, and the newest is forgotten."""
    policy, model, cost, rollout, imagined = scalar
    newest, _, _ = refine(policy, model, cost, rollout, imagined, 10.0, TWO)
    earlier = carried(policy, MEAN.refinement.damping)
    earlier = eqx.tree_at(lambda s: s.ahead, earlier, flat_of(newest) - flat_of(policy))
    new, state, report = refine(policy, model, cost, rollout, imagined, 1e-4, MEAN, earlier)
    np.testing.assert_allclose(leaves(new), leaves(policy), rtol=1e-6)
    np.testing.assert_array_equal(state.ahead, 0.0)
    assert float(report.deviation) <= 1e-4
    assert report.step.accepted


def test_damping_falls_to_its_lower_bound(scalar):
    policy, model, cost, rollout, imagined = scalar
    before = carried(policy, 3 * TWO.refinement.damping)
    _, state, report = refine(policy, model, cost, rollout, imagined, 10.0, TWO, before)
    assert int(report.steps_taken) == 2
    assert float(state.damping) == pytest.approx(TWO.refinement.damping)
    assert float(jnp.linalg.norm(state.direction)) > 0


def learner_at(scalar_task, policy, model, radius, expected=1e6) -> LearnerState:
    state = LearnerState.random(scalar_task.spec, TWO, seed=0)
    radius, expected = (jnp.asarray(value, jnp.float32) for value in (radius, expected))
    return eqx.tree_at(
        lambda s: (s.policy, s.dynamics, s.radius, s.expected_cost), state, (policy, model, radius, expected)
    )


SOUND = ModelReport(jnp.asarray(0.0), jnp.asarray(True))


def test_refinement_begins_when_the_trust_region_is_as_wide_as_it_gets(scalar, scalar_task):
    """Before, everything is as without it, to the last bit."""
    policy, model, cost, rollout, imagined = scalar
    never = TWO.with_changes({"refinement.steps": 0})
    narrow = learner_at(scalar_task, policy, model, 0.3)
    few = jax.tree.map(lambda a: a[: TWO.imagination.trajectories], imagined)
    with_it, _ = update_policy(narrow, cost, rollout, imagined, SOUND, TWO)
    without, _ = update_policy(narrow, cost, rollout, few, SOUND, never)
    np.testing.assert_array_equal(leaves(with_it.policy), leaves(without.policy))
    assert not bool(with_it.refinement.active)

    unknown = learner_at(scalar_task, policy, model, TWO.trust_region.max_radius, expected=jnp.nan)
    asked, _ = update_policy(unknown, cost, rollout, imagined, SOUND, TWO)
    assert not bool(asked.refinement.active)  # nothing was predicted for this policy

    wide = learner_at(scalar_task, policy, model, TWO.trust_region.max_radius)
    refined, report = update_policy(wide, cost, rollout, imagined, SOUND, TWO)
    assert bool(refined.refinement.active)
    expected, _, _ = refine(
        policy, model, cost.with_steeper_limits(TWO.refinement.limit_power), rollout, imagined, 0.5, TWO
    )
    np.testing.assert_allclose(leaves(refined.policy), leaves(expected), rtol=1e-5, atol=1e-6)
    assert float(report.cost) == pytest.approx(float(cost_of(cost, rollout)), rel=1e-6)
    assert float(refined.expected_cost) == pytest.approx(float(report.predicted_cost))
    assert float(report.surprise) == pytest.approx(float(report.cost) / 1e6, rel=1e-5)


@pytest.mark.parametrize("surprises", [1, 2])
def test_a_second_surprise_in_a_row_ends_refinement(scalar, scalar_task, surprises):
    """Four times the cost that was predicted: the radius is halved; if it was before, the other steps take over.

    The cost that counts is the one with steep limits, which is less.
    """
    policy, model, cost, rollout, imagined = scalar
    fine = cost.with_steeper_limits(TWO.refinement.limit_power)
    surprised = learner_at(
        scalar_task,
        policy,
        model,
        TWO.trust_region.max_radius / 2 ** (surprises - 1),
        expected=float(cost_of(fine, rollout)) / 4,
    )
    surprised = eqx.tree_at(
        lambda s: (s.refinement.active, s.refinement.direction),
        surprised,
        (jnp.asarray(True), jnp.ones_like(surprised.refinement.direction)),
    )
    after, report = update_policy(surprised, cost, rollout, imagined, SOUND, TWO)
    assert float(after.radius) == pytest.approx(TWO.trust_region.max_radius / 2**surprises)
    assert float(report.surprise) == pytest.approx(4.0, rel=1e-4)
    assert bool(after.refinement.active) == (surprises == 1)
    if surprises == 2:
        np.testing.assert_array_equal(after.refinement.direction, 0.0)


@pytest.mark.parametrize("what", ["model", "step"])
def test_a_refused_update_leaves_the_policy_and_forgets_the_direction(scalar, scalar_task, what):
    """Refused by the model's own report, or because one imagined trajectory is not finite."""
    policy, model, cost, rollout, imagined = scalar
    wide = learner_at(scalar_task, policy, model, TWO.trust_region.max_radius)
    wide = eqx.tree_at(lambda s: s.refinement.direction, wide, jnp.ones_like(wide.refinement.direction))
    report = SOUND
    if what == "model":
        report = ModelReport(jnp.asarray(jnp.nan), jnp.asarray(False))
    else:
        imagined = eqx.tree_at(lambda i: i.starts, imagined, imagined.starts.at[4, 0].set(jnp.nan))
    after, improvement = update_policy(wide, cost, rollout, imagined, report, TWO)
    np.testing.assert_array_equal(leaves(after.policy), leaves(policy))
    np.testing.assert_array_equal(after.refinement.direction, 0.0)
    assert int(after.refused) == 1
    assert not improvement.step.accepted


def test_a_direction_has_an_entry_per_parameter_and_none_for_other_arrays():
    class Counting(Policy):
        used: jax.Array = eqx.field(default_factory=lambda: jnp.arange(4))

    spec = toy_spec()
    plain = Policy.random(spec, key=jax.random.key(0))
    begun = Refinement.initial(Counting(plain.layers, spec), Settings())
    assert begun.direction.shape == begun.ahead.shape == flat_of(plain).shape


def test_refinement_needs_imagined_trajectories():
    assert not TWO.with_changes({"imagination.trajectories": 0}).refines
    assert TWO.with_changes({"imagination.trajectories": 0}).imagined_trajectories == 0
    assert TWO.imagined_trajectories == 9
    assert TWO.with_changes({"imagination.trajectories": 12}).imagined_trajectories == 12
    assert TWO.with_changes({"refinement.steps": 0}).imagined_trajectories == 1
