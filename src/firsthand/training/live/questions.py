"""The question that the live page shows: whether a new policy may run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import UserError


class Questions:
    """At most one open question at a time: asked by the trainer's thread, answered by the one that listens."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._text: str | None = None
        self._approved: bool | None = None

    @contextmanager
    def open(self, text: str) -> Iterator[None]:
        """The question is open while the block runs."""
        with self._changed:
            self._number, self._text, self._approved = self._number + 1, text, None
        try:
            yield
        finally:
            with self._changed:
                self._text = None

    def wait(self, seconds: float) -> bool | None:
        """The answer, if there is one within this time."""
        with self._changed:
            if self._approved is None:
                self._changed.wait(seconds)
            return self._approved

    def answer(self, number: int, *, approved: bool) -> str:
        """Answer the question of this number; returns what to tell the person."""
        with self._changed:
            if self._text is None or self._number != number:
                raise UserError("this question is not open any more.")
            self._approved = approved
            self._changed.notify_all()
        return "approved" if approved else "rejected; the old policy runs again"

    def as_status(self) -> dict[str, Any] | None:
        """For the status; None while nothing is asked."""
        with self._changed:
            return None if self._text is None else {"number": self._number, "text": self._text}
