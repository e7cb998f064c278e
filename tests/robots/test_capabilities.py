"""What a robot declares that it can do: every class with the same names, and defaults for one that cannot."""

import re
from pathlib import Path

import numpy as np
import pytest

import firsthand
from firsthand.errors import UserError
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.robots import AbstractRobot, SimulatedRobot
from firsthand.robots.environment import GymnasiumRobot
from firsthand.robots.onboard import ExecutorRobot
from firsthand.robots.registry import make_robot, make_task
from firsthand.robots.remote import RemoteRobot
from firsthand.robots.simulated_machine import LockStepMachine, make_plant


class Plain(AbstractRobot):
    """Only what every robot must have."""

    def __init__(self) -> None:
        self.task = make_task("excavator")

    def measured(self):
        return np.zeros(8, np.float32)

    def run_episode(self, policy, goals, excitation=None):
        raise NotImplementedError

    def play(self, commands):
        raise NotImplementedError

    def follow(self, policy, references):
        raise NotImplementedError

    def snapshot(self):
        return ()

    def restore(self, snapshot) -> None:
        pass


def test_a_robot_that_declares_nothing_can_do_nothing_special() -> None:
    robot = Plain()
    flags = (robot.hardware, robot.can_reset, robot.has_authority, robot.pauses_between_trajectories)
    assert flags == (False,) * 4
    assert (robot.authority, robot.plant, robot.notes(), robot.stop_at_once()) == (1.0, None, [], "")
    robot.finish_trajectory()
    with pytest.raises(UserError, match="300 kg, but excavator cannot carry one"):
        robot.set_payload(300.0)


def test_what_each_kind_declares() -> None:
    simulated = make_robot("excavator", make_task("excavator"))
    assert simulated.can_reset
    assert simulated.carries_payload
    assert simulated.plant is not None
    assert not simulated.hardware
    executor = ExecutorRobot(LockStepMachine(make_plant("excavator")), make_task("excavator"))
    assert executor.can_reset
    assert executor.has_authority
    assert not executor.hardware
    assert RemoteRobot.hardware
    assert RemoteRobot.has_authority
    assert all(kind.pauses_between_trajectories for kind in (RemoteRobot, ExecutorRobot, GymnasiumRobot))


def test_a_payload_changes_the_plant_as_if_the_robot_had_been_made_with_it() -> None:
    task = make_task("soft-arm")
    robot, made = make_robot("soft-arm", task), make_robot("soft-arm", task, payload_kg=0.05)
    assert isinstance(robot, SimulatedRobot)
    robot.set_payload(0.05)
    assert str(robot.plant) == str(made.plant)
    with pytest.raises(UserError, match="carries at most"):
        robot.set_payload(100.0)
    with pytest.raises(UserError, match="cannot carry one"):
        SimulatedRobot(ExcavatorFlow(), make_task("excavator")).set_payload(1.0)


def test_nobody_asks_a_robot_for_its_class() -> None:
    """No isinstance, hasattr or getattr of a robot anywhere; the door alone asks what kind of thing it was given."""
    asks = re.compile(r"(isinstance|hasattr|getattr)\((self\.|trainer\.|self\._trainer\.)?(robot|made), (?!str)")
    found = [
        f"{path}:{number}"
        for path in Path(firsthand.__file__).parent.rglob("*.py")
        if path.name != "_api.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if asks.search(line)
    ]
    assert not found
