"""Requests through the run's folder, against a real trainer in another process."""

import json
import os
import resource
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from firsthand.control import files
from firsthand.control.files import Request
from firsthand.dashboard.follower import RunFollower
from firsthand.errors import UserError
from firsthand.runs.packed import unpack
from firsthand.training import TrainingConfig
from firsthand.training import control as training_control
from firsthand.training.control import Control

from .processes import ROBOT, SMALL, episodes, started, status, wait_for


def answer(run, name: str) -> dict:
    """What the trainer said to a request."""
    return wait_for(
        lambda: next((a for a in status(run)["answers"] if a["request"] == name), None), f"answer to {name}"
    )


def ask(run, kind: str, value=None) -> dict:
    return answer(run, files.send(run, Request(kind, status(run)["session"], value)))


def question(run, after: int = 0) -> dict:
    return wait_for(lambda: (q := status(run)["question"]) and q["number"] > after and q, "a question")


def test_what_a_person_asks_for_happens_between_episodes(compiled, tmp_path):
    run = tmp_path / "run"
    out = ("--out", run, "--episodes", "5000", "--approve", "page", *SMALL)
    with started(compiled / "processes", "train", ROBOT, *out) as trainer:
        first = question(run)
        assert "first one" in first["text"]
        assert not ask(run, "checkpoint")["ok"]  # there is no episode yet
        assert not ask(run, "approve", first["number"] + 7)["ok"]  # not what was asked
        assert ask(run, "approve", first["number"])["ok"]
        second = question(run, first["number"])
        assert episodes(run) == 1
        assert "predicted after" in second["text"]
        assert ask(run, "reject", second["number"])["ok"]

        # Episode 2 ran the policy of episode 1 again.
        third = question(run, second["number"])
        weights = [policy(run, episode) for episode in (1, 2)]
        assert weights[0] == weights[1]
        assert "2.safetensors" in ask(run, "checkpoint")["text"]
        assert ask(run, "approve", third["number"])["ok"]
        fourth = question(run, third["number"])
        assert policy(run, 3) != weights[0]

        # What is nonsense, or meant for somebody else, changes nothing and does not stay.
        stale = files.send(run, Request("stop", "another-session"))
        folder = files.folder_of(run) / files.REQUESTS
        for number, data in enumerate((b"", b"\xff{", b"[1]", b'{"format": 9}', b"x" * 10_000)):
            (folder / f"{number:020d}-00000000.json").write_bytes(data)
        os.mkfifo(folder / f"{9:020d}-00000000.json")
        assert not answer(run, stale)["ok"]
        wait_for(lambda: not os.listdir(folder), "an empty folder")
        assert not ask(run, "return", 999)["ok"]
        assert not ask(run, "acknowledge", 1)["ok"]  # nothing that could have a fault

        # Back to an earlier policy: it runs without another question.
        assert ask(run, "return", 1)["ok"]
        assert ask(run, "reject", fourth["number"])["ok"]
        fifth = question(run, fourth["number"])
        assert policy(run, 4) == weights[0]
        assert ask(run, "restore", 2)["ok"]
        assert ask(run, "approve", fifth["number"])["ok"]
        wait_for(lambda: episodes(run) >= 5, "the fifth episode")
        assert policy(run, 5) == kept_policy(run, 2)
        kinds = [event.kind for event in files.read_events(run)]
        assert kinds.count("reject") >= 2
        assert {"checkpoint", "return", "restore"} <= set(kinds)

        follower = RunFollower(run)
        wait_for(lambda: follower.poll() or follower.alive, "a sign of life")
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        wait_for(lambda: follower.poll() or not follower.alive, "its end to be noticed")
        assert follower.status is not None
        assert not follower.status.ended
        assert follower.problem == ""


def policy(run, episode: int) -> bytes:
    """The bytes of the weights that ran an episode."""
    from firsthand.runs import RunFolder

    arrays, _ = RunFolder.open(run).load_episode(episode)
    return b"".join(arrays[name].tobytes() for name in sorted(arrays) if name.startswith("policy."))


def kept_policy(run, episode: int) -> bytes:
    """The same of a kept checkpoint."""
    arrays, _ = unpack((run / "kept" / f"{episode:06d}.safetensors").read_bytes())
    layers = {name: array for name, array in arrays.items() if name.startswith("learner.policy.layers.")}
    biases_first = sorted(layers, key=lambda name: (name.split(".")[3], name.split(".")[4] != "1"))
    return b"".join(layers[name].tobytes() for name in biases_first)


class Machine:
    """A machine whose operator must be patient."""

    def __init__(self) -> None:
        self.seen, self.asked, self.patience = None, [], threading.Event()

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.asked.append("close")

    def ask(self, kind: str, number: int | None = None) -> str:
        if kind == "acknowledge":
            self.patience.wait(60)
        self.asked.append(kind)
        return kind


@pytest.fixture
def control(tmp_path):
    """A control with a machine, and a trainer that only has what it looks at."""
    made = Control(tmp_path, "tcp/127.0.0.1:1")
    made._machine = Machine()  # pyright: ignore
    trainer = SimpleNamespace(
        robot=SimpleNamespace(pauses_between_trajectories=True, plant=None, finish_trajectory=lambda: None),
        config=TrainingConfig.of("excavator", "paper", episodes=3),
        task=SimpleNamespace(episode_s=1.0),
        episode=0,
        phase="",
        stop_requested=False,
    )
    made.begin(trainer)
    yield made
    if not made._ended:
        made._machine.patience.set()  # pyright: ignore
        made.end("finished")


def test_a_stop_does_not_wait_for_an_acknowledgement(control):
    machine = control._machine
    first = files.send(control.run, Request("acknowledge", control.session, 1))
    wait_for(lambda: not files.waiting(control.run), "the request to be read")
    second = files.send(control.run, Request("stop", control.session))
    assert answer(control.run, second)["ok"]
    assert machine.asked == ["stop"]
    assert control._trainer.stop_requested
    machine.patience.set()
    assert answer(control.run, first)["ok"]


def test_a_stop_comes_first(control, monkeypatch):
    taken = []
    monkeypatch.setattr(control, "_take", lambda name, request: taken.append(request.kind) or "")
    with control._publishing:  # it is busy, and requests gather
        time.sleep(1.0)
        for kind in ("pause", "checkpoint", "stop"):
            files.send(control.run, Request(kind, control.session))
    wait_for(lambda: len(taken) == 3, "all three")
    assert taken[0] == "stop"


def test_permissions_that_waited_while_the_trainer_was_away_count_no_more(control, monkeypatch):
    monkeypatch.setattr(training_control, "AWAY_S", 0.5)
    with control._publishing:  # it is as if it slept
        time.sleep(1.0)
        acknowledged, paused = (
            files.send(control.run, Request(kind, control.session, number))
            for kind, number in (("acknowledge", 1), ("pause", None))
        )
        time.sleep(1.0)
    assert "ask again" in answer(control.run, acknowledged)["text"]
    assert answer(control.run, paused)["ok"]
    assert control._machine.asked == []
    monkeypatch.setattr(training_control, "AWAY_S", 60.0)
    later = files.send(control.run, Request("acknowledge", control.session, 1))
    control._machine.patience.set()
    assert answer(control.run, later)["ok"]


def test_the_end_waits_for_a_stop_that_is_on_its_way(control):
    machine = control._machine
    asked = machine.ask
    machine.ask = lambda kind, number=None: time.sleep(0.5) or asked(kind)
    files.send(control.run, Request("stop", control.session))
    wait_for(lambda: control._trainer.stop_requested, "the stop to be read")
    control.end("stopped")
    assert machine.asked == ["stop", "close"]


def test_nothing_is_said_after_the_end(control, monkeypatch):
    slow, publish = threading.Event(), files.publish

    def late(run, status):
        if threading.current_thread().name == "control":
            slow.set()
            time.sleep(0.5)
        publish(run, status)

    monkeypatch.setattr(files, "publish", late)
    assert slow.wait(60)
    control.end("finished")
    time.sleep(1.0)
    assert status(control.run)["state"] == "finished"


def test_a_fault_of_a_simulation_is_not_taken_for_a_tag(control):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("the simulation is wrong")

    control._trainer.robot = SimpleNamespace(plant=object(), set_payload=broken)
    with pytest.raises(ValueError, match="simulation is wrong"):
        control._set_payload("300 kg")
    assert "marked with stones" in control._set_payload("stones")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("fly", None),
        ("pause", 3),
        ("approve", None),
        ("approve", True),
        ("return", -1),
        ("return", 2**40),
        ("payload", ""),
        ("payload", "x" * 61),
        ("payload", "two\nlines"),
        ("payload", 5),
    ],
)
def test_requests_that_make_no_sense_cannot_be_made(kind, value):
    with pytest.raises(UserError):
        Request(kind, "session", value)


def test_a_folder_without_a_trainer_and_one_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="no trainer"):
        files.send(tmp_path, Request("pause", "s"))
    (tmp_path / "control" / "requests").mkdir(parents=True)
    # As on a full disk, or in a folder of somebody else's: nothing can be written.
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(UserError, match="cannot write"):
            files.send(tmp_path, Request("pause", "s"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert files.waiting(tmp_path) == []


def test_status_and_events_survive_what_crashes_leave(tmp_path):
    (tmp_path / "control").mkdir()
    assert files.read_status(tmp_path) is None
    torn = (
        b"",
        b'{"format": 1, "sess',
        b"[]",
        b'{"format": 1}',
        b'{"format": 1, "session": "", "state": "", "machine": 1}',
    )
    for data in torn:
        (tmp_path / "control" / "status.json").write_bytes(data)
        assert files.read_status(tmp_path) is None
    (tmp_path / "control" / "status.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(UserError, match="format 2"):
        files.read_status(tmp_path)
    files.publish(tmp_path, files.Status("s", beat=3, seconds_left=float("nan")))
    found = files.read_status(tmp_path)
    assert found is not None
    assert (found.beat, found.seconds_left) == (3, None)

    files.append_event(tmp_path, files.Event(1, "payload", "one", {"tag": "one"}))
    with (tmp_path / "control" / "events.jsonl").open("ab") as file:
        file.write(b'{"episode": 2, "ki')
    files.append_event(tmp_path, files.Event(3, "payload", "three"))
    assert [event.episode for event in files.read_events(tmp_path)] == [1, 3]
