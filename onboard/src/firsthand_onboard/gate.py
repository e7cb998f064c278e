"""The safety gate between policy and machine: pure numpy, no memory but the state that is passed in and returned.

What comes out is finite, inside the command range, and changes no faster than the rate and acceleration limits allow.
Near a joint limit, near the edge of the workspace box, and while the machine is new, the range shrinks towards
neutral; that alone may move a command faster than its rate limit, and only towards neutral.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from .gate_limits import WINDOW, GateLimits
from .policy import fast_output
from .spec import ControlSpec, SpecError

NOT_FINITE = "the command is not finite"
LOST_MEASUREMENT = "the measurement is not finite"
OUTSIDE_BOX = "the tracked output is outside the workspace box"
TRACKING_ERROR = "the tracking error exceeds its limit"
TOO_OLD = "the command is too old"


@dataclass(frozen=True)
class GateState:
    """What the gate remembers from one step to the next."""

    command: np.ndarray
    """The last applied command, float32."""
    change: tuple[float, ...]
    """How far the last step went, for the acceleration limit; zero after a cap or neutral."""
    measured: tuple[float, ...] = ()
    """The last good measurement, for speeds that are not measured; empty before the first."""
    output: tuple[float, ...] = ()
    """Where the tracked output was then, if there is a workspace box."""
    age: int = 1
    """How many periods ago these were measured, when the next measurement comes."""
    lost: tuple[bool, ...] = ()
    """Which of the last measurements were missing, the newest last."""


@dataclass(frozen=True)
class GateResult:
    """What the gate lets through."""

    command: np.ndarray
    """The applied command, float32; neutral where there is a fault."""
    free: np.ndarray
    """Which channels the gate left as they were."""
    fault: str
    """Why the machine must stop, or an empty text."""
    state: GateState
    """For the next step."""


class Gate:
    """The limits of one machine, prepared for the loop. A few channels are quicker in plain Python than in numpy."""

    def __init__(self, spec: ControlSpec, limits: GateLimits) -> None:
        if len(limits.low) != spec.layout.num_commands:
            raise SpecError(f"gate.low has {len(limits.low)} entries, but must have {spec.layout.num_commands}")
        if limits.box_low and len(limits.box_low) != spec.num_outputs:
            raise SpecError(f"gate.box_low has {len(limits.box_low)} entries, but must have {spec.num_outputs}")
        positions = len(spec.layout.position)
        for i, joint in enumerate(limits.joint):
            if not -1 <= joint < positions:
                raise SpecError(f"gate.joint[{i}] is {joint}, but must lie between -1 and {positions - 1}")
        self.spec, self.limits = spec, limits
        self.neutral = np.asarray(limits.neutral, np.float32)
        middle = self.neutral.tolist()
        # The neutral command must survive rounding to float32.
        low = [min(a, m) for a, m in zip(limits.low, middle)]  # noqa: B905 (Python 3.10)
        high = [max(a, m) for a, m in zip(limits.high, middle)]  # noqa: B905
        step = [rate * spec.period_s for rate in limits.rate]
        bend = [acceleration * spec.period_s**2 for acceleration in limits.acceleration]
        self._channels = list(zip(low, high, middle, step, bend, limits.joint, limits.sign))  # noqa: B905
        self._rest = (0.0,) * len(middle)
        margins = [limits.joint_margin * (b - a) for a, b in zip(spec.limits.position_low, spec.limits.position_high)]  # noqa: B905
        velocity = spec.layout.velocity or (-1,) * positions
        self._joints = list(
            zip(spec.layout.position, velocity, spec.limits.position_low, spec.limits.position_high, margins)  # noqa: B905
        )
        self._output = fast_output(spec)

    def start(self) -> GateState:
        """The state of a machine that stands in neutral."""
        return GateState(self.neutral, self._rest)

    def __call__(
        self,
        state: GateState,
        proposed: np.ndarray,
        measured: np.ndarray,
        *,
        reference: np.ndarray | None = None,
        age_s: float = 0.0,
        authority: float = 1.0,
    ) -> GateResult:
        """What may be applied of `proposed`. `authority` in [0, 1] shrinks the range around neutral."""
        limits, values = self.limits, measured.tolist()
        if not all(map(math.isfinite, values)):
            return self._without(state)
        if proposed.shape != self.neutral.shape or not all(map(math.isfinite, proposed.tolist())):
            return self._nothing(NOT_FINITE)
        if not age_s <= limits.command_age_s:
            return self._nothing(TOO_OLD)
        share, output = min(max(authority, 0.0), 1.0), ()
        if limits.box_low or (reference is not None and limits.tracking_error < math.inf):
            output = tuple(self._output(np.asarray(measured, np.float32)).tolist())
            if reference is not None and not math.dist(output, reference.tolist()) <= limits.tracking_error:
                return self._nothing(TRACKING_ERROR)
            if limits.box_low:
                if self._outside(output) > limits.box_margin:
                    return self._nothing(OUTSIDE_BOX)
                share *= self._room_in_box(output, state)
        bounds = self._bounds(state, values, share)
        low, cap_low = round_up(bounds[:2])
        high, cap_high = round_down(bounds[2:])
        with np.errstate(over="ignore"):
            wanted = proposed.astype(np.float32)  # beyond float32 it becomes infinite, which the next line clips
        ramped = np.maximum(np.minimum(wanted, high), np.minimum(low, high))
        cap_low, cap_high = np.minimum(cap_low, self.neutral), np.maximum(cap_high, self.neutral)
        command = np.maximum(np.minimum(ramped, cap_high), cap_low)
        change = [
            new - old if new == free else 0.0
            for new, old, free in zip(command.tolist(), state.command.tolist(), ramped.tolist())  # noqa: B905
        ]
        following = GateState(command, tuple(change), tuple(values), output, lost=append_lost(state.lost, False))
        return GateResult(command, command == wanted, "", following)

    def _nothing(self, fault: str) -> GateResult:
        return self._neutral(fault, self.start())

    def _neutral(self, fault: str, following: GateState) -> GateResult:
        return GateResult(self.neutral, np.zeros(len(self.neutral), bool), fault, following)

    def _without(self, state: GateState) -> GateResult:
        """A step without a measurement. The last measurement stays, with its age, for speeds after the gap."""
        limits, lost = self.limits, append_lost(state.lost, True)
        in_a_row = all(lost[-limits.dropouts - 1 :]) and len(lost) > limits.dropouts
        often = sum(lost) > max(limits.dropouts, limits.dropouts_of_20)
        following = dataclasses.replace(state, command=self.neutral, change=self._rest, age=state.age + 1, lost=lost)
        return self._neutral(LOST_MEASUREMENT if in_a_row or often else "", following)

    def _bounds(self, state: GateState, values: list[float], share: float) -> np.ndarray:
        """Rows: lowest by the ramp, lowest by the caps, highest by the ramp, highest by the caps; a column per channel.

        The ramp is range, rate and acceleration. The caps are what joint margins, box and authority leave around
        neutral.
        """
        rooms = self._rooms(state, values)
        columns = []
        for (low, high, middle, step, bend, joint, sign), last, change in zip(  # noqa: B905
            self._channels, state.command.tolist(), state.change
        ):
            up = min(step, change + bend, stoppable_step(high - last, bend))
            down = min(step, bend - change, stoppable_step(last - low, bend))
            below, above = rooms[joint] if joint >= 0 and rooms else (1.0, 1.0)
            if sign < 0:
                below, above = above, below
            columns.append(
                (
                    last - down,
                    middle + share * below * (low - middle),
                    last + up,
                    middle + share * above * (high - middle),
                )
            )
        return np.asarray(columns).T

    def _rooms(self, state: GateState, values: list[float]) -> list[tuple[float, float]]:
        """How freely each joint may still move down and up: 1 outside its margins, 0 at its limit."""
        if self.limits.joint_margin <= 0:
            return []
        rooms = []
        for at, speed_at, low, high, margin in self._joints:
            position = values[at]
            if speed_at >= 0:
                speed = values[speed_at]
            else:
                elapsed = state.age * self.spec.period_s
                speed = (position - state.measured[at]) / elapsed if state.measured else 0.0
            ahead = self.limits.lookahead_s * speed
            below, above = (position + min(ahead, 0.0) - low) / margin, (high - position - max(ahead, 0.0)) / margin
            rooms.append((min(max(below, 0.0), 1.0), min(max(above, 0.0), 1.0)))
        return rooms

    def _outside(self, output: tuple[float, ...]) -> float:
        limits = self.limits
        return max(max(a - p, p - b) for p, a, b in zip(output, limits.box_low, limits.box_high))  # noqa: B905

    def _room_in_box(self, output: tuple[float, ...], state: GateState) -> float:
        """1 where the output may move freely, falling to 0 at the edge of the box while it moves outward."""
        room, limits = 1.0, self.limits
        for p, earlier, low, high in zip(output, state.output, limits.box_low, limits.box_high):  # noqa: B905
            motion = (p - earlier) / (state.age * self.spec.period_s)
            ahead = p + limits.lookahead_s * motion
            left = high - ahead if motion > 0 else ahead - low if motion < 0 else math.inf
            room = min(room, left / limits.box_margin)
        return max(room, 0.0)


def append_lost(lost: tuple[bool, ...], missing: bool) -> tuple[bool, ...]:
    """The window with one step more."""
    return (*lost, missing)[-WINDOW:] if missing or lost else lost


def stoppable_step(distance: float, bend: float) -> float:
    """The largest step v ≥ 0 after which v, v − bend, v − 2·bend, … down to zero still sum to at most `distance`.

    With n = the number of steps until standstill, the sum is n·v − bend·n(n−1)/2; n is the smallest whole number with
    bend·n(n+1)/2 ≥ distance.
    """
    if distance <= 0.0:
        return 0.0
    if bend == math.inf:
        return distance
    n = max(math.ceil((math.sqrt(1.0 + 8.0 * min(distance / bend, 1e15)) - 1.0) / 2.0), 1)
    return min(distance / n + bend * (n - 1) / 2.0, distance)


def round_down(values: np.ndarray) -> np.ndarray:
    """The largest float32 numbers that are not above `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) > values, np.nextafter(single, np.float32(-np.inf)), single)


def round_up(values: np.ndarray) -> np.ndarray:
    """The smallest float32 numbers that are not below `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) < values, np.nextafter(single, np.float32(np.inf)), single)
