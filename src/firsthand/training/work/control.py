"""What people ask of a work session through its folder: to take the base back, and to give it back.

Requests are read where the session looks, in the caller's thread. A thread of its own reports twice a second that the
session lives, whatever the caller does meanwhile.
"""

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...control.files import Request
from ...errors import UserError
from ..live.inbox import Answers, Inbox
from ..live.interventions import EventLog
from ..live.status import StatusPublisher
from .learner import WorkLearner

BEAT_S = 0.5
"""How often the session reports that it lives."""


class WorkControl:
    """The control folder of one session, inside the folder of its work."""

    def __init__(
        self, folder: Path, address: str, learner: WorkLearner, choose_base_alone: Callable[[bool], None]
    ) -> None:
        """`choose_base_alone` carries out what is asked; `UserError` where that cannot be done."""
        self.address, self.learner, self.choose_base_alone = address, learner, choose_base_alone
        self.session = secrets.token_hex(8)
        self.answers, self.events = Answers(), EventLog(folder)
        self.inbox = Inbox(folder, self.session, self.answers, self._handle)
        self.publisher = StatusPublisher(folder, self.session, self._status)
        self._work = self._describe()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="work-status", daemon=True)

    def begin(self) -> None:
        """Start to listen."""
        self.inbox.open()
        self.publisher.publish()
        self._thread.start()

    def look(self) -> None:
        """Deal with what was asked for, and report how the work is."""
        asked = self.inbox.look()
        work = self._describe()
        if asked or work != self._work:
            self._work = work
            self.publisher.publish()

    def mark(self, kind: str, text: str) -> None:
        """Mark the curves with something that happened; the next block is the first that it holds for."""
        self.events.add(self.learner.block + 1, kind, text)

    def end(self, message: str = "") -> None:
        """Report how it ended, `message` where something was wrong."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self.publisher.publish_last("failed" if message else "stopped", message)

    def _handle(self, name: str, request: Request) -> str:
        if request.kind not in ("take_back", "give_back"):
            raise UserError(f"a machine at work cannot be asked to {request.kind}; stop the machine, or its program.")
        self.choose_base_alone(request.kind == "take_back")
        return (
            "the base alone drives, from the next chunk on"
            if request.kind == "take_back"
            else "the learned part takes part again, once the base was compared with"
        )

    def _beat(self) -> None:
        while not self._done.wait(BEAT_S):
            self.publisher.publish()

    def _status(self) -> dict[str, Any]:
        return {
            "state": "running",
            "episode": self._work["block"],
            "work": self._work,
            "answers": self.answers.newest(),
        }

    def _describe(self) -> dict[str, Any]:
        """How the work is; called in the thread that owns the learner."""
        learner = self.learner
        context = learner.contexts[learner.current]
        standing = context.standing
        return {
            "address": self.address,
            "block": learner.block,
            "context": learner.current,
            "updates": context.updates,
            "on_base": standing is not None,
            "authority": None if standing is None else standing.authority,
            "measuring": standing is not None and standing.alone,
            "base_alone": learner.base_alone,
        }
