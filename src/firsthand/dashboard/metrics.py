"""Reads metrics.jsonl, and work.jsonl, while they are being written."""

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..advice import EPISODES_NEEDED
from ..runs.packed import read_line

COLUMNS = (
    "episode",
    "robot_time_s",
    "tracking_error",
    "cost",
    "controller_loss",
    "noise_floor",
    "model_loss",
    "held_out_loss",
    "prediction_error",
    "closed_loop_growth",
    "innovation_size",
    "innovation_correlation",
    "one_step_error_ratio",
    "forecast_error_ratio",
    "gradient_norm",
    "step_norm",
    "steps_taken",
    "refused_updates",
    "limit_hits",
    "update_time_s",
    "learned_authority",
    "base_share",
)
"""Fields of metrics.jsonl that the page shows."""
READ_BYTES = 8 << 20
"""The file is read in pieces of this size."""


class LineReader:
    """The lines of a file so far, as columns. `read` appends what was written since the last time."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """The first of `columns` numbers the lines."""
        self.path, self.counter = path, columns[0]
        self.columns: dict[str, list[float]] = {name: [] for name in columns}
        self.damaged_lines = 0
        """Lines that could not be read."""
        self.offset = 0
        """Bytes read so far; an unfinished last line does not count."""
        self._inode = -1

    def column(self, name: str) -> np.ndarray:
        """One field of all lines; NaN where it is not known."""
        return np.asarray(self.columns[name], float)

    def last(self, name: str) -> float:
        """The newest value of a field."""
        return self.columns[name][-1] if self.columns[name] else math.nan

    def read(self) -> bool:
        """Read what is new; whether anything changed."""
        try:
            handle = self.path.open("rb")
        except FileNotFoundError:
            return self._reset()
        changed = False
        with handle:
            stat = os.fstat(handle.fileno())
            if stat.st_ino != self._inode or stat.st_size < self.offset:
                changed = self._reset()
                self._inode = stat.st_ino
            while True:
                handle.seek(self.offset)
                data = handle.read(READ_BYTES)
                complete = data.rfind(b"\n") + 1
                if not complete:
                    return changed
                for line in data[:complete].splitlines():
                    self._append(line)
                self.offset += complete
                changed = True

    def _reset(self) -> bool:
        """Start over: a run that is resumed from an earlier episode has a new file. Whether there was anything."""
        had_any = self.offset > 0
        self.offset, self._inode, self.damaged_lines = 0, -1, 0
        self.columns = {name: [] for name in self.columns}
        return had_any

    def _append(self, line: bytes) -> None:
        try:
            row = read_line(line)
            int(row[self.counter])
        except (ValueError, KeyError, TypeError, OverflowError):
            self.damaged_lines += 1
            return
        self._keep(row)

    def _keep(self, row: Mapping[str, Any]) -> None:
        for name, values in self.columns.items():
            value = row.get(name)
            values.append(_number(value))


class MetricsReader(LineReader):
    """The metrics of a run so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, COLUMNS)
        self.newest: deque[Mapping[str, Any]] = deque(maxlen=EPISODES_NEEDED)
        """The newest lines as they are, which advice is derived from."""

    @property
    def episodes(self) -> int:
        """Number of finished episodes."""
        return len(self.columns["episode"])

    def best_episode(self, score: str = "tracking_error") -> int | None:
        """The episode with the smallest error so far, or of whatever else policies are judged by."""
        error = self.column(score)
        return None if not np.isfinite(error).any() else int(self.columns["episode"][int(np.nanargmin(error))])

    def _reset(self) -> bool:
        self.newest.clear()
        return super()._reset()

    def _keep(self, row: Mapping[str, Any]) -> None:
        self.newest.append(row)
        super()._keep(row)


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        return math.nan
