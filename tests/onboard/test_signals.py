"""Signal checks on cases worked by hand, and on what sensors really send: NaN, infinity, one sample, nothing valid."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from firsthand_onboard import ControlSpec, Limits, PolicyShape, ReferenceSpec, Scales, SelectedOutput, StateLayout
from firsthand_onboard.signals import (
    IMPLAUSIBLE,
    NOT_FINITE,
    OUT_OF_RANGE,
    PeriodSettings,
    SignalSettings,
    UnitSettings,
    compare_period,
    describe_unit_error,
    find_joined_rows,
    find_leaps,
    find_row_faults,
    find_spikes,
    find_stuck_sensors,
    is_plausible,
    mark_memory,
    travel_factor,
)
from firsthand_onboard.spec import SpecError

SPEC = ControlSpec(
    robot="slider",
    period_s=0.1,
    layout=StateLayout(("p", "v"), (0,), (1,), ("u",), command_memory=1, measurement_memory=1),
    kinematics=SelectedOutput((0,)),
    preview=(1,),
    scales=Scales((0.5, 0.0), (0.5, 1.0), (0.1, 0.2), 1.0, 1.0),
    limits=Limits((-1.0,), (1.0,), (0.0,), (1.0,)),
    reference=ReferenceSpec("position", 5, (-1.0,), (1.0,)),
    policy=PolicyShape((4,)),
)
WITHOUT_VELOCITY = dataclasses.replace(
    SPEC, layout=dataclasses.replace(SPEC.layout, velocity=()), kinematics=SelectedOutput((0,))
)
BAD = [np.nan, np.inf, -np.inf, 3e38, -3e38]


def still(samples: int) -> np.ndarray:
    """A slider that stands at 0.5: (1, samples, 2)."""
    return np.tile(np.asarray([0.5, 0.0], np.float32), (1, samples, 1))


def moving(samples: int, speed: float = 0.1) -> np.ndarray:
    """A slider that speeds up a little, from 0."""
    time = SPEC.period_s * np.arange(samples)
    return np.stack([speed * time * (1 + 0.05 * time), speed * (1 + 0.1 * time)], axis=1)[None]


# Range ----------------------------------------------------------------------------------------------------------------


def test_a_state_at_the_threshold_is_plausible_and_one_beyond_is_not() -> None:
    state = np.asarray([0.5 + 50.0, 100.0, 0.5, 0.0, 1e30])  # the command is not judged by scales
    assert is_plausible(SPEC, state)
    for entry in range(4):  # the older measurement counts like the newest
        beyond = state.copy()
        beyond[entry] = 101.0
        assert not is_plausible(SPEC, beyond)


@pytest.mark.parametrize("entry", range(5))
@pytest.mark.parametrize("value", BAD[:3])
def test_a_state_that_is_not_finite_is_implausible(entry: int, value: float) -> None:
    states = np.zeros((2, 3, 5), np.float32)
    states[1, 2, entry] = value
    expected = np.ones((2, 3), bool)
    expected[1, 2] = False
    np.testing.assert_array_equal(is_plausible(SPEC, states), expected)


def test_no_states_and_only_bad_states() -> None:
    assert is_plausible(SPEC, np.zeros((0, 5))).shape == (0,)
    assert not is_plausible(SPEC, np.full((3, 5), np.nan)).any()


def test_row_faults_name_the_worst_reason() -> None:
    measured, commands = np.tile([0.5, 0.0], (7, 1)), np.zeros((7, 1))
    commands[1] = 1.1
    commands[2] = 1.0 + 1e-4  # within the slack
    measured[3, 1] = 101.0
    measured[4, 0] = np.nan
    measured[5, 1], commands[5] = np.inf, 2.0
    commands[6] = np.nan
    expected = ["", OUT_OF_RANGE, "", IMPLAUSIBLE, NOT_FINITE, NOT_FINITE, NOT_FINITE]
    assert find_row_faults(SPEC, measured, commands).tolist() == expected
    assert find_row_faults(SPEC, measured[:0], commands[:0]).shape == (0,)


# Spikes ---------------------------------------------------------------------------------------------------------------


def test_a_spike_is_a_value_that_comes_straight_back() -> None:
    measured, valid = still(20), np.ones((1, 19), bool)
    measured[0, 4, 0] += 0.6  # 5 change scales are 0.5
    assert np.flatnonzero(find_spikes(SPEC, measured, valid)[0]).tolist() == [4]
    measured[0, 4, 0] = 0.99  # 0.49
    assert not find_spikes(SPEC, measured, valid).any()
    measured[0, 4:, 0] = 1.5  # a lasting change
    assert not find_spikes(SPEC, measured, valid).any()


def test_what_is_usual_comes_from_steps_that_happened() -> None:
    measured, valid = still(30), np.ones((1, 29), bool)
    measured[0, 5, 0] += 1.0
    measured[0, 16::2, 0] += 1.0  # a quarter of the samples: usual
    assert not find_spikes(SPEC, measured, valid).any()
    valid[0, 15:] = False
    assert find_spikes(SPEC, measured, valid)[0, 5]


@pytest.mark.parametrize("samples", [1, 2])
def test_too_few_samples_have_no_spike(samples: int) -> None:
    measured = np.full((2, samples, 2), np.inf)
    assert not find_spikes(SPEC, measured, np.ones((2, samples - 1), bool)).any()


@pytest.mark.parametrize("value", BAD)
def test_one_bad_value_does_not_hide_a_spike_elsewhere(value: float) -> None:
    measured, valid = still(40), np.ones((1, 39), bool)
    measured[0, 4, 0], measured[0, 12, 0] = value, 1.5
    found = np.flatnonzero(find_spikes(SPEC, measured, valid)[0]).tolist()
    assert found == ([12] if np.isnan(value) else [4, 12])


def test_nothing_valid_has_no_spike() -> None:
    measured = still(9)
    measured[0, 4, 0] = 9.0
    assert not find_spikes(SPEC, measured, np.zeros((1, 8), bool)).any()
    assert not find_spikes(SPEC, np.full((1, 9, 2), np.nan), np.ones((1, 8), bool)).any()


# Stuck sensors --------------------------------------------------------------------------------------------------------

QUICK = SignalSettings(stuck_steps=5)


def test_a_position_that_stands_while_its_velocity_says_otherwise_is_stuck() -> None:
    measured = moving(40, speed=2.0)
    assert not find_stuck_sensors(SPEC, measured, QUICK).any()  # they agree
    measured[0, 10:21, 0] = measured[0, 10, 0]
    assert np.flatnonzero(find_stuck_sensors(SPEC, measured, QUICK)[0]).tolist() == list(range(10, 21))


def test_a_velocity_that_stands_while_its_position_moves_otherwise_is_stuck() -> None:
    measured = still(40)
    measured[0, :, 0] += 0.2 * np.arange(40, dtype=np.float32)
    assert find_stuck_sensors(SPEC, measured, QUICK).all()


def test_a_robot_at_rest_is_not_stuck() -> None:
    assert not find_stuck_sensors(SPEC, still(200)).any()


@pytest.mark.parametrize("value", BAD[:3])
def test_a_missing_sample_neither_sets_off_nor_hides_a_stuck_sensor(value: float) -> None:
    measured = moving(60, 2.0)
    measured[0, 5, 1] = value
    assert not find_stuck_sensors(SPEC, measured, QUICK).any()
    measured[0, 20:50, 0] = measured[0, 20, 0]
    assert find_stuck_sensors(SPEC, measured, QUICK)[0, 20:50].all()


def test_short_or_missing_signals_are_never_stuck() -> None:
    assert not find_stuck_sensors(SPEC, still(1)).any()
    assert not find_stuck_sensors(SPEC, moving(5), QUICK).any()  # one sample too few for the window
    assert not find_stuck_sensors(SPEC, np.full((2, 40, 2), np.nan), QUICK).any()
    assert not find_stuck_sensors(WITHOUT_VELOCITY, moving(40), QUICK).any()


# Memory and leaps -----------------------------------------------------------------------------------------------------


def test_a_doubtful_sample_stays_in_the_state_for_as_long_as_its_memory() -> None:
    doubtful = np.zeros((2, 6), bool)
    doubtful[0, 1] = doubtful[1, 5] = True
    marked = mark_memory(doubtful, 2)
    assert np.flatnonzero(marked[0]).tolist() == [1, 2, 3]
    assert np.flatnonzero(marked[1]).tolist() == [5]
    np.testing.assert_array_equal(mark_memory(doubtful, 0), doubtful)
    assert not np.shares_memory(mark_memory(doubtful, 0), doubtful)


def test_a_memory_longer_than_the_signal() -> None:
    assert mark_memory(np.ones((1, 1), bool), 3).tolist() == [[True]]


def test_a_position_leaps_when_its_speed_does_not_explain_the_way() -> None:
    measured = np.asarray([[0.1, 1.0], [0.64, 1.0], [0.64, 0.0], [0.9, 0.0], [0.1, 0.0]])
    # allowed: 3 · 0.1 s · 1 m/s + 0.25, then 0.55, 0.25, 0.25
    assert find_leaps(SPEC, measured).tolist() == [False, False, True, True]
    assert not find_leaps(WITHOUT_VELOCITY, measured).any()
    assert find_leaps(SPEC, measured[:1]).shape == (0,)
    assert not find_leaps(SPEC, np.full((4, 2), np.nan)).any()
    assert not find_leaps(SPEC, np.full((4, 2), np.inf)).any()


# Units ----------------------------------------------------------------------------------------------------------------


def swing(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Times and (position, velocity) of a slider that swings within its limits."""
    time = SPEC.period_s * np.arange(rows)
    return time, np.stack([0.5 + 0.4 * np.sin(time), 0.4 * np.cos(time)], axis=1)


def unit_error(time: np.ndarray, measured: np.ndarray, **settings: Any) -> str:
    return describe_unit_error(SPEC, np.arange(len(time)), time, measured, UnitSettings(**settings))


def test_right_units_are_no_error() -> None:
    assert unit_error(*swing()) == ""


@pytest.mark.parametrize(("column", "factor", "words"), [
    (0, 1000.0, "p is 500 at row 1 and far outside its limits in"),
    (1, 57.3, "p changes 0.0175 times as fast as v says"),
    (1, -1.0, "p changes -1 times as fast as v says"),
])  # fmt: skip
def test_another_unit_is_named(column: int, factor: float, words: str) -> None:
    time, measured = swing()
    measured[:, column] *= factor
    assert words in unit_error(time, measured)


def test_a_wrapped_angle_is_named_with_its_row() -> None:
    time, measured = swing(60)
    measured[:, 0] = np.linspace(2.5, 4.0, 60)
    measured[measured[:, 0] > np.pi, 0] -= 2 * np.pi
    row = int(np.flatnonzero(measured[:, 0] < 0)[0])
    assert f"at row {row + 1}, as an angle that starts again after each turn does" in unit_error(time, measured)
    assert "jumps" not in unit_error(time, measured, turns=(360.0,))


@pytest.mark.parametrize("value", BAD)
def test_bad_values_do_not_decide_on_units(value: float) -> None:
    time, measured = swing()
    measured[::40] = value
    assert unit_error(time, measured) == ""
    factor = travel_factor(time, measured[:, 0], measured[:, 1], 0.1)
    assert factor == pytest.approx(1.0, rel=0.02) if abs(value) != 3e38 else factor is None  # no verdict


def test_too_little_data_gives_no_verdict() -> None:
    time, measured = swing(1)
    assert unit_error(time, measured) == ""
    assert travel_factor(time, measured[:, 0], measured[:, 1], 0.1) is None
    time, measured = swing(90)  # 18 windows of 5
    assert travel_factor(time, measured[:, 0], measured[:, 1], 0.1) is None
    time, measured = swing()
    assert travel_factor(time, np.full(600, np.nan), measured[:, 1], 0.1) is None
    assert travel_factor(time, np.zeros(600), np.zeros(600), 0.1) is None
    assert unit_error(time, np.full((600, 2), np.nan)) == ""


# Periods --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "expected"), [(0.1, "same"), (0.0981, "same"), (0.05, "faster"), (0.103, "slower")])
def test_the_period_of_a_log(step: float, expected: str) -> None:
    assert compare_period(np.full(9, step), 0.1) == expected
    assert compare_period(np.asarray([step]), 0.1) == expected


def test_gaps_on_the_period() -> None:
    steps = np.asarray([0.1, 0.129, 0.071, 0.131, 0.2, 0.1, np.nan])
    assert find_joined_rows(steps[:-1], 0.1).tolist() == [True, True, True, False, False, True]
    assert not find_joined_rows(steps, 0.1)[-1]


def test_one_row_of_a_faster_log_may_be_missing_but_no_more_than_a_control_period() -> None:
    steps = np.asarray([0.02, 0.02, 0.02, 0.05, 0.054])
    assert find_joined_rows(steps, 0.1).tolist() == [True, True, True, True, False]
    steps = np.asarray([0.08, 0.08, 0.08, 0.129, 0.131])
    assert find_joined_rows(steps, 0.1).tolist() == [True, True, True, True, False]


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "field", "value"), [
    (SignalSettings, "max_scales", 0.0),
    (SignalSettings, "spike_ratio", np.nan),
    (SignalSettings, "spike_quantile", 1.5),
    (SignalSettings, "stuck_steps", 2.5),
    (UnitSettings, "turns", (np.inf,)),
    (UnitSettings, "min_correlation", 1.1),
    (PeriodSettings, "jitter", -0.1),
])  # fmt: skip
def test_a_wrong_threshold_is_refused_by_name(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"{field} is .*, but must be"):
        kind(**{field: value})
