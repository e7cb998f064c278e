"""The safety gate between policy and machine: pure numpy, no memory but the state that is passed in and returned.

What comes out is finite, inside the command range, and changes no faster than the rate and acceleration limits allow.
Near a joint limit, near the edge of the workspace box, and while the machine is new, the range shrinks towards
neutral; that alone may move a command faster than its rate limit, and only towards neutral.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .kinematics import tracked_output
from .spec import ControlSpec, SpecError

NOT_FINITE = "the command is not finite"
LOST_MEASUREMENT = "the measurement is not finite"
OUTSIDE_BOX = "the tracked output is outside the workspace box"
TRACKING_ERROR = "the tracking error exceeds its limit"
TOO_OLD = "the command is too old"


@dataclass(frozen=True)
class GateLimits:
    """What the gate lets through. Lives on the robot's computer; nothing that arrives over the link can widen it."""

    low: tuple[float, ...]
    """Lowest command per channel."""
    high: tuple[float, ...]
    """Highest command per channel."""
    neutral: tuple[float, ...]
    """The command at which the machine does nothing, per channel."""
    rate: tuple[float, ...]
    """Largest change of command per second, per channel; infinite is no limit."""
    acceleration: tuple[float, ...]
    """Largest change of that rate per second, per channel; infinite is no limit."""
    joint: tuple[int, ...]
    """Which position a channel moves (an index into `layout.position`), or -1 where that cannot be said."""
    sign: tuple[int, ...]
    """1 where a command above neutral moves that position up, -1 where it moves it down."""
    joint_margin: float = 0.05
    """Share of a joint's range over which motion towards its limit is slowed, to nothing at the limit; 0 is off."""
    lookahead_s: float = 0.2
    """The joint and the output are looked at where they will be after this time at their present speed."""
    box_low: tuple[float, ...] = ()
    """Lower corner of the workspace box of the tracked output; empty is no box."""
    box_high: tuple[float, ...] = ()
    """Upper corner of the box."""
    box_margin: float = 0.2
    """Inside the box motion outward is slowed over this distance; this far outside it is a fault."""
    tracking_error: float = math.inf
    """A tracking error above this is a fault."""
    command_age_s: float = math.inf
    """A command made from a measurement older than this is a fault."""
    dropouts: int = 3
    """So many measurements in a row may be missing (neutral is applied); one more is a fault."""

    def __post_init__(self) -> None:
        size = len(self.low)
        for name in ("high", "neutral", "rate", "acceleration", "joint", "sign"):
            if len(getattr(self, name)) != size:
                raise SpecError(f"gate.{name} has {len(getattr(self, name))} entries, but must have {size}, like low")
        for i in range(size):
            if not (math.isfinite(self.low[i]) and math.isfinite(self.high[i]) and self.low[i] < self.high[i]):
                raise SpecError(f"gate.low[{i}] is {self.low[i]}, but must be a number below high, {self.high[i]}")
            if not self.low[i] <= self.neutral[i] <= self.high[i]:
                raise SpecError(f"gate.neutral[{i}] is {self.neutral[i]}, but must lie between low and high")
            for name in ("rate", "acceleration"):
                if not getattr(self, name)[i] > 0:
                    raise SpecError(f"gate.{name}[{i}] is {getattr(self, name)[i]}, but must be a positive number")
            if self.sign[i] not in (-1, 1):
                raise SpecError(f"gate.sign[{i}] is {self.sign[i]}, but must be 1 or -1")
        if len(self.box_low) != len(self.box_high):
            raise SpecError("gate.box_low and gate.box_high have different lengths")
        for i, (low, high) in enumerate(zip(self.box_low, self.box_high)):  # noqa: B905 (Python 3.10)
            if not low < high:
                raise SpecError(f"gate.box_low[{i}] is {low}, but must be below box_high, {high}")
        if not 0 <= self.joint_margin < 0.5:
            raise SpecError(f"gate.joint_margin is {self.joint_margin}, but must lie between 0 and 0.5")
        if not (math.isfinite(self.lookahead_s) and self.lookahead_s >= 0):
            raise SpecError(f"gate.lookahead_s is {self.lookahead_s}, but must be zero or a positive number")
        for name in ("box_margin", "tracking_error", "command_age_s"):
            if not getattr(self, name) > 0:
                raise SpecError(f"gate.{name} is {getattr(self, name)}, but must be a positive number")
        if self.dropouts < 0:
            raise SpecError(f"gate.dropouts is {self.dropouts}, but must be at least 0")

    @staticmethod
    def of(spec: ControlSpec, neutral: Any = None, directions: Any = None, **changes: Any) -> GateLimits:
        """Careful limits for a robot: full range in 0.2 s, and joint margins where it is known what a channel moves.

        `directions` has (joint, sign) per channel, as the machine declares them; without it nothing is assumed, and
        the joint margins do nothing.
        """
        low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
        middle = (low + high) / 2 if neutral is None else np.asarray(neutral, float)
        rate = (high - low) / 0.2
        pairs = ((-1, 1),) * len(low) if directions is None else directions
        fields: dict[str, Any] = {
            "low": tuple(low.tolist()),
            "high": tuple(high.tolist()),
            "neutral": tuple(middle.tolist()),
            "rate": tuple(rate.tolist()),
            "acceleration": tuple((rate / 0.1).tolist()),
            "joint": tuple(int(joint) for joint, _ in pairs),
            "sign": tuple(int(sign) for _, sign in pairs),
            "command_age_s": spec.period_s,
        }
        return GateLimits(**{**fields, **changes})

    @staticmethod
    def wide(spec: ControlSpec) -> GateLimits:
        """Only what a simulation has too: finite commands inside their range."""
        free = (math.inf,) * spec.layout.num_commands
        return GateLimits.of(spec, rate=free, acceleration=free, joint_margin=0.0, command_age_s=math.inf)

    def to_json(self) -> str:
        """As JSON; an infinite number becomes null."""
        plain = {n: _replace(v, math.inf, None) for n, v in dataclasses.asdict(self).items()}
        return json.dumps(plain, sort_keys=True)

    @staticmethod
    def from_json(text: str, spec: ControlSpec, neutral: Any = None, directions: Any = None) -> GateLimits:
        """Limits from a file; what it does not name is as `GateLimits.of` has it."""
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SpecError(f"the gate's limits are not JSON: {error}") from None
        known = [field.name for field in dataclasses.fields(GateLimits)]
        if not isinstance(data, dict) or any(name not in known for name in data):
            raise SpecError(f"the gate's limits must be a JSON object with fields out of {', '.join(known)}")
        try:
            fields = {name: _replace(value, None, math.inf) for name, value in data.items()}
            return GateLimits.of(spec, fields.pop("neutral", neutral), directions, **fields)
        except TypeError as error:
            raise SpecError(f"the gate's limits hold a value of the wrong kind: {error}") from None


def _replace(value: Any, old: Any, new: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(new if item == old else item for item in value)
    return new if value == old else value


@dataclass(frozen=True)
class GateState:
    """What the gate remembers from one step to the next."""

    command: np.ndarray
    """The last applied command, float32."""
    change: np.ndarray
    """How far the last step went, for the acceleration limit; zero after a cap or neutral."""
    measured: np.ndarray | None = None
    """The last good measurement, for speeds that are not measured."""
    missing: int = 0
    """Measurements missing in a row."""


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
    """The limits of one machine, prepared for use in the loop."""

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
        self._middle = self.neutral.astype(np.float64)
        self._low, self._high = np.asarray(limits.low, float), np.asarray(limits.high, float)
        # The neutral command must survive rounding to float32.
        self._low, self._high = np.minimum(self._low, self._middle), np.maximum(self._high, self._middle)
        self._step = np.asarray(limits.rate, float) * spec.period_s
        self._bend = np.asarray(limits.acceleration, float) * spec.period_s**2
        self._position, self._velocity = list(spec.layout.position), list(spec.layout.velocity)
        self._joint_low, self._joint_high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self._margin = limits.joint_margin * (self._joint_high - self._joint_low)
        self._joint, self._sign = np.asarray(limits.joint), np.asarray(limits.sign)
        self._box_low, self._box_high = np.asarray(limits.box_low, float), np.asarray(limits.box_high, float)

    def start(self) -> GateState:
        """The state of a machine that stands in neutral."""
        return GateState(self.neutral, np.zeros(len(self.neutral)))

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
        limits = self.limits
        if not np.isfinite(measured).all():
            missing = state.missing + 1
            return self._nothing(LOST_MEASUREMENT if missing > limits.dropouts else "", missing)
        if proposed.shape != self.neutral.shape or not np.isfinite(proposed).all():
            return self._nothing(NOT_FINITE)
        if not age_s <= limits.command_age_s:
            return self._nothing(TOO_OLD)
        measured = np.asarray(measured, float)
        box_room = 1.0
        if limits.box_low or (reference is not None and math.isfinite(limits.tracking_error)):
            output = np.asarray(tracked_output(self.spec, measured))
            if reference is not None and not np.linalg.norm(output - reference) <= limits.tracking_error:
                return self._nothing(TRACKING_ERROR)
            if limits.box_low:
                outside = np.maximum(self._box_low - output, output - self._box_high).max()
                if outside > limits.box_margin:
                    return self._nothing(OUTSIDE_BOX)
                box_room = self._room_in_box(output, state.measured)
        low, high = self._ramp(state)
        cap_low, cap_high = self._caps(measured, state.measured, box_room * min(max(authority, 0.0), 1.0))
        with np.errstate(over="ignore"):
            wanted = proposed.astype(np.float32)  # beyond float32 it becomes infinite, which the next line clips
        ramped = np.clip(wanted, low, high)
        command = np.clip(ramped, cap_low, cap_high)
        change = np.where(command == ramped, command.astype(float) - state.command.astype(float), 0.0)
        return GateResult(command, command == wanted, "", GateState(command, change, measured))

    def _nothing(self, fault: str, missing: int = 0) -> GateResult:
        state = GateState(self.neutral, np.zeros(len(self.neutral)), missing=missing)
        return GateResult(self.neutral, np.zeros(len(self.neutral), bool), fault, state)

    def _ramp(self, state: GateState) -> tuple[np.ndarray, np.ndarray]:
        """What range, rate and acceleration leave of the command range, in float32 and rounded inward."""
        last = state.command.astype(float)
        up = np.minimum(np.minimum(self._step, state.change + self._bend), stoppable(self._high - last, self._bend))
        down = np.minimum(np.minimum(self._step, self._bend - state.change), stoppable(last - self._low, self._bend))
        low, high = rounded_up(last - down), rounded_down(last + up)
        return np.minimum(low, high), high

    def _caps(self, measured: np.ndarray, before: np.ndarray | None, share: float) -> tuple[np.ndarray, np.ndarray]:
        """The range around neutral that joint margins, box and authority leave."""
        room_low = room_high = np.full(len(self._middle), share)
        if self.limits.joint_margin > 0:
            position = measured[self._position]
            ahead = self.limits.lookahead_s * self._speed(measured, before)
            below = (position + np.minimum(ahead, 0.0) - self._joint_low) / self._margin
            above = (self._joint_high - position - np.maximum(ahead, 0.0)) / self._margin
            below, above = np.clip(below, 0.0, 1.0)[self._joint], np.clip(above, 0.0, 1.0)[self._joint]
            upward, moves = self._sign > 0, self._joint >= 0
            room_low = share * np.where(moves, np.where(upward, below, above), 1.0)
            room_high = share * np.where(moves, np.where(upward, above, below), 1.0)
        low = rounded_up(self._middle + room_low * (self._low - self._middle))
        high = rounded_down(self._middle + room_high * (self._high - self._middle))
        return np.minimum(low, self.neutral), np.maximum(high, self.neutral)

    def _speed(self, measured: np.ndarray, before: np.ndarray | None) -> np.ndarray:
        if self._velocity:
            return measured[self._velocity]
        if before is None:
            return np.zeros(len(self._position))
        return (measured[self._position] - before[self._position]) / self.spec.period_s

    def _room_in_box(self, output: np.ndarray, before: np.ndarray | None) -> float:
        """1 where the output may move freely, falling to 0 at the edge of the box while it moves outward."""
        if before is None:
            return 1.0
        motion = (output - np.asarray(tracked_output(self.spec, before))) / self.spec.period_s
        ahead = output + self.limits.lookahead_s * motion
        above = np.where(motion > 0, self._box_high - ahead, math.inf)
        below = np.where(motion < 0, ahead - self._box_low, math.inf)
        return float(np.clip(np.minimum(above, below).min() / self.limits.box_margin, 0.0, 1.0))


def stoppable(distance: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """The largest step v ≥ 0 after which v, v − bend, v − 2·bend, … down to zero still sum to at most `distance`.

    With n = the number of steps until standstill, the sum is n·v − bend·n(n−1)/2; n is the smallest whole number with
    bend·n(n+1)/2 ≥ distance.
    """
    distance = np.maximum(distance, 0.0)
    limited = np.isfinite(bend)
    safe = np.where(limited, bend, 1.0)
    n = np.maximum(np.ceil((np.sqrt(1.0 + 8.0 * distance / safe) - 1.0) / 2.0), 1.0)
    return np.where(limited, np.minimum(distance / n + safe * (n - 1.0) / 2.0, distance), distance)


def rounded_down(values: np.ndarray) -> np.ndarray:
    """The largest float32 numbers that are not above `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) > values, np.nextafter(single, np.float32(-np.inf)), single)


def rounded_up(values: np.ndarray) -> np.ndarray:
    """The smallest float32 numbers that are not below `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) < values, np.nextafter(single, np.float32(np.inf)), single)
