"""Learning over the link: the same bits as in process, and what happens when somebody is killed."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cli.conftest import ONE_CORE, Firsthand
from firsthand.cli.inspect import Inspect
from firsthand.errors import UserError
from firsthand.evaluation import can_go_back
from firsthand.models import Policy
from firsthand.robots.onboard import ExecutorRobot, set_authority
from firsthand.robots.registry import find_robot, make_robot, make_task
from firsthand.robots.remote import RemoteRobot
from firsthand.robots.user_file import short_name
from firsthand.simulators import record
from firsthand.training.run import Run
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.signing import Signer

from .processes import Process, free_port, random_policy, wait_for

SMALL = ("--episodes", "3", "--preset", "paper-exact", "--model.steps", "20", "--no-report")


@pytest.fixture(scope="module")
def firsthand(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Firsthand:
    """The command line; what it compiles is shared with the other tests of the command line."""
    return Firsthand(compiled / "processes", tmp_path_factory.mktemp("remote"))


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
            *("-m", "firsthand_onboard", "serve", "--listen", self.address, "--lease", "5", "--between", "home"),
            *("--machine", "firsthand_onboard.simulation:UdpMachine", "--machine-option", f"address={self.udp}"),
            *("--machine-option", "patience_s=60"),
        )

    def end(self) -> None:
        self.onboard.end()
        self.machine.terminate()
        self.machine.communicate(timeout=60)


@pytest.fixture(scope="module")
def served(firsthand: Firsthand) -> Iterator[Served]:
    made = Served(firsthand)
    yield made
    made.end()


def test_the_link_changes_no_bit_and_the_executor_agrees_with_the_simulation(firsthand, served):
    script = Path(__file__).with_name("link_parity.py")
    done = firsthand.run([sys.executable, "-c", ONE_CORE, sys.executable, str(script), served.address])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["arrays"] > 30  # the episodes, and all that the learner knows after them
    assert found["different"] == []
    assert found["restarts"] > 0
    assert found["estimated"] > 1e-4  # the observer's, not what is measured
    assert found["all_valid"]
    assert 0.05 < found["free_share"] < 1.0  # the gate had something to do
    assert 0.0 < found["farthest"] < 1e-5
    assert 0.0 < found["from_home"] < 0.1  # the dead band of the valves leaves some of it


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
    done = rows(out)
    assert [row["episode"] for row in done] == [1, 2, 3]
    # The range widens as the model proves itself, also over a resume; what comes later uses what was earned.
    width = [0.5]
    for row in done[:-1]:
        proven = row["episode"] > 1 and row["prediction_error"] < 0.5
        width.append(min(1.0, 1.5 * width[-1]) if proven else width[-1])
    assert [row["authority"] for row in done] == width
    run = Run.open(out)
    assert run.make_robot(run.find_robot()).authority == width[-1]
    other = find_robot(f"excavator@tcp/127.0.0.1:{free_port()}")
    assert run.make_robot(other).authority == 0.5
    shutil.rmtree(out)


def test_an_address_where_nobody_is():
    with pytest.raises(UserError, match="no program answers"):
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


def test_policies_are_signed_where_there_is_a_key(tmp_path, monkeypatch):
    certificates = Path(__file__).parents[2] / "scripts" / "make_certificates.sh"
    subprocess.run(["sh", certificates, tmp_path, "127.0.0.1"], check=True, capture_output=True)
    robot, sent = RemoteRobot("tcp/127.0.0.1:1", make_task("excavator")), []
    monkeypatch.setattr(robot, "_connect", lambda: SimpleNamespace(known_policy=""))
    monkeypatch.setattr(robot, "_ask", lambda kind, body, arrays: sent.append(body))
    policy = Policy.from_arrays(robot.task.spec, random_policy(robot.task.spec))
    for name, place in (("FIRSTHAND_CERTIFICATES", tmp_path), ("FIRSTHAND_POLICY_KEY", tmp_path / "policy.key")):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(place))
            robot._send_policy(policy)
    robot._send_policy(policy)
    assert "signature" not in sent.pop()
    for body in sent:
        assert Signer(tmp_path / "policy.pub").has_signed_policy(body["spec"], body["digest"], body["signature"])
    monkeypatch.setenv("FIRSTHAND_POLICY_KEY", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"the key file .*nowhere cannot be read"):
        robot._send_policy(policy)


class Stuck:
    """A machine that does not move whatever it is told, and is not a simulation."""

    def __init__(self, measured: np.ndarray) -> None:
        self.measured = measured

    def read(self) -> np.ndarray:
        return self.measured

    def write(self, command: np.ndarray) -> None:
        pass

    def neutral(self) -> None:
        pass


def stuck(authority: float = 1.0) -> ExecutorRobot:
    """The excavator, jammed at its lower stops."""
    task = make_task("excavator")
    measured = np.zeros(task.spec.layout.num_measured)
    measured[list(task.spec.layout.position)] = task.spec.limits.position_low
    # Its sensors never change: the gate would take them for frozen ones.
    limits = GateLimits.of(task.spec, directions=[(i, 1) for i in range(4)], check_sensors=0)
    robot = ExecutorRobot(Stuck(measured), task, limits)
    set_authority(robot, authority)
    return robot


def test_what_is_kept_of_open_loop_motion_is_what_the_gate_let_through():
    robot = stuck(authority=0.25)
    _, applied = robot.play_applied(np.ones((20, 4), np.float32))
    rate = np.diff(applied, axis=0, prepend=np.zeros((1, 4))).max()
    assert applied[-1] == pytest.approx(0.25)
    assert rate <= 2.0 / 0.2 * 0.04 + 1e-6  # the whole range of 2 in 0.2 s
    episode = next(iter(record(robot, 0.5)))
    assert 0.1 < np.abs(episode.commands).max() <= 0.25


def test_less_than_the_whole_range_unless_told_otherwise(tmp_path):
    task = make_task("excavator")
    robot = make_robot("excavator@tcp/127.0.0.1:1", task)
    assert robot.authority == 0.5  # pyright: ignore
    with pytest.raises(UserError, match=r"amplitude is 0\.8, but .* only 0\.5"):
        Inspect("excavator@tcp/127.0.0.1:1", amplitude=0.8, out=tmp_path).run()
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match="authority is"):
            set_authority(robot, share)


def test_a_reference_whose_start_is_not_reached_is_not_followed():
    robot = stuck()
    task = robot.task
    policy = Policy.from_arrays(task.spec, random_policy(task.spec))
    with pytest.raises(UserError, match="did not come to the start"):
        robot.follow(policy, task.evaluation(task.evaluation_speed)[:1])
    assert not can_go_back(robot)  # so neither the end of training nor a report moves it
