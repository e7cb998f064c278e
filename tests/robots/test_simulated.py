"""The simulated robot: trajectories that chain, records that rebuild, snapshots that repeat to the bit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.models import Policy
from firsthand.plants.base import AbstractPlant
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand.robots.base import EpisodeRecord, preview_indices
from firsthand.robots.simulated import SimulatedRobot
from firsthand.training.learning import as_rollout
from firsthand_onboard.features import build_reference

STEPS, TRAJECTORIES = 10, 3
GOALS = np.array([[0.5], [-0.4], [0.2]], np.float32)


class Noisy(AbstractPlant):
    """The delayed mass with a noisy force and noisy sensors: what a seed decides becomes visible."""

    mass: DelayedDoubleIntegrator
    noise: float = eqx.field(static=True, default=0.01)

    @property
    def period_s(self) -> float:
        return self.mass.period_s

    @property
    def num_commands(self) -> int:
        return 1

    @property
    def num_measured(self) -> int:
        return 2

    def reset(self, position):
        return self.mass.reset(position)

    def step(self, state, command, *, key):
        return self.mass.step(state, command + self.noise * jax.random.normal(key, (1,)), key=key)

    def measure(self, state, *, key):
        return self.mass.measure(state, key=key) + self.noise * jax.random.normal(key, (2,))


PLANT = Noisy(DelayedDoubleIntegrator(gain=2.0, delay=2))


@pytest.fixture(scope="module")
def task(make_probe_task):
    return make_probe_task(
        measured=2,
        command_memory=3,
        steps=STEPS,
        preview=(1, 2, 4),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
        trajectories=TRAJECTORIES,
    )


@pytest.fixture(scope="module")
def policies(task):
    make = eqx.filter_jit(Policy.random)
    return [make(task.spec, key=jax.random.key(seed)) for seed in range(2)]


@pytest.fixture(scope="module")
def episodes(task, policies):
    """Two episodes of one robot, under two policies."""
    robot = SimulatedRobot(PLANT, task, seed=3)
    return [robot.run_episode(policy, GOALS) for policy in policies]


def assert_same_record(found: EpisodeRecord, expected: EpisodeRecord):
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)


def test_a_robot_starts_at_home_at_rest(task):
    robot = SimulatedRobot(DelayedDoubleIntegrator(), task)
    np.testing.assert_array_equal(robot.measured(), [0.0, 0.0])
    assert robot.measured().dtype == np.float32


def test_a_record_has_the_shapes_of_the_task(episodes):
    record = episodes[0]
    assert record.starts.shape == (TRAJECTORIES, 2 + 3)
    assert record.measured.shape == (TRAJECTORIES, STEPS + 1, 2)
    assert record.commands.shape == (TRAJECTORIES, STEPS, 1)
    assert record.references.shape == (TRAJECTORIES, STEPS + 4, 1)
    assert record.free.all()
    assert record.valid.all()
    assert all(array.dtype in (np.float32, bool) for array in record.arrays().values())


def test_each_trajectory_starts_where_the_last_one_ended(task, episodes):
    record = episodes[0]
    rollout = as_rollout(task.spec, record)
    states = np.asarray(rollout.states)
    np.testing.assert_array_equal(states[1:, 0], states[:-1, -1])  # the command memory included
    np.testing.assert_array_equal(record.measured[1:, 0], record.measured[:-1, -1])
    # And so does the next episode.
    np.testing.assert_array_equal(np.asarray(as_rollout(task.spec, episodes[1]).states)[0, 0], states[-1, -1])


def test_a_rollout_is_rebuilt_from_what_was_measured_and_commanded(task, episodes):
    record = episodes[0]
    rollout = as_rollout(task.spec, record)
    states, u, y = np.asarray(rollout.states), record.commands, record.measured
    assert states.shape == (TRAJECTORIES, STEPS + 1, 5)
    np.testing.assert_array_equal(states[:, :, :2], y)
    np.testing.assert_array_equal(states[:, 0], record.starts)
    for k in range(3, STEPS + 1):
        np.testing.assert_array_equal(states[:, k, 2:], np.stack([u[:, k - 1, 0], u[:, k - 2, 0], u[:, k - 3, 0]], 1))
    np.testing.assert_array_equal(rollout.commands, u)
    np.testing.assert_array_equal(rollout.valid, True)


def test_the_previews_are_what_the_policy_saw(task, episodes, policies):
    """The commands of the record are the policy's, at the rebuilt states and previews."""
    rollout = as_rollout(task.spec, episodes[0])
    np.testing.assert_array_equal(preview_indices(task.spec, 3), [[0, 1, 2, 4], [1, 2, 3, 5], [2, 3, 4, 6]])
    np.testing.assert_array_equal(rollout.previews[:, 3, :, 0], episodes[0].references[:, [3, 4, 5, 7], 0])
    commands = jax.jit(jax.vmap(jax.vmap(policies[0])))(rollout.states[:, :-1], rollout.previews)
    np.testing.assert_allclose(commands, episodes[0].commands, atol=1e-6)
    assert np.std(episodes[0].commands) > 0.01


def test_references_lead_from_where_the_robot_then_is_to_the_goal(task, episodes):
    record = episodes[0]
    for i in range(TRAJECTORIES):
        expected = build_reference(task.spec, record.measured[i, 0], GOALS[i])
        np.testing.assert_allclose(record.references[i], expected, atol=1e-6)


def test_the_plant_is_the_one_that_was_given(task, policies):
    """Without noise, the record is what the plant does with the recorded commands, step by step."""
    plant = DelayedDoubleIntegrator(gain=2.0, delay=2)
    record = SimulatedRobot(plant, task).run_episode(policies[0], GOALS)
    position = velocity = 0.0
    line = [0.0, 0.0]
    for i in range(TRAJECTORIES):
        for k in range(STEPS):
            np.testing.assert_allclose(record.measured[i, k], [position, velocity], atol=1e-5)
            line = [float(record.commands[i, k, 0]), *line]
            force = 2.0 * line.pop()
            position, velocity = position + 0.1 * velocity + 0.005 * force, velocity + 0.1 * force


def test_nothing_recompiles_between_episodes(task, policies, episodes, compilations):
    robot = SimulatedRobot(PLANT, task, seed=8)
    robot.run_episode(policies[0], GOALS)
    with compilations() as compiled:
        for policy in policies:
            robot.run_episode(policy, 0.5 * GOALS)
            robot.measured()
    assert compiled.count == 0


def test_a_snapshot_reproduces_the_bits(task, policies):
    robot = SimulatedRobot(PLANT, task, seed=5)
    robot.run_episode(policies[0], GOALS)
    snapshot = robot.snapshot()
    expected = [robot.run_episode(policy, GOALS) for policy in policies]
    robot.restore(snapshot)
    for policy, record in zip(policies, expected, strict=True):
        assert_same_record(robot.run_episode(policy, GOALS), record)
    # Also in another process's robot, which has done other things before.
    other = SimulatedRobot(PLANT, task, seed=77)
    other.run_episode(policies[1], -GOALS)
    other.restore(snapshot)
    assert_same_record(other.run_episode(policies[0], GOALS), expected[0])


def test_seeds_differ_and_repeat(task, policies, episodes):
    again = SimulatedRobot(PLANT, task, seed=3)
    assert_same_record(again.run_episode(policies[0], GOALS), episodes[0])
    other = SimulatedRobot(PLANT, task, seed=4).run_episode(policies[0], GOALS)
    assert np.any(other.measured != episodes[0].measured)


def test_following_leaves_the_robot_as_it_was(task, policies):
    robot, undisturbed = (SimulatedRobot(PLANT, task, seed=6) for _ in range(2))
    references = task.evaluation(0.3)
    for policy in policies:
        before = jax.tree.map(np.asarray, jax.tree.leaves(robot.snapshot()[0]))
        robot.follow(policy, references)
        for a, b in zip(jax.tree.leaves(robot.snapshot()[0]), before, strict=True):
            np.testing.assert_array_equal(a, b)
        assert_same_record(robot.run_episode(policy, GOALS), undisturbed.run_episode(policy, GOALS))


def test_following_starts_at_rest_and_cuts_the_padding_off(task, policies):
    robot = SimulatedRobot(DelayedDoubleIntegrator(gain=2.0), task)
    robot.run_episode(policies[0], GOALS)
    references = task.evaluation(0.3)
    records = robot.follow(policies[0], references)
    assert len(records) == len(references)
    for record, reference in zip(records, references, strict=True):
        steps = len(reference.points)
        assert record.commands.shape == (1, steps, 1)
        assert record.measured.shape == (1, steps + 1, 2)
        np.testing.assert_array_equal(record.starts, np.zeros((1, 5)))
        np.testing.assert_allclose(record.references[0, :steps], reference.points, rtol=1e-6)
        np.testing.assert_array_equal(record.references[0, steps:], np.tile(record.references[0, steps - 1], (4, 1)))
        rollout = as_rollout(task.spec, record)
        commands = jax.jit(jax.vmap(policies[0]))(rollout.states[0, :-1], rollout.previews[0])
        np.testing.assert_allclose(commands, record.commands[0], atol=1e-6)


def test_following_is_the_same_every_time(task, policies):
    robot = SimulatedRobot(PLANT, task, seed=6)
    first = robot.follow(policies[0], task.evaluation(0.3))
    robot.run_episode(policies[1], GOALS)
    for again, record in zip(robot.follow(policies[0], task.evaluation(0.3)), first, strict=True):
        assert_same_record(again, record)


def test_an_excitation_is_added_inside_the_limits(task, policies):
    extra = np.full((TRAJECTORIES, STEPS, 1), 0.3, np.float32)
    extra[1] = 5.0
    record = SimulatedRobot(PLANT, task, seed=3).run_episode(policies[0], GOALS, extra)
    rollout = as_rollout(task.spec, record)
    own = jax.jit(jax.vmap(jax.vmap(policies[0])))(rollout.states[:, :-1], rollout.previews)
    np.testing.assert_allclose(record.commands, np.clip(own + extra, -1.0, 1.0), atol=1e-6)
    np.testing.assert_array_equal(record.commands[1], 1.0)


def test_a_record_survives_as_named_arrays(episodes):
    arrays = episodes[0].arrays()
    assert_same_record(EpisodeRecord.from_arrays({**arrays, "other": np.zeros(3)}), episodes[0])


def test_a_sensor_that_drops_out_makes_its_steps_invalid(task, episodes):
    """Steps into and out of the bad measurement do not count; everything that is left is finite."""
    arrays = {name: array.copy() for name, array in episodes[0].arrays().items()}
    arrays["measured"][1, 4, 0] = np.nan
    arrays["commands"][2, 6, 0] = np.inf
    rollout = as_rollout(task.spec, EpisodeRecord.from_arrays(arrays))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(rollout))
    valid = np.asarray(rollout.valid)
    assert valid[0].all()
    np.testing.assert_array_equal(np.flatnonzero(~valid[1]), [3, 4])
    # A command that was not finite stays in the memory of three commands.
    np.testing.assert_array_equal(np.flatnonzero(~valid[2]), [6, 7, 8, 9])


def test_a_cut_trajectory_stays_cut(task, episodes):
    arrays = {name: array.copy() for name, array in episodes[0].arrays().items()}
    arrays["valid"][0, 7:] = False
    arrays["free"][2, 1] = False
    rollout = as_rollout(task.spec, EpisodeRecord.from_arrays(arrays))
    np.testing.assert_array_equal(rollout.valid, arrays["valid"])
    np.testing.assert_array_equal(rollout.free, arrays["free"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_goals_of_any_width_do_the_same(task, policies, episodes, dtype):
    record = SimulatedRobot(PLANT, task, seed=3).run_episode(policies[0], GOALS.astype(dtype))
    assert_same_record(record, episodes[0])


def test_the_array_fields_of_a_plant_can_change_without_recompiling(task, policies, compilations):
    records = []
    robots = [SimulatedRobot(DelayedDoubleIntegrator(gain=jnp.asarray(gain)), task) for gain in (1.0, 2.0)]
    records.append(robots[0].run_episode(policies[0], GOALS))
    with compilations() as compiled:
        records.append(robots[1].run_episode(policies[0], GOALS))
    assert compiled.count == 0
    assert np.any(records[0].measured != records[1].measured)
