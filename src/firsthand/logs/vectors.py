"""Logs whose rows hold vectors, one entry per joint: `.npz` arrays, and CSV cells such as `[0.1 -0.2 0.3 0.4]`.

This is the form of the public log of a real excavator (ZiqingZou/EfficientTrack, folder real_excavator_data). Which
column holds what is part of the robot's description: see `robots.logged_robot.VectorColumns`.
"""

import csv
import hashlib
import io
import itertools
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..robots.logged_robot import VectorColumns
from ..runs import atomic
from ..tasks.base import EvaluationReference
from .base import Log, first_line
from .mcap import MAX_RATIO, MAX_UNPACKED
from .timed import on_the_period

CYCLE = "cycle"
"""Optional array of an `.npz`: rows with one number belong together, and time begins anew with the next."""


def read_npz(path: Path, spec: ControlSpec, columns: VectorColumns = VectorColumns()) -> Log:  # noqa: B008 (frozen)
    """The log in a numpy archive; nothing in it is unpickled."""
    arrays, digest = load_arrays(path)
    _check_velocity(path, list(arrays), spec, columns)
    names = _wanted_columns(spec, columns)
    table = {name: _column(path, arrays, name, width) for name, width in names.items()}
    rows = {len(values) for values in table.values()}
    if len(rows) > 1:
        raise UserError(f"{path} has arrays of different lengths ({', '.join(map(str, sorted(rows)))} rows).")
    parts = [
        _log(path, digest, spec, columns, {n: v[p] for n, v in table.items()})
        for p in _cycles(path, arrays, rows.pop())
    ]
    if not parts:
        raise UserError(f"{path} has no two rows that follow one another.")
    return join(str(path), digest, parts)


def read_vector_csv(path: Path, spec: ControlSpec, columns: VectorColumns) -> Log:
    """The log in a CSV file whose cells are vectors in brackets."""
    content = _bytes(path)
    digest = hashlib.sha256(content).hexdigest()
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file: {error}.") from None
    header = [name.strip() for name in rows[0]] if rows else []
    _check_velocity(path, header, spec, columns)
    table = {}
    for name, width in _wanted_columns(spec, columns).items():
        if name not in header:
            raise _missing(path, name, header)
        at = header.index(name)
        table[name] = np.asarray([_cell(row[at] if at < len(row) else "", width) for row in rows[1:] if row])
    return _log(path, digest, spec, columns, table)


def read_cycles(path: Path, spec: ControlSpec) -> tuple[EvaluationReference, ...]:
    """What was wanted in each work cycle of an `.npz` log (array `reference`), as references that start at rest."""
    arrays, _ = load_arrays(path)
    points = _column(path, arrays, "reference", spec.num_outputs)
    parts = [points[part] for part in _cycles(path, arrays, len(points))]
    if not np.isfinite(points).all():
        raise UserError(f"{path}: reference has values that are not finite numbers.")
    if len(spec.layout.position) != spec.num_outputs or not parts:
        raise UserError(f"{path} has no cycles that {spec.robot} could follow: positions are not what it tracks.")
    return tuple(EvaluationReference(f"cycle {i + 1}", part, part[0]) for i, part in enumerate(parts))


def is_vector_csv(path: Path, columns: VectorColumns | None) -> bool:
    """Whether a CSV file has the columns of a log of vectors."""
    if columns is None:
        return False
    header = [name.strip() for name in _bytes(path).split(b"\n", 1)[0].decode("utf-8", "replace").split(",")]
    return columns.position in header and columns.command in header


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The arrays of an `.npz` file, and its SHA-256. One that unpacks to far more than its size is refused."""
    content = _bytes(path)
    allowed = MAX_UNPACKED + MAX_RATIO * len(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # never unpacks more than the sizes checked here
            if sum(part.file_size for part in archive.infolist()) > allowed:
                raise UserError(f"{path} unpacks to more than {allowed >> 20} MB, which no log does.")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except Exception as error:  # whatever numpy, zipfile and the packers behind it raise
        raise UserError(f"{path} is damaged or not a numpy archive: {first_line(error)}.") from None
    return arrays, hashlib.sha256(content).hexdigest()


def join(path: str, sha256: str, logs: list[Log]) -> Log:
    """Several logs of one robot as one."""
    refused: Counter[str] = Counter()
    for log in logs:
        refused.update(log.refused)
    notes = sorted({log.note for log in logs if log.note})
    note = "; ".join(notes[:3]) + ("; …" if len(notes) > 3 else "")
    series = tuple(series for log in logs for series in log.series)
    return Log(path, sha256, series, sum(log.rows for log in logs), refused, note)


def _log(path: Path, digest: str, spec: ControlSpec, columns: VectorColumns, table: dict[str, np.ndarray]) -> Log:
    measured = [table[columns.position]] + ([table[columns.velocity]] if spec.layout.velocity else [])
    commands = table[columns.command] / columns.command_unit
    return on_the_period(
        spec, str(path), digest, table[columns.time][:, 0], np.concatenate(measured, axis=1), commands, ""
    )


def _wanted_columns(spec: ControlSpec, columns: VectorColumns) -> dict[str, int]:
    layout = spec.layout
    wanted = {columns.time: 1, columns.position: len(layout.position), columns.command: layout.num_commands}
    return wanted | ({columns.velocity: len(layout.velocity)} if layout.velocity else {})


def _check_velocity(path: Path, there: list[str], spec: ControlSpec, columns: VectorColumns) -> None:
    if spec.layout.velocity and columns.velocity not in there and columns.position in there:
        raise UserError(
            f"{path} has no velocities (column {columns.velocity!r}), but {spec.robot} measures them; without them, "
            "set velocities = false in the robot's description."
        )


def _column(path: Path, arrays: dict[str, np.ndarray], name: str, width: int) -> np.ndarray:
    if name not in arrays:
        raise _missing(path, name, list(arrays))
    if arrays[name].dtype.kind not in "biuf":
        raise UserError(f"{path}: {name} does not hold numbers.")
    values = np.asarray(arrays[name], float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != width:
        raise UserError(f"{path}: {name} has the shape {values.shape}, but must have {width} columns.")
    return values


def _missing(path: Path, name: str, there: list[str]) -> UserError:
    return UserError(f"{path} has no column {name!r}; it has {', '.join(there) or 'none'}.")


def _cell(text: str, width: int) -> np.ndarray:
    """`[a b c]` or a plain number; NaN where it is something else, so that the row is refused."""
    try:
        values = np.asarray([float(part) for part in text.strip().strip("[]").replace(",", " ").split()])
    except ValueError:
        values = np.zeros(0)
    return values if len(values) == width else np.full(width, np.nan)


def _cycles(path: Path, arrays: dict[str, np.ndarray], rows: int) -> list[slice]:
    """The rows of each cycle; all of them where the file knows none."""
    cycle = arrays.get(CYCLE, np.zeros(rows, int))
    if cycle.shape != (rows,) or cycle.dtype.kind not in "iuf":
        there = f"{cycle.dtype} of shape {cycle.shape}"
        raise UserError(f"{path}: {CYCLE} is {there}, but must have a number for each of the {rows} rows.")
    return _slices(np.flatnonzero(cycle[1:] != cycle[:-1]) + 1, rows)


def _slices(ends: np.ndarray, rows: int) -> list[slice]:
    edges = [0, *ends.tolist(), rows]
    return [slice(a, b) for a, b in itertools.pairwise(edges) if b - a > 1]


def _bytes(path: Path) -> bytes:
    try:
        return atomic.read_bytes(path, None)  # a log may be large
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
