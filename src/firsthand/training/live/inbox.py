"""Requests that arrive as files, and the answers to them."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firsthand_onboard.timing import since_boot

from ...control import files
from ...control.files import Request
from ...errors import UserError
from ...runs import atomic

AWAY_S = 10.0
"""Where requests were not looked for in so long (Ctrl-Z, a laptop that slept), permissions that waited do not count."""
PERMISSIONS = ("acknowledge", "approve", "resume")


class Answers:
    """The newest answers, for the status; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: deque[dict[str, Any]] = deque(maxlen=files.ANSWERS)

    def add(self, name: str, kind: str, ok: bool, text: str) -> None:
        """The answer to the request of this name."""
        with self._lock:
            self._answers.append({"request": name, "kind": kind, "ok": ok, "text": text})

    def newest(self) -> tuple[dict[str, Any], ...]:
        """Oldest first."""
        with self._lock:
            return tuple(self._answers)


class Inbox:
    """Reads the requests in a run's control folder and removes them. For one thread.

    `handle(name, request)` returns the answer, or None where somebody answers later; `UserError` is a refusal.
    """

    def __init__(self, run: Path, session: str, answers: Answers, handle: Callable[[str, Request], str | None]) -> None:
        self.run, self.session, self.answers, self.handle = run, session, answers, handle
        self._looked = since_boot()

    def open(self) -> None:
        """Make the folder: from now on there is somebody who can be asked."""
        atomic.make_own_folder(files.folder_of(self.run))
        atomic.make_own_folder(files.folder_of(self.run) / files.REQUESTS)
        self._looked = since_boot()

    def look(self) -> bool:
        """Deal with everything that has arrived; returns whether there was anything."""
        was_away, self._looked = since_boot() - self._looked > AWAY_S, since_boot()
        names = files.waiting(self.run)
        for name in sorted(names, key=lambda name: not self._is_stop(name)):  # a stop first, whatever came before it
            self._receive(name, was_away)
        return bool(names)

    def _is_stop(self, name: str) -> bool:
        try:
            return files.read_request(self.run, name).kind == "stop"
        except UserError:
            return False

    def _receive(self, name: str, was_away: bool) -> None:
        kind = "unknown"
        try:
            request = files.read_request(self.run, name)
            kind = request.kind
            if request.session != self.session:
                raise UserError("this was meant for a trainer that is not there any more.")
            if was_away and kind in PERMISSIONS:
                raise UserError("this has waited while the trainer was away; look, and ask again.")
            answer = self.handle(name, request)
            if answer is not None:
                self.answers.add(name, kind, True, answer)
        except UserError as error:
            self.answers.add(name, kind, False, str(error))
        with contextlib.suppress(UserError):
            atomic.remove(files.folder_of(self.run) / files.REQUESTS / name)
