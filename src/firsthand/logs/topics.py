"""Which topic of a bag, or which feature of a dataset, holds which quantity of the robot: a small TOML file.

time = "log"                                          # or "stamp": the message's own header
hold_s = 0.5                                          # a command counts for this long without a new one

[measured]
"boom.position" = "/joint_states position[boom]"      # topic, then the field in its message
"boom.velocity" = { topic = "/joint_states", field = "velocity[boom]", factor = 0.001 }

[commands]
boom = "/valves data[0]"
"""

import math
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from firsthand_onboard import ControlSpec

from ..errors import UserError, suggest
from ..runs import atomic

_STEP = re.compile(r"([A-Za-z_]\w*)((?:\[[^\]]*\])*)")
TIMES = ("log", "stamp")


@dataclass(frozen=True)
class Source:
    """Where one quantity is found."""

    topic: str
    """The topic of a bag; of a LeRobot dataset, the feature."""
    field: str
    """The field of its message: `position[boom]`, `data[2]`, `pose.position.x`; of a dataset, a name or a number."""
    factor: float = 1.0
    """Values are multiplied by this, to come to the robot's unit."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor != 0):
            raise ValueError(f"factor is {self.factor:g}, but must be a number other than 0")


@dataclass(frozen=True)
class TopicMap:
    """Where a log has what, in the order of the robot's layout."""

    measured: tuple[Source, ...]
    """A source per measured quantity."""
    commands: tuple[Source, ...]
    """A source per command."""
    time: str = "log"
    """`log`: when the recorder took a message; `stamp`: the time in the message's header."""
    hold_s: float = 0.5
    """For how long a command counts when no new one comes, in seconds."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All of them, measured quantities first."""
        return (*self.measured, *self.commands)

    @property
    def topics(self) -> tuple[str, ...]:
        """Each topic once, that of the first measured quantity first: its messages become the rows."""
        return tuple(dict.fromkeys(source.topic for source in self.sources))


def read_topic_map(path: Path, spec: ControlSpec) -> TopicMap:
    """The map in a TOML file, for a robot with this specification."""
    try:
        with atomic.open_to_read(path) as stream:
            table = tomllib.load(stream)
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}.") from None
    known = ("measured", "commands", "time", "hold_s")
    for name in table:
        if name not in known:
            raise UserError(f"{path} has {name!r}{suggest(name, known)}, but may have {', '.join(known)}.")
    time, hold = table.get("time", "log"), table.get("hold_s", 0.5)
    if time not in TIMES:
        raise UserError(f"{path}: time is {time!r}, but must be 'log' or 'stamp'.")
    if not _is_number(hold) or not hold > 0:
        raise UserError(f"{path}: hold_s is {hold!r}, but must be a positive number of seconds.")
    layout = spec.layout
    return TopicMap(
        _sources(path, "measured", table.get("measured"), layout.measured, spec),
        _sources(path, "commands", table.get("commands"), layout.commands, spec),
        time,
        float(hold),
    )


def _sources(path: Path, part: str, table: Any, names: tuple[str, ...], spec: ControlSpec) -> tuple[Source, ...]:
    if not isinstance(table, dict):
        raise UserError(f"{path} has no table [{part}]; for {spec.robot} it says where {', '.join(names)} are found.")
    for name in table:
        if name not in names:
            raise UserError(
                f"{path}: [{part}] has {name!r}{suggest(name, names)}, but {spec.robot} has {', '.join(names)}."
            )
    for name in names:
        if name not in table:
            raise UserError(f"{path}: [{part}] lacks {name!r}; {spec.robot} has {', '.join(names)}.")
    return tuple(_source(f"{path}: {part}.{name}", table[name]) for name in names)


def _is_number(value: Any) -> TypeGuard[int | float]:
    """One that a float can hold, and no infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _source(where: str, entry: Any) -> Source:
    if isinstance(entry, str):
        topic, _, field = entry.strip().partition(" ")
        entry = {"topic": topic, "field": field.strip()}
    texts = isinstance(entry, dict) and all(isinstance(entry.get(k), str) and entry[k] for k in ("topic", "field"))
    factor = entry.get("factor", 1.0) if isinstance(entry, dict) else None
    if not texts or not _is_number(factor) or len(entry) > 2 + ("factor" in entry):
        raise UserError(
            f'{where} is {entry!r}, but must be a text "TOPIC FIELD", or a table of topic, field and factor.'
        )
    try:
        return Source(entry["topic"], entry["field"], float(factor))
    except ValueError as error:
        raise UserError(f"{where}: {error}.") from None


def parse_field(field: str) -> list[str | int] | None:
    """The steps of a field's path: names of attributes as text, `[3]` as a number, `[boom]` as `@boom`.

    None where it is not a path.
    """
    steps: list[str | int] = []
    rest = field
    while True:
        found = _STEP.match(rest)
        if found is None:
            return None
        steps.append(found[1])
        for index in re.findall(r"\[([^\]]*)\]", found[2]):
            steps.append(int(index) if index.isdecimal() else f"@{index}")
        rest = rest[found.end() :]
        if not rest:
            return steps
        if not rest.startswith("."):
            return None
        rest = rest[1:]
