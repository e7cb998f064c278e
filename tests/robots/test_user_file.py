"""Robots in a user's own file: found, refused in one sentence, and found again by the runs they were trained in."""

import os
import shutil
from pathlib import Path

import pytest

from firsthand.cli.train import default_folder
from firsthand.errors import UserError
from firsthand.robots.gymnasium import GymnasiumTask
from firsthand.robots.registry import RobotSource, find_robot
from firsthand.robots.user_file import is_robot_file
from firsthand.training import TrainingConfig

PENDULUM = Path(__file__).parents[2] / "examples" / "pendulum.py"


@pytest.fixture
def pendulum(tmp_path: Path) -> Path:
    return Path(shutil.copy(PENDULUM, tmp_path / "my_robot.py"))


def test_a_file_and_a_name_in_it_are_a_robot(pendulum: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pendulum.parent)
    assert isinstance(find_robot("my_robot.py:task"), GymnasiumTask)
    pendulum.write_text(pendulum.read_text() + "\n\ndef made():\n    return task\n")
    made = find_robot("my_robot.py:made")
    assert isinstance(made, RobotSource)
    assert made is find_robot(f"{pendulum}:task")  # the file is run once, whatever it is called


def test_only_python_files_are_robot_files() -> None:
    assert is_robot_file("a/b.py:task")
    assert is_robot_file("b.py")
    assert not is_robot_file("excavator")
    assert not is_robot_file("tcp/localhost:7447")


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("task = 1", "my_rob.py:task", r"no robot file .*my_rob\.py \(did you mean 'my_robot\.py'\?\)\.$"),
        ("x = 1\ntask = (", "my_robot.py:task", r"cannot be loaded as Python, line 2: SyntaxError: '\(' was never"),
        ("\x00\x01", "my_robot.py:task", "cannot be loaded as Python.*null bytes"),
        ("\n\nx = 1 / 0", "my_robot.py:task", r"cannot be loaded as Python, line 3: ZeroDivisionError: division by"),
        ("import sys\nsys.exit(3)", "my_robot.py:task", "cannot be loaded as Python, line 2: SystemExit: 3"),
        ("import mujoco_nowhere", "my_robot.py:task", "line 1: ModuleNotFoundError: No module named 'mujoco_nowhere'"),
        ("tusk = 1", "my_robot.py:task", r"my_robot\.py has no 'task' \(did you mean 'tusk'\?\)\.$"),
        ("task = 'arm'", "my_robot.py:task", "task is a str, but must be a robot .a GymnasiumTask"),
        ("from firsthand.robots.gymnasium import GymnasiumTask as task", "my_robot.py:task", "task is a type, but"),
        ("def task():\n    return 5", "my_robot.py:task", "task is an int, but must be a robot"),
        ("def task():\n    return {}['arm']", "my_robot.py:task", r"task\(\) failed, line 2: KeyError: 'arm'\.$"),
        (
            "def task(arm):\n    return arm",
            "my_robot.py:task",
            r"task\(\) failed: TypeError: task\(\) missing 1 required",
        ),
        (PENDULUM.read_text(), "my_robot.py", "but must also name the robot in the file: my_robot.py:task"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_robot.py").write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        find_robot(name)
    assert "\n" not in str(caught.value)


def test_a_run_finds_its_robot_again(pendulum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = TrainingConfig.of("my_robot.py:task").as_dict()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = TrainingConfig.from_dict(stored)
    assert again.make_task().name == "pendulum"
    assert again.robot_notes() == []

    pendulum.write_text(pendulum.read_text() + "\n# heavier\n")
    assert TrainingConfig.from_dict(stored).robot_notes() == [
        f"{pendulum} has changed since this run was started; going on with it as it is now."
    ]

    os.rename(pendulum, elsewhere / "my_robot.py")
    moved = TrainingConfig.from_dict(stored)
    assert [note.split(";")[0] for note in moved.robot_notes()] == [
        f"The robot of this run was in {pendulum}",
        f"{elsewhere / 'my_robot.py'} has changed since this run was started",
    ]
    os.remove(elsewhere / "my_robot.py")
    with pytest.raises(UserError, match=f"is in {pendulum}, which does not exist any more; put it back"):
        TrainingConfig.from_dict(stored)


def test_runs_from_before_robot_files_are_still_read() -> None:
    stored = TrainingConfig.of("excavator").as_dict()
    assert "robot_file" not in stored
    assert TrainingConfig.from_dict(stored).robot_file is None


def test_a_run_does_not_bring_its_robot_file_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from elsewhere that names a file inside itself: nothing of it is run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "robot.py").write_text("raise SystemExit('this was run')\n")
    monkeypatch.chdir(tmp_path)
    stored = TrainingConfig.of("excavator", "fast").as_dict() | {"robot": "run/robot.py:task"}
    for more in ({}, {"robot_file": {"path": "run/robot.py", "sha256": "0"}}):
        with pytest.raises(UserError, match=r"robot is 'run/robot\.py:task', but must be an absolute path"):
            TrainingConfig.from_dict(stored | more)


def test_a_robot_file_gives_a_plain_folder_name() -> None:
    assert default_folder("/home/me/arms/my_robot.py:left", "fast", 2) == Path("runs/my_robot-left-fast-seed2")
    assert default_folder("excavator", "fast", 0) == Path("runs/excavator-fast-seed0")
