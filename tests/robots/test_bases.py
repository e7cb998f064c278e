"""A policy on top of a base on every kind of robot: the same commands, and the memory that the record tells."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from firsthand.controllers.pi import Axis, pi_base
from firsthand.models import Controller, Dynamics, Observer, Policy
from firsthand.models.function_base import function_base
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.robots.onboard import ExecutorRobot
from firsthand.robots.registry import find_robot
from firsthand.robots.simulated import SimulatedRobot
from firsthand.robots.simulated_machine import LockStepMachine, make_plant
from firsthand.tasks import excavator_task
from firsthand_onboard.base_control import NO_LIMIT, BaseControl
from firsthand_onboard.gate_limits import GateLimits


def on_top(base, spec, authority: float = 0.3) -> Policy:
    """A policy that moves the base's commands."""
    control = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), BaseControl(base, authority, NO_LIMIT))
    policy = Policy.random(spec, key=jax.random.key(2), control=control)
    *hidden, (weight, bias) = policy.layers
    return dataclasses.replace(policy, layers=(*hidden, (weight + 0.02, bias)))


def test_the_executor_runs_a_base_as_the_compiled_simulation_does():
    """The excavator with our PI under the policy and an observer: numpy step by step, and one compiled call."""
    task = excavator_task(steps=25)
    size, speed = np.asarray([0.05, 1.0]), np.asarray([0.0, 0.6])
    axes = tuple(Axis(sign, (size, speed), (size, speed), 0.1, 0.1) for sign in (-1.0, 1.0, 1.0, 1.0))
    policy = on_top(pi_base(task.spec, axes), task.spec)
    register = Observer.register(Dynamics.random(task.spec, (16, 16), key=jax.random.key(1)))
    machine = LockStepMachine(make_plant("excavator"))
    machine.reset(np.asarray(task.home))
    compiled, executor = (
        SimulatedRobot(ExcavatorFlow(), task),
        ExecutorRobot(machine, task, GateLimits.wide(task.spec)),
    )
    goals = task.sample_goals(np.random.default_rng(0), compiled.measured(), 2)
    controller = Controller(policy, register)
    expected, found = (robot.run_episode(controller, goals) for robot in (compiled, executor))
    assert expected.memory is not None
    assert found.memory is not None
    for name in ("starts", "measured", "commands", "references", "memory"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=2e-4)
    assert np.abs(found.memory[1, 4:8]).max() > 0  # the integral goes on from the first trajectory to the second
    np.testing.assert_array_equal(found.memory[0, 4:8], 0.0)


def test_an_environment_runs_a_function_of_the_user_s():
    found = find_robot("examples/pendulum.py:task", approve=True)
    robot, spec = found.make(seed=0), found.task.spec

    def controller(measurement, reference, state=(0.0,)):
        return 0.5 * (reference - measurement[:1]), (state[0] + 1.0,)

    policy = Controller(on_top(function_base(controller, "controller", spec), spec, authority=0.0))
    record = robot.run_episode(policy, np.asarray([[np.pi + 0.1], [np.pi - 0.1]]))
    robot.close()
    steps = found.task.steps
    expected = 0.5 * (record.references[:, :steps] - record.measured[:, :steps, :1])
    np.testing.assert_allclose(record.commands, expected, atol=1e-5)
    assert record.memory is not None
    np.testing.assert_array_equal(record.memory[:, 0], [0.0, steps])  # one call per step
