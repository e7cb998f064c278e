"""The files of jobs: JSON, CSV and safetensors, written so that a killed job leaves the old file or the new one."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.runs import atomic, packed

DONE = "done.json"
"""A job folder with this file is finished."""
CHECKPOINT = "checkpoint"
"""What a job only needs for continuing; removed when it is finished."""


def write_json(path: Path, value: Any) -> None:
    """Plain values and numpy numbers as JSON; what is not finite becomes text."""
    atomic.make_folder(path.parent)
    atomic.write_json(path, value)


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    try:
        return json.loads(atomic.read_bytes(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not JSON.") from error


def write_csv(path: Path, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
    """Columns of equal length under their names; numbers with seven digits, NaN as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_field(value) for value in row])
    atomic.make_folder(path.parent)
    atomic.write_text(path, text.getvalue())


def _field(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.7g}"
    return str(value)


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns by name: numbers, or text where a column holds anything else."""
    try:
        header, *rows = list(csv.reader(io.StringIO(atomic.read_bytes(path).decode("utf-8"), newline="")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} is damaged: it is empty or not a table.") from error
    if any(len(row) != len(header) for row in rows):
        raise UserError(f"{path} is damaged: a row has more or fewer fields than the header.")
    return {name: _column([row[i] for row in rows]) for i, name in enumerate(header)}


def join_tables(tables: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Tables one below the other, with the columns that all of them have: earlier code may have written fewer."""
    common = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: np.concatenate([table[name] for table in tables]) for name in common}


def _column(texts: list[str]) -> np.ndarray:
    try:
        return np.asarray([float(text) if text else np.nan for text in texts])
    except ValueError:
        return np.asarray(texts)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any] | None = None) -> None:
    """Named arrays as safetensors with a SHA-256."""
    atomic.make_folder(path.parent)
    atomic.write_bytes(path, packed.pack(arrays, info or {}))


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the info that `write_arrays` wrote."""
    try:
        return packed.unpack(atomic.read_bytes(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except packed.DamagedFile as error:
        raise UserError(f"{path} is damaged: {error}.") from error
