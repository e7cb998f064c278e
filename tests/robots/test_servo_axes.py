"""The stand-in of starting files, worked by hand; and the arm of examples/ learns something with it."""

import dataclasses

import numpy as np
import pytest

import firsthand as fh
from documented import ROOT
from firsthand.robots.registry import find_robot
from firsthand.robots.servo_axes import ServoAxes, place_axes


def test_an_axis_follows_its_command_with_a_lag_and_ends_at_its_stop():
    axes = ServoAxes(low=[-1.0, 0.0], high=[1.0, 0.2], speed=[2.0, 1.0], period_s=0.1, lag_s=0.1)
    observed, _ = axes.reset()
    np.testing.assert_allclose(observed, [0.0, 0.1, 0.0, 0.0])
    speed = 2.0 * (1 - np.exp(-1.0))
    observed, *_ = axes.step(np.asarray([2.0, 5.0]))  # the second command is beyond its range
    np.testing.assert_allclose(observed, [0.1 * speed / 2, 0.1 + 0.1 * speed / 4, speed, speed / 2])
    for _ in range(10):
        observed, *_ = axes.step(np.asarray([0.0, 1.0]))
    np.testing.assert_allclose(observed[[1, 3]], [0.2, 0.0])
    np.testing.assert_allclose(place_axes(axes, np.asarray([0.5, 0.1])), [0.5, 0.1, 0.0, 0.0])


def test_commands_in_other_units_and_without_velocities():
    axes = ServoAxes(
        low=[0.0],
        high=[9.0],
        speed=3.0,
        period_s=1.0,
        lag_s=0.0,
        command_low=0.0,
        command_high=10.0,
        has_velocities=False,
    )
    axes.place([4.0])
    assert axes.step(np.asarray([5.0]))[0] == pytest.approx([4.0])
    assert axes.step(np.asarray([10.0]))[0] == pytest.approx([5.5])  # half a step at speed, as it speeds up


@pytest.mark.parametrize(("commands", "moved"), [(1, [0.1, 0.0]), (3, [0.1, 0.05])])
def test_commands_and_positions_of_other_numbers(commands, moved):
    """Positions without a command stay where they are; commands without a position do nothing."""
    axes = ServoAxes(
        low=[-1.0, -1.0],
        high=[1.0, 1.0],
        speed=[2.0, 1.0],
        period_s=0.1,
        lag_s=0.0,
        command_low=(-1.0,) * commands,
        command_high=(1.0,) * commands,
        has_velocities=False,
    )
    assert axes.action_space.shape == (commands,)
    np.testing.assert_allclose(axes.step(np.ones(commands))[0], moved)


@pytest.mark.slow
def test_the_example_arm_trains():
    source = find_robot(f"{ROOT / 'examples' / 'urdf_arm.py'}:task", approve=True).source
    assert isinstance(source, fh.GymnasiumTask)
    small = dataclasses.replace(source, hidden=(8,), steps=20, trajectories=2, preview=(2, 4))
    run = fh.train(small, episodes=2, preset="paper-exact", settings={"model.steps": 20})
    assert len(run.metrics) == 2
    assert all(np.isfinite(row["tracking_error"]) for row in run.metrics)
