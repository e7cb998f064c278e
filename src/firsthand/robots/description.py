"""What a run stores of its robot: everything that is needed to read the run without the robot.

Plain data. Reading it runs none of the robot's code, opens no file but config.json and creates no environment.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.spec import SpecError

from ..errors import UserError
from ..units import Score, score_of

if TYPE_CHECKING:
    from ..tasks.base import Task

ROBOT_DESCRIPTION = "robot_description"
"""Its name in a run's config.json."""

Kind = Literal["machine", "environment", "simulation", "learned simulator"]
"""A machine moves something real, or may. An environment is a Gymnasium one; a simulation has a known plant."""


@dataclass(frozen=True)
class RobotFile:
    """The file that a robot came from: enough to find it again, and to see whether it has changed."""

    path: str
    """Absolute."""
    sha256: str
    """Of its bytes."""


@dataclass(frozen=True)
class DescribedReference:
    """An evaluation reference at the task's own speed."""

    name: str
    """Its name in tables."""
    points: tuple[tuple[float, ...], ...]
    """The tracked output's target at each step."""
    start: tuple[float, ...]
    """The configuration from which the robot starts, at rest."""


@dataclass(frozen=True)
class RobotDescription:
    """A robot and its task as data."""

    spec: ControlSpec
    """The control specification: names, layout, kinematics, limits, control period, shape of the policy."""
    unit: str
    """Unit of the tracked output."""
    trajectories: int
    """N, trajectories per episode."""
    home: tuple[float, ...]
    """The configuration in which training starts."""
    evaluation_speed: float
    """Speed along the evaluation references, in units of the tracked output per second."""
    references: tuple[DescribedReference, ...] = ()
    """The evaluation references at this speed."""
    kind: Kind = "environment"
    """The kind of robot."""
    angles: tuple[int, ...] = ()
    """Entries of the measurement that are angles and counted on across ±π."""
    payload_kg: float = 0.0
    """Load at the tool when the run was started."""
    file: RobotFile | None = None
    """The user's file that the robot came from; None for a robot that is in none."""
    tracks: bool = True
    """Whether the tracked output follows references; otherwise policies are judged by their cost."""

    @staticmethod
    def of(
        task: "Task",
        *,
        kind: Kind = "environment",
        angles: tuple[int, ...] = (),
        payload_kg: float = 0.0,
        file: RobotFile | None = None,
    ) -> "RobotDescription":
        """The description of a robot with this task."""
        references = tuple(
            DescribedReference(
                reference.name,
                tuple(tuple(point) for point in np.asarray(reference.points, float).tolist()),
                tuple(np.asarray(reference.start, float).tolist()),
            )
            for reference in task.evaluation(task.evaluation_speed)
        )
        return RobotDescription(
            spec=task.spec,
            unit=task.unit,
            trajectories=task.trajectories,
            home=tuple(float(value) for value in task.home),
            evaluation_speed=float(task.evaluation_speed),
            references=references,
            kind=kind,
            angles=tuple(int(entry) for entry in angles),
            payload_kg=float(payload_kg),
            file=file,
            tracks=task.cost.goal.tracks,
        )

    @property
    def score(self) -> Score:
        """The number that its policies are judged by."""
        return score_of(self.tracks, self.unit)

    @property
    def name(self) -> str:
        """The robot's name in the control specification."""
        return self.spec.robot

    @property
    def hardware(self) -> bool:
        """Whether it moves something real, or may."""
        return self.kind == "machine"

    @property
    def period_s(self) -> float:
        """The control period in seconds."""
        return self.spec.period_s

    @property
    def steps(self) -> int:
        """H, steps per trajectory."""
        return self.spec.reference.steps

    @property
    def episode_s(self) -> float:
        """Robot time of one episode in seconds."""
        return self.trajectories * self.steps * self.period_s

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of what is measured."""
        return self.spec.layout.measured

    @property
    def commands(self) -> tuple[str, ...]:
        """Names of the command channels."""
        return self.spec.layout.commands

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "control_spec": json.loads(self.spec.to_json()),
            "unit": self.unit,
            "trajectories": self.trajectories,
            "home": list(self.home),
            "evaluation_speed": self.evaluation_speed,
            "references": [
                {"name": one.name, "points": [list(point) for point in one.points], "start": list(one.start)}
                for one in self.references
            ],
            "kind": self.kind,
            "angles": list(self.angles),
            "payload_kg": self.payload_kg,
            "file": None if self.file is None else {"path": self.file.path, "sha256": self.file.sha256},
            **({} if self.tracks else {"tracks": False}),
        }

    @staticmethod
    def from_dict(data: Any, where: str = ROBOT_DESCRIPTION) -> "RobotDescription":
        """The description that `as_dict` wrote; `UserError` names the first field that is wrong, and `where` it is."""
        try:
            return _read(_Fields(data))
        except _WrongField as error:
            raise UserError(f"{where} is damaged: {error}.") from None

    @staticmethod
    def of_config(config: Mapping[str, Any], where: str = "config.json") -> "RobotDescription":
        """The description in a run's or a recording's configuration."""
        if ROBOT_DESCRIPTION not in config:
            raise UserError(f"{where} is damaged: it has no {ROBOT_DESCRIPTION}.")
        return RobotDescription.from_dict(config[ROBOT_DESCRIPTION], f"{ROBOT_DESCRIPTION} in {where}")


class _WrongField(Exception):
    """The error in a field, in words."""


class _Fields:
    """The fields of a JSON object, each checked when it is taken."""

    def __init__(self, data: Any, prefix: str = "") -> None:
        if not isinstance(data, Mapping):
            raise _WrongField(f"{prefix.rstrip('.') or 'it'} is not an object")
        self.data, self.prefix = data, prefix

    def take(self, name: str) -> Any:
        if name not in self.data:
            raise _WrongField(f"the field {self.prefix}{name} is missing")
        return self.data[name]

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise _WrongField(f"{self.prefix}{name} is {_shorten(value)}, but must be text")
        return value

    def number(self, name: str) -> float:
        return _number(self.take(name), f"{self.prefix}{name}")

    def whole(self, name: str, least: int) -> int:
        return _whole(self.take(name), f"{self.prefix}{name}", least)

    def items(self, name: str) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list):
            raise _WrongField(f"{self.prefix}{name} is {_shorten(value)}, but must be a list")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        return _numbers(self.items(name), f"{self.prefix}{name}", count)


def _read(fields: _Fields) -> RobotDescription:
    try:
        spec = ControlSpec.from_json(json.dumps(fields.take("control_spec")))
    except SpecError as error:
        raise _WrongField(str(error)) from None
    positions = len(spec.layout.position)
    kinds: dict[Any, Kind] = {kind: kind for kind in get_args(Kind)}
    if (kind := fields.text("kind")) not in kinds:
        raise _WrongField(f"kind is {_shorten(kind)}, but must be one of {', '.join(kinds)}")
    angles = tuple(_whole(entry, "angles", 0) for entry in fields.items("angles"))
    if any(entry >= spec.layout.num_measured for entry in angles):
        raise _WrongField(f"angles names entry {max(angles)}, but there are {spec.layout.num_measured} measurements")
    file = fields.take("file")
    if file is not None:
        inside = _Fields(file, "file.")
        file = RobotFile(inside.text("path"), inside.text("sha256"))
    references = []
    for i, reference in enumerate(fields.items("references")):
        inside = _Fields(reference, f"references[{i}].")
        points = tuple(_numbers(p, f"references[{i}].points", spec.num_outputs) for p in inside.items("points"))
        references.append(DescribedReference(inside.text("name"), points, inside.numbers("start", positions)))
    return RobotDescription(
        spec=spec,
        unit=fields.text("unit"),
        trajectories=fields.whole("trajectories", 1),
        home=fields.numbers("home", positions),
        evaluation_speed=fields.number("evaluation_speed"),
        references=tuple(references),
        kind=kinds[kind],
        angles=angles,
        payload_kg=fields.number("payload_kg"),
        file=file,
        tracks=fields.data.get("tracks", True) is not False,
    )


def _number(value: Any, name: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        pass
    raise _WrongField(f"{name} is {_shorten(value)}, but must be a finite number")


def _whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise _WrongField(f"{name} is {_shorten(value)}, but must be a whole number from {least} on")
    return value


def _numbers(values: Any, name: str, count: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != count:
        raise _WrongField(f"{name} is {_shorten(values)}, but must list {count} numbers")
    return tuple(_number(value, name) for value in values)


def _shorten(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a very large number"
    return text if len(text) <= 60 else f"{text[:57]}…"


OWN_WORDS = {
    "kinematics.": "tracked",
    "layout.position": "positions",
    "layout.velocity": "velocities",
    "reference.rate_": "rate",
}
"""Fields of a specification that a `GymnasiumTask` calls otherwise."""


def spec_difference(one: ControlSpec, other: ControlSpec, fields: Sequence[str] = ()) -> str | None:
    """The first field in which two specifications differ, with both values; None when they agree.

    `fields` limits the comparison to dotted names and what is below them.
    """
    ours, theirs = (_flatten(json.loads(spec.to_json())) for spec in (one, other))
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if fields and not any(name == f or name.startswith(f + ".") for f in fields):
            continue
        if ours.get(name) != theirs.get(name):
            name_of = next((f"{word} ({name})" for field, word in OWN_WORDS.items() if name.startswith(field)), name)
            return f"{name_of} is {json.dumps(ours.get(name))} there and {json.dumps(theirs.get(name))} here"
    return None


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flatten(item, f"{prefix}.{key}" if prefix else key)
    return found
