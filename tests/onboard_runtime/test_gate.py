"""The gate against hostile commands; each limit is checked with its own plain formula."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand_onboard import ControlSpec, Limits, PolicyShape, ReferenceSpec, Scales, SelectedOutput, SpecError
from firsthand_onboard.gate import LOST_MEASUREMENT, TOO_OLD, Gate, GateResult, stoppable_step
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.loop import Executor
from firsthand_onboard.policy import NumpyPolicy
from firsthand_onboard.spec import StateLayout
from firsthand_onboard.timing import LockStep
from firsthand_onboard.toy import Toy, toy_spec

from .processes import random_policy

PERIOD = 0.04
ROUNDING = 1e-6
"""Commands are float32: the acceleration, a difference of differences, holds up to a few units in the last place."""


def spec(velocity: bool = True) -> ControlSpec:
    """Two joints, a measured output."""
    names = ("a.position", "b.position") + (("a.velocity", "b.velocity") if velocity else ())
    n = len(names)
    return ControlSpec(
        robot="two joints",
        period_s=PERIOD,
        layout=StateLayout(names, (0, 1), (2, 3) if velocity else (), ("a", "b"), 2, 0),
        kinematics=SelectedOutput((0, 1)),
        preview=(1, 2),
        scales=Scales((0.0,) * n, (1.0,) * n, (0.1,) * n, 1.0, 1.0),
        limits=Limits((-1.0, 0.0), (1.0, 5.0), (-2.0, -3.0), (2.0, 3.0)),
        reference=ReferenceSpec("output", 10, (-1.0, -1.0), (1.0, 1.0)),
        policy=PolicyShape((4,)),
    )


UP = ((0, 1), (1, 1))
SPEC = spec()
LIMITS = GateLimits.of(
    SPEC, neutral=(0.0, 1.0), directions=UP, box_low=(-1.9, -2.9), box_high=(1.9, 2.9), tracking_error=8.0
)
GATE = Gate(SPEC, LIMITS)
REST = np.zeros(4)
any_float = st.one_of(
    st.floats(width=64),
    st.floats(-6, 6),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e39, -1e39, 1e308, 5e-324, 0.0, -0.0, 1.0, 5.0]),
)
steps = st.tuples(
    st.lists(any_float, min_size=2, max_size=2),
    st.lists(st.floats(-2.2, 2.2), min_size=4, max_size=4),
    st.floats(0.0, 1.0),
)


def check(result: GateResult, before: np.ndarray, change: tuple[float, ...], proposed: np.ndarray) -> None:
    low, high = np.asarray(LIMITS.low), np.asarray(LIMITS.high)
    neutral = np.asarray(LIMITS.neutral)
    command = result.command.astype(float)
    assert result.command.dtype == np.float32
    assert np.isfinite(command).all()
    assert (low <= command).all()
    assert (command <= high).all()
    if result.fault:
        assert (command == neutral).all()
        return
    rate, bend = np.asarray(LIMITS.rate) * PERIOD, np.asarray(LIMITS.acceleration) * PERIOD**2
    for low, high in ((before - rate, before + rate), (before + change - bend, before + change + bend)):
        # A cap may take the command out of the ramp, but only towards neutral, and never past it.
        assert ((command >= low - ROUNDING) | (command >= neutral)).all()
        assert ((command <= high + ROUNDING) | (command <= neutral)).all()
    if result.state.age == 1:  # otherwise the measurement was not believed
        assert (result.free == (proposed.astype(np.float32) == result.command)).all()


@settings(max_examples=200)
@given(st.lists(steps, min_size=1, max_size=25))
def test_no_output_is_ever_outside_its_limits(sequence):
    state = GATE.start()
    for proposed, measured, authority in sequence:
        before, change = state.command.astype(float), state.change
        with np.errstate(over="ignore"):
            result = GATE(state, np.asarray(proposed), np.asarray(measured), authority=authority)
            check(result, before, change, np.asarray(proposed))
            if not np.isfinite(proposed).all():
                assert result.fault
        state = result.state


@settings(max_examples=100)
@given(st.lists(st.lists(st.floats(-20, 20), min_size=2, max_size=2), min_size=1, max_size=80))
def test_far_from_every_edge_rate_and_acceleration_hold_without_exception(commands):
    state = GATE.start()
    for proposed in commands:
        result = GATE(state, np.asarray(proposed), REST)
        step = result.command.astype(float) - state.command.astype(float)
        assert (np.abs(step) <= np.asarray(LIMITS.rate) * PERIOD).all()
        assert (np.abs(step - state.change) <= np.asarray(LIMITS.acceleration) * PERIOD**2 + ROUNDING).all()
        state = result.state


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_not_clipped(bad):
    result = GATE(GATE.start(), np.asarray([bad, 1.0]), REST)
    assert result.fault
    assert (result.command == np.asarray(LIMITS.neutral, np.float32)).all()
    assert not result.free.any()


@settings(max_examples=200)
@given(st.floats(0.001, 10), st.floats(0.001, 3))
def test_a_step_that_can_be_stopped_uses_exactly_the_distance(distance, bend):
    step = stoppable_step(distance, bend)
    total, left = 0.0, step
    while left > 0:
        total, left = total + left, left - bend
    assert total == pytest.approx(distance, rel=1e-9)


def test_commands_inside_the_limits_pass_bit_for_bit():
    wide = Gate(SPEC, GateLimits.wide(SPEC, (0.0, 1.0)))
    rng = np.random.default_rng(0)
    state = wide.start()
    for _ in range(100):
        proposed = rng.uniform([-1, 0], [1, 5]).astype(np.float32)
        result = wide(state, proposed, REST)
        assert result.command.tobytes() == proposed.tobytes()
        assert result.free.all()
        state = result.state


def settled(measured: np.ndarray, proposed: np.ndarray, gate: Gate = GATE, **options) -> GateResult:
    """What is applied after the ramps have had time."""
    result = gate(gate.start(), proposed, measured, **options)
    for _ in range(60):
        result = gate(result.state, proposed, measured, **options)
    return result


STILL = {"check_sensors": 0}
"""For tests in which a joint is commanded and stands still all the same."""


def test_motion_towards_a_joint_limit_is_slowed_and_motion_away_is_not():
    stopping = {"lag_s": 0.5, "dead_time_s": 0.06}  # with a period, 0.6 s
    gate = Gate(SPEC, GateLimits.of(SPEC, (0.0, 1.0), UP, stopping, **STILL))
    at = np.asarray([1.9, 0.0, 0.0, 0.0])
    # At full command it is expected to move at 1 per second: 0.2·u of margin and 0.6·u to stop are 0.1.
    assert settled(at, np.asarray([1.0, 1.0]), gate).command[0] == pytest.approx(0.125, abs=1e-6)
    assert settled(at, np.asarray([-1.0, 1.0]), gate).command[0] == -1.0
    beyond = np.asarray([2.03, 0.0, 0.0, 0.0])
    assert settled(beyond, np.asarray([1.0, 1.0]), gate).command[0] == 0.0
    moving = np.asarray([1.9, 0.0, 0.15, 0.0])  # 0.6 s further it is at 1.99: 0.01 of 0.2 are left
    assert settled(moving, np.asarray([1.0, 1.0]), gate).command[0] == pytest.approx(0.05, abs=1e-5)


def test_a_declared_deceleration_is_a_distance_that_grows_with_the_square_of_the_speed():
    gate = Gate(SPEC, GateLimits.of(SPEC, (0.0, 1.0), UP, {"deceleration": 2.0}, lookahead_s=0.0, **STILL))
    moving = np.asarray([1.7, 0.0, 0.8, 0.0])  # 0.04 s and 0.8²/4 = 0.16 further: 0.108 of 0.2 are left
    assert settled(moving, np.asarray([1.0, 1.0]), gate).command[0] == pytest.approx(0.3 / 0.495, rel=0.2)
    slow = np.asarray([1.7, 0.0, 0.8, 0.0]) + np.asarray([0.1, 0.0, 0.0, 0.0])
    assert settled(slow, np.asarray([1.0, 1.0]), gate).command[0] == pytest.approx(0.04, abs=1e-5)


def test_a_channel_that_moves_its_joint_down_is_slowed_at_the_other_end():
    gate = Gate(SPEC, GateLimits.of(SPEC, (0.0, 1.0), ((0, -1), (1, 1)), **STILL))
    at = np.asarray([2.0, 0.0, 0.0, 0.0])
    assert settled(at, np.asarray([-1.0, 1.0]), gate).command[0] == 0.0
    assert settled(at, np.asarray([1.0, 1.0]), gate).command[0] == 1.0


def test_speeds_that_are_not_measured_come_from_positions():
    without = spec(velocity=False)
    gate = Gate(without, GateLimits.of(without, (0.0, 1.0), UP, {"lag_s": 0.52}, **STILL))  # with two periods, 0.6 s
    result = gate(gate.start(), np.asarray([1.0, 1.0]), np.asarray([1.892, 0.0]))
    for position in (1.896, 1.9):  # 0.1 per second, so it will stop at 1.96: 0.04 of 0.2 are left
        result = gate(result.state, np.asarray([1.0, 1.0]), np.asarray([position, 0.0]))
    rooms = gate.joints(result.state.joints, [1.904, 0.0], [0.0, 0.0], 1)[0]
    assert rooms.of_joint[0] == (1.0, pytest.approx(min(0.036 / 0.2, 0.096 / (0.2 + 0.6 * 2.0))))


def test_the_box_slows_motion_outward_and_far_outside_is_a_fault():
    inside = np.asarray([1.8, 0.0, 0.0, 0.0])
    first = GATE(GATE.start(), np.asarray([0.0, 3.0]), inside)
    out = GATE(first.state, np.asarray([0.0, 3.0]), inside + np.asarray([0.01, 0.0, 0.0, 0.0]))
    assert out.command[1] == pytest.approx(
        1.8, abs=1e-5
    )  # 0.2 s ahead at 0.25 per second 0.04 of 0.2 are left: 1 + 4/5
    back = GATE(first.state, np.asarray([0.0, 3.0]), inside - np.asarray([0.01, 0.0, 0.0, 0.0]))
    assert back.command[1] > 1.0
    assert GATE(GATE.start(), np.zeros(2), np.asarray([2.2, 0.0, 0.0, 0.0])).fault


def test_tracking_error_age_and_dropouts():
    ok = np.asarray([0.0, 1.0])
    assert not GATE(GATE.start(), ok, REST, reference=np.asarray([4.0, 4.0])).fault
    assert GATE(GATE.start(), ok, REST, reference=np.asarray([8.1, 0.0])).fault
    assert GATE(GATE.start(), ok, REST, reference=np.asarray([math.nan, 0.0])).fault
    assert not GATE(GATE.start(), ok, REST, age_s=PERIOD).fault
    assert GATE(GATE.start(), ok, REST, age_s=PERIOD * 1.01).fault
    assert GATE(GATE.start(), ok, REST, age_s=math.nan).fault
    state = GATE.start()
    faults = []
    for _ in range(LIMITS.dropouts + 1):
        result = GATE(state, ok, np.full(4, math.nan))
        assert (result.command == np.asarray(LIMITS.neutral, np.float32)).all()
        faults.append(bool(result.fault))
        state = result.state
    assert faults == [False] * LIMITS.dropouts + [True]


def test_after_a_gap_speed_is_what_was_travelled_over_the_whole_gap():
    at, gone, wanted = np.asarray([1.82, 0.0, 0.0, 0.0]), np.full(4, math.nan), np.asarray([0.0, 3.0])
    state = GATE(GATE.start(), wanted, at).state
    # 0.25 per second outward: 0.2 s ahead 0.01 of 0.2 are left, then nothing.
    for gap, expected in ((1, 1.2), (2, 1.0)):
        state = GATE(state, wanted, gone).state
        assert (state.age, state.measured[0]) == (gap + 1, 1.82)
        result = GATE(state, wanted, at + np.asarray([0.01 * (gap + 1), 0.0, 0.0, 0.0]))
        assert result.command[1] == pytest.approx(expected, abs=1e-5)
        assert result.state.age == 1


def test_without_measured_speeds_the_joint_margins_hold_over_a_gap():
    without = spec(velocity=False)
    gate = Gate(without, GateLimits.of(without, (0.0, 1.0), UP, {"lag_s": 0.52}))
    ok = np.asarray([1.0, 1.0])
    state = gate(gate.start(), ok, np.asarray([1.864, 0.0])).state
    state = gate(state, ok, np.full(2, math.nan)).state
    rooms = gate.joints(state.joints, [1.88, 0.0], [0.0, 0.0], state.age)[0]  # 0.2 per second over two periods
    assert rooms.of_joint[0] == (1.0, pytest.approx(0.0))


def test_measurements_that_are_missing_again_and_again_are_a_fault():
    def steps_until_fault(every: int) -> int:
        state = GATE.start()
        for k in range(200):
            result = GATE(state, np.asarray([0.0, 1.0]), REST if k % every else np.full(4, math.nan))
            if result.fault:
                assert result.fault == LOST_MEASUREMENT
                return k
            state = result.state
        return 200

    assert steps_until_fault(2) == 16  # the ninth of twenty
    assert steps_until_fault(3) == 200


class DropsOut:
    """The toy in lock-step; a sensor gives nothing in some of the readings."""

    def __init__(self, missing: set[int]) -> None:
        self.toy, self.missing, self.readings = Toy(), missing, -1

    def read(self) -> np.ndarray:
        self.readings += 1
        measured = self.toy.measure()
        measured[1] = math.nan if self.readings in self.missing else measured[1]
        return measured

    def write(self, command: np.ndarray) -> None:
        self.toy.step(command)

    def neutral(self) -> None:
        pass


@pytest.mark.parametrize("memory", [0, 2])
def test_a_missing_measurement_is_one_neutral_step_and_the_fourth_a_fault(memory):
    toy = toy_spec()
    spec = dataclasses.replace(toy, layout=dataclasses.replace(toy.layout, measurement_memory=memory))
    weights = random_policy(spec)
    layers = [(weights[f"policy.{i}.weight"], weights[f"policy.{i}.bias"]) for i in range(3)]
    policy = NumpyPolicy(spec, layers)

    def visit(missing: set[int]):
        return Executor(spec, DropsOut(missing), GateLimits.wide(spec), LockStep(0.04)).visit(policy, np.zeros(2))

    done = visit({10, 20, 21, 22})
    assert done.ended == "done"
    assert np.flatnonzero(np.isnan(done.measured).any(axis=1)).tolist() == [10, 20, 21, 22]
    assert np.flatnonzero(~done.commands.any(axis=1)).tolist() == [10, 20, 21, 22]
    cut = visit({20, 21, 22, 23})
    assert (cut.ended, cut.fault, cut.valid.sum()) == (LOST_MEASUREMENT, True, 23)


class Slow:
    """A clock that stands still, and a machine of which one reading takes longer than a command may be old."""

    period_s, overruns, worst_late_s = PERIOD, 0, 0.0

    def __init__(self, slow: int, takes_s: float) -> None:
        self.toy, self.slow, self.takes_s, self.readings, self.time = Toy(), slow, takes_s, -1, 0.0

    def now(self) -> float:
        return self.time

    def restart(self) -> None:
        pass

    def wait(self, poll) -> str:
        return poll()

    def read(self) -> np.ndarray:
        self.readings += 1
        self.time += self.takes_s if self.readings == self.slow else 0.0
        return self.toy.measure()

    def write(self, command: np.ndarray) -> None:
        self.toy.step(command)

    def neutral(self) -> None:
        pass


def test_a_command_from_a_reading_that_is_too_old_is_not_applied():
    def play(takes_s: float):
        slow = Slow(5, takes_s)
        return Executor(toy_spec(), slow, GateLimits.of(toy_spec()), slow).play(np.full((10, 2), 0.1))  # pyright: ignore

    cut = play(1.01 * PERIOD)
    assert (cut.ended, cut.fault, cut.valid.sum()) == (TOO_OLD, True, 5)
    assert play(0.99 * PERIOD).ended == "done"


def test_reduced_authority_shrinks_the_range_around_neutral():
    result = settled(REST, np.asarray([1.0, 5.0]), authority=0.25)
    assert result.command == pytest.approx([0.25, 2.0], abs=1e-6)
    assert not result.free.any()


def test_limits_survive_json_and_name_what_is_wrong():
    wide = GateLimits.wide(SPEC, (0.0, 1.0))
    assert GateLimits.from_json(wide.to_json(), SPEC) == wide
    assert GateLimits.from_json('{"joint_margin": 0.1}', SPEC, (0.0, 1.0)).joint_margin == 0.1
    for text, word in (
        ("[]", "object"),
        ("{", "JSON"),
        ('{"rat": 1}', "no field 'rat'"),
        ('{"rate": [1, -2]}', "rate"),
        ('{"rate": 5}', "gate.rate is 5, but must be a list"),
        ('{"rate": ["a", 1]}', "gate.rate is .'a', 1., but must be a list"),
        ('{"dropouts": [3]}', "gate.dropouts is .3., but must be a number"),
        ('{"joint_margin": "a"}', "gate.joint_margin is 'a'"),
        ('{"dropouts": 3.5}', "gate.dropouts is 3.5"),
        ('{"dropouts": null}', "gate.dropouts is inf"),
        ('{"dropouts": 20}', "between 0 and 19"),
        ('{"joint": [0.0, 1.0]}', "gate.joint is .0.0, 1.0., but must be made of whole numbers"),
        ('{"sign": [true, 1]}', "gate.sign"),
    ):
        with pytest.raises(SpecError, match=word):
            GateLimits.from_json(text, SPEC, (0.0, 1.0))


def test_neutral_is_not_guessed():
    def pump(low: float, high: float) -> ControlSpec:
        return dataclasses.replace(
            SPEC, limits=dataclasses.replace(SPEC.limits, command_low=(-1.0, low), command_high=(1.0, high))
        )

    assert GateLimits.of(pump(-1.0, 1.0)).neutral == (0.0, 0.0)
    assert GateLimits.of(pump(-1.0, 3.0)).neutral == (0.0, 0.0)
    for low, high in ((0.0, 1.0), (-1.0, 0.0), (4.0, 20.0)):
        with pytest.raises(
            SpecError, match=rf"'b' \({low:g} to {high:g}\) does nothing: give neutral in the task, neutral_command"
        ):
            GateLimits.of(pump(low, high))
        with pytest.raises(SpecError, match="does nothing"):
            GateLimits.wide(pump(low, high))
        named = GateLimits.from_json(f'{{"neutral": [0.0, {low}]}}', pump(low, high))
        assert named.neutral == GateLimits.of(pump(low, high), (0.0, low)).neutral == (0.0, low)
