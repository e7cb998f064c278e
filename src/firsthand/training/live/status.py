"""The status file: a trainer's report about itself, and its sign of life."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...control import files
from ...control.files import Status


class StatusPublisher:
    """Writes the status file. For any thread; what was true before never replaces what is true now."""

    def __init__(self, run: Path, session: str, fields: Callable[[], dict[str, Any]]) -> None:
        self.run, self.session, self.fields = run, session, fields
        self.lock = threading.Lock()
        self._beat = 0
        self._ended = False

    def publish(self) -> None:
        """Replace the status, unless the last one has been published."""
        with self.lock:
            if not self._ended:
                self._write({})

    def publish_last(self, state: str, message: str) -> None:
        """How it ended; nothing is published after that."""
        with self.lock:
            self._ended = True
            self._write({"state": state, "message": message, "question": None})

    def _write(self, last: dict[str, Any]) -> None:
        self._beat += 1
        about = {"session": self.session, "beat": self._beat, "host": socket.gethostname(), "pid": os.getpid()}
        with contextlib.suppress(OSError):  # a full disk stops the training, and is reported there
            files.publish(self.run, Status(**{**about, **self.fields(), **last}))
