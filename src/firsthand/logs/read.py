"""Choosing the reader for a path."""

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
from .lerobot import is_dataset, read_lerobot
from .mcap import read_mcap
from .rosbag import is_bag, read_bag
from .topics import TopicMap, read_topic_map
from .vectors import is_vector_csv, join, read_npz, read_vector_csv

SUFFIXES = (".csv", ".mcap", ".npz", ".db3")
FORMS = "a run folder, a rosbag2, a LeRobot dataset, a .csv, .mcap, .db3 or .npz file"


def read_log(path: Path, spec: ControlSpec, columns: VectorColumns | None = None, topics: Path | None = None) -> Log:
    """A run folder, a rosbag2, a LeRobot dataset, a file, or a folder of files as the log of a robot.

    Args:
        path: Where it lies; a file ends in `.csv`, `.mcap`, `.db3` or `.npz`.
        spec: The robot's control specification.
        columns: Where a log of vectors has what.
        topics: A TOML file that says which topic of a bag, or which feature of a dataset, holds what.

    Returns:
        What can be used, and how many rows were refused for which reason.
    """
    with atomic.reading(path):
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        is_folder, is_run = path.is_dir(), (path / "config.json").exists()
        bag, dataset = is_folder and is_bag(path), is_folder and is_dataset(path)
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES) if is_folder else []
    where = None if topics is None else read_topic_map(topics, spec)
    if is_run:
        return read_run(path, spec)
    if dataset:
        return read_lerobot(path, spec, where)
    if bag:
        return read_bag(path, spec, where)
    if is_folder and inside:
        logs = [_read_file(file, spec, columns, where) for file in inside]
        digest = hashlib.sha256("".join(log.sha256 for log in logs).encode()).hexdigest()
        return join(str(path), digest, logs)
    return read_run(path, spec) if is_folder else _read_file(path, spec, columns, where)


def _read_file(path: Path, spec: ControlSpec, columns: VectorColumns | None, topics: TopicMap | None) -> Log:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, spec)
    if suffix == ".csv":
        if columns is not None and is_vector_csv(path, columns):
            return read_vector_csv(path, spec, columns)
        return read_csv(path, spec)
    if suffix == ".mcap":
        return read_mcap(path, spec, topics)
    if suffix == ".db3":
        return read_bag(path, spec, topics)
    raise UserError(f"{path} is not a log: it must be {FORMS}.")


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
