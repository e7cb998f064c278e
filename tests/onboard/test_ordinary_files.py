"""Not ordinary files: pipes, devices, links; and texts that would write over a terminal."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from firsthand.control import files as control
from firsthand.errors import UserError
from firsthand.robots.base import EpisodeRecord
from firsthand.robots.stored_simulator import StoredSimulator
from firsthand_lab.experiments import files as study
from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.answers import read_about, read_measured, read_status, read_trajectory
from firsthand_onboard.cli import main
from firsthand_onboard.faults import FaultLatch
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.homing import Homing
from firsthand_onboard.jobs import JobReader, PolicyStore
from firsthand_onboard.messages import Message, Refusal
from firsthand_onboard.network import LinkError
from firsthand_onboard.policy_file import load_controller
from firsthand_onboard.toy import toy_spec

SPEC = toy_spec(steps=5)
HUGE = "1" + "0" * 400


def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    pipe, run = tmp_path / "pipe", tmp_path / "run"
    os.mkfifo(pipe)
    with pytest.raises(SpecError, match=r"cannot be read as a policy: .*not an ordinary file"):
        load_controller(pipe)
    for name in ("limits", "spec"):
        with pytest.raises(SystemExit):
            main(["serve", "--machine", "firsthand_onboard.toy:Toy", "--priority", "0", f"--{name}", str(pipe)])
    (run / "control").mkdir(parents=True)
    (tmp_path / "simulator").mkdir()
    for link in ("control/events.jsonl", "control/status.json"):
        os.mkfifo(run / link)
    os.mkfifo(tmp_path / "simulator" / "simulator.json")
    assert control.read_events(run) == []
    assert control.read_status(run) is None
    with pytest.raises(UserError, match="cannot read"):
        StoredSimulator.open(tmp_path / "simulator")
    for read in (study.read_json, study.read_csv, study.read_arrays):
        with pytest.raises(UserError, match="cannot read"):
            read(pipe)


def test_events_and_status_are_not_written_through_a_link(tmp_path: Path) -> None:
    """Whoever made the run may have put a link there; what it leads to is not ours to change."""
    (tmp_path / "control").mkdir()
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "control" / "events.jsonl").symlink_to(other)
    temporary = tmp_path / "control" / f".status.json.{os.getpid():08x}.tmp"
    temporary.symlink_to(other)
    with pytest.raises(OSError, match=r"ordinary|file"):
        control.append_event(tmp_path, control.Event(1, "pause", "text"))
    control.publish(tmp_path, control.Status("session"))
    assert other.read_text() == "mine"
    status = control.read_status(tmp_path)
    assert status is not None
    assert status.session == "session"


def test_deep_and_long_json_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="not JSON"):
        study.read_json(tmp_path / "deep.json")
    spec = json.loads(SPEC.to_json())
    for change in (("period_s", 1), ("preview", [1])):
        text = json.dumps({**spec, change[0]: "HERE"}).replace('"HERE"', HUGE if change[1] == 1 else f"[{HUGE}]")
        with pytest.raises(SpecError, match=change[0]):
            ControlSpec.from_json(text)
    limits = json.loads(SPEC.to_json())["limits"]
    text = json.dumps({**spec, "limits": {**limits, "position_low": "HERE"}}).replace('"HERE"', f"[{HUGE}, 0]")
    with pytest.raises(SpecError, match=r"position_low\[0\] is inf"):
        ControlSpec.from_json(text)
    with pytest.raises(SpecError, match=r"gate\.low\[0\] is -?inf"):
        GateLimits.from_json(f'{{"low": [{HUGE}, 0]}}', SPEC)
    with pytest.raises(SpecError):
        Homing.from_json(f'{{"position": [{HUGE}, 0]}}')


def test_a_limits_file_does_not_widen_the_command_range() -> None:
    with pytest.raises(SpecError, match=r"gate\.low\[0\] and gate\.high\[0\] are -5 and 1, but must lie inside"):
        GateLimits.from_json('{"low": [-5, -1]}', SPEC)
    assert GateLimits.from_json('{"low": [-0.5, -1]}', SPEC).low == (-0.5, -1)


def test_what_is_valid_is_true_or_false() -> None:
    n, steps, layout = 2, 5, SPEC.layout
    record = EpisodeRecord.complete(
        np.zeros((n, layout.size)), np.zeros((n, steps + 1, 4)), np.zeros((n, steps, 2)), np.zeros((n, steps + 9, 2))
    )
    record.check(SPEC)
    object.__setattr__(record, "valid", np.ones((n, steps), np.int64))  # as in a file, where nothing checks types
    with pytest.raises(ValueError, match="valid has the type int64, but must hold true and false"):
        record.check(SPEC)


@pytest.mark.parametrize("fault", ["\x1b[2Jgone", "one\ntwo", "\x00"])
def test_a_fault_from_a_file_cannot_write_over_the_terminal(fault: str, tmp_path: Path) -> None:
    (tmp_path / "fault.json").write_text(json.dumps({"fault": fault, "number": 1}))
    latch = FaultLatch(tmp_path / "fault.json")
    assert latch.is_set
    assert latch.fault.isprintable()
    latch.set(fault)
    assert latch.fault.isprintable()


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "é", "x" * 65, 3, None])
def test_a_job_has_a_plain_name(name: object) -> None:
    reader = JobReader(SPEC, PolicyStore(SPEC), None)
    message = Message(
        "job", "r", "s", "", 1, body={"name": name, "kind": "play"}, arrays={"commands": np.zeros((3, 2))}
    )
    with pytest.raises(Refusal, match="name of 1 to 64"):
        reader.read(message, np.zeros(4))


STATUS = {"state": "idle", "fault": "", "fault_number": 0, "yours": False, "taken": False, "job": None}
JOB = {"name": "j", "kind": "visit", "ended": "", "count": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "dancing"}, {"state": None}, {"fault_number": True}, {"fault_number": -1}, {"yours": "yes"},
        {"job": 3}, {"job": {**JOB, "count": 10**12}}, {"job": {**JOB, "away": float("nan")}},
        {"job": {**JOB, "ended": None}},
    ],
)  # fmt: skip
def test_a_status_that_cannot_be_is_a_lost_link(changes: dict) -> None:
    read_status(Message("reply", "r", "s", "", 1, body={**STATUS, "job": JOB}))
    with pytest.raises(LinkError, match="the robot"):
        read_status(Message("reply", "r", "s", "", 1, body={**STATUS, **changes}))


def test_what_a_robot_says_can_be_printed() -> None:
    body = {**STATUS, "state": "fault", "fault": "\x1b[2J\nall is well"}
    assert read_status(Message("reply", "r", "s", "", 1, body=body)).fault == "?[2J all is well"


def trajectory(**changes: np.ndarray | None) -> Message:
    layout, steps = SPEC.layout, 5
    arrays: dict = {
        "start": np.zeros(layout.size, np.float32), "measured": np.zeros((steps + 1, 4), np.float32),
        "commands": np.zeros((steps, 2), np.float32), "reference": np.zeros((steps + 9, SPEC.num_outputs), np.float32),
        "free": np.ones((steps, 2), bool), "valid": np.ones(steps, bool), **changes,
    }  # fmt: skip
    body = {"job": "j", "index": 0, "ended": "done"}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    return Message("trajectory", "r", "s", "", 1, body=body, arrays=arrays)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": None}, {"measured": np.zeros((5, 4))}, {"commands": np.full((5, 2), np.nan)},
        {"commands": np.full((5, 2), 9.0)}, {"valid": np.ones(5)}, {"free": np.ones((2, 5), bool)},
        {"reference": np.zeros(3)}, {"memory": np.zeros((2, 2))}, {"measured": np.zeros((6, 4), bool)},
    ],
)  # fmt: skip
def test_a_trajectory_of_another_shape_is_a_lost_link(changes: dict) -> None:
    read_trajectory(SPEC, trajectory(), 5)
    with pytest.raises(LinkError, match="the robot's trajectory has"):
        read_trajectory(SPEC, trajectory(**changes), 5)
    with pytest.raises(LinkError):
        read_measured(SPEC, Message("reply", "r", "s", "", 1, arrays={"measured": np.zeros(3)}))


@pytest.mark.parametrize("changes", [{"spec": "{"}, {"lease_s": 1e-9}, {"lease_s": True}, {"homes": 1}, {"machine": 3}])
def test_a_greeting_that_cannot_be_is_a_lost_link(changes: dict) -> None:
    about = {"spec": SPEC.to_json(), "lock_step": False, "can_reset": False, "homes": False, "lease_s": 1.0}
    assert read_about(Message("reply", "r", "s", "", 1, body=about)).spec == SPEC
    with pytest.raises(LinkError):
        read_about(Message("reply", "r", "s", "", 1, body={**about, **changes}))
