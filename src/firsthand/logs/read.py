"""Which reader a path needs."""

import hashlib
from pathlib import Path

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..robots.logged_robot import VectorColumns
from ..runs import atomic
from .base import Log
from .csv_file import read_csv
from .episodes import read_run
from .mcap import read_mcap
from .vectors import is_vector_csv, join, read_npz, read_vector_csv

SUFFIXES = (".csv", ".mcap", ".npz")


def read_log(path: Path, spec: ControlSpec, columns: VectorColumns | None = None) -> Log:
    """A run folder, a `.csv`, `.mcap` or `.npz` file, or a folder of those as the log of a robot.

    `columns` says where a log of vectors has what.
    """
    with atomic.reading(path):
        is_folder = path.is_dir()
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES) if is_folder else []
        is_run = (path / "config.json").exists()
    if is_folder and inside and not is_run:
        logs = [_read_file(file, spec, columns) for file in inside]
        digest = hashlib.sha256("".join(log.sha256 for log in logs).encode()).hexdigest()
        return join(str(path), digest, logs)
    return read_run(path, spec) if is_folder else _read_file(path, spec, columns)


def _read_file(path: Path, spec: ControlSpec, columns: VectorColumns | None) -> Log:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, spec)
    if suffix == ".csv":
        if columns is not None and is_vector_csv(path, columns):
            return read_vector_csv(path, spec, columns)
        return read_csv(path, spec)
    if suffix == ".mcap":
        return read_mcap(path, spec)
    raise UserError(f"{path} is not a log: it must be a run folder, a .csv, .mcap or .npz file.")


def check_columns(spec: ControlSpec, log: Log) -> Log:
    """The log, if every quantity in it changes: one that never does was not measured, or not commanded."""
    if log.usable < MIN_ROWS:
        return log
    measured = np.concatenate([series.measured for series in log.series])
    commands = np.concatenate([series.commands for series in log.series])
    for names, values in ((spec.layout.measured, measured), (spec.layout.commands, commands)):
        for name, low, high in zip(names, values.min(axis=0), values.max(axis=0), strict=True):
            if low == high:
                raise UserError(
                    f"{log.path}: {name} is {low:g} in all {len(values)} rows, but must change: a column that never "
                    "does is not connected, or the robot did not use it."
                )
    return log


MIN_ROWS = 100
"""Shorter logs may stand still."""
