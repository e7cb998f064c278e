"""A policy with an observer on every kind of robot: the estimates are those that the record's measurements give."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.models import Controller, Dynamics, Observer, Policy
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand.robots.base import EpisodeRecord, preview_indices
from firsthand.robots.onboard import ExecutorRobot
from firsthand.robots.simulated import SimulatedRobot
from firsthand.robots.simulated_machine import LockStepMachine, make_plant
from firsthand.tasks import excavator_task
from firsthand_onboard import NumpyObserver
from firsthand_onboard.features import next_state
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.observer import ObserverSettings, begin, num_blocks, observe

GOALS = np.array([[0.5], [-0.4], [0.2]], np.float32)


@pytest.fixture(scope="module")
def task(make_probe_task):
    return make_probe_task(
        measured=2, command_memory=1, steps=12, preview=(1,), command_limit=1.0, length_scale=0.3, change_weight=0.1
    )


@pytest.fixture(scope="module")
def controller(task) -> Controller:
    """A lively policy, and an observer that is not the register."""
    dynamics = Dynamics.random(task.spec, (8,), key=jax.random.key(1))
    register = Observer.register(dynamics)
    parameters = register.parameters._replace(gain=0.6 * register.parameters.gain, scale=jnp.full(2, 0.05))
    observer = dataclasses.replace(register, parameters=parameters)
    return Controller(Policy.random(task.spec, key=jax.random.key(2), last_gain=1.0), observer)


def assert_estimates(controller: Controller, record: EpisodeRecord) -> None:
    """The estimates of consecutive trajectories, rebuilt from what was measured, meet the recorded starts."""
    observer, spec = controller.observer, controller.spec
    assert observer is not None
    np.testing.assert_allclose(record.starts[0, :2], record.measured[0, 0], atol=1e-6)
    step = jax.jit(lambda carry, u, y: observe(spec, observer.parameters, observer.settings, carry, u, y))
    carry = begin(spec, jnp.asarray(record.starts[0]))
    for i in range(len(record.starts)):
        np.testing.assert_allclose(carry.state, record.starts[i], atol=1e-5)
        for command, measured in zip(record.commands[i], record.measured[i, 1:], strict=True):
            carry = step(carry, jnp.asarray(command), jnp.asarray(measured))
    assert record.restarts is not None
    np.testing.assert_array_equal(record.restarts.sum(axis=0), carry.restarts)


def test_the_register_as_an_observer_changes_nothing(task, controller):
    register = Observer.register(Dynamics.random(task.spec, (8,), key=jax.random.key(1)))
    plain = SimulatedRobot(DelayedDoubleIntegrator(), task).run_episode(controller.policy, GOALS)
    same = SimulatedRobot(DelayedDoubleIntegrator(), task).run_episode(Controller(controller.policy, register), GOALS)
    for name in ("starts", "measured", "commands", "references"):
        np.testing.assert_allclose(getattr(plain, name), getattr(same, name), atol=1e-5)
    assert plain.restarts is None


def test_a_simulated_robot_with_an_observer(task, controller):
    robot = SimulatedRobot(DelayedDoubleIntegrator(), task)
    before = jax.tree.structure(robot.snapshot())
    record = robot.run_episode(controller, GOALS)
    assert_estimates(controller, record)
    np.testing.assert_array_equal(record.measured[1:, 0], record.measured[:-1, -1])
    np.testing.assert_array_equal(robot.measured(), record.measured[-1, -1])
    np.testing.assert_allclose(record.references[:, 0, 0], record.measured[:, 0, 0], atol=1e-6)  # from measurements
    assert jax.tree.structure(robot.snapshot()) == before
    followed = robot.follow(controller, task.evaluation(task.evaluation_speed))
    assert [len(record.commands[0]) for record in followed] == [7, 12]


def test_a_policy_without_an_observer_goes_on_after_one_that_had_one(task, controller):
    """As where the base takes over within a motion: it sees what is measured, not an estimate that stands still."""
    robot = SimulatedRobot(DelayedDoubleIntegrator(), task)
    robot.run_episode(controller, GOALS)
    robot.goes_on = True
    record = robot.run_episode(controller.policy, GOALS)
    previews = record.references[:, preview_indices(task.spec, task.steps)]
    for state, command, measured, preview in zip(
        record.starts, record.commands, record.measured[:, 1:], previews, strict=True
    ):
        for k in range(task.steps):
            np.testing.assert_allclose(
                controller.policy(jnp.asarray(state), jnp.asarray(preview[k])), command[k], atol=1e-5
            )
            state = next_state(task.spec.layout, state, command[k], measured[k])
    assert record.restarts is None


def test_a_policy_with_an_observer_goes_on_after_one_that_had_none(task, controller):
    robot = SimulatedRobot(DelayedDoubleIntegrator(), task)
    robot.run_episode(controller.policy, GOALS)
    robot.goes_on = True
    assert_estimates(controller, robot.run_episode(controller, GOALS))


def test_a_controller_is_stored_and_read_back(task, controller):
    found = Controller.from_arrays(task.spec, controller.arrays())
    assert eqx.tree_equal(found, controller)
    bare = Controller.from_arrays(task.spec, controller.policy.arrays())
    assert bare.observer is None
    on_robot = controller.for_robot()
    assert isinstance(on_robot.observer, NumpyObserver)
    assert on_robot.observer.settings == ObserverSettings.of(task.spec)


def test_the_executor_estimates_as_the_compiled_simulation_does():
    """The excavator with an observer: numpy step by step, and one compiled call."""
    task = excavator_task(steps=25)
    register = Observer.register(Dynamics.random(task.spec, (16, 16), key=jax.random.key(1)))
    scale = 0.5 * jnp.asarray(task.spec.scales.change_scale)
    parameters = register.parameters._replace(gain=0.6 * register.parameters.gain, scale=scale)
    observer = dataclasses.replace(register, parameters=parameters)
    controller = Controller(Policy.random(task.spec, key=jax.random.key(2), last_gain=0.3), observer)
    machine = LockStepMachine(make_plant("excavator"))
    machine.reset(np.asarray(task.home))
    compiled = SimulatedRobot(ExcavatorFlow(), task)
    goals = task.sample_goals(np.random.default_rng(0), compiled.measured(), 2)
    executor = ExecutorRobot(machine, task, GateLimits.wide(task.spec))
    expected, found = (robot.run_episode(controller, goals) for robot in (compiled, executor))
    for name in ("starts", "measured", "commands", "references", "restarts"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5)
    assert np.abs(found.starts[1, :8] - found.measured[1, 0]).max() > 1e-4  # an estimate, not the register


def test_the_plain_state_vectors_are_found_behind_the_estimates():
    """With the register as its observer, an episode has the starts that it has without; a reset begins at rest."""
    task = excavator_task(trajectories=3, steps=20, hidden=(8,))
    policy = Policy.random(task.spec, key=jax.random.key(2), last_gain=0.3)
    register = Observer.register(Dynamics.random(task.spec, (8,), key=jax.random.key(1)))
    plain, observed = (SimulatedRobot(ExcavatorFlow(), task) for _ in range(2))
    goals = task.sample_goals(np.random.default_rng(0), plain.measured(), 3)
    expected = plain.run_episode(policy, goals)
    record = observed.run_episode(Controller(policy, register), goals)
    layout = task.spec.layout
    np.testing.assert_array_equal(expected.registers(layout), expected.starts)
    np.testing.assert_allclose(record.registers(layout), expected.starts, atol=1e-4)
    lazy = dataclasses.replace(register, parameters=register.parameters._replace(gain=0.5 * register.parameters.gain))
    record = observed.run_episode(Controller(policy, lazy), goals)
    found = record.registers(layout)
    np.testing.assert_array_equal(found[:, : layout.num_measured], record.measured[:, 0])
    assert np.abs(found - record.starts).max() > 1e-3
    for i in range(2):
        np.testing.assert_array_equal(record.state_after(layout, found[i], i), found[i + 1])
    starts = record.starts.copy()
    starts[1, layout.command_start :] = 0
    rested = dataclasses.replace(record, starts=starts).registers(layout)[1]
    np.testing.assert_array_equal(rested[: layout.command_start], np.tile(record.measured[1, 0], num_blocks(task.spec)))
    valid = record.valid.copy()
    valid[0, -1] = False
    cut = dataclasses.replace(record, valid=valid).registers(layout)[1]
    np.testing.assert_array_equal(cut[: layout.command_start], rested[: layout.command_start])
