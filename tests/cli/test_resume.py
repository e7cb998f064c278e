"""Stopping and going on, in whatever way, gives the same bits as never having stopped."""

import json
import random
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from .conftest import EPISODES, PATIENCE, SETTINGS, Firsthand, assert_same


@pytest.mark.parametrize(
    ("preset", "start"),
    [
        ("fast", "halfway"),
        pytest.param("fast", "begun", marks=pytest.mark.slow),
        pytest.param("paper", "begun", marks=pytest.mark.slow),
    ],
)
def test_resuming_gives_the_same_bits(
    preset: str, start: str, firsthand: Firsthand, uninterrupted, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = request.getfixturevalue(start)(preset, tmp_path / "run")
    content = json.loads((run / "config.json").read_text())
    content["provenance"]["packages"]["optax"] = "0.0.1"  # as if begun with another version
    del content["sha256"]
    (run / "config.json").write_text(json.dumps(content))
    # Only what was not said before: the rest comes from the run.
    more = ("--resume", "--episodes", str(EPISODES), "--no-report", "--tensorboard")
    done = firsthand("train", "excavator", "--out", run, *more)
    assert done.returncode == 0, done.stderr
    assert f"{run} has 2 of {EPISODES} episodes." in done.stderr
    assert "Note: optax was 0.0.1 when the run started" in done.stderr
    assert_same(run, uninterrupted(preset))
    (events,) = (run / "tensorboard").iterdir()
    assert events.read_bytes().count(b"measured_tracking_error") == EPISODES


@pytest.mark.slow
def test_killed_at_random_instants(firsthand: Firsthand, uninterrupted, tmp_path: Path) -> None:
    expected = uninterrupted("fast")
    chance = random.Random(5)
    run, kills = tmp_path / "run", 0
    arguments = ["train", "excavator", "--out", run, *SETTINGS["fast"], "--episodes", str(EPISODES), "--no-report"]
    safe = 0
    for wanted in (0, 1, 1):
        resume = ["--resume"] if (run / "config.json").exists() else []
        process = firsthand.start(*arguments, *resume)
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            # So many episodes later, and then at any instant of about the time that an episode takes.
            for line in process.stderr:
                if match := re.match(r"episode (\d+)/", line):
                    safe, wanted = int(match[1]), wanted - 1
                if wanted <= 0:
                    break
            time.sleep(chance.uniform(0.0, 0.5))
            kills += process.poll() is None
        finally:
            process.kill()
            for line in process.stderr:
                if line.endswith("\n") and (match := re.match(r"episode (\d+)/", line)):
                    safe = int(match[1])
            process.communicate()
        kept = [int(file.stem) for file in (run / "checkpoints").glob("*.safetensors")]
        assert max(kept, default=0) >= safe, "what was reported as done is not lost"
    assert kills >= 2
    done = firsthand(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, expected)


def interrupted(firsthand: Firsthand, *arguments: str | Path, times: int) -> tuple[int, str]:
    """The exit code and the words of a training process that gets Ctrl-C while its first episode is on its way."""
    process = firsthand.start("train", "excavator", *arguments)
    assert process.stderr is not None
    said, cues = "", ["compiling", "Stopping"][:times]
    try:
        for line in process.stderr:
            said += line
            if cues and line.startswith(cues[0]):
                del cues[0]
                time.sleep(0.3)  # into the first episode, which takes longer: everything is loaded in it
                process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert "Traceback" not in said
    return process.returncode, said


def test_ctrl_c_finishes_the_episode_and_says_how_to_go_on(firsthand: Firsthand, uninterrupted, tmp_path: Path) -> None:
    run = tmp_path / "a run [of mine]"
    code, said = interrupted(firsthand, "--out", run, *SETTINGS["fast"], "--episodes", str(EPISODES), times=1)
    assert code == 130
    assert "Stopping after this episode; press Ctrl-C again to stop at once." in said
    match = re.search(r"Stopped after episode (\d); everything is written.", said)
    assert match is not None
    # 1, unless the machine is so busy that the process had not begun with it yet.
    assert int(match[1]) == len(list((run / "checkpoints").iterdir())) <= 1
    printed = said.split("Continue with: ")[1].strip()
    assert "\n" not in printed
    # Word for word as it was printed, with the evaluation and the report at the end.
    done = firsthand.run([*firsthand.command, *shlex.split(printed)[1:]])
    assert done.returncode == 0, done.stderr
    assert "together" in done.stdout
    assert "Report: " in done.stdout
    for k in (1, 2, EPISODES):
        name = f"episodes/{k:06d}.safetensors"
        assert (run / name).read_bytes() == (uninterrupted("fast") / name).read_bytes()


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_the_run_can_go_on(
    firsthand: Firsthand, uninterrupted, begun, tmp_path: Path
) -> None:
    run = begun("fast", tmp_path / "run")
    code, said = interrupted(firsthand, "--out", run, "--resume", "--episodes", str(EPISODES), times=2)
    assert code == 130
    assert "Stopped in the middle of episode 3, which is lost" in said
    # config.json says 2 episodes; the printed command must say that it was to be more by now.
    printed = shlex.split(said.split("Continue with: ")[1])
    assert printed[-2:] == ["--episodes", str(EPISODES)]
    done = firsthand(*printed[1:], "--no-report")
    assert done.returncode == 0, done.stderr
    assert_same(run, uninterrupted("fast"))


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.slow
def test_a_damaged_checkpoint(firsthand: Firsthand, uninterrupted, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted("fast"), run)
    newest, before = (run / "checkpoints" / f"{EPISODES - k:06d}.safetensors" for k in (0, 1))
    damage(newest)
    note = f"{newest} is damaged (its content does not match its SHA-256); using {before} instead."

    evaluated = firsthand("evaluate", run, "--newest", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert note in evaluated.stderr
    check_evaluation(json.loads(evaluated.stdout))

    done = firsthand("train", "excavator", "--out", run, "--resume", "--no-report")
    assert done.returncode == 0, done.stderr
    assert note in done.stderr
    assert f"{run} has {EPISODES - 1} of {EPISODES} episodes." in done.stderr
    assert_same(run, uninterrupted("fast"))


def check_evaluation(data: dict) -> None:
    """The fields of DESIGN.md, over all references and per reference."""
    assert set(data["references"]) == {"circle", "square", "line"}
    for metrics in (data, *data["references"].values()):
        for name in (
            *("mean_error", "max_error", "mean_speed", "max_speed", "rho_s"),
            *("measured_mean_speed", "command_change", "limit_hits"),
        ):
            assert metrics[name] >= 0
        assert metrics["mean_error"] <= metrics["max_error"]
        assert metrics["max_speed"] == pytest.approx(0.5, abs=0.01)
        assert metrics["rho_s"] == pytest.approx(metrics["max_error"] / metrics["max_speed"])
    assert data["max_error"] == max(m["max_error"] for m in data["references"].values())
