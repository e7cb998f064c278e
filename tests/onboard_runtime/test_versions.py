"""Trainer and robot of different versions of the messages: both are told so in one sentence, over a real link."""

import logging
import threading
from collections.abc import Iterator

import pytest

from firsthand.errors import UserError
from firsthand.robots.remote import RemoteAddress
from firsthand_onboard.link import ClientEnd, RobotEnd
from firsthand_onboard.messages import VERSION
from firsthand_onboard.network import VersionMismatch

from .processes import free_port, wait_for


class Robot:
    """The robot's end with a loop that answers every hello; an `early` one knows nothing of other versions."""

    def __init__(self, version: int, *, early: bool = False) -> None:
        self.address = f"tcp/127.0.0.1:{free_port()}"
        self.end = RobotEnd(self.address, version=version)
        if early:
            self.end._refuse_version = lambda error: None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while not self.over.wait(0.005):
            for message in self.end.receive():
                self.end.send("reply", message, {})

    def close(self) -> None:
        self.over.set()
        self.thread.join(10)
        self.end.close()


@pytest.fixture(params=[(VERSION + 1, False), (VERSION - 1, False), (VERSION - 1, True)], ids=["new", "old", "early"])
def robot(request: pytest.FixtureRequest) -> Iterator[Robot]:
    version, early = request.param
    made = Robot(version, early=early)
    yield made
    made.close()


def test_the_trainer_is_told_which_versions_meet(robot: Robot, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "firsthand-onboard")
    client = ClientEnd(robot.address, run="test")
    with pytest.raises(VersionMismatch) as caught:
        client.hello()
    said = str(caught.value)
    assert f"the robot at {robot.address} speaks version {robot.end.version} of the messages" in said
    assert f"this program speaks version {VERSION}" in said
    assert "install the same release of firsthand on both computers" in said
    older = "the robot" if robot.end.version < VERSION else "this program"
    assert f"({older}" in said
    client.close()


def test_training_ends_at_once_with_that_sentence(robot: Robot) -> None:
    with pytest.raises(UserError, match=f"speaks version {robot.end.version} of the messages"):
        RemoteAddress(robot.address).robot()


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_the_robot_names_the_other_version_once(version: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "firsthand-onboard")
    robot = Robot(VERSION)
    client = ClientEnd(robot.address, run="test", version=version)
    for _ in range(3):
        with pytest.raises(VersionMismatch):
            client.hello()
    assert wait_for(lambda: caplog.messages, "the log") == [
        f"the program of run test speaks version {version} of the messages, but this program speaks version {VERSION}: "
        "install the same release of firsthand on both computers "
        f"({'the program of run test' if version < VERSION else 'this program'} is the older one); it is not answered"
    ]
    assert robot.end.counts()["unknown"] >= 3
    client.close()
    robot.close()
