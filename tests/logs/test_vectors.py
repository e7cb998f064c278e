"""Logs of vectors: numpy archives and CSV cells in brackets, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from firsthand.cli import main
from firsthand.errors import UserError
from firsthand.logs import check_columns, read_log
from firsthand.robots.logged_robot import LoggedRobot, VectorColumns

COLUMNS = VectorColumns(position="js", velocity="jv", command="action", command_unit=1000.0)
ROBOT = LoggedRobot("arm", 0.05, ("a", "b"), (-2.0, -2.0), (2.0, 2.0), (1.0, 1.0), columns=COLUMNS)
SPEC = ROBOT.spec()


def motion(rows: int = 200, jitter_s: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    time = 0.05 * np.arange(rows) + np.clip(rng.normal(size=rows), -2, 2) * jitter_s
    position = np.stack([np.sin(time), np.cos(time)], axis=1)
    velocity = np.stack([np.cos(time), -np.sin(time)], axis=1)
    return {"time": time, "position": position, "velocity": velocity, "command": rng.uniform(-1, 1, (rows, 2))}


def write_csv(path: Path, rows: dict[str, np.ndarray]) -> Path:
    def cell(values: np.ndarray) -> str:
        return "[" + " ".join(f"{value: .8f}" for value in values) + "]"

    lines = ["target,js,jv,time,action"]
    for k in range(len(rows["time"])):
        p, v, u = cell(rows["position"][k]), cell(rows["velocity"][k]), cell(1000 * rows["command"][k])
        lines.append(f"{p},{p},{v},{rows['time'][k]},{u}")
    path.write_text("\n".join(lines))
    return path


def test_an_archive_and_the_csv_of_the_same_motion_are_the_same_log(tmp_path: Path) -> None:
    rows = motion()
    np.savez(tmp_path / "log.npz", **rows)  # pyright: ignore[reportArgumentType]
    one = read_log(tmp_path / "log.npz", SPEC, COLUMNS)
    other = read_log(write_csv(tmp_path / "log.csv", rows), SPEC, COLUMNS)
    assert one.usable == other.usable == 199
    np.testing.assert_allclose(one.series[0].measured, other.series[0].measured, atol=1e-6)
    np.testing.assert_allclose(one.series[0].commands, other.series[0].commands, atol=1e-6)


def test_cycles_are_stretches_of_their_own_and_a_folder_is_one_log(tmp_path: Path) -> None:
    rows = motion()
    twice = {name: np.concatenate([values, values]) for name, values in rows.items()}
    np.savez(tmp_path / "a.npz", cycle=np.repeat([0, 1], 200), **twice)  # pyright: ignore[reportArgumentType]
    np.savez(tmp_path / "b.npz", **rows)  # pyright: ignore[reportArgumentType]
    assert [len(s.commands) for s in read_log(tmp_path / "a.npz", SPEC).series] == [199, 199]
    assert read_log(tmp_path, SPEC).usable == 3 * 199


def test_a_row_that_comes_late_is_no_gap(tmp_path: Path) -> None:
    rows = motion(jitter_s=0.004)
    rows["time"][50] += 0.03
    np.savez(tmp_path / "log.npz", **rows)  # pyright: ignore[reportArgumentType]
    assert len(read_log(tmp_path / "log.npz", SPEC).series) == 1
    rows["time"][100:] += 0.2
    np.savez(tmp_path / "log.npz", **rows)  # pyright: ignore[reportArgumentType]
    assert len(read_log(tmp_path / "log.npz", SPEC).series) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("velocity", "log.npz has no velocities (column 'velocity'), but arm measures them"),
        ("rates", "log.npz has two rates: a row every 0.05 s, and every 0.15 s in 40 % of it"),
        ("mostly slow", "log.npz has two rates: a row every 0.05 s, and every 0.15 s in 60 % of it"),
        ("constant", "log.npz: b.position is 0.5 in all 200 rows, but must change"),
        ("shape", "position has the shape (200, 3), but must have 2 columns"),
    ],
)
def test_a_log_that_cannot_be_fitted_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, words: str
) -> None:
    rows = motion()
    if wrong == "velocity":
        del rows["velocity"]
    elif wrong in ("rates", "mostly slow"):
        first = 120 if wrong == "rates" else 80
        rows["time"] = np.cumsum(np.where(np.arange(200) < first, 0.05, 0.15))
        rows["position"], rows["velocity"] = 0.1 * rows["position"], 0.1 * rows["velocity"]
    elif wrong == "constant":
        rows["position"][:, 1], rows["velocity"][:, 1] = 0.5, 0.001 * rows["velocity"][:, 1]
    else:
        rows["position"] = np.ones((200, 3))
    np.savez(tmp_path / "log.npz", **rows)  # pyright: ignore[reportArgumentType]
    robot = tmp_path / "arm.toml"
    robot.write_text(
        'name = "arm"\nperiod_s = 0.05\njoints = ["a", "b"]\nposition_low = [-2, -2]\n'
        "position_high = [2, 2]\nspeed = [1, 1]\n"
    )
    with pytest.raises(SystemExit) as done:
        main(["simulator", "fit", str(tmp_path / "log.npz"), "--robot", str(robot), "--out", str(tmp_path / "sim")])
    assert done.value.code == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert not (tmp_path / "sim").exists()


def test_damaged_archives(tmp_path: Path) -> None:
    (tmp_path / "log.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(UserError, match="not a numpy archive"):
        read_log(tmp_path / "log.npz", SPEC)
    np.savez(tmp_path / "log.npz", time=np.asarray([{}], dtype=object))
    with pytest.raises(UserError, match="not a numpy archive"):
        read_log(tmp_path / "log.npz", SPEC)


def test_only_a_column_that_never_changes_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **motion())  # pyright: ignore[reportArgumentType]
    log = read_log(tmp_path / "log.npz", SPEC)
    assert check_columns(SPEC, log) is log
