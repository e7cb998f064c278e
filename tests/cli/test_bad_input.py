"""Whatever is wrong with what the user gave: one sentence, exit code 2, nothing left behind."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import firsthand as fh
from firsthand.cli import main
from firsthand.cli.evaluate import check_speed
from firsthand.errors import UserError
from firsthand.robots.registry import ROBOTS, BuiltIn

from .conftest import EPISODES, Firsthand


def refused(code: object, out: str, err: str) -> str:
    """What was said, after checking that it is one sentence."""
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert re.fullmatch(r"firsthand: [^\n]+\.\n", err), err
    return err.removeprefix("firsthand: ").rstrip()


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable:
    """`refusal(*arguments)`: what the command line says. The current folder must stay as it is."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # main() sets them; this restores them

    def run(*arguments: str | Path, user: int | None = None) -> str:
        before = tree(here)
        try:
            if user is not None:
                os.seteuid(user)
            with pytest.raises(SystemExit) as end:
                main([*map(str, arguments)])
        finally:
            if user is not None:
                os.seteuid(0)
        captured = capsys.readouterr()
        assert tree(here) == before
        return refused(end.value.code, captured.out, captured.err)

    return run


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
        if p.name != "lock"  # says which process was last
    }


# In this process: names and numbers.


def test_an_unknown_robot(refusal: Callable) -> None:
    said = refusal("train", "excavatr")
    assert said.startswith("There is no robot 'excavatr' (did you mean 'excavator'?); known are excavator, ")
    assert refusal("train", "excavatr", "--resume").startswith(
        "There is no robot 'excavatr' (did you mean 'excavator'?)"
    )
    assert "did you mean" not in refusal("train", "zzz")
    assert refusal("characterize", "excavatr").startswith(
        "There is no robot 'excavatr' to characterize (did you mean 'excavator'?); known are excavator, "
    )


def test_unknown_sensors_and_sensors_of_other_robots(refusal: Callable, tmp_path: Path) -> None:
    assert refusal("train", "excavator", "--sensors", "reel") == (
        "sensors is 'reel', but must be one of exact, real, strong (did you mean 'real'?)."
    )
    file = tmp_path / "my_robot.py"
    methods = "    def make_task(self): ...\n    def make_robot(self, task, *, payload_kg, seed): ...\n"
    file.write_text(f"class Task:\n{methods}\n\ntask = Task()\n")
    assert refusal("train", f"{file}:task", "--sensors", "real").startswith(
        "sensors is 'real', but only the built-in robots have sensors by name (excavator, "
    )


def test_sensors_of_ones_own_around_a_built_in_robot() -> None:
    unchecked = inspect.unwrap(BuiltIn.with_sensors)  # as a user calls it: types are checked in tests only
    with pytest.raises(UserError, match="sensors is an object of Sensors, but a built-in robot is seen through one of"):
        unchecked(ROBOTS["excavator"], fh.Sensors(noise=100.0))


def test_an_unknown_preset(refusal: Callable) -> None:
    said = refusal("train", "excavator", "--preset", "papr")
    assert said == "There is no preset 'papr' (did you mean 'paper'?); known are fast, paper, paper-exact."


def test_a_base_that_cannot_be(refusal: Callable, tmp_path: Path) -> None:
    assert refusal("train", "excavator", "--base", "pie").startswith("base is 'pie' (did you mean 'pi'?), but must be")
    assert refusal("train", "excavator", "--base-mode", "target") == "base-mode is 'target', but there is no --base."
    said = refusal("train", "excavator", "--base", "reference", "--base-mode", "taget")
    assert said == "base-mode is 'taget', but must be one of add, target."
    file = tmp_path / "mine.py"
    file.write_text("def controller(measurement, reference, state):\n    return reference, state\n")
    assert refusal("train", "excavator", "--base", f"{file}:controler").endswith("(did you mean 'controller'?).")
    assert refusal("train", "excavator", "--base", f"{file}:controller") == (
        "mine.py:controller returns a command of shape (2,), but excavator takes 4 numbers (boom, dipper, telescope, "
        "pitch)."
    )


NUMBERS = {
    "eta": ("-0.5", "0", "nan", "inf", "-inf"),
    "alpha": ("-0.01", "nan", "inf"),
    "epsilon": ("-0.05", "0", "nan", "inf"),
    "discount": ("-0.1", "0", "1.5", "nan", "inf"),
    "model.rate": ("-1e-3", "0", "nan", "inf"),
    "policy-step.steps": ("0", "-3", "99999999999"),
    "imagination.trajectories": ("-1", "99999999999"),
    "model.steps": ("-20", "99999999999"),
    "episodes": ("0", "-4", "1000000000000"),
    "seed": ("-1", "4294967296"),
    "payload": ("-1", "nan", "inf", "1e6"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NUMBERS.items() for value in values])
def test_a_number_that_cannot_be(name: str, value: str, refusal: Callable) -> None:
    said = refusal("train", "excavator", f"--{name}", value)
    kind = int if value.lstrip("-").isdigit() and name in ("episodes", "seed") else float
    field, _, rest = said.partition(" is ")
    assert field.removeprefix("policy_step.") == name.replace("-", "_").removeprefix("policy_step.")
    assert kind(re.split(r"[, ]", rest)[0]) == pytest.approx(kind(value), nan_ok=True)
    assert ", but must " in rest


@pytest.mark.parametrize("words", [("--episodes", "1.5"), ("--episodes=1.5",), ("--seed", "two")])
def test_a_number_that_is_not_whole(words: tuple[str, ...], refusal: Callable) -> None:
    name, _, value = "=".join(words).removeprefix("--").partition("=")
    assert refusal("train", "excavator", *words) == f"{name} is {value!r}, but must be a whole number."


@pytest.mark.parametrize(("name", "value"), [("seed", "-1"), ("seed", "4294967296"), ("payload", "nan")])
def test_a_machine_with_a_number_that_cannot_be(name: str, value: str, refusal: Callable) -> None:
    said = refusal("machine", "excavator", "--listen", "127.0.0.1:0", f"--{name}", value)
    assert said.startswith(f"{name} is {value}")
    assert "but must lie between 0 and " in said


def test_the_home_of_nobody(refusal: Callable) -> None:
    for command in (
        ("train", "~nobody-of-us/r.py:task"),
        ("train", "~nobody-of-us"),
        ("inspect", "~nobody-of-us/r.py"),
    ):
        said = refusal(*command)
        assert said == f"{command[1]} cannot be found, because there is no home folder ~nobody-of-us."


def test_options_that_do_not_fit_the_robot(refusal: Callable) -> None:
    assert refusal("train", "soft-arm", "--payload", "5").startswith(
        "payload is 5 kg, but the soft arm carries at most"
    )
    assert refusal("train", "excavator", "--authority", "0.3").startswith("authority is for a robot across the network")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("trian",),
        ("train",),
        ("train", "excavator", "--epsiodes", "3"),
        ("evaluate",),
    ],
)
def test_what_cannot_be_parsed(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "--help" in captured.err


# Folders.


@pytest.fixture
def run(uninterrupted: Callable[[str], Path], refusal: Callable) -> Path:
    """A copy of a run, in the current folder."""
    return Path(shutil.copytree(uninterrupted("fast"), "a run"))


def resume(*arguments: str | Path) -> tuple[str | Path, ...]:
    return ("train", "excavator", "--resume", *arguments)


def test_resuming_what_is_no_run(refusal: Callable) -> None:
    assert refusal(*resume("--out", "nowhere")) == ("nowhere does not exist; leave out --resume to start a run there.")
    assert refusal(*resume()) == ("runs/excavator-fast-seed0 does not exist; leave out --resume to start a run there.")
    Path("photos").mkdir()
    Path("photos/cat.jpg").write_bytes(b"cat")
    assert refusal(*resume("--out", "photos")).startswith("photos is not a run: it has no config.json")
    assert refusal(*resume("--out", "photos/cat.jpg")).startswith("photos/cat.jpg is a file")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", "7"), "was started with seed = 0, and now it is 7"),
        (("--eta", "0.25"), "was started with settings.policy_step.eta = 0.5, and now it is 0.25"),
        (("--model.steps", "21"), "was started with settings.model.steps = 20, and now it is 21"),
        (("--payload", "100"), "was started with payload_kg = 0.0, and now it is 100.0"),
        (("--preset", "paper"), 'was started with preset = "fast", and now it is "paper"'),
    ],
)
def test_resuming_with_another_configuration(
    arguments: tuple[str, ...], words: str, run: Path, refusal: Callable
) -> None:
    said = refusal(*resume("--out", run, *arguments))
    assert said == f"{run} {words}; resume with the same value, or start another run with another --out."


def test_resuming_as_another_robot(run: Path, refusal: Callable) -> None:
    said = refusal("train", "excavator-pressure", "--out", run, "--resume")
    assert 'was started with robot = "excavator", and now it is "excavator-pressure"' in said


def test_resuming_for_fewer_episodes_than_there_are(run: Path, refusal: Callable) -> None:
    said = refusal(*resume("--out", run, "--episodes", "3"))
    assert said == f"episodes is 3, but {run} has {EPISODES} already; give at least as many."


def test_a_place_that_is_taken_is_refused_before_a_base_is_identified(
    run: Path, refusal: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firsthand.cli.train.Train._find_base", lambda *_: pytest.fail("the robot was moved"))
    assert "already holds a run" in refusal("train", "excavator", "--base", "pi", "--out", run)


def test_a_field_that_a_task_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import firsthand as fh\ntask = fh.GymnasiumTask(env=None, rates=1.0)\n")
    command = [sys.executable, "-m", "firsthand", "check", "mine.py:task"]  # in a process of its own: no type checker
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "line 2: GymnasiumTask has no field 'rates' (did you mean 'rate'?)." in found.stderr


def test_places_where_no_run_can_start(run: Path, refusal: Callable) -> None:
    said = refusal("train", "excavator", "--out", run)
    assert re.fullmatch(r"a run already holds a run \(started 20\S+\); add --resume, or give another --out\.", said)
    Path("photos").mkdir()
    Path("photos/cat.jpg").write_bytes(b"cat")
    assert refusal("train", "excavator", "--out", "photos") == (
        "photos is not empty and holds no run; give another --out."
    )
    assert refusal("train", "excavator", "--out", "photos/cat.jpg") == "photos/cat.jpg is a file; give another --out."
    assert refusal("train", "excavator", "--out", "photos/cat.jpg/run") == (
        "cannot make the folder photos/cat.jpg/run: a part of its path is a file, not a folder."
    )
    assert "ile name too long" in refusal("train", "excavator", "--out", "x" * 300)


def test_a_place_where_nothing_may_be_written(refusal: Callable) -> None:
    refusal("train", "excavatr")  # imports what the other user may not be able to read
    Path("theirs").mkdir(mode=0o555)
    nobody = 65534 if os.geteuid() == 0 else None  # root may write everywhere
    said = refusal("train", "excavator", "--out", Path.cwd() / "theirs" / "run", user=nobody)
    assert said.endswith(": permission denied.")
    assert "theirs/run" in said


LOCKED = Path("theirs") / "inside"


@pytest.mark.parametrize(
    "arguments",
    [
        (*("train", "excavator", "--resume", "--out"), LOCKED),
        (*("train", "excavator", "--data"), LOCKED),
        (*("report", "run", "--out"), LOCKED / "page.html"),
        (*("simulator", "record", "excavator", "--out"), LOCKED),
        (*("simulator", "fit", "run", "--out"), LOCKED),
        (*("simulator", "fit", "--out", "new"), LOCKED),
    ],
)
def test_a_place_that_may_not_be_looked_at(arguments: tuple[str | Path, ...], refusal: Callable) -> None:
    refusal("train", "excavatr")  # imports what the other user may not be able to read
    import firsthand.cli.results
    import firsthand.report
    import firsthand.simulators.folder  # noqa: F401

    Path("theirs").mkdir(mode=0o000)
    here = Path.cwd()
    full = [here / part if isinstance(part, Path) else part for part in arguments]
    nobody = 65534 if os.geteuid() == 0 else None
    said = refusal(*full, user=nobody)
    assert said.startswith("cannot read ")
    assert said.endswith(": permission denied.")
    long = [Path("x" * 300) if isinstance(part, Path) else part for part in arguments]
    said = refusal(*long)
    assert said.startswith("cannot read xxx")
    assert said.endswith(": File name too long.")


def test_evaluating_what_is_not_there(run: Path, refusal: Callable) -> None:
    assert refusal("evaluate", "nowhere") == "nowhere does not exist."
    assert refusal("report", "nowhere") == "nowhere does not exist."
    for episode in ("99", "0", "-1"):
        said = refusal("evaluate", run, "--episode", episode)
        assert said == f"episode is {episode}, but {run} holds episodes 1 to {EPISODES}."


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "1e-9", "100"])
def test_a_speed_that_cannot_be(value: str, run: Path, refusal: Callable) -> None:
    said = refusal("evaluate", run, "--speed", value)
    assert said == f"speed is {float(value)}, but must lie between 0.005 and 10 m/s."


def test_the_speeds_that_can_be_asked_for_are_those_of_the_task() -> None:
    degrees = SimpleNamespace(evaluation_speed=90.0, unit="°")
    for speed in (None, 0.9, 400.0, 1800.0):
        check_speed(speed, degrees)
    with pytest.raises(UserError, match=r"speed is 0\.1, but must lie between 0\.9 and 1800 °/s\.$"):
        check_speed(0.1, degrees)


def test_a_run_without_an_episode(run: Path, refusal: Callable) -> None:
    for folder in ("episodes", "checkpoints"):
        shutil.rmtree(run / folder)
    (run / "metrics.jsonl").unlink()
    (run / "best.safetensors").unlink()
    assert refusal("evaluate", run) == f"{run} has no finished episode yet."
    assert refusal("evaluate", run, "--episode", "1") == f"episode is 1, but {run} holds episodes none yet."
    assert f"{run} has no finished episode" in refusal("report", run)


@pytest.mark.parametrize("command", [("evaluate",), ("report",), ("train", "excavator", "--resume", "--out")])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "is damaged: it is not JSON"),
        (lambda text: "[]", "is not a run: its config.json has no field 'format'"),
        (lambda text: edited(text, "format", 99), "has the format 99, and this version of firsthand reads 2"),
        (lambda text: edited(text, "config", 5), "is damaged: 'config' and 'provenance' must be objects"),
        (lambda text: edited(text, "config.settings", 5), "is damaged or was written by another version"),
        (lambda text: edited(text, "config.settings.policy_step.eta", -1), "eta is -1, but must be a positive number"),
        (
            lambda text: edited(text, "config.settings.policy_step.eta", "nan"),
            "is damaged or was written by another version",
        ),
        (lambda text: edited(text, "config.episodes", None), "is damaged or was written by another version"),
    ],
)
def test_a_damaged_configuration(
    command: tuple[str, ...], change: Callable[[str], str], words: str, run: Path, refusal: Callable
) -> None:
    file = run / "config.json"
    file.write_text(change(file.read_text()))
    said = refusal(*command, run)
    assert words in said
    assert str(run) in said


def test_a_run_whose_robot_does_not_exist(run: Path, refusal: Callable) -> None:
    file = run / "config.json"
    file.write_text(edited(file.read_text(), "config.robot", "tractor"))
    assert refusal("evaluate", run).startswith("There is no robot 'tractor'")
    resumed = refusal("train", "excavator", "--resume", "--out", run)
    assert resumed.startswith(f'{run} was started with robot = "tractor", and now it is "excavator"')


def edited(text: str, name: str, value: object) -> str:
    data = json.loads(text)
    *groups, last = name.split(".")
    part = data
    for group in groups:
        part = part[group]
    part[last] = value
    data.pop("sha256", None)  # what it says would be noticed first
    return json.dumps(data)


# In processes of their own: that nothing else gets to the terminal, and that the exit code is really 2.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "excavatr"), "did you mean 'excavator'?"),
        (("train", "excavator", "--eta", "nan"), "policy_step.eta is nan, but must be a positive number."),
        (("train", "excavator", "--model.eta", "1"), "no setting --model.eta (did you mean --policy-step.eta?)."),
        (("train", "excavator", "--trust-region.window", "1"), "window; trust-region has radius, max-radius,"),
        (("evaluate", "nowhere"), "nowhere does not exist."),
        (("characterize", "excavatr"), "did you mean 'excavator'?"),
    ],
)
def test_from_outside(arguments: tuple[str, ...], words: str, firsthand: Firsthand) -> None:
    done = firsthand(*arguments)
    assert words in refused(done.returncode, done.stdout, done.stderr)
    assert tree(firsthand.cwd) == {}


def test_no_checkpoint_is_good(firsthand: Firsthand, uninterrupted, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted("fast"), run)
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    before = tree(run)
    done = firsthand("train", "excavator", "--out", run, "--resume")
    said = refused(done.returncode, done.stdout, done.stderr)
    assert said.startswith(f"no checkpoint in {run / 'checkpoints'} can be used (")
    assert f"{EPISODES:06d}.safetensors: it is cut short or is not a safetensors file" in said
    assert tree(run) == before


def test_several_machines_do_not_learn_on_top_of_a_base(refusal):
    said = refusal("train", "excavator@tcp/127.0.0.1:1", "excavator@tcp/127.0.0.1:2", "--base", "pi")
    assert said == "ROBOT names several machines, but only one learns on top of a base: name one, or leave --base."
