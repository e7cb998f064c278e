"""What a trainer reports about itself: how far it is, how long it will take, whether it lives."""

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...control import files
from ...control.files import Status
from ..parts import Callback, EpisodeSummary

TIMED_EPISODES = 10
"""The time left follows from this many of the newest episodes."""


class Progress(Callback):
    """Counts episodes and their time."""

    def __init__(self, episodes: int, episode_s: float) -> None:
        self.episodes, self.episode_s = episodes, episode_s
        self.episode = 0
        """Episodes done."""
        self.phase = ""
        """What goes on now: the robot is `moving`, or the learner is `learning`; empty between episodes."""
        self._durations: deque[float] = deque(maxlen=TIMED_EPISODES)
        self._began = 0.0

    def before_episode(self, episode: int) -> None:
        """The robot moves."""
        self.episode, self.phase, self._began = episode - 1, "moving", time.monotonic()

    def after_motion(self, episode: int) -> None:
        """The learner learns."""
        self.phase = "learning"

    def after_episode(self, summary: EpisodeSummary) -> None:
        """One more."""
        self._durations.append(time.monotonic() - self._began)
        self.episode, self.phase = summary.episode, ""

    def fields(self) -> dict[str, Any]:
        """The part of the status that this is about."""
        left = max(self.episodes - self.episode, 0)
        durations = list(self._durations)
        # The first episode compiles, and says little about the next.
        typical = durations[1:] if len(durations) > 1 else durations
        return {
            "phase": self.phase,
            "episode": self.episode,
            "episodes": self.episodes,
            "seconds_left": left * sum(typical) / len(typical) if typical else None,
            "robot_seconds_left": left * self.episode_s,
        }


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
