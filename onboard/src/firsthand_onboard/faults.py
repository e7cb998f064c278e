"""The fault that keeps a machine in neutral until its operator acknowledges it, also over a restart."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

log = logging.getLogger("firsthand-onboard")

MAX_FAULT = 600
"""Characters of a fault's text: it must fit into every answer."""


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
        if path is not None and path.exists():
            self._recall(path)

    def set(self, fault: str) -> None:
        """Latch a fault. A disk that is full or gone must not end the program: the fault is latched all the same."""
        self.is_set, self.fault = True, fault[:MAX_FAULT]
        self.number += 1
        log.error("fault %d: %s; latched until the operator acknowledges it", self.number, fault)
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_name(self.path)
            with temporary.open("w") as file:
                file.write(json.dumps({"fault": self.fault, "number": self.number}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            log.error(
                "%s cannot be written (%s): the fault is latched, but would not survive a restart", self.path, error
            )

    def clear(self) -> None:
        """Forget the fault; `OSError` where its file cannot be removed, and then it stays."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.is_set, self.fault = False, ""

    def _recall(self, path: Path) -> None:
        """A file that cannot be read counts as a fault too: something was written there."""
        try:
            stored = json.loads(path.read_text())
            self.fault, self.number = str(stored["fault"])[:MAX_FAULT], int(stored["number"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            self.fault = f"the latch file {path} is damaged ({type(error).__name__})"
        self.is_set = True
        log.error("fault from before the restart: %s; it still waits for the operator", self.fault)
