"""Follows a control folder: what a trainer, or a work session, says of itself, and whether it lives."""

import math
import time
from pathlib import Path

from ..control import files
from ..control.files import Event, Status

SILENT_S = 5.0
"""Whoever's status has not changed for this long counts as gone."""


class ControlReader:
    """The control folder in `path`. The two reading functions return whether there is something new to draw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.status: Status | None = None
        self._events_size = -1
        self._beat: tuple[str, int] | None = None
        self._last_beat_at = -math.inf

    @property
    def alive(self) -> bool:
        """Whether somebody is at work there: the status changes."""
        heard = time.monotonic() - self._last_beat_at < SILENT_S
        return self.status is not None and not self.status.ended and heard

    def read_events(self) -> bool:
        """Read the events again where there are more of them."""
        try:
            size = (files.folder_of(self.path) / files.EVENTS).stat().st_size
        except FileNotFoundError:
            size = -1
        if size == self._events_size:
            return False
        self._events_size = size
        self.events = files.read_events(self.path)
        return True

    def read_status(self) -> None:
        """Read the newest status."""
        status = files.read_status(self.path)
        if status is None:
            return
        beat = (status.session, status.beat)
        if self._beat is not None and beat != self._beat:
            self._last_beat_at = time.monotonic()
        self._beat, self.status = beat, status
