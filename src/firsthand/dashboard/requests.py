"""Sends what a person asks for to the trainer, the work session, or a machine alone, and shows the answers."""

import itertools
import time

from nicegui import run as background
from nicegui import ui

from ..control.files import Request, send
from ..errors import UserError
from .follower import RunFollower
from .state import PageState

UNANSWERED_S = 8.0
"""A request that has had no answer for this long is mentioned."""


class Requests:
    """The requests of one browser."""

    def __init__(self, state: PageState) -> None:
        self.state = state
        self.unanswered: dict[tuple[str, str], float] = {}
        """The run and name of each request without an answer yet, and when it was made."""

    async def send(self, kind: str, value: int | str | None = None) -> None:
        """Ask the trainer of the main run for something; a machine without a trainer is asked directly."""
        name, run = self.state.main, self.state.run
        try:
            if run.status is not None and run.alive:
                request = Request(kind, run.status.session, value)
                request_name = await background.io_bound(send, run.path, request)
                self.unanswered[name, str(request_name)] = time.monotonic()
            elif run.watch is not None and kind in ("stop", "acknowledge"):
                ui.notify(await background.io_bound(run.watch.ask, kind, value), type="positive")
            else:
                ui.notify("No trainer is running for this run.", type="warning")
        except UserError as error:
            ui.notify(str(error), type="negative")

    async def send_to_work(self, kind: str) -> None:
        """Ask the work session of the main run for something."""
        name, work = self.state.main, self.state.run.work
        try:
            if work.control.status is None or not work.alive:
                raise UserError("No session is at work.")
            request = Request(kind, work.control.status.session)
            request_name = await background.io_bound(send, work.path, request)
            self.unanswered[name, str(request_name)] = time.monotonic()
        except UserError as error:
            ui.notify(str(error), type="negative")

    def show_answers(self, run: RunFollower) -> None:
        """Show the answers to this browser's requests, and mention what is not answered."""
        main, status = self.state.main, run.status
        told = [known.answers for known in (status, run.work.control.status) if known is not None]
        for answer in itertools.chain(*told):
            if self.unanswered.pop((main, str(answer["request"])), None) is not None:
                text = str(answer["text"])
                ui.notify(text[:1].upper() + text[1:], type="positive" if answer["ok"] else "negative")
        self.unanswered = {key: when for key, when in self.unanswered.items() if key[0] == main}
        pending = status is not None and status.pending
        for key, when in list(self.unanswered.items()):
            if not pending and time.monotonic() - when > UNANSWERED_S:
                del self.unanswered[key]
                ui.notify("There is no answer yet.", type="warning")
