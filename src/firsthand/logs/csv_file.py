"""CSV with a header: a column `time` in seconds, one per measured quantity, one per command; units in brackets.

A row holds what was measured at its time and the command that was applied from then until the next row.
"""

import csv
import hashlib
import io
import math
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError, suggest
from ..runs import atomic
from .base import Log
from .timed import on_the_period

TIME = "time"


def read_csv(path: Path, spec: ControlSpec) -> Log:
    """The log in a CSV file for a robot with this specification."""
    try:
        with atomic.open_to_read(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            values, note = _table(path, io.TextIOWrapper(stream, "utf-8-sig", newline=""), spec)
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a CSV file: it is not UTF-8 text.") from None
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file: {error}.") from None
    split = 1 + spec.layout.num_measured
    return on_the_period(spec, str(path), digest, values[:, 0], values[:, 1:split], values[:, split:], note)


def _table(path: Path, lines: Iterable[str], spec: ControlSpec) -> tuple[np.ndarray, str]:
    """The numbers, a column for each that is wanted, and what the user should know.

    Cells become numbers row by row: as text, a long log would need many times its size.
    """
    rows = (row for row in csv.reader(lines) if row)
    header = [_plain_name(path, name.strip(), spec) for name in next(rows, ())]
    if not header:
        raise UserError(f"{path} is empty, but must begin with a line of column names.")
    columns = column_numbers(path, header, spec)
    numbers, wrong = array("d"), 0
    for row in rows:
        if len(row) == len(header):
            numbers.extend(_number(row[column]) for column in columns)
        else:
            numbers.extend(len(columns) * [math.nan])
            wrong += 1
    notes = []
    if extra := [name for j, name in enumerate(header) if j not in columns]:
        notes.append(f"columns not used: {', '.join(extra)}")
    if wrong:
        notes.append(f"{wrong} rows have another number of cells than the header")
    return np.frombuffer(numbers).reshape(-1, len(columns)), "; ".join(notes)


def _plain_name(path: Path, heading: str, spec: ControlSpec) -> str:
    """A column's name without the unit in brackets after it, `level [m]`, which must be the task's."""
    name, bracket, unit = heading.rpartition("[")
    name, unit = name.strip(), unit.removesuffix("]").strip()
    declared = column_units(spec)
    if not bracket or not heading.endswith("]") or name not in declared:
        return heading
    if declared[name] not in ("", unit):
        raise UserError(f"{path} has {name!r} in {unit}, but the task has it in {declared[name]}; convert the column.")
    return name


def column_units(spec: ControlSpec) -> dict[str, str]:
    """The unit of each column; empty where none is declared."""
    layout, names = spec.layout, column_names(spec)
    measured = layout.measured_units or ("",) * layout.num_measured
    commands = layout.command_units or ("",) * layout.num_commands
    return dict(zip(names, ("s", *measured, *commands), strict=True))


def column_names(spec: ControlSpec) -> tuple[str, ...]:
    """The columns that a log of this robot has: time, measured quantities, commands.

    A command that has the name of a measured quantity is called `command.NAME`.
    """
    layout = spec.layout
    commands = (f"command.{name}" if name in (TIME, *layout.measured) else name for name in layout.commands)
    return (TIME, *layout.measured, *commands)


def column_numbers(path: Path, header: list[str], spec: ControlSpec) -> list[int]:
    """Where each column is; one sentence when one is missing or there twice."""
    wanted = column_names(spec)
    for name in wanted:
        if header.count(name) > 1:
            raise UserError(f"{path} has {header.count(name)} columns {name!r}, but must have one.")
    missing = [name for name in wanted if name not in header]
    if missing:
        others = tuple(name for name in header if name not in wanted)
        raise UserError(
            f"{path} has no column {missing[0]!r}{suggest(missing[0], others)}; a log of {spec.robot} has the columns "
            f"{', '.join(wanted)}."
        )
    return [header.index(name) for name in wanted]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
