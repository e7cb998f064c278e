"""Improving the policy: one step by hand, the anchor of several, and probe plants whose best controller is known."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand import optim
from firsthand.agent import Agent, Experience
from firsthand.agent.buffer import Buffer, ImaginedStarts, append
from firsthand.agent.improvement import improve_policy
from firsthand.agent.model_learning import initial_optimizer, learn_model
from firsthand.agent.settings import Settings
from firsthand.models import Dynamics, Policy
from firsthand.optim.gradient import closed_loop_gradient, mean_cost
from firsthand.optim.preconditioner import preconditioned_step
from firsthand.optim.rollout import Rollout, model_errors
from firsthand.plants.linear_quadratic import LinearSystem, augmented_system, solve_tracking
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant
from firsthand.robots.base import preview_indices
from firsthand.robots.simulated import SimulatedRobot
from firsthand.tasks.cost import tracking_cost
from firsthand.training.learning import as_rollout
from firsthand.training.presets import preset
from firsthand_onboard.features import build_reference

COMMAND_LIMIT = 6.0  # wide, so that the policy's tanh hardly bends: the best controllers are linear
LENGTH, CHANGE = 0.3, 0.3  # L, and w per unit of command
STEPS = 25


class Truth(Dynamics):
    """A model that is the plant: x⁺ = A x + B u."""

    A: jax.Array
    B: jax.Array

    def __call__(self, state, command):
        return self.A @ state + self.B @ command


def true_model(system: LinearSystem, spec) -> Truth:
    return Truth((), jnp.asarray([1.0]), spec, jnp.asarray(system.A, jnp.float32), jnp.asarray(system.B, jnp.float32))


@pytest.fixture(scope="module")
def scalar_task(make_probe_task):
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=STEPS,
        preview=(1, 2, 4),
        command_limit=COMMAND_LIMIT,
        length_scale=LENGTH,
        change_weight=CHANGE * COMMAND_LIMIT**2,
        trajectories=10,
    )


@pytest.fixture(scope="module")
def delayed_task(make_probe_task):
    return make_probe_task(
        measured=2,
        command_memory=2,
        steps=STEPS,
        preview=(1, 2, 3, 4, 6),
        command_limit=COMMAND_LIMIT,
        length_scale=LENGTH,
        change_weight=CHANGE * COMMAND_LIMIT**2,
    )


def displaced(task, count: int, seed: int):
    """Starts at rest, and references that begin up to 0.5 away from them: even the best controller has a cost."""
    rng = np.random.default_rng(seed)
    starts, references = [], []
    for _ in range(count):
        measured = np.zeros(task.spec.layout.num_measured)
        measured[0] = rng.uniform(-1.0, 1.0)
        references.append(build_reference(task.spec, measured, rng.uniform(-1.0, 1.0, 1)))
        state = np.zeros(task.spec.layout.size)
        state[0] = measured[0] + rng.uniform(-0.5, 0.5)
        starts.append(state)
    return np.stack(starts), np.stack(references)


cost_of = eqx.filter_jit(mean_cost)
model_errors_of = eqx.filter_jit(model_errors)
random_policy = eqx.filter_jit(Policy.random)
random_dynamics = eqx.filter_jit(Dynamics.random)


@eqx.filter_jit
def roll_out(policy, dynamics, starts, previews, errors=None) -> Rollout:
    return optim.roll_out(policy, dynamics, starts, previews=previews, errors=errors)


def measured_rollout(policy, dynamics, task, count=8, seed=0) -> tuple[Rollout, np.ndarray, np.ndarray]:
    starts, references = displaced(task, count, seed)
    previews = jnp.asarray(references[:, preview_indices(task.spec, STEPS)], jnp.float32)
    return roll_out(policy, dynamics, jnp.asarray(starts, jnp.float32), previews), starts, references


def best_cost(system, starts, references) -> float:
    """The mean over trajectories of what the best of all controllers costs."""
    weights = {"length_scale": LENGTH, "change_weight": CHANGE}
    return float(
        np.mean(
            [
                solve_tracking(system, np.asarray(r[:STEPS], np.float64), **weights).cost(np.asarray(x, np.float64))
                for x, r in zip(starts, references, strict=True)
            ]
        )
    )


ALPHA = 0.36  # the probes' outputs move far with a command of the whole range, so its change weighs much
SETTINGS = Settings().with_changes({"policy_step.discount": 1.0, "policy_step.steps": 40, "policy_step.alpha": ALPHA})
MODEL_SETTINGS = Settings().with_changes(
    {"model.steps": 200, "model.rate": 5e-3, "model.batch": 32, "model.hidden": (16,)}
)


@pytest.mark.parametrize(
    "plant", [ScalarPlant(), DelayedDoubleIntegrator(gain=2.0, delay=2)], ids=["scalar", "delayed"]
)
def test_with_a_true_model_the_policy_approaches_the_known_optimum(plant, request):
    """Within 2 % of the best of all controllers, which sees the whole reference and knows when the trajectory ends."""
    task = request.getfixturevalue("scalar_task" if isinstance(plant, ScalarPlant) else "delayed_task")
    system = augmented_system(plant, task.spec.layout.command_memory)
    model = true_model(system, task.spec)
    policy = random_policy(task.spec, key=jax.random.key(0))
    rollout, starts, references = measured_rollout(policy, model, task)
    optimum = best_cost(system, starts, references)
    assert float(cost_of(task.cost, rollout)) > 4.0 * optimum
    for _ in range(4):
        policy, report = improve_policy(policy, model, task.cost, rollout, None, 10.0, SETTINGS)
        assert report.step.accepted
        rollout = roll_out(policy, model, rollout.states[:, 0], rollout.previews)
        # The model is the plant, so the prediction comes true.
        reached = float(cost_of(task.cost, rollout))
        assert reached == pytest.approx(float(report.predicted_cost), rel=1e-4)
    assert optimum * (1 - 1e-4) <= reached <= 1.02 * optimum


@pytest.mark.parametrize(("policy_steps", "episodes", "within"), [(1, 16, 1.5), (10, 8, 1.2)], ids=["paper", "several"])
def test_the_complete_loop_with_a_learned_model_reaches_near_the_optimum(scalar_task, policy_steps, episodes, within):
    """From random weights, 1000 times above the optimum of the episode's own starts and references."""
    task, plant = scalar_task, ScalarPlant()
    spec, system = task.spec, augmented_system(plant, 1)
    settings = Settings().with_changes(
        {"policy_step.discount": 1.0, "policy_step.steps": policy_steps, "policy_step.alpha": ALPHA}
    )
    robot = SimulatedRobot(plant, task, seed=0)
    policy = random_policy(spec, key=jax.random.key(0), last_gain=0.3)
    dynamics = random_dynamics(spec, MODEL_SETTINGS.model.hidden, key=jax.random.key(1))
    optimizer = initial_optimizer(dynamics, MODEL_SETTINGS)
    buffer = Buffer.empty(4096, spec.layout.size, 1, 1)
    rng = np.random.default_rng(0)
    ratios = []
    for episode in range(episodes):
        record = robot.run_episode(policy, task.sample_goals(rng, robot.measured(), task.trajectories))
        rollout = as_rollout(spec, record)
        buffer = append(buffer, rollout)
        dynamics, optimizer, model = learn_model(
            dynamics, optimizer, buffer, MODEL_SETTINGS, key=jax.random.key(episode)
        )
        policy, report = improve_policy(policy, dynamics, task.cost, rollout, None, 0.5, settings)
        assert model.accepted
        assert report.step.accepted
        ratios.append(float(report.cost) / best_cost(system, record.starts, record.references))
    assert ratios[0] > 50.0
    assert np.mean(ratios[-4:]) < within, ratios
    assert min(ratios) >= 1 - 1e-3  # nobody is better than the best


@pytest.mark.parametrize("name", ["paper", "paper-exact"])
def test_both_presets_of_the_paper_come_near_the_optimum(scalar_task, name):
    """The same through the agent, with all that the presets have: nothing that is judged keeps it from learning."""
    task = scalar_task
    small = {"policy_step.discount": 1.0, "policy_step.alpha": ALPHA}
    model = {name: value for name, value in MODEL_SETTINGS.flat().items() if name.startswith("model.")}
    settings = preset(name).with_changes({**small, **model, "trust_region.radius": 0.5, "excitation.episodes": 0})
    agent = Agent(task.spec, task.cost, settings)
    robot, rng, ratios = SimulatedRobot(ScalarPlant(), task, seed=0), np.random.default_rng(0), []
    state, system = agent.init(2, 8192), augmented_system(ScalarPlant(), 1)
    for _ in range(20):
        goals = task.sample_goals(rng, robot.measured(), task.trajectories)
        record = robot.run_episode(state.learner.policy, goals)
        state, update = agent.observe(state, Experience(as_rollout(task.spec, record)))
        assert update.policy.step.accepted
        ratios.append(float(update.policy.cost) / best_cost(system, record.starts, record.references))
    assert ratios[0] > 50.0
    assert np.mean(ratios[-4:]) < 1.2, ratios


def toy_layers(seed, *sizes):
    """Weights of variance 1/inputs, drawn by numpy: nothing to compile."""
    rng = np.random.default_rng(seed)
    return tuple(
        (jnp.asarray(rng.normal(size=(after, before)) / before**0.5), jnp.asarray(np.zeros(after)))
        for before, after in itertools.pairwise(sizes)
    )


def toy_dynamics(spec, seed) -> Dynamics:
    return Dynamics(toy_layers(seed, spec.layout.size + 2, 5, 2), jnp.asarray([0.1, 0.1]), spec)


@pytest.fixture(scope="module")
def toy(toy_spec):
    """A small policy, a wrong model, and trajectories that another plant made under this very policy."""
    with jax.enable_x64(True):
        policy = Policy(toy_layers(0, toy_spec.observation_size, 4, 2), toy_spec)
        plant, model = (toy_dynamics(toy_spec, seed) for seed in (1, 2))
        rng = np.random.default_rng(0)
        starts = jnp.asarray(rng.normal(size=(3, toy_spec.layout.size)))
        previews = jnp.asarray(rng.normal(size=(3, 6, 3, 2)))
        rollout = roll_out(policy, plant, starts, previews)
        return policy, model, tracking_cost(toy_spec, length_scale=1.0, change_weight=0.05), rollout


def leaves(policy):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(policy)])


HALF_RANGE = np.array([1.0, 1.5])  # of the toy's commands
ONCE = Settings().with_changes(
    {
        "policy_step.steps": 1,
        "policy_step.discount": 0.9,
        "policy_step.eta": 0.3,
        "policy_step.alpha": 0.02,
        "policy_step.epsilon": 0.1,
        "policy_step.cg_tolerance": 1e-4,
    }
)
SEVERAL = Settings().with_changes({"policy_step.steps": 5, "policy_step.discount": 1.0})


def test_one_step_is_the_gradient_and_the_step(float64, toy):
    policy, model, cost, rollout = toy
    new, report = improve_policy(policy, model, cost, rollout, None, 0.1, ONCE)

    @eqx.filter_jit
    def by_hand():
        gradient = closed_loop_gradient(policy, model, cost, rollout, 0.9)
        return preconditioned_step(
            policy,
            gradient,
            rollout,
            eta=0.3,
            alpha=0.02,
            epsilon=0.1,
            iterations=30,
            tolerance=1e-4,
            command_scale=jnp.asarray(HALF_RANGE),
        )

    expected, step = by_hand()
    assert np.linalg.norm(leaves(new) - leaves(policy)) > 1e-3
    np.testing.assert_allclose(leaves(new), leaves(expected), rtol=1e-10)
    np.testing.assert_allclose(report.step.gradient_norm, step.gradient_norm, rtol=1e-10)
    np.testing.assert_allclose(report.cost, cost_of(cost, rollout), rtol=1e-12)


JUDGED = ONCE.with_changes({"policy_step.judged": 1})
WIDE = 10.0


def test_a_judged_step_that_is_kept_is_the_papers_step(float64, toy):
    policy, model, cost, rollout = toy
    exact, report = improve_policy(policy, model, cost, rollout, None, WIDE, ONCE)
    judged, judgement = improve_policy(policy, model, cost, rollout, None, WIDE, JUDGED)
    assert int(judgement.steps_taken) == int(report.steps_taken) == 1
    np.testing.assert_allclose(leaves(judged), leaves(exact), rtol=1e-12)
    assert float(judgement.predicted_cost) < float(judgement.cost)
    assert np.isnan(report.predicted_cost)


def predicted_cost(policy, model, cost, rollout) -> float:
    """Of the corrected model, by hand."""
    errors = model_errors_of(model, rollout)
    return float(cost_of(cost, roll_out(policy, model, rollout.states[:, 0], rollout.previews, errors)))


def test_a_judged_step_that_would_raise_the_predicted_cost_is_refused(float64, toy):
    """With η a thousand times as large the step overshoots: the paper takes it, `judged` does not."""
    policy, model, cost, rollout = toy
    before = predicted_cost(policy, model, cost, rollout)
    bold = {"policy_step.eta": 300.0}
    exact, _ = improve_policy(policy, model, cost, rollout, None, WIDE, ONCE.with_changes(bold))
    assert predicted_cost(exact, model, cost, rollout) > before
    refused, report = improve_policy(policy, model, cost, rollout, None, WIDE, JUDGED.with_changes(bold))
    np.testing.assert_array_equal(leaves(refused), leaves(policy))
    assert (int(report.steps_taken), bool(report.step.accepted)) == (0, True)
    assert float(report.predicted_cost) == pytest.approx(before)
    # Shortened often enough it is kept, and the prediction is the cost of what was kept.
    more = JUDGED.with_changes({**bold, "policy_step.retries": 8})
    shortened, report = improve_policy(policy, model, cost, rollout, None, WIDE, more)
    assert int(report.steps_taken) == 1
    assert predicted_cost(shortened, model, cost, rollout) == pytest.approx(float(report.predicted_cost))
    assert float(report.predicted_cost) < before
    way, whole = leaves(shortened) - leaves(policy), leaves(exact) - leaves(policy)
    times = np.log(np.linalg.norm(way) / np.linalg.norm(whole)) / np.log(more.policy_step.backtrack)
    assert times == pytest.approx(round(times), abs=1e-6)
    np.testing.assert_allclose(way, more.policy_step.backtrack ** round(times) * whole, rtol=1e-6, atol=1e-12)


def test_a_judged_step_that_moves_commands_too_far_is_refused(float64, toy):
    policy, model, cost, rollout = toy
    _, report = improve_policy(policy, model, cost, rollout, None, WIDE, JUDGED)
    radius = 0.5 * float(report.deviation)
    new, report = improve_policy(policy, model, cost, rollout, None, radius, JUDGED)
    np.testing.assert_array_equal(leaves(new), leaves(policy))
    new, report = improve_policy(
        policy, model, cost, rollout, None, radius, JUDGED.with_changes({"policy_step.retries": 3})
    )
    assert int(report.steps_taken) == 1
    assert 0 < float(report.deviation) <= radius


def test_a_step_much_longer_than_usual_is_shortened(float64, toy):
    policy, model, cost, rollout = toy
    whole, _ = improve_policy(policy, model, cost, rollout, None, WIDE, JUDGED)
    length = float(np.linalg.norm(leaves(whole) - leaves(policy)))
    limited = JUDGED.with_changes({"policy_step.length_factor": 3.0})
    for usual, share in ((length / 12, 0.25), (length / 2, 1.0), (np.nan, 1.0)):
        new, report = improve_policy(policy, model, cost, rollout, None, WIDE, limited, usual)
        np.testing.assert_allclose(leaves(new) - leaves(policy), share * (leaves(whole) - leaves(policy)), rtol=1e-9)
        assert int(report.steps_taken) == 1


def test_the_corrected_model_reproduces_the_measured_trajectories(float64, toy):
    """However wrong the model, with its errors added back it is exact at the policy that made the data, to rounding."""
    policy, model, _, rollout = toy
    errors = model_errors_of(model, rollout)
    assert np.max(np.abs(errors)) > 0.05
    again = roll_out(policy, model, rollout.states[:, 0], rollout.previews, errors)
    np.testing.assert_allclose(again.states, rollout.states, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(again.commands, rollout.commands, rtol=1e-10, atol=1e-12)
    without = roll_out(policy, model, rollout.states[:, 0], rollout.previews)
    assert np.max(np.abs(without.states - rollout.states)) > 0.05


def test_invalid_steps_have_no_model_error(float64, toy):
    _, model, _, rollout = toy
    valid = np.array(rollout.valid)
    valid[1, 2:] = False
    errors = np.asarray(model_errors_of(model, eqx.tree_at(lambda r: r.valid, rollout, jnp.asarray(valid))))
    np.testing.assert_array_equal(errors[1, 2:], 0.0)
    assert np.all(np.any(errors[1, :2] != 0, axis=-1))


def test_several_steps_begin_at_the_measured_trajectories(float64, toy):
    """With no room to move, the predicted cost is the measured one and the policy stays as it is."""
    policy, model, cost, rollout = toy
    new, report = improve_policy(policy, model, cost, rollout, None, 1e-9, SEVERAL)
    np.testing.assert_allclose(report.predicted_cost, report.cost, rtol=1e-9)
    np.testing.assert_allclose(report.cost, cost_of(cost, rollout), rtol=1e-12)
    assert report.deviation <= 1e-9
    np.testing.assert_allclose(leaves(new), leaves(policy), atol=1e-8)


def test_a_trajectory_without_a_sound_start_does_not_count_on_the_model(float64, toy):
    """What stands in the place of its start must not matter; on measured trajectories its later steps count."""
    policy, model, cost, rollout = toy
    unsound = eqx.tree_at(lambda r: r.valid, rollout, rollout.valid.at[1, 0].set(False))
    zeroed = eqx.tree_at(lambda r: r.states, unsound, unsound.states.at[1, 0].set(0.0))
    absent = eqx.tree_at(lambda r: r.valid, rollout, rollout.valid.at[1].set(False))
    found = [improve_policy(policy, model, cost, data, None, 10.0, SEVERAL) for data in (unsound, zeroed, absent)]
    for new, report in found[:2]:
        np.testing.assert_allclose(leaves(new), leaves(found[2][0]), rtol=1e-9)
        np.testing.assert_allclose(report.predicted_cost, found[2][1].predicted_cost, rtol=1e-9)
        np.testing.assert_allclose(report.deviation, found[2][1].deviation, rtol=1e-9)
    assert float(found[0][1].cost) != float(found[2][1].cost)


@pytest.mark.parametrize("radius", [0.02, 10.0])
def test_the_report_of_several_steps_matches_an_independent_rollout(float64, toy, radius):
    """Predicted cost and deviation are what an independent rollout of the new policy says, and inside the radius."""
    policy, model, cost, rollout = toy
    new, report = improve_policy(policy, model, cost, rollout, None, radius, SEVERAL)
    errors = model_errors_of(model, rollout)
    after = roll_out(new, model, rollout.states[:, 0], rollout.previews, errors)
    assert 1 <= int(report.steps_taken) <= 5
    assert report.step.accepted
    np.testing.assert_allclose(report.predicted_cost, cost_of(cost, after), rtol=1e-9)
    change = (np.asarray(after.commands) - np.asarray(rollout.commands)) / HALF_RANGE
    deviation = np.sqrt(np.mean(change**2))
    np.testing.assert_allclose(report.deviation, deviation, rtol=1e-9)
    assert 0 < deviation <= radius
    assert report.predicted_cost < report.cost


def test_steps_grow_while_they_are_kept_and_no_further_than_predictions_have_come_true(float64, toy):
    policy, model, cost, rollout = toy
    growing = SEVERAL.with_changes(
        {"policy_step.pace_growth": 1.5, "trust_region.radius": 0.1, "policy_step.eta": 1e-3}
    )
    constant = growing.with_changes({"policy_step.pace_growth": 1.0})
    lengths = {}
    for name, settings, radius in (("constant", constant, 0.4), ("wide", growing, 0.4), ("narrow", growing, 0.1)):
        _, report = improve_policy(policy, model, cost, rollout, None, radius, settings)
        assert report.step.accepted
        assert int(report.steps_taken) == SEVERAL.policy_step.steps
        lengths[name] = float(report.step.step_norm)
    assert lengths["narrow"] == pytest.approx(lengths["constant"], rel=1e-12), "a first radius allows no growth"
    factor = min(1.5 ** (SEVERAL.policy_step.steps - 1), 4.0)
    assert lengths["wide"] == pytest.approx(factor * lengths["constant"], rel=0.1)


def test_several_steps_begin_at_the_measured_trajectories_also_where_a_gate_was_active(float64, toy, toy_spec):
    """The applied command is the value: with no room to move, the prediction is what happened, gate included."""
    policy, model, cost, rollout = toy
    free = np.array(rollout.free)
    free[0, 2, 0] = free[1, 1, 1] = False
    plant = toy_dynamics(toy_spec, 1)
    act, move = jax.jit(jax.vmap(policy)), jax.jit(jax.vmap(plant))
    states, commands = [np.asarray(rollout.states[:, 0])], []
    for k in range(free.shape[1]):
        command = np.array(act(jnp.asarray(states[-1]), rollout.previews[:, k]))
        command[~free[:, k]] = 0.05  # what the gate allowed
        commands.append(command)
        states.append(np.asarray(move(jnp.asarray(states[-1]), jnp.asarray(command))))
    gated = Rollout(
        jnp.asarray(np.stack(states, axis=1)),
        jnp.asarray(np.stack(commands, axis=1)),
        rollout.previews,
        jnp.asarray(free),
        rollout.valid,
    )
    _, report = improve_policy(policy, model, cost, gated, None, 1e-9, SEVERAL)
    np.testing.assert_allclose(report.predicted_cost, cost_of(cost, gated), rtol=1e-9)


def test_imagined_trajectories_count_like_measured_ones(float64, toy):
    """Imagined beside measured, the predicted cost is the mean over both; imagined ones have no model errors."""
    policy, model, cost, rollout = toy
    starts, previews = rollout.states[:2, 0] * 0.5, rollout.previews[1:] * 0.5
    new, report = improve_policy(policy, model, cost, rollout, ImaginedStarts(starts, previews), 10.0, SEVERAL)
    errors = model_errors_of(model, rollout)
    measured = roll_out(new, model, rollout.states[:, 0], rollout.previews, errors)
    fresh = roll_out(new, model, starts, previews)
    expected = (3 * float(cost_of(cost, measured)) + 2 * float(cost_of(cost, fresh))) / 5
    np.testing.assert_allclose(report.predicted_cost, expected, rtol=1e-9)
    np.testing.assert_allclose(report.cost, cost_of(cost, rollout), rtol=1e-12)


@pytest.mark.parametrize("settings", [ONCE, SEVERAL], ids=["one step", "several"])
def test_a_model_that_is_not_finite_changes_nothing(float64, toy, settings):
    policy, model, cost, rollout = toy
    broken = eqx.tree_at(lambda d: d.layers[0][1], model, jnp.asarray(np.full(5, np.nan)))
    new, report = improve_policy(policy, broken, cost, rollout, None, 10.0, settings)
    assert not report.step.accepted
    np.testing.assert_array_equal(leaves(new), leaves(policy))


def test_improving_the_policy_compiles_once(scalar_task, compilations):
    """Other policies, data and radii of the same shapes run the same program."""
    system = augmented_system(ScalarPlant(), 1)
    model = true_model(system, scalar_task.spec)
    cases = []
    for seed in range(3):
        policy = random_policy(scalar_task.spec, key=jax.random.key(seed))
        cases.append((policy, measured_rollout(policy, model, scalar_task, seed=seed)[0], 0.1 * (seed + 1)))
    improve_policy(cases[0][0], model, scalar_task.cost, cases[0][1], None, cases[0][2], SETTINGS)
    with compilations() as compiled:
        for policy, rollout, radius in cases[1:]:
            improve_policy(policy, model, scalar_task.cost, rollout, None, radius, SETTINGS)
    assert compiled.count == 0
