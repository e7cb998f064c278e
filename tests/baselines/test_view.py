"""The robot that peers learn on is the robot that we learn on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand import models
from firsthand.evaluation import evaluate, tracking_metrics
from firsthand.models import Dynamics, Observer, Policy
from firsthand.plants.sensors import Sensors, sense
from firsthand.robots.simulated import SimulatedRobot
from firsthand_lab.baselines import view as views
from firsthand_lab.baselines.observed import goes_on, read_observation
from firsthand_lab.baselines.ours import PolicyController, RobotController
from firsthand_lab.baselines.pid import follow_episode
from firsthand_lab.baselines.setup import plant_and_task
from firsthand_lab.baselines.view import RobotView, Stepper
from firsthand_onboard.features import next_state, observation


@pytest.fixture(scope="module")
def setup():
    return plant_and_task("excavator", tiny=True)


def test_a_policy_does_step_by_step_what_it_does_in_one_compiled_episode(setup):
    plant, task = setup
    policy = Policy.random(task.spec, key=jax.random.key(3), last_gain=0.5)
    robot, view = SimulatedRobot(plant, task, seed=0), RobotView(plant, task, seed=0)
    rng = np.random.Generator(np.random.Philox(key=[0, 0]))
    record = robot.run_episode(policy, task.sample_goals(rng, robot.measured(), task.trajectories))
    act, rewards = PolicyController(policy), []
    while view.episode < 1:
        seen = view.begin()
        while not view.over:
            seen, reward = view.step(act(seen[None], np.asarray([False]))[0])
            rewards.append(reward)
    assert view.errors[0] == pytest.approx(tracking_metrics(task.spec, (record,)).mean_error, rel=1e-3)
    assert view.steps == task.trajectories * task.steps == len(rewards)
    # The reward is our cost: here computed again from the record, without the view.
    costs = []
    for i in range(task.trajectories):
        state = record.starts[i]
        for k in range(task.steps):
            given = (state, record.commands[i, k], record.references[i, k])
            costs.append(float(task.cost(*map(jnp.asarray, given))))
            state = np.concatenate(
                [
                    record.measured[i, k + 1],
                    state[: task.spec.layout.command_start - task.spec.layout.num_measured],
                    record.commands[i, k],
                    state[task.spec.layout.command_start : -task.spec.layout.num_commands],
                ]
            )
    np.testing.assert_allclose(rewards, -views.REWARD * np.asarray(costs), rtol=2e-3, atol=1e-4)


def test_the_test_of_a_controller_gives_what_evaluation_gives(setup):
    plant, task = setup
    policy = Policy.random(task.spec, key=jax.random.key(4), last_gain=0.5)
    tested = views.test(Stepper(plant, task), PolicyController(policy))
    expected = evaluate(SimulatedRobot(plant, task), policy).overall
    assert tested.shapes.mean_error == pytest.approx(expected.mean_error, rel=1e-2)
    assert [r.commands.shape[1] for r in tested.records] == [
        len(r.points) for r in task.evaluation(task.evaluation_speed)
    ]


def test_errors_are_those_of_the_truth_not_of_noisy_sensors(setup):
    plant, task = setup
    seen = sense(plant, Sensors(noise=0.2).for_entries(task.spec.layout.measured))
    records = views.on_shapes(Stepper(seen, task), lambda seen, first: np.zeros((len(seen), 4)), 0.5)
    for record in records:
        assert record.truth is not None
        assert np.abs(record.truth - record.measured).std() > 0.1  # what the sensors make of it stands beside
        np.testing.assert_allclose(record.truth[0, 0, :4], record.truth[0, -1, :4], atol=1e-3)  # it stands still


def test_actions_outside_the_range_are_what_the_range_allows(setup):
    plant, task = setup
    one, other = RobotView(plant, task, seed=1), RobotView(plant, task, seed=1)
    one.begin()
    other.begin()
    np.testing.assert_array_equal(one.step(np.full(4, 9.0))[0], other.step(np.ones(4))[0])


def test_a_view_that_was_stored_goes_on_the_same(setup):
    plant, task = setup
    one, other = RobotView(plant, task, seed=2), RobotView(plant, task, seed=2)
    rng = np.random.default_rng(0)

    def trajectory(view, actions):
        view.begin()
        return [view.step(action)[0] for action in actions]

    first, second = rng.uniform(-1, 1, (2, task.steps, 4))
    trajectory(one, first)
    other.restore(one.snapshot())
    np.testing.assert_array_equal(trajectory(one, second), trajectory(other, second))
    assert one.errors == other.errors


def test_what_a_policy_sees_can_be_read_back(setup):
    _, task = setup
    spec, rng = task.spec, np.random.default_rng(0)
    state = rng.normal(0.0, 0.3, spec.layout.size)
    points = rng.normal(0.0, 1.0, (1 + len(spec.preview), spec.num_outputs))
    found, there = read_observation(spec, np.asarray(observation(spec, state, points)))
    np.testing.assert_allclose(found, state, atol=1e-9)
    np.testing.assert_allclose(there, points, atol=1e-9)
    sent, measured = rng.uniform(-1, 1, 4), rng.normal(0.0, 0.3, 8)
    after = np.asarray(next_state(spec.layout, state, sent, measured))
    assert goes_on(spec, state, sent, after)
    assert not goes_on(spec, state, sent + 0.1, after)
    assert not goes_on(spec, state + 0.1, sent, after)


def test_our_policy_is_tested_behind_its_observer_as_it_is_trained(setup):
    plant, task = setup
    policy = Policy.random(task.spec, key=jax.random.key(3), last_gain=0.5)
    observer = Observer.register(Dynamics.random(task.spec, (8,), key=jax.random.key(4)))
    observer = eqx.tree_at(lambda o: o.parameters.gain, observer, 0.6 * observer.parameters.gain)
    controller = models.Controller(policy, observer)
    robot, view = SimulatedRobot(plant, task, seed=0), RobotView(plant, task, seed=0)
    rng = np.random.Generator(np.random.Philox(key=[0, 0]))
    record = robot.run_episode(controller, task.sample_goals(rng, robot.measured(), task.trajectories))
    follow_episode(view, RobotController(controller))
    # The next reference begins where the observer believes the robot to be, so that only the first one is the same.
    np.testing.assert_allclose(view.records[0].commands, record.commands[:1], atol=2e-3)
    register = robot_commands(plant, task, models.Controller(policy))
    assert np.abs(register - record.commands)[0].max() > 0.01  # the observer does something


def robot_commands(plant, task, controller) -> np.ndarray:
    robot = SimulatedRobot(plant, task, seed=0)
    rng = np.random.Generator(np.random.Philox(key=[0, 0]))
    return robot.run_episode(controller, task.sample_goals(rng, robot.measured(), task.trajectories)).commands
