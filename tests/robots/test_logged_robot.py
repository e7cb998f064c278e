"""A robot that is known by a small file only."""

from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.robots.logged_robot import LoggedRobot, logged_robot_of, read_logged_robot
from firsthand.robots.registry import find_robot

TOML = """
name = "digger"
period_s = 0.05
joints = ["boom", "swing"]
position_low = [-0.5, -3.0]
position_high = [0.6, 3.0]
speed = [0.3, 0.5]
free = ["swing"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "digger.toml"
    path.write_text(TOML)
    return path


def test_a_file_is_a_robot_with_a_task(file: Path) -> None:
    found = find_robot(str(file))
    spec = found.task.spec
    assert found.task.name == "digger"
    assert spec.layout.measured == ("boom.position", "swing.position", "boom.velocity", "swing.velocity")
    assert spec.limits.command_low == (-1.0, -1.0)
    assert found.task.home == pytest.approx((0.05, 0.0))
    goals = found.task.sample_goals(np.random.default_rng(0), np.zeros(4), 5)
    assert (np.abs(goals[:, 0]) < 0.6).all()
    robot = read_logged_robot(file)
    assert robot.free_entries == (1,)
    assert logged_robot_of(robot.as_dict(), "x") == robot
    with pytest.raises(UserError, match="cannot move; fit a simulator to its log"):
        found.make()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("speed = [0.3]", "speed has 1 entries, but must have 2, one per joint"),
        ("speed = [0.3, -1]", "speed is 0.3, -1, but must be positive"),
        ('free = ["swng"]', "free names 'swng', which is not a joint; did you mean 'swing'?"),
        ("position_low = [0.7, -3.0]", "position_low of boom is 0.7, but must be below position_high, which is 0.6"),
        ("period_s = 5", "period_s is 5, but must be positive and below a tenth of trajectory_s"),
        ("perod = 5", "there is no field 'perod'"),
        ("velocities = 1", "velocities is 1, but must be true or false"),
        ("columns = {place = 'x'}", "columns is {'place': 'x'}, but must be a table of position"),
        ("home = [", "is not TOML"),
    ],
)
def test_a_wrong_field_is_one_sentence(file: Path, line: str, words: str) -> None:
    name = line.split(" ")[0]
    file.write_text("\n".join(old for old in TOML.splitlines() if not old.startswith(name + " ")) + f"\n{line}\n")
    with pytest.raises(UserError) as caught:
        read_logged_robot(file)
    assert words.replace("; did you mean 'swing'?", "") in str(caught.value)
    assert str(file) in str(caught.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="the field period_s is missing"):
        logged_robot_of({"name": "x"}, "x.toml")
    assert LoggedRobot("x", 0.1, ("a",), (0.0,), (1.0,), (1.0,), velocities=False).spec().layout.velocity == ()
