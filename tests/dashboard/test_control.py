"""Requests through the run's folder, against a real trainer in another process."""

import json
import os
import resource
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firsthand.control import files
from firsthand.control.files import Request
from firsthand.dashboard.follower import RunFollower
from firsthand.errors import UserError
from firsthand.robots.base import EpisodeAbandoned
from firsthand.runs.packed import unpack
from firsthand.training import TrainingConfig
from firsthand.training.live import LiveControl, inbox
from firsthand.training.stopping import StopRequest

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
    """A control with a machine; of the robot and the recorder it has what it looks at."""
    recorder: Any = SimpleNamespace(run=SimpleNamespace(path=tmp_path))
    robot: Any = SimpleNamespace(
        before_trajectory=None,
        pauses_between_trajectories=True,
        finish_trajectory=lambda: None,
        plant=None,
        task=SimpleNamespace(episode_s=1.0),
    )
    config = TrainingConfig.of("excavator", "paper", episodes=3)
    machine: Any = Machine()
    made = LiveControl(recorder, robot, config, StopRequest(), machine)
    made.begin(0)
    yield made
    if status(made.run)["state"] not in ("finished", "stopped"):
        machine.patience.set()
        made.end("finished")


def watched(control: LiveControl) -> Machine:
    assert control.machine is not None
    return cast(Machine, control.machine.watch)


def test_a_stop_does_not_wait_for_an_acknowledgement(control):
    machine = watched(control)
    first = files.send(control.run, Request("acknowledge", control.session, 1))
    wait_for(lambda: not files.waiting(control.run), "the request to be read")
    second = files.send(control.run, Request("stop", control.session))
    assert answer(control.run, second)["ok"]
    assert machine.asked == ["stop"]
    assert control.stop.requested
    machine.patience.set()
    assert answer(control.run, first)["ok"]


def test_a_stop_comes_first(control, monkeypatch):
    taken = []
    monkeypatch.setattr(control.inbox, "handle", lambda name, request: taken.append(request.kind) or "")
    with control.publisher.lock:  # it is busy, and requests gather
        time.sleep(1.0)
        for kind in ("pause", "checkpoint", "stop"):
            files.send(control.run, Request(kind, control.session))
    wait_for(lambda: len(taken) == 3, "all three")
    assert taken[0] == "stop"


def test_permissions_that_waited_while_the_trainer_was_away_count_no_more(control, monkeypatch):
    monkeypatch.setattr(inbox, "AWAY_S", 0.5)
    with control.publisher.lock:  # it is as if it slept
        time.sleep(1.0)
        acknowledged, paused = (
            files.send(control.run, Request(kind, control.session, number))
            for kind, number in (("acknowledge", 1), ("pause", None))
        )
        time.sleep(1.0)
    assert "ask again" in answer(control.run, acknowledged)["text"]
    assert answer(control.run, paused)["ok"]
    assert watched(control).asked == []
    monkeypatch.setattr(inbox, "AWAY_S", 60.0)
    later = files.send(control.run, Request("acknowledge", control.session, 1))
    watched(control).patience.set()
    assert answer(control.run, later)["ok"]


def test_the_end_waits_for_a_stop_that_is_on_its_way(control):
    machine = watched(control)
    asked = machine.ask
    machine.ask = lambda kind, number=None: time.sleep(0.5) or asked(kind)
    files.send(control.run, Request("stop", control.session))
    wait_for(lambda: control.stop.requested, "the stop to be read")
    control.end("stopped")
    assert machine.asked == ["stop", "close"]


def test_nothing_is_reported_after_the_end(control, monkeypatch):
    slow, publish = threading.Event(), files.publish

    def late(run, status):
        if threading.current_thread().name == "control":
            slow.set()
            time.sleep(0.5)
        publish(run, status)

    monkeypatch.setattr(files, "publish", late)
    assert slow.wait(60)
    control.end("finished")
    control.publisher.publish()
    time.sleep(1.0)
    assert status(control.run)["state"] == "finished"


def test_requests_wait_for_the_trainers_thread(control):
    name = files.send(control.run, Request("payload", control.session, "stones"))
    wait_for(lambda: "payload" in status(control.run).get("pending", ()), "the request to wait")
    request = control.next_request()
    assert request is not None
    request.accept(request.carry_out(None, 4))
    assert control.next_request() is None
    assert "marked with stones" in answer(control.run, name)["text"]
    assert [(event.episode, event.kind) for event in files.read_events(control.run)] == [(5, "payload")]
    refused = files.send(control.run, Request("restore", control.session, 3))
    request = wait_for(control.next_request, "the next request")
    request.refuse("no.")
    assert answer(control.run, refused)["text"] == "no."


def test_a_pause_waits_and_a_stop_ends_it(control):
    assert not control.switch.wait()
    assert ask(control.run, "pause")["text"] == "pauses after this trajectory"
    seen = []

    def meanwhile() -> None:
        seen.append(status(control.run)["state"])
        if len(seen) == 1:
            files.send(control.run, Request("resume", control.session))

    assert control.switch.wait(meanwhile)
    assert seen[0] in ("pausing", "paused")
    assert ask(control.run, "pause")["ok"]
    assert ask(control.run, "stop")["ok"]
    with pytest.raises(EpisodeAbandoned):
        control.wait_while_paused(lambda: None)


def test_a_fault_of_a_simulation_is_not_taken_for_a_tag(control):
    def broken(kg: float) -> None:
        raise ValueError("the simulation is wrong")

    control.robot.plant, control.robot.set_payload = object(), broken
    with pytest.raises(ValueError, match="simulation is wrong"):
        control.interventions.set_payload("300 kg")
    assert "marked with stones" in control.interventions.set_payload("stones")


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
