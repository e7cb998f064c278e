"""How a trainer leaves a robot: stopped where that was asked for, and given back in every case."""

import dataclasses
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dashboard.processes import ROBOT, SMALL
from firsthand.cli import parse_command
from firsthand.cli.evaluate import Evaluate
from firsthand.cli.simulator import Record
from firsthand.models import Policy
from firsthand.robots import SimulatedRobot
from firsthand.robots.base import EpisodeAbandoned
from firsthand.robots.registry import make_task
from firsthand.robots.remote import NOT_STOPPED, Interrupted, RemoteRobot
from firsthand.training import stopping
from firsthand.training.stopping import StopOnInterrupt, StopRequest
from firsthand_onboard.toy import toy_spec
from onboard_runtime.processes import random_policy, rig, wait_for

SPEC = toy_spec()
LEASE_S = 0.5
GOALS = np.tile(np.asarray([[0.8, -0.8], [-0.8, 0.8]], np.float32), (500, 1))
"""Minutes of motion."""


def toy_robot(address: str) -> RemoteRobot:
    task = dataclasses.replace(make_task("excavator"), spec=SPEC, home=(-0.5, 1.0))
    return RemoteRobot(address, task, say=lambda text: None)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A toy machine that its operator must look at whenever a trainer vanishes."""
    options = ("--speed", "4", "--lease", str(LEASE_S), "--rearm", "operator")
    with rig(tmp_path_factory.mktemp("rig"), *options, simulate=("--speed", "4")) as made:
        yield made


def state(served) -> str:
    with closing(served.client("somebody", operator=True)) as client:
        return client.ask("status").body["state"]


def test_a_robot_that_is_given_back_has_no_fault(served):
    with closing(toy_robot(served.address)) as robot:
        robot.place(np.asarray([-0.5, 1.0]))
        assert state(served) == "armed"
    time.sleep(2 * LEASE_S)
    assert state(served) == "idle"


def test_a_machine_is_stopped_before_its_trainer_leaves_at_once(served):
    robot = toy_robot(served.address)
    robot.place(np.asarray([-0.5, 1.0]))
    policy = robot._send_policy(Policy.from_arrays(SPEC, random_policy(SPEC)))
    robot._ask("job", {"name": "minutes", "kind": "visit", "policy": policy}, {"goals": GOALS})
    wait_for(served.moving, "motion")
    assert robot.stop_at_once() == "The machine stands."
    assert not served.moving()
    time.sleep(2 * LEASE_S)
    assert state(served) == "idle"
    robot.close()
    assert robot.stop_at_once() == NOT_STOPPED  # there is no link any more


def test_after_a_fault_a_stop_ends_the_waiting():
    robot, tried = toy_robot("tcp/127.0.0.1:1"), []

    def attempt() -> None:
        tried.append(True)
        raise Interrupted("the robot waits for its operator")

    robot.stop_wanted = lambda: len(tried) >= 2
    with pytest.raises(EpisodeAbandoned):
        robot._until_it_works(attempt)
    assert len(tried) == 2


class Left(Exception):
    """Instead of the end of this process."""


def leave(monkeypatch, stop_at_once) -> str:
    """The last words after Ctrl-C twice."""
    said: list[str] = []

    def left(code: int) -> None:
        raise Left

    monkeypatch.setattr("os._exit", left)
    monkeypatch.setattr(stopping, "STOP_MACHINE_S", 0.2)
    robot: Any = SimpleNamespace(stop_at_once=stop_at_once or (lambda: ""))
    stop = StopRequest()
    screen: Any = SimpleNamespace(show_stopping=lambda: None, show_last_words=said.append)
    interrupt = StopOnInterrupt(stop, robot, screen, lambda: 4, "firsthand train …")
    interrupt.handle()
    assert stop.requested
    assert said == []
    with pytest.raises(Left):
        interrupt.handle()
    return said[0]


@pytest.mark.parametrize(
    ("stop_at_once", "words"),
    [
        (lambda: "The machine stands.", "The machine stands. Stopped in the middle of episode 5"),
        (lambda: time.sleep(5), "could not be told to stop. Stopped"),
        (None, "Stopped in the middle"),
    ],
)
def test_the_second_interrupt_says_what_the_machine_does(monkeypatch, stop_at_once, words):
    said = leave(monkeypatch, stop_at_once)
    assert words in said
    assert said.endswith("Continue with: firsthand train …")


def test_commands_give_the_robot_back(tmp_path, monkeypatch):
    closed: list[bool] = []
    monkeypatch.setattr(SimulatedRobot, "close", lambda robot: closed.append(True))
    parse_command(["train", ROBOT, "--out", str(tmp_path / "run"), "--episodes", "1", *SMALL]).run()
    assert len(closed) == 1
    Evaluate(tmp_path / "run", json=True).run()
    assert len(closed) == 2
    Record(ROBOT, out=tmp_path / "log", minutes=0.05).run()
    assert len(closed) == 3
