"""ControlSpec: what the learner and the robot must agree on, as data.

Everything here is plain numbers and names, so that it travels as JSON beside the policy's weights and nothing that is
loaded can run. Every class checks itself when it is made; a wrong value gets one sentence that says which field, what
it was and what it may be.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Union

from .serial_chain import ChainJoint, SerialChain
from .spec_checks import SpecError as SpecError
from .spec_checks import check_finite as _finite
from .spec_checks import check_length as _length
from .spec_checks import check_ordered as _ordered
from .spec_checks import check_positive as _positive
from .spec_checks import require as _require

FORMAT_VERSION = 1
MAX_UNIT_LENGTH = 20


def _label(name: str, unit: tuple[str, ...]) -> str:
    return f"{name} ({unit[0]})" if unit and unit[0] else name


@dataclass(frozen=True)
class StateLayout:
    """How the state vector is laid out.

    The state is `[y_k, y_{k-1}, …, y_{k-measurement_memory}, u_{k-1}, …, u_{k-command_memory}]`: what is measured now,
    what was measured before, and the last commands, newest first. The commands belong to the state because of dead
    time: what the robot does next depends on commands that are already on their way.
    """

    measured: tuple[str, ...]
    """Names of the measured quantities y."""
    position: tuple[int, ...]
    """Which entries of y are positions."""
    velocity: tuple[int, ...]
    """Which entries of y are the velocities of those positions, in the same order; empty if none are measured."""
    commands: tuple[str, ...]
    """Names of the command channels u."""
    command_memory: int
    """How many past commands the state carries."""
    measurement_memory: int = 0
    """How many past measurements the state carries."""
    measured_units: tuple[str, ...] = ()
    """The unit of each measured quantity; empty where none is declared, and "" for one that has none."""
    command_units: tuple[str, ...] = ()
    """The unit of each command channel, likewise."""

    def __post_init__(self) -> None:
        for name, units, named in (
            ("measured_units", self.measured_units, self.measured),
            ("command_units", self.command_units, self.commands),
        ):
            if units:
                _length(f"layout.{name}", units, len(named), f"entry of layout.{name.split('_')[0]}")
            for unit in units:
                _require(
                    isinstance(unit, str) and len(unit) <= MAX_UNIT_LENGTH and unit.isprintable(),
                    f"layout.{name} has {unit!r}, but a unit is a text of at most {MAX_UNIT_LENGTH} characters",
                )
        _require(len(self.measured) > 0, "layout.measured is empty, but at least one quantity must be measured")
        _require(len(self.commands) > 0, "layout.commands is empty, but there must be at least one command channel")
        _require(
            self.command_memory >= 1,
            f"layout.command_memory is {self.command_memory}, but must be at least 1 "
            "(the change of command is part of the cost)",
        )
        _require(
            self.measurement_memory >= 0,
            f"layout.measurement_memory is {self.measurement_memory}, but must be at least 0",
        )
        for name, indices in (("position", self.position), ("velocity", self.velocity)):
            for index in indices:
                _require(
                    0 <= index < len(self.measured),
                    f"layout.{name} names entry {index}, but the measurement has entries 0 to {len(self.measured) - 1}",
                )
            _require(len(set(indices)) == len(indices), f"layout.{name} names an entry twice: {indices}")
        _require(len(self.position) > 0, "layout.position is empty, but at least one entry must be a position")
        _require(
            len(self.velocity) in (0, len(self.position)),
            f"layout.velocity has {len(self.velocity)} entries, but must have none or one per position "
            f"({len(self.position)})",
        )
        shared = sorted(set(self.position) & set(self.velocity))
        _require(
            not shared,
            f"layout.position and layout.velocity share entry {', '.join(map(str, shared))}, but an entry is one or "
            "the other",
        )

    @cached_property
    def num_measured(self) -> int:
        """The length of y."""
        return len(self.measured)

    @cached_property
    def num_commands(self) -> int:
        """The length of u."""
        return len(self.commands)

    def measured_label(self, entry: int) -> str:
        """A measured quantity for people, with its unit where that is declared: `lower level (m)`."""
        return _label(self.measured[entry], self.measured_units[entry : entry + 1])

    def command_label(self, channel: int) -> str:
        """A command channel, likewise: `pump (V)`."""
        return _label(self.commands[channel], self.command_units[channel : channel + 1])

    @cached_property
    def size(self) -> int:
        """The length of the state vector."""
        return self.num_measured * (1 + self.measurement_memory) + self.num_commands * self.command_memory

    @cached_property
    def command_start(self) -> int:
        """Where the command memory begins in the state vector."""
        return self.num_measured * (1 + self.measurement_memory)


@dataclass(frozen=True)
class PlanarJoint:
    """One joint of a planar chain and the rigid offset that follows it, in the frame after the joint."""

    kind: Literal["revolute", "prismatic"]
    """A revolute joint adds its position to the link's angle; a prismatic one moves along the link."""
    along: float
    """Metres along the link to the next joint."""
    perpendicular: float = 0.0
    """Metres perpendicular to the link, counted upward when the link points forward."""

    def __post_init__(self) -> None:
        _require(
            self.kind in ("revolute", "prismatic"),
            f"joint.kind is {self.kind!r}, but must be 'revolute' or 'prismatic'",
        )
        _finite("joint.offset", (self.along, self.perpendicular))


@dataclass(frozen=True)
class PlanarChain:
    """The tracked output is the end of a planar chain of joints; a positive angle turns a link down."""

    base: tuple[float, float]
    """Where the first joint is, (x, z) in metres."""
    joints: tuple[PlanarJoint, ...]
    """The joints from the base outward; joint i moves with entry `layout.position[i]`."""
    kind: Literal["planar_chain"] = "planar_chain"

    def __post_init__(self) -> None:
        _finite("kinematics.base", self.base)
        _require(len(self.joints) > 0, "kinematics.joints is empty, but a chain has at least one joint")

    @property
    def num_outputs(self) -> int:
        """A point in the plane has two coordinates."""
        return 2

    def in_space(self) -> SerialChain:
        """The same chain in space: y is 0, and a joint turns about the y axis or moves along the x axis of its link."""
        joints, (x, z) = [], self.base
        for joint in self.joints:
            axis = (0.0, 1.0, 0.0) if joint.kind == "revolute" else (1.0, 0.0, 0.0)
            joints.append(ChainJoint(joint.kind, (x, 0.0, z), axis=axis))
            x, z = joint.along, joint.perpendicular
        return SerialChain(tuple(joints), tip=(x, 0.0, z))


@dataclass(frozen=True)
class SelectedOutput:
    """The tracked output is measured directly: some entries of y."""

    indices: tuple[int, ...]
    """Which entries of y are tracked."""
    kind: Literal["selected"] = "selected"

    def __post_init__(self) -> None:
        _require(len(self.indices) > 0, "kinematics.indices is empty, but something must be tracked")

    @property
    def num_outputs(self) -> int:
        """One coordinate per selected entry."""
        return len(self.indices)


Chain = Union[PlanarChain, SerialChain]  # noqa: UP007 (Python 3.10 evaluates this at run time)
CHAINS = (PlanarChain, SerialChain)
"""Kinds of tracked output that are computed from joint positions."""
Kinematics = Union[PlanarChain, SerialChain, SelectedOutput]  # noqa: UP007 (Python 3.10 evaluates this at run time)


@dataclass(frozen=True)
class Scales:
    """What the policy's inputs are divided by, so that each is of order one. Fixed, so that a policy never drifts."""

    measured_center: tuple[float, ...]
    """Subtracted from y."""
    measured_scale: tuple[float, ...]
    """Divides y after centring."""
    change_scale: tuple[float, ...]
    """Divides y_k − y_{k-j} (the measurement memory enters as differences)."""
    error: float | tuple[float, ...]
    """Divides the tracking error now, in the unit of the tracked output; one per output where units differ."""
    preview: float | tuple[float, ...]
    """Divides how far the reference will move within the preview, likewise."""

    def __post_init__(self) -> None:
        _finite("scales.measured_center", self.measured_center)
        _positive("scales.measured_scale", self.measured_scale)
        _positive("scales.change_scale", self.change_scale)
        _positive("scales.error", self.error if isinstance(self.error, tuple) else (self.error,))
        _positive("scales.preview", self.preview if isinstance(self.preview, tuple) else (self.preview,))


@dataclass(frozen=True)
class Limits:
    """The ranges of commands and positions."""

    command_low: tuple[float, ...]
    """Lowest value per command channel."""
    command_high: tuple[float, ...]
    """Highest value per command channel."""
    position_low: tuple[float, ...]
    """Lower joint limit per position."""
    position_high: tuple[float, ...]
    """Upper joint limit per position."""
    command_neutral: tuple[float, ...] | None = None
    """The value per command channel at which the robot is left alone, 0 for a pump; None where it is not declared."""

    def __post_init__(self) -> None:
        for name in ("command", "position"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            _finite(f"limits.{name}_low", low)
            _finite(f"limits.{name}_high", high)
            _length(f"limits.{name}_high", high, len(low), f"entry of {name}_low")
            _ordered(f"limits.{name}", low, high)
        if self.command_neutral is not None:
            _finite("limits.command_neutral", self.command_neutral)
            _length("limits.command_neutral", self.command_neutral, len(self.command_low), "command channel")
            for i, value in enumerate(self.command_neutral):
                low, high = self.command_low[i], self.command_high[i]
                _require(
                    low <= value <= high,
                    f"limits.command_neutral[{i}] is {value}, but must lie in the channel's range, {low} to {high}",
                )


@dataclass(frozen=True)
class ReferenceSpec:
    """How a reference is built from a goal when a trajectory starts."""

    space: Literal["position", "output"]
    """Whether a goal is a set of joint positions (mapped through the kinematics) or a point of the tracked output."""
    steps: int
    """H, the number of control steps of a trajectory."""
    rate_low: tuple[float, ...]
    """The highest speed towards lower values that a reference may ask for, per goal coordinate; below zero."""
    rate_high: tuple[float, ...]
    """The highest speed towards higher values; a goal too far to be reached at these speeds is moved closer."""
    profile: Literal["move", "hold"] = "move"
    """A reference moves smoothly from where the robot is to the goal, or is the goal all the time: a set-point."""

    def __post_init__(self) -> None:
        _require(
            self.profile in ("move", "hold"), f"reference.profile is {self.profile!r}, but must be 'move' or 'hold'"
        )
        _require(
            self.space in ("position", "output"),
            f"reference.space is {self.space!r}, but must be 'position' or 'output'",
        )
        _require(self.steps >= 2, f"reference.steps is {self.steps}, but must be at least 2")
        _positive("reference.rate_high", self.rate_high)
        for i, rate in enumerate(self.rate_low):
            _require(math.isfinite(rate) and rate < 0, f"reference.rate_low[{i}] is {rate}, but must be below zero")


@dataclass(frozen=True)
class PolicyShape:
    """The policy network: hidden layers of tanh units, and a tanh that keeps commands inside their range."""

    hidden: tuple[int, ...] = (128, 128)
    """Units per hidden layer."""

    def __post_init__(self) -> None:
        _require(len(self.hidden) >= 1, "policy.hidden is empty, but the policy needs at least one hidden layer")
        for i, width in enumerate(self.hidden):
            _require(
                isinstance(width, int) and width >= 1,
                f"policy.hidden[{i}] is {width}, but must be a whole number of at least 1",
            )


@dataclass(frozen=True)
class ControlSpec:
    """Everything that turns measurements and a goal into commands, apart from the policy's weights."""

    robot: str
    """Name of the robot."""
    period_s: float
    """Control period in seconds."""
    layout: StateLayout
    """What the state vector holds."""
    kinematics: Kinematics
    """From measurement to tracked output."""
    preview: tuple[int, ...]
    """How many steps ahead the policy looks at the reference; offsets above 0, rising."""
    scales: Scales
    """What the policy's inputs are divided by."""
    limits: Limits
    """Ranges of commands and positions."""
    reference: ReferenceSpec
    """How a goal becomes a reference."""
    policy: PolicyShape = PolicyShape()
    """Sizes of the policy network."""

    def __post_init__(self) -> None:
        _positive("period_s", (self.period_s,))
        layout, num_positions = self.layout, len(self.layout.position)
        for name in ("error", "preview"):
            if isinstance(value := getattr(self.scales, name), tuple):
                _length(f"scales.{name}", value, self.num_outputs, "tracked output")
        _require(len(self.preview) > 0, "preview is empty, but the policy must see where the reference goes")
        _require(
            all(a < b for a, b in zip((0, *self.preview), self.preview)),  # noqa: B905
            f"preview is {self.preview}, but must be whole steps above 0, in rising order",
        )
        for name in ("measured_center", "measured_scale", "change_scale"):
            _length(f"scales.{name}", getattr(self.scales, name), layout.num_measured, "measured quantity")
        _length("limits.command_low", self.limits.command_low, layout.num_commands, "command channel")
        _length("limits.position_low", self.limits.position_low, num_positions, "position")
        if isinstance(self.kinematics, CHAINS):
            _length("kinematics.joints", self.kinematics.joints, num_positions, "position")
        else:
            for index in self.kinematics.indices:
                _require(
                    0 <= index < layout.num_measured,
                    f"kinematics.indices names entry {index}, but the measurement has entries "
                    f"0 to {layout.num_measured - 1}",
                )
        _length("reference.rate_low", self.reference.rate_low, self.goal_size, "goal coordinate")
        _length("reference.rate_high", self.reference.rate_high, self.goal_size, "goal coordinate")

    @property
    def num_outputs(self) -> int:
        """The length of the tracked output."""
        return self.kinematics.num_outputs

    @cached_property
    def neutral(self) -> tuple[float, ...]:
        """The command that leaves the robot alone: as declared, or else the middle of each channel's range."""
        limits = self.limits
        if limits.command_neutral is not None:
            return limits.command_neutral
        return tuple((a + b) / 2 for a, b in zip(limits.command_low, limits.command_high))  # noqa: B905

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the tracked outputs are called."""
        if isinstance(self.kinematics, SelectedOutput):
            return tuple(self.layout.measured[i] for i in self.kinematics.indices)
        return ("x", "z") if isinstance(self.kinematics, PlanarChain) else self.kinematics.output_names

    @property
    def output_units(self) -> tuple[str, ...]:
        """The unit of each tracked output; empty where none is declared."""
        if isinstance(self.kinematics, SelectedOutput):
            units = self.layout.measured_units
            return tuple(units[i] for i in self.kinematics.indices) if units else ()
        return ("m",) * self.num_outputs  # orientations count in metres, too: see `SerialChain.lever`

    @cached_property
    def has_mixed_units(self) -> bool:
        """Whether the tracked outputs have different units, so that their errors cannot be added as they are."""
        return len(set(self.output_units)) > 1

    @property
    def goal_size(self) -> int:
        """The length of a goal."""
        return len(self.layout.position) if self.reference.space == "position" else self.num_outputs

    @property
    def observation_size(self) -> int:
        """The length of the policy's input."""
        return self.layout.size + self.num_outputs * (1 + len(self.preview))

    @cached_property
    def reference_length(self) -> int:
        """Points in a built reference: one per step, and the preview beyond the last."""
        return self.reference.steps + self.preview[-1]

    def to_json(self) -> str:
        """The specification as canonical JSON, so that equal specifications give equal text: sorted keys, 1 as 1.0."""
        data = _without_defaults(self, dataclasses.asdict(self))
        return json.dumps({"format": FORMAT_VERSION, **_canonical(data)}, sort_keys=True)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: two sides that hold the same digest agree."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> ControlSpec:
        """The specification that `to_json` wrote; `SpecError` says what is wrong with anything else."""
        try:
            data = json.loads(text, parse_int=whole_number)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SpecError(f"the control specification is not JSON: {error}") from None
        _require(isinstance(data, dict), "the control specification is not a JSON object")
        version = data.pop("format", None)
        _require(
            version == FORMAT_VERSION,
            f"the control specification has format {version}, but this program reads format {FORMAT_VERSION}",
        )
        try:
            return _build_spec(data)
        except (TypeError, KeyError, AttributeError) as error:
            raise SpecError(f"the control specification is incomplete or malformed: {error}") from None


MAX_DIGITS = 18
"""Of a whole number; longer ones fit into no field."""


def whole_number(text: str) -> float:
    """A whole number of a JSON text; one that is too long to be one is a float, which may be infinite."""
    return int(text) if len(text) <= MAX_DIGITS else float(text)


OPTIONAL = ("measured_units", "command_units", "command_neutral", "profile")
"""Fields of parts that are left out of the text where nothing is declared: what was written before they existed stays
as it is."""


def _without_defaults(spec: ControlSpec, data: dict[str, Any]) -> dict[str, Any]:
    for name, part in data.items():
        if isinstance(part, dict):
            defaults = {field.name: field.default for field in dataclasses.fields(getattr(spec, name))}
            data[name] = {key: v for key, v in part.items() if key not in OPTIONAL or v != defaults[key]}
    return data


WHOLE = ("layout", "preview", "steps", "policy", "indices")
"""Fields that hold whole numbers; every other number is a float."""


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: item if name in WHOLE else _canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in data.items()}


# What JSON may hold, by dotted name. Checked before anything is built, so that the message can name the field.
_TEXT = ("robot", "layout.measured", "layout.commands", "layout.measured_units", "layout.command_units")
_WHOLE = ("preview", "layout.position", "layout.velocity", "kinematics.indices", "policy.hidden")
_WHOLE_ONE = ("layout.command_memory", "layout.measurement_memory", "reference.steps")
_NUMBER_ONE = ("period_s",)
_NUMBER_OR_NUMBERS = ("scales.error", "scales.preview")
_NUMBERS = (
    "kinematics.base",
    "scales.measured_center",
    "scales.measured_scale",
    "scales.change_scale",
    "limits.command_low",
    "limits.command_high",
    "limits.command_neutral",
    "limits.position_low",
    "limits.position_high",
    "reference.rate_low",
    "reference.rate_high",
)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_one_or_more_numbers(value: Any) -> bool:
    return all(map(_is_number, value)) if isinstance(value, list) else _is_number(value)


def _check_kinds(data: dict[str, Any]) -> None:
    """Raise `SpecError` for a field whose JSON value is of the wrong kind; a missing field is found later."""
    for part in ("layout", "kinematics", "scales", "limits", "reference", "policy"):
        _require(isinstance(data.get(part, {}), dict), f"{part} is {data.get(part)!r}, but must be a JSON object")

    def check(names: tuple[str, ...], one: bool, right: Any, wanted: str) -> None:
        for name in names:
            *part, field = name.split(".")
            holder = data.get(part[0], {}) if part else data
            if field not in holder:
                continue
            value = holder[field]
            fits = right(value) if one else isinstance(value, list) and all(right(item) for item in value)
            _require(fits, f"{name} is {value!r}, but must be {wanted}")

    check(_TEXT[:1], True, lambda v: isinstance(v, str), "a text")
    check(_TEXT[1:], False, lambda v: isinstance(v, str), "a list of texts")
    check(_WHOLE, False, _is_whole, "a list of whole numbers")
    check(_WHOLE_ONE, True, _is_whole, "a whole number")
    check(_NUMBER_ONE, True, _is_number, "a number")
    check(_NUMBERS, False, _is_number, "a list of numbers")
    check(_NUMBER_OR_NUMBERS, True, _is_one_or_more_numbers, "a number, or a list of them, one per tracked output")
    base = data.get("kinematics", {}).get("base", [0, 0])
    _require(len(base) == 2, f"kinematics.base is {base!r}, but must be two numbers, x and z")


def _build_spec(data: dict[str, Any]) -> ControlSpec:
    _check_kinds(data)
    kinematics_data = dict(data["kinematics"])
    kind = kinematics_data.get("kind")
    kinematics: Kinematics
    if kind == "planar_chain":
        joints = tuple(PlanarJoint(**joint) for joint in kinematics_data["joints"])
        kinematics = PlanarChain(base=_tuples(kinematics_data["base"]), joints=joints)
    elif kind == "serial_chain":
        parts = {name: _tuples(value) for name, value in kinematics_data.items() if name not in ("joints", "kind")}
        joints = tuple(ChainJoint(**_fields(joint)) for joint in kinematics_data["joints"])
        kinematics = SerialChain(joints=joints, **parts)
    elif kind == "selected":
        kinematics = SelectedOutput(indices=_tuples(kinematics_data["indices"]))
    else:
        raise SpecError(f"kinematics.kind is {kind!r}, but must be 'planar_chain', 'serial_chain' or 'selected'")
    parts = {
        "layout": StateLayout(**_fields(data["layout"])),
        "kinematics": kinematics,
        "scales": Scales(**_fields(data["scales"])),
        "limits": Limits(**_fields(data["limits"])),
        "reference": ReferenceSpec(**_fields(data["reference"])),
        "policy": PolicyShape(**_fields(data["policy"])),
    }
    rest = {name: _tuples(value) for name, value in data.items() if name not in parts}
    return ControlSpec(**rest, **parts)
