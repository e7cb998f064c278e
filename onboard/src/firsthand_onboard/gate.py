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

from .policy import fast_output
from .spec import ControlSpec, SpecError

NOT_FINITE = "the command is not finite"
LOST_MEASUREMENT = "the measurement is not finite"
OUTSIDE_BOX = "the tracked output is outside the workspace box"
TRACKING_ERROR = "the tracking error exceeds its limit"
TOO_OLD = "the command is too old"
WINDOW = 20
"""Missing measurements are also counted over so many steps."""


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
    dropouts_of_20: int = 8
    """So many of the last 20 measurements may be missing, or as many as in a row; one more is a fault."""

    def __post_init__(self) -> None:
        size = len(self.low)
        for name in ("high", "neutral", "rate", "acceleration", "joint", "sign"):
            if len(getattr(self, name)) != size:
                raise SpecError(f"gate.{name} has {len(getattr(self, name))} entries, but must have {size}, like low")
        for name in ("joint", "sign", "dropouts", "dropouts_of_20"):
            if not _is_kind(getattr(self, name), whole=True):
                raise SpecError(f"gate.{name} is {getattr(self, name)!r}, but must be made of whole numbers")
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
        for name in ("dropouts", "dropouts_of_20"):
            if not 0 <= getattr(self, name) < WINDOW:
                raise SpecError(f"gate.{name} is {getattr(self, name)}, but must lie between 0 and {WINDOW - 1}")

    @staticmethod
    def of(spec: ControlSpec, neutral: Any = None, directions: Any = None, **changes: Any) -> GateLimits:
        """Careful limits for a robot: full range in 0.2 s, and joint margins where it is known what a channel moves.

        `neutral` may be left out where `assumed_neutral` knows it. `directions` has (joint, sign) per channel, as the
        machine declares them; without it nothing is assumed, and the joint margins do nothing.
        """
        low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
        middle = assumed_neutral(spec) if neutral is None else np.asarray(neutral, float)
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
    def wide(spec: ControlSpec, neutral: Any = None) -> GateLimits:
        """Only what a simulation has too: finite commands inside their range."""
        free = (math.inf,) * spec.layout.num_commands
        return GateLimits.of(spec, neutral, rate=free, acceleration=free, joint_margin=0.0, command_age_s=math.inf)

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
        if not isinstance(data, dict):
            raise SpecError(f"the gate's limits must be a JSON object with fields out of {', '.join(known)}")
        for name in data:
            if name not in known:
                raise SpecError(f"the gate's limits have no field {name!r}, only fields out of {', '.join(known)}")
        fields = {name: _replace(value, None, math.inf) for name, value in data.items()}
        for field in dataclasses.fields(GateLimits):
            _check_kind(field.name, str(field.type).startswith("tuple"), fields, data)
        return GateLimits.of(spec, fields.pop("neutral", neutral), directions, **fields)


def _check_kind(name: str, several: bool, fields: dict[str, Any], data: dict[str, Any]) -> None:
    if name in fields and (isinstance(fields[name], tuple) != several or not _is_kind(fields[name], whole=False)):
        what = "a list of numbers" if several else "a number"
        raise SpecError(f"gate.{name} is {data[name]!r}, but must be {what}")


def _is_kind(value: Any, *, whole: bool) -> bool:
    """Whether it is a number, or several."""
    kinds = int if whole else (int, float)
    items = value if isinstance(value, tuple) else (value,)
    return all(isinstance(item, kinds) and not isinstance(item, bool) for item in items)


def assumed_neutral(spec: ControlSpec) -> np.ndarray:
    """Zero, where it lies inside every command's range: a signed command does nothing there. Else `SpecError`.

    Of a command from 0 to 1 nobody can say: a pump stands at 0, a valve perhaps at 0.5.
    """
    limits = spec.limits
    for name, low, high in zip(spec.layout.commands, limits.command_low, limits.command_high):  # noqa: B905
        if not low < 0 < high:
            raise SpecError(
                f"nobody says at which value the command {name!r} ({low:g} to {high:g}) does nothing: "
                "give neutral_command in the machine's class, or neutral in the limits"
            )
    return np.zeros(len(limits.command_low))


def _replace(value: Any, old: Any, new: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(new if item == old else item for item in value)
    return new if value == old else value


@dataclass(frozen=True)
class GateState:
    """What the gate remembers from one step to the next."""

    command: np.ndarray
    """The last applied command, float32."""
    change: tuple[float, ...]
    """How far the last step went, for the acceleration limit; zero after a cap or neutral."""
    measured: tuple[float, ...] = ()
    """The last good measurement, for speeds that are not measured; empty if there is none."""
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
        low, cap_low = rounded_up(bounds[:2])
        high, cap_high = rounded_down(bounds[2:])
        with np.errstate(over="ignore"):
            wanted = proposed.astype(np.float32)  # beyond float32 it becomes infinite, which the next line clips
        ramped = np.maximum(np.minimum(wanted, high), np.minimum(low, high))
        cap_low, cap_high = np.minimum(cap_low, self.neutral), np.maximum(cap_high, self.neutral)
        command = np.maximum(np.minimum(ramped, cap_high), cap_low)
        change = [
            new - old if new == free else 0.0
            for new, old, free in zip(command.tolist(), state.command.tolist(), ramped.tolist())  # noqa: B905
        ]
        following = GateState(command, tuple(change), tuple(values), output, lost=with_next(state.lost, False))
        return GateResult(command, command == wanted, "", following)

    def _nothing(self, fault: str) -> GateResult:
        return self._neutral(fault, self.start())

    def _neutral(self, fault: str, following: GateState) -> GateResult:
        return GateResult(self.neutral, np.zeros(len(self.neutral), bool), fault, following)

    def _without(self, state: GateState) -> GateResult:
        """A step without a measurement. What was measured last is kept, with its age, for speeds after the gap."""
        limits, lost = self.limits, with_next(state.lost, True)
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
            up = min(step, change + bend, stoppable(high - last, bend))
            down = min(step, bend - change, stoppable(last - low, bend))
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


def with_next(lost: tuple[bool, ...], missing: bool) -> tuple[bool, ...]:
    """The window with one step more."""
    return (*lost, missing)[-WINDOW:] if missing or lost else lost


def stoppable(distance: float, bend: float) -> float:
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


def rounded_down(values: np.ndarray) -> np.ndarray:
    """The largest float32 numbers that are not above `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) > values, np.nextafter(single, np.float32(-np.inf)), single)


def rounded_up(values: np.ndarray) -> np.ndarray:
    """The smallest float32 numbers that are not below `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) < values, np.nextafter(single, np.float32(np.inf)), single)
