"""DreamerV3: the protocol, the robot behind it, and, where sheeprl is installed, the whole job."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand_lab.baselines.dreamerv3 import job, run
from firsthand_lab.baselines.dreamerv3.protocol import ACT, NEXT, RESET, SEEN, STEP, Ended, Link, numbers
from firsthand_lab.baselines.setup import plant_and_task
from firsthand_lab.baselines.view import RobotView
from firsthand_lab.experiments import files
from firsthand_lab.experiments.base import Job

FOLDER = Path(job.__file__).parent
INSTALLED = (job.ENVIRONMENT / ".ready").exists()


def test_frames_arrive_as_they_were_sent():
    pipe = io.BytesIO()
    link = Link(pipe, pipe)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    link.send(ACT, rows)
    link.send(SEEN, "öffnen")
    link.send(RESET)
    pipe.seek(0)
    kind, content = link.receive(ACT, SEEN)
    assert kind == ACT
    np.testing.assert_array_equal(numbers(content, 3), rows)
    assert link.receive(SEEN)[1].decode() == "öffnen"
    assert link.receive(RESET) == (RESET, b"")


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "has ended"),
        (b"S\x08\x00\x00\x00abc", "has ended"),
        (b"R\x00\x00\x00\x00", "was due"),
        (b"S\xff\xff\xff\xff", "was due"),
    ],
)
def test_a_cut_or_senseless_frame_is_told(sent, says):
    with pytest.raises(Ended, match=says):
        Link(io.BytesIO(sent), io.BytesIO()).receive(STEP)


def test_rows_of_another_length_are_told():
    with pytest.raises(Ended, match="not rows of 3 numbers"):
        numbers(bytes(16), 3)


CLIENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from client import RobotClient
from protocol import Link
import numpy as np
robot = RobotClient(Link(os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")), 3, 2)
seen, _ = robot.reset()
while True:
    seen, reward, terminated, truncated, _ = robot.step(seen[:2] + reward if "reward" in globals() else seen[:2])
    assert not terminated
    if truncated:
        seen, _ = robot.reset()
"""


@pytest.fixture
def client():
    command = [sys.executable, "-c", CLIENT, str(FOLDER)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stdin
        yield process, Link(process.stdout, process.stdin)
        process.kill()


def test_the_client_is_an_environment(client):
    _, link = client
    link.receive(RESET)
    link.send(SEEN, np.asarray([0.5, -0.5, 0.0]))
    np.testing.assert_array_equal(numbers(link.receive(STEP)[1], 2), [[0.5, -0.5]])
    link.send(NEXT, np.asarray([2.0, 0.0, 0.25, 0.0, 0.0]))
    np.testing.assert_array_equal(numbers(link.receive(STEP)[1], 2), [[2.25, 2.0]])
    link.send(NEXT, np.asarray([0.0, 1.0, 0.0, 0.0, 0.0]))
    assert link.receive(RESET, STEP)[0] == RESET


def test_the_client_ends_with_the_robots_side(client):
    process, link = client
    link.receive(RESET)
    process.stdin.close()
    assert process.stderr.read().decode().strip() == "DreamerV3 stops: the other process has ended."
    assert process.wait(timeout=10) == 1


def test_a_dead_learner_is_told_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "ENVIRONMENT", pretend(tmp_path, "echo no luck today >&2; exit 3"))
    with pytest.raises(UserError, match=r"DreamerV3 ended early: the other process has ended; .* is: no luck today\."):
        run(parameters(), tmp_path / "job", lambda done, note="": None)


def test_no_learner_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(
        job, "ENVIRONMENT", pretend(tmp_path, f"echo $$ > {tmp_path}/pid; printf 'x....'; exec sleep 99")
    )
    with pytest.raises(Ended, match="was due"), job.Learner({}, tmp_path / "log") as learner:
        learner.link.receive(RESET)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def pretend(folder: Path, script: str) -> Path:
    """An environment whose Python is a shell script."""
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (folder / "environment" / ".ready").touch()
    return folder / "environment"


def test_a_missing_environment_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "ENVIRONMENT", tmp_path)
    with pytest.raises(UserError) as told:
        run(parameters(), tmp_path / "job", lambda done, note="": None)
    assert str(told.value) == "DreamerV3 needs its own environment: run `make peers`."


def test_an_unknown_setting_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "ENVIRONMENT", pretend(tmp_path, "exit 1"))
    with pytest.raises(UserError, match="setting is 'huge', but must be one of default, reduced, tiny"):
        run(parameters(setting="huge"), tmp_path / "job", lambda done, note="": None)


def test_a_restored_robot_goes_on_as_the_first_one():
    plant, task = plant_and_task("excavator", tiny=True)
    view = RobotView(plant, task, seed=1)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (task.trajectories + 1, task.steps, view.action_size))
    drive(view, actions[0])  # in the middle of an episode
    stored = view.snapshot()
    ahead = [drive(view, part) for part in actions[1:]]
    again = RobotView(plant, task, seed=1)
    again.restore(stored)
    for part, expected in zip(actions[1:], ahead, strict=True):
        np.testing.assert_array_equal(drive(again, part), expected)
    assert (again.episode, again.steps, again.errors) == (view.episode, view.steps, view.errors)


def drive(view: RobotView, actions: np.ndarray) -> np.ndarray:
    """What it sees and gets in one trajectory."""
    seen = [np.append(view.begin(), 0.0)]
    seen += [np.append(*view.step(action)) for action in actions]
    return np.stack(seen)


def parameters(**changed) -> dict:
    return {"robot": "excavator", "seed": 0, "episodes": 2, "marks": [1, 2], "setting": "tiny", **changed}


needs_sheeprl = pytest.mark.skipif(not INSTALLED, reason="DreamerV3's environment is not there (make peers)")


@pytest.mark.slow
@needs_sheeprl
def test_it_learns_and_a_killed_job_goes_on_to_the_same_end(tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    notes = []
    run(parameters(), whole, lambda done, note="": notes.append(done))
    assert notes[-1] == 2
    curves, marks = files.read_csv(whole / "curves.csv"), files.read_csv(whole / "marks.csv")
    assert curves["episode"].tolist() == marks["episode"].tolist() == [1, 2]
    assert np.all(np.diff(curves["updates"]) > 0)
    assert np.all(curves["computing_s"] > 0)
    assert marks["random_m"][0] != marks["random_m"][1]  # it has learned something
    facts = files.read_json(whole / "facts.json")
    assert facts["parameters"] == 646_929
    assert files.read_arrays(whole / "paths.safetensors")[0]

    monkeypatch.setattr(job, "SAVE_EVERY_S", 0.0)
    save, saved = job.Books.save, []

    def save_and_stop(books, link):
        save(books, link)
        saved.append(books.view.steps)
        if len(saved) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(job.Books, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run(parameters(), cut, lambda done, note="": None)
    assert saved == [20, 40, 60]
    run(parameters(), cut, lambda done, note="": None)
    again = files.read_csv(cut / "curves.csv")
    for name in ("tracking_error", "updates"):
        np.testing.assert_array_equal(again[name], curves[name])
    for name in ("random_m", "shapes_m"):
        np.testing.assert_array_equal(files.read_csv(cut / "marks.csv")[name], marks[name])
    # Killed after the last checkpoint: there is nothing left to do.
    monkeypatch.setattr(job, "Learner", None)
    run(parameters(), cut, lambda done, note="": None)


@pytest.mark.slow
@needs_sheeprl
def test_the_learner_ends_with_the_job(tmp_path):
    folder = tmp_path / "job"
    endless = Job("endless", "firsthand_lab.baselines.dreamerv3:run", parameters(episodes=1000))
    files.write_json(folder / "job.json", endless.as_dict())
    command = [sys.executable, "-m", "firsthand_lab.experiments.worker", str(folder), ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin
        assert worker.stdout
        assert "done" in json.loads(worker.stdout.readline())
        learner = children(worker.pid)
        assert len(learner) == 1
        worker.stdin.close()
        assert worker.wait(timeout=60) == 1
    deadline = time.monotonic() + 300
    while runs(learner[0]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not runs(learner[0])
    assert "DreamerV3 stops: the other process has ended." in (folder / "checkpoint" / "dreamerv3.log").read_text()


def children(parent: int) -> list[int]:
    everyone = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [process for process in everyone if status(process)[1:2] == [str(parent)]]


def runs(process: int) -> bool:
    return status(process)[:1] not in ([], ["Z"], ["X"])


def status(process: int) -> list[str]:
    """State, parent and more; empty for a process that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
