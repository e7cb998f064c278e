"""Robots in a user's own file: found, refused in one sentence, and found again by the runs they were trained in."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from firsthand.cli.train import default_folder
from firsthand.errors import UserError
from firsthand.robots.description import spec_difference
from firsthand.robots.gymnasium import GymnasiumTask
from firsthand.robots.registry import find_robot
from firsthand.robots.source import RobotSource
from firsthand.robots.user_file import is_robot_file, robot_file, robot_file_notes
from firsthand_onboard import SelectedOutput

PENDULUM = Path(__file__).parents[2] / "examples" / "pendulum.py"


@pytest.fixture
def pendulum(tmp_path: Path) -> Path:
    return Path(shutil.copy(PENDULUM, tmp_path / "my_robot.py"))


def test_a_file_and_a_name_in_it_are_a_robot(pendulum: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pendulum.parent)
    assert isinstance(find_robot("my_robot.py:task", approve=True).source, GymnasiumTask)
    pendulum.write_text(pendulum.read_text() + "\n\ndef made():\n    return task\n")
    made = find_robot("my_robot.py:made", approve=True).source
    assert isinstance(made, RobotSource)
    assert made is find_robot(f"{pendulum}:task").source  # the file is run once, whatever it is called


def test_only_python_files_are_robot_files() -> None:
    assert is_robot_file("a/b.py:task")
    assert is_robot_file("b.py")
    assert not is_robot_file("excavator")
    assert not is_robot_file("tcp/localhost:7447")


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("task = 1", "my_rob.py:task", r"no file .*my_rob\.py \(did you mean 'my_robot\.py'\?\)\.$"),
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
        (PENDULUM.read_text(), "my_robot.py", "but must also name the robot in the file: .*my_robot.py:task"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_robot.py").write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        find_robot(name, approve=True)
    assert "\n" not in str(caught.value)


def test_what_has_happened_to_a_file_since_is_said(pendulum: Path, tmp_path: Path) -> None:
    before = find_robot(f"{pendulum}:task", approve=True).file
    assert robot_file_notes(before, robot_file(f"{pendulum}:task")) == []
    pendulum.write_text(pendulum.read_text() + "\n# heavier\n")
    assert robot_file_notes(before, robot_file(f"{pendulum}:task")) == [
        f"{pendulum} has changed since this run was started; going on with it as it is now."
    ]
    moved = tmp_path / "elsewhere" / "my_robot.py"
    moved.parent.mkdir()
    pendulum.rename(moved)
    assert [note.split(";")[0] for note in robot_file_notes(before, robot_file(f"{moved}:task"))] == [
        f"The robot of this run was in {pendulum}",
        f"{moved} has changed since this run was started",
    ]


def test_another_file_is_not_one_that_has_changed(pendulum: Path, tmp_path: Path) -> None:
    before = find_robot(f"{pendulum}:task", approve=True).file
    other = tmp_path / "other.py"
    other.write_text("task = 1\n")
    assert robot_file_notes(before, robot_file(f"{other}:task"))[1:] == [
        f"{other} is another file than that of this run; going on with it."
    ]


def test_a_file_without_its_ending_is_suggested(pendulum: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pendulum.parent)
    for name in ("my_robot:task", "my_robot"):
        with pytest.raises(UserError, match=r"no robot 'my_robot.*did you mean 'my_robot\.py:task'\?"):
            find_robot(name)


def test_what_differs_is_called_as_in_the_file(pendulum: Path) -> None:
    spec = find_robot(f"{pendulum}:task", approve=True).task.spec
    other = dataclasses.replace(spec, kinematics=SelectedOutput((1,)))
    assert spec_difference(spec, other) == "tracked (kinematics.indices) is [0] there and [1] here"
    assert spec_difference(spec, dataclasses.replace(spec, period_s=9.0)) == "period_s is 0.05 there and 9.0 here"


def test_a_robot_file_gives_a_plain_folder_name() -> None:
    assert default_folder("/home/me/arms/my_robot.py:left", "fast", 2) == Path("runs/my_robot-left-fast-seed2")
    assert default_folder("excavator", "fast", 0) == Path("runs/excavator-fast-seed0")
    assert default_folder("excavator", "fast", 0, "real") == Path("runs/excavator-real-fast-seed0")
