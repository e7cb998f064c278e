"""`metrics.jsonl`: one JSON object per line and episode, appended."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firsthand.errors import UserError
from firsthand.runs import atomic, plain


class MetricsFile:
    """A line counts when its newline is there. What follows the last newline was torn off by a crash."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add a line and flush it to the disk. ±∞ and NaN are stored as null, which JSON can hold.

        When the disk is full the file is left as it was.
        """
        if not isinstance(metrics.get("episode"), int):
            raise ValueError("metrics need the field 'episode', an int")
        line = json.dumps(plain.values(metrics, nonfinite="null"), allow_nan=False).encode() + b"\n"
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                size = self._drop_torn_tail(handle)
                try:
                    atomic.write_all(handle, line)
                    os.fsync(handle)
                except BaseException:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
            if size == 0:
                atomic.sync(self.path.parent)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {atomic.cause(error)}.") from error

    def read(self) -> list[dict[str, Any]]:
        """Every whole line, oldest first; an empty list when nothing was written yet."""
        return [metrics for _, metrics in self._lines(self._data())]

    def truncate(self, after_episode: int) -> None:
        """Drop the lines of later episodes, and a torn tail, in one step that cannot be seen half done."""
        data = self._data()
        kept = b"".join(line for line, metrics in self._lines(data) if metrics["episode"] <= after_episode)
        if kept != data:
            atomic.write_bytes(self.path, kept)

    def _data(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {atomic.cause(error)}.") from error

    def _lines(self, data: bytes) -> list[tuple[bytes, dict[str, Any]]]:
        lines = data.split(b"\n")[:-1]
        parsed = []
        for number, line in enumerate(lines, start=1):
            try:
                metrics = json.loads(line)
                valid = isinstance(metrics, dict) and isinstance(metrics.get("episode"), int)
            except ValueError:
                valid = False
            if not valid:
                raise UserError(
                    f"line {number} of {self.path} is damaged; remove that line. Curves then lack its episode, and a "
                    "resumed run no longer counts it in the guard's usual error and in what proves the kept policy."
                )
            parsed.append((line + b"\n", metrics))
        return parsed

    @staticmethod
    def _drop_torn_tail(handle: int) -> int:
        """Cut what follows the last newline, so that the next line starts on its own. Returns the size."""
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            size = os.pread(handle, size, 0).rfind(b"\n") + 1
            os.ftruncate(handle, size)
        return size
