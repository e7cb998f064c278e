"""Gauss–Newton steps against the dense formula, their bounds, and probe plants whose best controller is known."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from agent.test_improvement import (
    ALPHA,
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
from firsthand.agent.ground import Imagined, ground_of
from firsthand.agent.model_learning import ModelReport
from firsthand.agent.refinement import (
    Refinement,
    batch_residuals,
    felt_cost,
    gauss_newton_step,
    linearised,
    refine_on_model,
    trajectory_weights,
)
from firsthand.agent.settings import Settings
from firsthand.agent.state import LearnerState
from firsthand.agent.update import update_policy
from firsthand.optim.gradient import closed_loop_gradient, mean_cost
from firsthand.optim.rollout import Rollout
from firsthand.plants.linear_quadratic import augmented_system
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant
from firsthand.robots.base import preview_indices

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


@eqx.filter_jit
def one_step(policy, model, cost, rollout, begin, damping, settings):
    at = linearised(policy, model, cost, ground_of(model, rollout, None), settings.policy_step.outlier)
    return (*gauss_newton_step(policy, at, begin, damping, settings), at.value, at.slope)


def flat_of(policy):
    return ravel_pytree(eqx.filter(policy, eqx.is_array))[0]


def dense(policy, model, cost, rollout, weights):
    """r, R and J of the whole batch as matrices, by forward differentiation of the whole rollout."""
    parameters, static = eqx.partition(policy, eqx.is_array)
    flat, unravel = ravel_pytree(parameters)
    on = ground_of(model, rollout, None)

    def everything(phi):
        each, _ = batch_residuals(eqx.combine(unravel(phi), static), model, cost, on)
        return (weights * each).ravel()

    _, data = batch_residuals(policy, model, cost, on)
    passes = rollout.free & rollout.valid[..., None]

    def commands(phi):
        current = eqx.combine(unravel(phi), static)
        return (passes * jax.vmap(jax.vmap(current))(data.states[:, :-1], data.previews) / HALF_RANGE).ravel()

    rows = np.asarray(everything(flat))
    wide, u = (np.asarray(jax.jacfwd(f)(flat)) for f in (everything, commands))
    return rows, wide, u / np.sqrt(rollout.states.shape[0])


def troubled(rollout):
    """Two trajectories with gaps, one of them with a gate that was active, and one far from its reference."""
    valid, free = np.array(rollout.valid), np.array(rollout.free)
    valid[1, 2:4], valid[2, 5:], free[1, 1, 0], free[2, 3, :] = False, False, False, False
    away = rollout.previews.at[0].add(3.0)
    return dataclasses.replace(rollout, valid=jnp.asarray(valid), free=jnp.asarray(free), previews=away)


@pytest.mark.parametrize("warm", [False, True], ids=["from zero", "from another solution"])
def test_the_converged_step_is_the_dense_one(float64, toy, warm):
    """(RᵀR + λ(εI + αJJᵀ)) Δφ = −Rᵀr, with gaps, gates and a trajectory that weighs less."""
    policy, model, cost, rollout = toy
    rollout = troubled(rollout)
    flat, damping, settings = flat_of(policy), 0.3, EXACT.with_changes({"policy_step.outlier": 1.5})
    begin = jnp.asarray(np.random.default_rng(0).normal(size=flat.size)) if warm else jnp.zeros_like(flat)
    new, w, report, value, slope = one_step(policy, model, cost, rollout, begin, jnp.asarray(damping), settings)
    each, _ = batch_residuals(policy, model, cost, ground_of(model, rollout, None))
    weights = np.asarray(trajectory_weights(each, rollout.valid, 1.5))
    assert weights[0, 0, 0] < 0.7 * weights[1, 0, 0]
    rows, wide, u = dense(policy, model, cost, rollout, weights)
    matrix = wide.T @ wide + damping * (0.1 * np.eye(flat.size) + 0.02 * u.T @ u)
    expected = np.linalg.solve(matrix, wide.T @ rows)
    assert report.accepted
    assert float(value) == pytest.approx(rows @ rows, rel=1e-10)
    np.testing.assert_allclose(slope, wide.T @ rows, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(w, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(leaves(new), leaves(policy) - expected, rtol=1e-6, atol=1e-9)
    assert float(report.predicted_decrease) == pytest.approx(rows @ wide @ expected, rel=1e-6)
    assert float(report.gradient_norm) == pytest.approx(2 * np.linalg.norm(wide.T @ rows), rel=1e-8)


def test_with_equal_weights_it_is_the_mean_cost_and_its_gradient(float64, toy):
    """Also with gaps. The gradient is the one that preconditioned steps take on the model's own trajectories."""
    policy, model, cost, rollout = toy
    rollout = dataclasses.replace(troubled(rollout), free=rollout.free)
    on = ground_of(model, rollout, None)

    @eqx.filter_jit
    def both():
        at = linearised(policy, model, cost, on, None)
        return (
            at.value,
            at.slope,
            mean_cost(cost, at.data),
            closed_loop_gradient(policy, model, cost, at.data, chained=True),
        )

    value, slope, mean, gradient = both()
    assert float(value) == pytest.approx(float(mean), rel=1e-10)
    np.testing.assert_allclose(2 * slope, ravel_pytree(gradient)[0], rtol=1e-8, atol=1e-12)


@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    damping=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
)
@example(seed=0, size=1e3, damping=1e-6)
def test_the_bounds_hold_wherever_a_short_solve_begins(toy, seed, size, damping):
    """In float32, after two conjugate gradients from a random direction of any length."""
    policy, model, cost, rollout = (
        jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, part) for part in toy
    )
    settings = EXACT.with_changes({"refinement.iterations": 2})
    begin = jnp.asarray(size * np.random.default_rng(seed).normal(size=flat_of(policy).size), jnp.float32)
    _, w, report, value, _ = one_step(policy, model, cost, rollout, begin, jnp.asarray(damping, jnp.float32), settings)
    assert report.accepted
    slack = 1.001
    assert float(jnp.linalg.norm(w)) <= slack * np.sqrt(float(value) / (damping * 0.1))
    assert float(report.command_change) <= slack * np.sqrt(float(value) / (damping * 0.02))
    assert 0 <= float(report.predicted_decrease) <= slack * float(value)


def test_a_step_that_is_not_finite_is_refused(float64, toy):
    policy, model, cost, rollout = toy
    begin = jnp.full_like(flat_of(policy), jnp.nan)
    new, w, report, _, _ = one_step(policy, model, cost, rollout, begin, jnp.asarray(1.0), EXACT)
    assert not report.accepted
    np.testing.assert_array_equal(leaves(new), leaves(policy))
    np.testing.assert_array_equal(w, 0.0)


def test_weights_by_hand(float64):
    """Costs 1 (with a gap), 2 and 30, and one of which nothing counts: the median is 2, so 30 is cut to 3 · 2."""
    each = jnp.asarray(np.sqrt([[1.0, 0.0], [2.0, 2.0], [30.0, 30.0], [0.0, 0.0]])[..., None])
    valid = jnp.asarray([[True, False], [True, True], [True, True], [False, False]])
    weights = np.asarray(trajectory_weights(each, valid, 3.0)).ravel()
    share = np.array([1.0, 1.0, 0.2, 0.0])
    np.testing.assert_allclose(weights, np.sqrt(share / (1 + 2 + 0.4)), rtol=1e-12)
    equal = np.asarray(trajectory_weights(each, valid, None)).ravel()
    np.testing.assert_allclose(equal, np.sqrt(np.array([1.0, 1.0, 1.0, 0.0]) / 5), rtol=1e-12)


@pytest.mark.parametrize(
    ("failed", "factor", "least", "most"),
    [(0, 1.0, 1.0, 1.0), (1, 20.0, 1.0, 1.5), (1, 1e4, 100.0, 1e4), (4, 100.0, 10.0, 100.0), (10, 9.0, 9.0, 9.0)],
)
def test_what_is_a_surprise(scalar_task, failed, factor, least, most):
    """One motion that goes wrong is none; one that fails badly, four that fail, and all that do worse are."""
    steps = scalar_task.steps
    error = jnp.asarray(np.where(np.arange(10) < failed, np.sqrt(factor), 1.0), jnp.float32)
    size, points = scalar_task.spec.layout.size, 1 + len(scalar_task.spec.preview)
    states = jnp.zeros((10, steps + 1, size)).at[..., 0].set(error[:, None])
    still = jnp.zeros((10, steps, 1))
    rollout = Rollout(states, still, jnp.zeros((10, steps, points, 1)), still == 0, jnp.ones((10, steps), bool))
    cost = scalar_task.cost
    found = (
        float(felt_cost(cost, rollout, Settings().with_changes({"policy_step.outlier": 3.0}))) * cost.length_scale**2
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
    again = Imagined(jnp.tile(rollout.states[:1, 0], (10, 1)), jnp.tile(rollout.previews[:1], (10, 1, 1, 1)))
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
    refinement = Refinement.none(policy, settings) if refinement is None else refinement
    return refine_on_model(policy, model, cost, rollout, imagined, jnp.asarray(radius), refinement, settings)


TWO = Settings().with_changes(
    {"policy_step.alpha": ALPHA, "imagination.trajectories": 1, "refinement.steps": 2, "refinement.batch": 3}
)


@pytest.fixture(scope="module")
def scalar(scalar_task):
    """A random policy on the scalar plant, whose model is right, and six imagined trajectories."""
    model = true_model(augmented_system(ScalarPlant(), 1), scalar_task.spec)
    policy = random_policy(scalar_task.spec, key=jax.random.key(0))
    rollout, _, _ = measured_rollout(policy, model, scalar_task)
    starts, references = displaced(scalar_task, 6, seed=1)
    previews = references[:, preview_indices(scalar_task.spec, rollout.commands.shape[1])]
    imagined = Imagined(jnp.asarray(starts, jnp.float32), jnp.asarray(previews, jnp.float32))
    # A joint-limit term that is felt: steepening it is another cost.
    limits = dataclasses.replace(scalar_task.spec.limits, position_low=(-1.2,), position_high=(1.2,))
    spec = dataclasses.replace(scalar_task.spec, limits=limits)
    cost = dataclasses.replace(scalar_task.cost, spec=spec, limit_weight=10.0, limit_margin=0.45)
    assert float(cost_of(cost, rollout)) > 1.2 * float(cost_of(cost.steepened(16), rollout))
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


def test_damping_falls_to_its_least(scalar):
    policy, model, cost, rollout, imagined = scalar
    before = Refinement(jnp.zeros_like(flat_of(policy)), jnp.asarray(3 * TWO.refinement.damping), jnp.asarray(True))
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
    expected, _, _ = refine(policy, model, cost.steepened(TWO.refinement.limit_power), rollout, imagined, 0.5, TWO)
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
    fine = cost.steepened(TWO.refinement.limit_power)
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


def test_where_nothing_is_imagined_nothing_is_refined():
    assert not TWO.with_changes({"imagination.trajectories": 0}).refines
    assert TWO.with_changes({"imagination.trajectories": 0}).imagined_trajectories == 0
    assert TWO.imagined_trajectories == 6
    assert TWO.with_changes({"imagination.trajectories": 9}).imagined_trajectories == 9
    assert TWO.with_changes({"refinement.steps": 0}).imagined_trajectories == 1
