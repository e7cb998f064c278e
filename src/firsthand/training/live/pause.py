"""Pausing: where the trainer's thread waits until a person lets it go on, or stops it."""

import threading
from collections.abc import Callable

from ...console import notify
from ...robots.base import EpisodeAbandoned
from ..parts import Meanwhile
from ..stopping import StopRequest

LOOK_S = 0.2
"""How often the waiting looks whether it is over."""


class PauseSwitch:
    """Switched by the thread that listens; the trainer's thread waits at it."""

    def __init__(self, stop: StopRequest, mark_pause: Callable[[], None]) -> None:
        self.stop, self.mark_pause = stop, mark_pause
        self._changed = threading.Condition()
        self._paused = self._holding = self._abandon = False

    def pause(self) -> None:
        """Wait at the next opportunity."""
        with self._changed:
            self._paused = True

    def go_on(self) -> None:
        """Wait no longer."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def abandon(self, *, episode: bool) -> None:
        """A stop was requested. A pause ends by it, and, where `episode`, so does the episode under way."""
        with self._changed:
            self._abandon = episode or self._paused
            self._changed.notify_all()

    @property
    def abandons(self) -> bool:
        """Whether what is under way shall be abandoned."""
        return self._abandon

    def state(self) -> str:
        """running, pausing or paused."""
        with self._changed:
            return "running" if not self._paused else "paused" if self._holding else "pausing"

    def wait(self, meanwhile: Meanwhile = lambda: None) -> bool:
        """Wait here while paused; whether there was something to wait for. `EpisodeAbandoned` when told to stop."""
        waited = False
        while True:
            if self._abandon or (self._paused and self.stop.requested):
                raise EpisodeAbandoned
            if not self._paused:
                break
            if not waited:
                notify("Paused from the live page; the robot holds.")
                self.mark_pause()
            waited = True
            with self._changed:
                self._holding = True
                self._changed.wait(LOOK_S)
            meanwhile()
        if waited:
            with self._changed:
                self._holding = False
            notify("Going on.")
        return waited
