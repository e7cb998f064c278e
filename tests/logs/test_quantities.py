"""Logs of an excavator in wrong units, with wrapped angles, and noisy ones that must be taken all the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.logs import read_log
from firsthand.logs.base import transitions
from firsthand.logs.csv_file import column_names
from firsthand.robots import EpisodeRecord
from firsthand.tasks.excavator import excavator_task
from firsthand.training.learning import as_rollout
from firsthand_onboard import ControlSpec
from firsthand_onboard.features import initial_state
from firsthand_onboard.signals import SPIKE, STUCK

SPEC = excavator_task().spec
DEGREES = 180 / np.pi
POSITION, VELOCITY = slice(1, 5), slice(5, 9)


def motion(rows: int = 2000, period: float = 0.04) -> np.ndarray:
    """Each joint on a sum of two sines within its limits: time, positions, velocities, commands."""
    time = period * np.arange(rows)[:, None]
    low, high = np.asarray(SPEC.limits.position_low), np.asarray(SPEC.limits.position_high)
    slow, fast = np.asarray([0.31, 0.23, 0.41, 0.37]), np.asarray([1.3, 1.7, 1.1, 1.9])
    position = (low + high) / 2 + (high - low) * (0.3 * np.sin(slow * time) + 0.05 * np.sin(fast * time))
    velocity = (high - low) * (0.3 * slow * np.cos(slow * time) + 0.05 * fast * np.cos(fast * time))
    return np.concatenate([time, position, velocity, 0.5 * np.sin(fast * time)], axis=1)


def write(path: Path, values: np.ndarray, spec: ControlSpec = SPEC) -> Path:
    with path.open("w") as file:
        file.write(",".join(column_names(spec)) + "\n")
        np.savetxt(file, values, delimiter=",", fmt="%.9g")
    return path


def times(columns: slice | int, factor: float) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values[:, columns] *= factor

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (times(slice(1, 9), DEGREES), "boom.position is -25.7831 at row 1 and far outside its limits in"),
        (
            times(3, 1000.0),
            "telescope.position is 900 at row 1 and far outside its limits in 100% of the rows, but must",
        ),
        (times(VELOCITY, DEGREES), "boom.position changes 0.0175 times as fast as boom.velocity says"),
        (times(8, 1 / DEGREES), "pitch.position changes 57.3 times as fast as pitch.velocity says, but must change as"),
        (times(6, -1.0), "dipper.position changes -1 times as fast as dipper.velocity says"),
    ],
    ids=["degrees", "millimetres", "degrees per second", "turned round", "sign"],
)
@pytest.mark.parametrize("period", [0.04, 0.01])
def test_another_unit_is_refused_with_the_column(
    period: float, change: Callable[[np.ndarray], None], words: str, tmp_path: Path
) -> None:
    values = motion(period=period)
    change(values)
    with pytest.raises(UserError) as caught:
        read_log(write(tmp_path / "a.csv", values), SPEC)
    assert str(caught.value).startswith(f"{tmp_path / 'a.csv'}: {words}")


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("still", [False, True])
def test_a_noisy_log_in_the_right_units_is_taken(noise: float, still: bool, tmp_path: Path) -> None:
    """Noise of up to three times the velocity that the joints have; a robot that stands still shows nothing else."""
    rng = np.random.default_rng(0)
    values = motion()
    if still:
        values[:, POSITION], values[:, VELOCITY] = values[0, POSITION], 0.0
    speed = motion()[:, VELOCITY].std(axis=0)
    values[:, POSITION] += noise * 0.02 * rng.standard_normal((len(values), 4))
    values[:, VELOCITY] += noise * speed * (0.3 + rng.standard_normal((len(values), 4)))  # and an offset
    taken, _ = transitions(SPEC, read_log(write(tmp_path / "a.csv", values), SPEC))
    assert len(taken.states) == 2000 - 9


def test_a_sensor_that_fails_for_a_while_is_no_other_unit(tmp_path: Path) -> None:
    values = motion()
    values[500:600, 3] = -5.0
    values[900:930, 5] = 5.0
    taken, _ = transitions(SPEC, read_log(write(tmp_path / "a.csv", values), SPEC))
    assert len(taken.states) > 1800


@pytest.mark.parametrize("first", [-np.pi, 0.0])
def test_an_angle_that_jumps_is_refused(first: float, tmp_path: Path) -> None:
    values = motion(400)
    values[:, 1] = (np.linspace(2.5, 4.0, 400) - np.pi) % (2 * np.pi) + first  # over the end of a turn
    at = int(np.argmax(np.abs(np.diff(values[:, 1]))))
    with pytest.raises(UserError) as caught:
        read_log(write(tmp_path / "a.csv", values), SPEC)
    jump = f"jumps from {values[at, 1]:g} to {values[at + 1, 1]:g} at row {at + 2}"
    assert f"boom.position {jump}, as an angle that starts again after each turn does" in str(caught.value)


def test_one_wrong_value_a_turn_away_is_no_jump(tmp_path: Path) -> None:
    values = motion()
    values[700, 2] += 2 * np.pi
    taken, refused = transitions(SPEC, read_log(write(tmp_path / "a.csv", values), SPEC))
    assert refused[SPIKE] == 1
    assert len(taken.states) == 2000 - 19


def test_a_spike_and_a_stuck_sensor_are_refused_as_in_an_episode(tmp_path: Path) -> None:
    values = motion(600)
    values[200, 5] = 90 * SPEC.scales.measured_scale[4]
    values[400:440, 2] = values[400, 2]
    log = read_log(write(tmp_path / "a.csv", values), SPEC)
    taken, refused = transitions(SPEC, log)
    measured = values[:, 1:9].astype(np.float32)
    record = EpisodeRecord(
        starts=initial_state(SPEC.layout, measured[:1], np.zeros((1, 4), np.float32)),
        measured=measured[None],
        commands=values[None, :-1, 9:].astype(np.float32),
        references=np.zeros((1, 599 + SPEC.preview[-1], 2), np.float32),
        free=np.ones((1, 599, 4), bool),
        valid=np.ones((1, 599), bool),
    )
    valid = np.asarray(as_rollout(SPEC, record).valid)[0]
    assert refused[SPIKE] == 1
    assert refused[STUCK] >= 40
    # The learner gives up what the measurement memory holds, a log also what the longer command memory holds.
    usable = valid.copy()
    for begin in [0, *(np.flatnonzero(~valid[:-1] & valid[1:]) + 1 - SPEC.layout.measurement_memory)]:
        usable[begin : begin + SPEC.layout.command_memory] = False
    np.testing.assert_allclose(taken.following, measured[1:][usable], atol=1e-6)
    assert len(taken.states) + refused.total() == log.rows == 600


@pytest.mark.parametrize(
    ("column", "value"), [(9, 5.0), (1, np.nan), (5, 1e4), (5, 20.0), (0, np.nan)],
    ids=["command", "missing", "far", "spike", "time"],
)  # fmt: skip
def test_a_bad_row_of_a_fast_log_is_a_hole(column: int, value: float, tmp_path: Path) -> None:
    good = motion(20000, 0.004)
    clean, _ = transitions(SPEC, read_log(write(tmp_path / "a.csv", good), SPEC))
    values = good.copy()
    values[10003, column] = value
    log = read_log(write(tmp_path / "b.csv", values), SPEC)
    taken, refused = transitions(SPEC, log)
    assert len(clean.states) == 1991
    assert [len(series.commands) for series in log.series] == [1000, 999]
    assert len(taken.states) == 1991 - SPEC.layout.command_memory
    assert len(taken.states) + refused.total() == log.rows
    # What is left is the clean log's, before the row and from the next one on: nothing of the bad row is in it.
    np.testing.assert_array_equal(taken.following[:992], clean.following[:992])
    at = 40.016 + 0.04 * np.arange(9, 1000)
    expected = np.stack([np.interp(at, good[:, 0], one) for one in good[:, 1:9].T], axis=1)
    np.testing.assert_allclose(taken.following[992:], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("period", "gap", "parts"), [(0.035, 0.06, 2), (0.035, 0.045, 1), (0.004, 0.012, 2), (0.004, 0.008, 1)]
)
def test_a_gap_in_a_fast_log_is_never_bridged(period: float, gap: float, parts: int, tmp_path: Path) -> None:
    values = motion(1000, period)
    values[500:, 0] += gap - period
    assert len(read_log(write(tmp_path / "a.csv", values), SPEC).series) == parts
