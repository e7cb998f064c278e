"""The limits of the safety gate, from a machine's specification or a file."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from .spec import ControlSpec, SpecError, whole_number

WINDOW = 20
"""Missing measurements are also counted over this many steps."""


STOPPING = {
    "lag_s": "stop_lag_s",
    "dead_time_s": "stop_dead_time_s",
    "deceleration": "deceleration",
    "brake": "brake",
    "speed": "speed",
}
"""What a machine may declare as `stopping`, and the fields of the limits that it becomes."""
COMMAND_KINDS = ("position", "rate", "acceleration")
"""What commands may set; at neutral only the first two come to rest."""
PER_POSITION = tuple(STOPPING.values())


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
    """Largest change of command per second, per channel; infinite for no limit."""
    acceleration: tuple[float, ...]
    """Largest change of that rate per second, per channel; infinite for no limit."""
    joint: tuple[int, ...]
    """Which position a channel moves (an index into `layout.position`), or -1 where that is not known."""
    sign: tuple[int, ...]
    """1 where a command above neutral moves that position up, -1 where it moves it down."""
    joint_margin: float = 0.05
    """Share of a joint's range over which motion towards its limit is slowed, in front of what it needs to stop; 0
    switches off everything about joint limits and speeds."""
    lookahead_s: float = 0.2
    """The output, and joints that no channel is known to move, are looked at where they will be after this time at
    their present speed. Other joints too, where they need less to stop."""
    limit_tolerance: float = 0.01
    """A joint further beyond its limit than this share of its range is a fault."""
    stop_lag_s: tuple[float, ...] = ()
    """How long each position goes on at its present speed, as a distance over that speed, once neutral has arrived;
    infinite where neutral does not stop it. Empty if it was neither declared nor measured: then a long time is
    assumed."""
    stop_dead_time_s: tuple[float, ...] = ()
    """Seconds until a command shows, per position; empty for none."""
    deceleration: tuple[float, ...] = ()
    """How quickly neutral, or `brake`, slows each position, per second²; empty or infinite where `stop_lag_s` says it
    all."""
    brake: tuple[float, ...] = ()
    """Per position: the share of the command range, opposed to the motion, that stops it with `deceleration`; 0 where
    neutral does. Empty where neutral stops them all."""
    speed: tuple[float, ...] = ()
    """Highest speed per position, per second; empty for none."""
    box_low: tuple[float, ...] = ()
    """Lower corner of the workspace box of the tracked output; empty for no box."""
    box_high: tuple[float, ...] = ()
    """Upper corner of the box."""
    box_margin: float = 0.2
    """Inside the box motion outward is slowed over this distance; this far outside it is a fault."""
    tracking_error: float = math.inf
    """A tracking error above this is a fault."""
    command_age_s: float = math.inf
    """A command made from a measurement older than this is a fault."""
    dropouts: int = 3
    """How many measurements in a row may be missing (neutral is applied); one more is a fault."""
    dropouts_of_20: int = 8
    """How many of the last 20 measurements may be missing, where that is more than `dropouts`; one more is a fault."""
    chatter_s: float = math.inf
    """A command that chatters for longer than this is a fault; it is counted in any case."""
    check_sensors: int = 1
    """1 where measurements are checked for what cannot be, and for sensors that are frozen; 0 where not."""

    def __post_init__(self) -> None:
        size = len(self.low)
        for name in ("high", "neutral", "rate", "acceleration", "joint", "sign"):
            if len(getattr(self, name)) != size:
                raise SpecError(f"gate.{name} has {len(getattr(self, name))} entries, but must have {size}, like low")
        for name in ("joint", "sign", "dropouts", "dropouts_of_20", "check_sensors"):
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
        for name in ("box_margin", "tracking_error", "command_age_s", "chatter_s", "limit_tolerance"):
            if not getattr(self, name) > 0:
                raise SpecError(f"gate.{name} is {getattr(self, name)}, but must be a positive number")
        for name in ("dropouts", "dropouts_of_20"):
            if not 0 <= getattr(self, name) < WINDOW:
                raise SpecError(f"gate.{name} is {getattr(self, name)}, but must lie between 0 and {WINDOW - 1}")
        if self.check_sensors not in (0, 1):
            raise SpecError(f"gate.check_sensors is {self.check_sensors}, but must be 0 or 1")
        self._check_stopping()

    def _check_stopping(self) -> None:
        for name in PER_POSITION:
            for i, value in enumerate(getattr(self, name)):
                least_excluded = name in ("deceleration", "speed")
                if not (value > 0 if least_excluded else value >= 0):
                    what = "above 0" if least_excluded else "0 or more"
                    raise SpecError(f"gate.{name}[{i}] is {value}, but must be {what}")
        for i, share in enumerate(self.brake):
            if not share <= 1:
                raise SpecError(f"gate.brake[{i}] is {share}, but must lie between 0 and 1, the whole command range")
            if share > 0 and not (i < len(self.deceleration) and self.deceleration[i] < math.inf):
                raise SpecError(f"gate.brake[{i}] is {share}, but deceleration[{i}] does not say how well that brakes")
            if share > 0 and i not in self.joint:
                raise SpecError(
                    f"gate.brake[{i}] is {share}, but no channel is known to move position {i} (gate.joint)"
                )
        for i, lag in enumerate(self.stop_lag_s):
            if not (lag < math.inf or (i < len(self.brake) and self.brake[i] > 0)):
                raise SpecError(
                    f"gate.stop_lag_s[{i}] is {lag}: neutral does not stop position {i}. Say how it stops: brake and "
                    "deceleration, in the limits or in `stopping` of the machine's class"
                )
        for i, dead in enumerate(self.stop_dead_time_s):
            if not dead < math.inf:
                raise SpecError(f"gate.stop_dead_time_s[{i}] is {dead}, but must be a number")

    @staticmethod
    def of(
        spec: ControlSpec, neutral: Any = None, directions: Any = None, stopping: Any = None, **changes: Any
    ) -> GateLimits:
        """Careful limits for a robot: full range in 0.2 s, and joint limits where it is known what a channel moves.

        `neutral` may be left out where `assumed_neutral` knows it. `directions` has (joint, sign) per channel and
        `stopping` how joints stop (see `read_stopping`), as the machine declares them. Without directions nothing is
        assumed: all channels are slowed where a joint comes near its limit. Without stopping a long time is assumed.
        """
        low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
        middle = assumed_neutral(spec) if neutral is None else np.asarray(neutral, float)
        rate = (high - low) / 0.2
        pairs = ((-1, 1),) * len(low) if directions is None else whole_pairs(directions)
        fields: dict[str, Any] = {
            "low": tuple(low.tolist()),
            "high": tuple(high.tolist()),
            "neutral": tuple(middle.tolist()),
            "rate": tuple(rate.tolist()),
            "acceleration": tuple((rate / 0.1).tolist()),
            "joint": tuple(joint for joint, _ in pairs),
            "sign": tuple(sign for _, sign in pairs),
            "command_age_s": spec.period_s,
            **read_stopping(spec, stopping),
        }
        made = GateLimits(**{**fields, **changes})
        for i, (a, b) in enumerate(zip(made.low, made.high)):  # noqa: B905 (Python 3.10)
            if len(made.low) == len(low) and not (low[i] <= a and b <= high[i]):
                raise SpecError(
                    f"gate.low[{i}] and gate.high[{i}] are {a:g} and {b:g}, but must lie inside the specification's "
                    f"command range, {low[i]:g} to {high[i]:g}"
                )
        return made

    @staticmethod
    def wide(spec: ControlSpec, neutral: Any = None) -> GateLimits:
        """Only what a simulation has too: finite commands inside their range."""
        free = (math.inf,) * spec.layout.num_commands
        return GateLimits.of(
            spec, neutral, rate=free, acceleration=free, joint_margin=0.0, command_age_s=math.inf, check_sensors=0
        )

    def to_json(self) -> str:
        """As JSON; an infinite number becomes null."""
        plain = {n: _replace(v, math.inf, None) for n, v in dataclasses.asdict(self).items()}
        return json.dumps(plain, sort_keys=True)

    @staticmethod
    def from_json(
        text: str, spec: ControlSpec, neutral: Any = None, directions: Any = None, stopping: Any = None
    ) -> GateLimits:
        """Limits from a file; what it does not name is as `GateLimits.of` has it."""
        try:
            data = json.loads(text, parse_int=whole_number)
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
        return GateLimits.of(spec, fields.pop("neutral", neutral), directions, stopping, **fields)


def whole_pairs(directions: Any) -> list[tuple[int, int]]:
    """The joint and the sign of every command; `SpecError` for anything else."""
    try:  # a number with a fraction is not rounded: it would be another joint
        return [(index(joint), index(sign)) for joint, sign in directions]
    except (TypeError, ValueError):
        raise SpecError(
            f"directions is {directions!r}, but must have a joint and a sign per command, whole numbers: ((0, 1), …)"
        ) from None


def _check_kind(name: str, several: bool, fields: dict[str, Any], data: dict[str, Any]) -> None:
    if name in fields and (isinstance(fields[name], tuple) != several or not _is_kind(fields[name], whole=False)):
        what = "a list of numbers" if several else "a number"
        raise SpecError(f"gate.{name} is {data[name]!r}, but must be {what}")


def _is_kind(value: Any, *, whole: bool) -> bool:
    """Whether it is a number, or several."""
    kinds = int if whole else (int, float)
    items = value if isinstance(value, tuple) else (value,)
    return all(isinstance(item, kinds) and not isinstance(item, bool) for item in items)


def read_stopping(spec: ControlSpec, stopping: Any) -> dict[str, tuple[float, ...]]:
    """The fields of the limits that a machine's `stopping` becomes.

    It is a mapping with `lag_s`, `dead_time_s`, `deceleration`, `brake` and `speed`, each a number for all positions or
    one per position; None in it means infinite.
    """
    if stopping is None:
        return {}
    if not isinstance(stopping, dict) or any(name not in STOPPING for name in stopping):
        raise SpecError(f"stopping is {stopping!r}, but must be a mapping with fields out of {', '.join(STOPPING)}")
    count, fields = len(spec.layout.position), {}
    for name, value in stopping.items():
        if isinstance(value, np.ndarray):
            value = value.tolist()
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,) * count
        values = tuple(math.inf if item is None else item for item in values)
        if len(values) != count or not _is_kind(values, whole=False):
            raise SpecError(f"stopping.{name} is {value!r}, but must be a number, or a list of {count}, per position")
        fields[STOPPING[name]] = tuple(float(item) for item in values)
    return fields


def check_stops_are_known(spec: ControlSpec, limits: GateLimits, kind: str | None, *, simulated: bool) -> None:
    """Refuse a machine that does not declare how far its joints go on after neutral, simulations included.

    `kind` is what its commands are declared to set: where that are forces, every joint must say what brakes it. Only a
    simulation may do without joint limits (`joint_margin` 0), and then nothing has to be known.
    """
    if kind is not None and kind not in COMMAND_KINDS:
        raise SpecError(f"command_kind is {kind!r}, but must be one of {', '.join(COMMAND_KINDS)}")
    if limits.joint_margin == 0:
        if simulated:
            return
        raise SpecError(
            "gate.joint_margin is 0, which switches the joint limits off, but the machine does not say that it is a "
            "simulation (simulated = True): leave it out, or give wider position limits in the specification"
        )
    for i, at in enumerate(spec.layout.position):
        name = spec.layout.measured[at]
        if kind == "acceleration" and not limits.brake[i : i + 1] > (0.0,):
            raise SpecError(
                f"command_kind is 'acceleration', so that neutral does not stop the machine, but it is not declared "
                f"what does stop {name}: give brake and deceleration in `stopping` of the machine's class, or in the "
                "limits"
            )
        numbers = (*limits.stop_lag_s[i : i + 1], *limits.deceleration[i : i + 1])
        if not any(number < math.inf for number in numbers):
            raise SpecError(
                f"it is not declared how {name} stops: give the machine's class `stopping` with `lag_s`, the seconds "
                "at its speed for which a joint goes on after the neutral command (or `serve --stop-lag SECONDS`); "
                "more than you have seen is careful, less is not. Where commands are forces or torques neutral does "
                "not stop it, and `stopping` must have `brake` and `deceleration`"
                + (". As it is a simulation, `--wide-limits` serves it without limits of its joints" * simulated)
            )


def assumed_neutral(spec: ControlSpec) -> np.ndarray:
    """What the specification declares, or zero where that lies inside every command's range. Else `SpecError`.

    A signed command does nothing at zero. For one from 0 to 1 it is not known: a pump stands at 0, a valve perhaps at
    0.5.
    """
    limits = spec.limits
    if limits.command_neutral is not None:
        return np.asarray(limits.command_neutral, float)
    for name, low, high in zip(spec.layout.commands, limits.command_low, limits.command_high):  # noqa: B905
        if not low < 0 < high:
            raise SpecError(
                f"it is not declared at which value the command {name!r} ({low:g} to {high:g}) does nothing: "
                "give neutral in the task, neutral_command in the machine's class, or neutral in the limits"
            )
    return np.zeros(len(limits.command_low))


def _replace(value: Any, old: Any, new: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(new if item == old else item for item in value)
    return new if value == old else value
