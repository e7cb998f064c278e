"""The fault that keeps a machine in neutral until its operator acknowledges it, also over a restart.

If a file is given for it, that file also marks the machine as moving, from before its first command until it stands
again. A program that was killed in between finds the mark at its next start, which is a fault.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from .messages import printable
from .ordinary_files import read_ordinary

log = logging.getLogger("firsthand-onboard")

MAX_FAULT = 600
"""Characters of a fault's text: it must fit into every answer."""
MAX_FILE = 1 << 16
"""Bytes of a latch file; ours are far shorter."""
MAX_NUMBER = 1 << 53
CRASHED = "the program ended while the machine moved"


def temporary_name(path: Path) -> Path:
    """Where a file is written before it takes its name."""
    return path.with_name(path.name + ".new")


class FaultLatch:
    """The latched fault, in memory and, where there is a file for it, on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.is_set = False
        self.fault = ""
        """What went wrong; empty where there is no fault."""
        self.number = 0
        """Counts faults: an acknowledgement names the one that somebody has looked at."""
        if path is not None:
            self._recall(path)

    def set(self, fault: str) -> None:
        """Latch a fault. A disk that is full or gone must not end the program: the fault is latched all the same."""
        self.is_set, self.fault = True, printable(fault)[:MAX_FAULT]
        self.number += 1
        log.error("fault %d: %s; latched until the operator acknowledges it", self.number, self.fault)
        if self.path is None:
            return
        try:
            self._write(self.path, {"fault": self.fault, "number": self.number})
        except OSError as error:
            log.error(
                "%s cannot be written (%s): the fault is latched, but would not survive a restart", self.path, error
            )

    def clear(self) -> None:
        """Forget the fault; `OSError` where its file cannot be removed, and then it stays."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.is_set, self.fault = False, ""

    def begin_motion(self) -> None:
        """Keep on disk that the machine moves; `OSError` where that cannot be written, and then it must not move."""
        if self.path is not None and not self.is_set:
            self._write(self.path, {"moving": True, "number": self.number})

    def end_motion(self) -> None:
        """The machine stands again. A fault that came meanwhile stays."""
        if self.path is None or self.is_set:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            log.error("%s cannot be removed (%s): after a restart it counts as a fault", self.path, error)

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        """All or nothing, and on the disk when this returns."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(path)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(content))
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _recall(self, path: Path) -> None:
        """A file that cannot be read counts as a fault too: something was written there."""
        try:
            stored = json.loads(read_ordinary(path, MAX_FILE))
            number, moving = stored["number"], stored.get("moving") is True
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_NUMBER:
                raise ValueError("its number is not a whole number")
            fault = CRASHED if moving else stored["fault"]
            if not isinstance(fault, str):
                raise ValueError("its fault is not text")
            self.fault, self.number = printable(fault)[:MAX_FAULT], number + moving
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.fault = f"the latch file {path} is damaged ({type(error).__name__})"[:MAX_FAULT]
        self.is_set = True
        log.error("fault from before the restart: %s; it still waits for the operator", self.fault)
