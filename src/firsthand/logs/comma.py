"""CSV with a header: a column `time` in seconds, one per measured quantity, one per command.

A row holds what was measured at its time and the command that was applied from then until the next row.
"""

import csv
import hashlib
import io
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
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a CSV file: it is not UTF-8 text.") from None
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file: {error}.") from None
    if not rows:
        raise UserError(f"{path} is empty, but must begin with a line of column names.")
    header = [name.strip() for name in rows[0]]
    columns = column_numbers(path, header, spec)
    values = np.full((len(rows) - 1, len(columns)), np.nan)
    for i, row in enumerate(rows[1:]):
        if len(row) == len(header):
            values[i] = [_number(row[column]) for column in columns]
    extra = [name for j, name in enumerate(header) if j not in columns]
    note = f"columns not used: {', '.join(extra)}" if extra else ""
    wrong = sum(len(row) != len(header) for row in rows[1:])
    if wrong:
        what = f"{wrong} rows have another number of cells than the header"
        note = f"{note}; {what}" if note else what
    split = 1 + spec.layout.num_measured
    measured, commands = values[:, 1:split], values[:, split:]
    return on_the_period(spec, str(path), hashlib.sha256(data).hexdigest(), values[:, 0], measured, commands, note)


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
        return float("nan")
