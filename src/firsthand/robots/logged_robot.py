"""A robot of which only a log is available: its names, limits and control period come from a small TOML file.

It has a task like any other robot. It cannot move, but the simulator that is fitted to its log can:
`firsthand simulator fit LOG --robot digger.toml --out SIM`.
"""

import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from firsthand_onboard import (
    ControlSpec,
    Limits,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    StateLayout,
)
from firsthand_onboard.spec import SpecError

from ..errors import UserError, suggest
from ..runs import atomic
from ..tasks import Task, tracking_cost
from ..tasks.box import BoxGoals, BoxReferences, GoalBox
from .base import AbstractRobot
from .source import RobotSource

SUFFIX = ".toml"
PREVIEW_S = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""How far ahead a policy sees its reference: beyond the dead time and lag of hydraulics."""
MAX_STEPS = 1_000_000
"""Control steps of an episode; more are a mistake in a number, and would fill the memory."""
ERROR_SHARE = 0.1
"""An error of this share of the joints' mean range is large, for the scale of the policy's inputs."""


@dataclass(frozen=True)
class VectorColumns:
    """Where to find what in a log of vectors."""

    position: str = "position"
    """Column of the positions."""
    velocity: str = "velocity"
    """Column of the velocities."""
    command: str = "command"
    """Column of the commands."""
    time: str = "time"
    """Column of the time in seconds."""
    reference: str = "reference"
    """Column of what was wanted; only evaluation reads it."""
    command_unit: float = 1.0
    """Commands are divided by this."""


@dataclass(frozen=True)
class LoggedRobot(RobotSource):
    """What somebody with a log knows about the robot. Lists have one entry per joint."""

    name: str
    """Its name."""
    period_s: float
    """Control period in seconds."""
    joints: tuple[str, ...]
    """Names of the joints. `NAME.position`, `NAME.velocity` and `NAME` (the command) are the columns of a log."""
    position_low: tuple[float, ...]
    """Lower limit of each joint."""
    position_high: tuple[float, ...]
    """Upper limit."""
    speed: tuple[float, ...]
    """The highest speed that a reference may ask for."""
    command_low: tuple[float, ...] = ()
    """Lowest command; by default -1."""
    command_high: tuple[float, ...] = ()
    """Highest command; by default 1."""
    home: tuple[float, ...] = ()
    """Where training starts, at rest; by default the middle of the range."""
    free: tuple[str, ...] = ()
    """Joints whose position makes no difference to the motion, such as a swing about a vertical axis."""
    unit: str = "rad"
    """Of all positions."""
    velocities: bool = True
    """Whether velocities are measured."""
    trajectory_s: float = 6.0
    """Length of a training trajectory."""
    trajectories: int = 10
    """Trajectories per episode."""
    dead_time_s: float = 0.4
    """How far back the policy sees its commands: at least dead time and lag."""
    columns: VectorColumns = VectorColumns()
    """Where a log of vectors has what."""

    def __post_init__(self) -> None:
        count = len(self.joints)
        if not count or len(set(self.joints)) < count:
            raise UserError(f"joints is {list(self.joints)}, but must list names, each once.")
        for name, default in (("command_low", -1.0), ("command_high", 1.0)):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * count)
        if not self.home:
            middle = tuple((a + b) / 2 for a, b in zip(self.position_low, self.position_high, strict=False))
            object.__setattr__(self, "home", middle)
        for name in ("position_low", "position_high", "speed", "command_low", "command_high", "home"):
            values = getattr(self, name)
            if len(values) != count:
                raise UserError(f"{name} has {len(values)} entries, but must have {count}, one per joint.")
        for name, values in (("speed", self.speed), ("trajectory_s", (self.trajectory_s,))):
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise UserError(f"{name} is {_show(values)}, but must be positive.")
        for name in ("position", "command"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            for joint, a, b in zip(self.joints, low, high, strict=True):
                if not (math.isfinite(a) and math.isfinite(b) and a < b):
                    raise UserError(f"{name}_low of {joint} is {a:g}, but must be below {name}_high, which is {b:g}.")
        if not (math.isfinite(self.period_s) and 0 < self.period_s < self.trajectory_s / 10):
            raise UserError(f"period_s is {self.period_s:g}, but must be positive and below a tenth of trajectory_s.")
        if self.trajectories * self.trajectory_s / self.period_s > MAX_STEPS:
            raise UserError(
                f"an episode of {self.trajectories} times {self.trajectory_s:g} s has more than {MAX_STEPS} periods of "
                f"{self.period_s:g} s; give fewer or shorter trajectories."
            )
        if not 0 <= self.dead_time_s <= 10:
            raise UserError(f"dead_time_s is {self.dead_time_s:g}, but must lie between 0 and 10.")
        for joint in self.free:
            if joint not in self.joints:
                raise UserError(f"free names {joint!r}, which is not a joint{suggest(joint, self.joints)}.")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON or TOML."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def free_entries(self) -> tuple[int, ...]:
        """Entries of the measurement that belong to `free`."""
        return tuple(self.joints.index(joint) for joint in self.free)

    def spec(self) -> ControlSpec:
        """The control specification: positions are tracked."""
        count, period = len(self.joints), self.period_s
        middle = [(a + b) / 2 for a, b in zip(self.position_low, self.position_high, strict=True)]
        half = [(b - a) / 2 for a, b in zip(self.position_low, self.position_high, strict=True)]
        speed, moving = list(self.speed), self.velocities
        error = ERROR_SHARE * 2 * sum(half) / count
        preview = sorted({max(round(seconds / period), 1) for seconds in PREVIEW_S})
        try:
            return ControlSpec(
                robot=self.name,
                period_s=period,
                layout=StateLayout(
                    measured=tuple(f"{j}.position" for j in self.joints)
                    + (tuple(f"{j}.velocity" for j in self.joints) if moving else ()),
                    position=tuple(range(count)),
                    velocity=tuple(range(count, 2 * count)) if moving else (),
                    commands=self.joints,
                    command_memory=max(math.ceil(self.dead_time_s / period), 1),
                    measurement_memory=2,
                ),
                kinematics=SelectedOutput(tuple(range(count))),
                preview=tuple(preview),
                scales=Scales(
                    measured_center=(*middle, *([0.0] * count if moving else [])),
                    measured_scale=(*half, *(speed if moving else [])),
                    change_scale=(*(period * v for v in speed), *([0.2 * v for v in speed] if moving else [])),
                    error=error,
                    preview=2 * error,
                ),
                limits=Limits(self.command_low, self.command_high, self.position_low, self.position_high),
                reference=ReferenceSpec(
                    space="output",
                    steps=round(self.trajectory_s / period),
                    rate_low=tuple(-v for v in speed),
                    rate_high=tuple(speed),
                ),
                policy=PolicyShape(),
            )
        except SpecError as error_:
            raise UserError(f"{self.name}: {error_}.") from None

    def make_task(self) -> Task:
        """All joints follow random poses inside the limits; a line and a loop are for evaluation."""
        spec = self.spec()
        box = GoalBox(self.position_low, self.position_high)
        references = BoxReferences(spec, box, self.home)
        return Task(
            spec=spec,
            cost=tracking_cost(spec, length_scale=spec.scales.error),
            sample_goals=BoxGoals(spec, box),
            evaluation=references,
            evaluation_speed=references.speed(),
            home=self.home,
            trajectories=self.trajectories,
            unit=self.unit,
        )

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> AbstractRobot:
        """There is none."""
        raise UserError(
            f"{self.name} is known by its description only and cannot move; fit a simulator to its log with: "
            "firsthand simulator fit LOG --robot FILE.toml --out SIM"
        )


def is_robot_description(name: str) -> bool:
    """Whether a name on the command line means such a file."""
    return name.endswith(SUFFIX)


MAX_BYTES = 1 << 20
"""Of such a file."""


def read_logged_robot(path: Path) -> LoggedRobot:
    """The robot in a TOML file; one sentence for a field that is wrong."""
    try:
        content = tomllib.loads(atomic.read_bytes(path, MAX_BYTES).decode())
    except OSError as error:
        raise UserError(f"cannot read the robot file {path}: {atomic.cause(error)}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}.") from None
    return logged_robot_of(content, str(path))


def logged_robot_of(content: Mapping[str, Any], where: str) -> LoggedRobot:
    """The robot from its fields; `where` they come from is for messages."""
    known = {field.name: field for field in fields(LoggedRobot)}
    for name in content:
        if name not in known:
            raise UserError(f"{where}: there is no field {name!r}{suggest(name, tuple(known))}.")
    required = ("name", "period_s", "joints", "position_low", "position_high", "speed")
    if missing := [name for name in required if name not in content]:
        raise UserError(f"{where}: the field {missing[0]} is missing; needed are {', '.join(required)}.")
    try:
        return LoggedRobot(**{name: _check_value(where, name, value) for name, value in content.items()})
    except UserError as error:
        raise UserError(f"{where}: {error}" if not str(error).startswith(where) else str(error)) from None


_TEXTS, _NUMBERS = ("joints", "free"), ("position_low", "position_high", "speed", "command_low", "command_high", "home")


def _check_value(where: str, name: str, value: Any) -> Any:
    def refuse(wanted: str) -> NoReturn:
        raise UserError(f"{where}: {name} is {value!r}, but must be {wanted}.")

    if name in ("name", "unit"):
        return value if isinstance(value, str) and value else refuse("text")
    if name == "velocities":
        return value if isinstance(value, bool) else refuse("true or false")
    if name == "trajectories":
        return value if isinstance(value, int) and value >= 1 else refuse("a whole number of at least 1")
    if name in _TEXTS:
        right = isinstance(value, list) and all(isinstance(item, str) and item for item in value)
        return tuple(value) if right else refuse("a list of names")
    if name in _NUMBERS:
        right = isinstance(value, list) and all(_is_number(item) for item in value)
        return tuple(float(item) for item in value) if right else refuse("a list of numbers")
    if name == "columns":
        known = tuple(field.name for field in fields(VectorColumns))
        if not isinstance(value, Mapping) or any(key not in known for key in value):
            refuse(f"a table of {', '.join(known)}")
        unit = value.get("command_unit", 1.0)
        if any(not isinstance(item, str) for key, item in value.items() if key != "command_unit"):
            refuse("a table of column names")
        if not _is_number(unit) or not unit > 0:
            refuse("a table whose command_unit is a positive number")
        return VectorColumns(**{**value, "command_unit": float(unit)})
    return float(value) if _is_number(value) else refuse("a number")


def _is_number(value: Any) -> bool:
    """Of a size that a float can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > sys.float_info.max


def _show(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
