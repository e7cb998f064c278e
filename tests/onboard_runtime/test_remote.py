"""Learning over the link: the same bits as in process, and what happens when somebody is killed."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import ONE_CORE, SETTINGS, Firsthand
from firsthand.errors import UserError
from firsthand.learner import Hyperparameters, LearnerState
from firsthand.report.gather import can_go_back
from firsthand.robots.onboard import ExecutorRobot
from firsthand.robots.registry import make_task
from firsthand.robots.user_file import short_name
from firsthand_onboard.gate import GateLimits

from .processes import Process, free_port, wait_for

SMALL = ("--episodes", "6", *SETTINGS["fast"], "--no-report")


@pytest.fixture
def firsthand(compiled: Path, tmp_path: Path) -> Firsthand:
    """The command line; what it compiles is shared with the other tests of the command line."""
    return Firsthand(compiled / "processes", tmp_path)


class Served:
    """The simulated excavator in lock-step, and the onboard program in front of it."""

    def __init__(self, firsthand: Firsthand) -> None:
        self.machine = firsthand.start("machine", "excavator", "--lock-step", "--listen", "127.0.0.1:0")
        assert self.machine.stdout is not None
        ready = self.machine.stdout.readline()
        found = re.search(r"at ([\d.]+:\d+)", ready)
        assert found, ready
        self.udp, self.address = found[1], f"tcp/127.0.0.1:{free_port()}"
        self.start()

    def start(self) -> None:
        self.onboard = Process(
            *("-m", "firsthand_onboard", "serve", "--listen", self.address, "--lease", "5"),
            *("--machine", "firsthand_onboard.simulation:UdpMachine", "--machine-option", f"address={self.udp}"),
            *("--machine-option", "patience_s=60"),
        )

    def end(self) -> None:
        self.onboard.end()
        self.machine.terminate()
        self.machine.communicate(timeout=60)


@pytest.fixture
def served(firsthand: Firsthand) -> Iterator[Served]:
    made = Served(firsthand)
    yield made
    made.end()


def test_the_link_changes_no_bit_and_the_executor_agrees_with_the_simulation(firsthand, served):
    script = Path(__file__).with_name("link_parity.py")
    done = firsthand.run([sys.executable, "-c", ONE_CORE, sys.executable, str(script), served.address])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["arrays"] > 12
    assert found["different"] == []
    assert found["all_valid"]
    assert 0.05 < found["free_share"] < 1.0  # the gate had something to do
    assert 0.0 < found["farthest"] < 1e-5


def rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_training_goes_on_after_a_killed_trainer_and_a_killed_onboard_program(firsthand, served, tmp_path):
    out = tmp_path / "run"
    trainer = firsthand.start("train", served.address, "--out", out, *SMALL)
    wait_for(lambda: len(rows(out)) >= 1, "an episode", 600)
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate(timeout=60)
    before = len(rows(out))
    resumed = firsthand.start("train", served.address, "--out", out, "--resume", *SMALL)
    wait_for(lambda: len(rows(out)) > before, "an episode after the resume", 600)
    served.onboard.signal(signal.SIGKILL)
    served.onboard.popen.wait()
    served.start()
    _, said = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, said
    assert [row["episode"] for row in rows(out)] == [1, 2, 3, 4, 5, 6]
    shutil.rmtree(out)


def test_an_address_where_nobody_is():
    with pytest.raises(UserError, match="nobody answers"):
        make_task(f"tcp/127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("name", "word"), [("tcp/10.0.0.1:7447", "leaves this computer"), ("tls/10.0.0.1:7447", "FIRSTHAND_CERTIFICATES")]
)
def test_addresses_beyond_this_computer_need_certificates(name, word):
    with pytest.raises(UserError, match=word):
        make_task(name)


def test_a_named_address_needs_no_connection_to_read_a_run():
    assert make_task("excavator@tcp/127.0.0.1:1").name == "excavator"
    assert short_name("excavator@tcp/127.0.0.1:1") == "excavator-remote"


class Stuck:
    """A machine that does not move whatever it is told, and is no simulation."""

    def __init__(self, measured: np.ndarray) -> None:
        self.measured = measured

    def read(self) -> np.ndarray:
        return self.measured

    def write(self, command: np.ndarray) -> None:
        pass

    def neutral(self) -> None:
        pass


def test_a_reference_whose_start_is_not_reached_is_not_followed():
    task = make_task("excavator")
    measured = np.zeros(task.spec.layout.num_measured)
    measured[list(task.spec.layout.position)] = task.spec.limits.position_low
    robot = ExecutorRobot(Stuck(measured), task, GateLimits.wide(task.spec))
    policy = LearnerState.random(task.spec, Hyperparameters(), seed=0).policy
    with pytest.raises(UserError, match="did not come to the start"):
        robot.follow(policy, task.evaluation(task.evaluation_speed)[:1])
    assert not can_go_back(robot)  # so neither the end of training nor a report moves it
