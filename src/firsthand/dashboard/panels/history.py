"""What happened during the run, newest first."""

from nicegui import ui

from ..follower import RunFollower
from .elements import note, panel

MAX_EVENTS = 40


class History:
    """The newest events: payloads, returns, pauses, faults."""

    def __init__(self) -> None:
        with panel("What happened"):
            self.list = ui.element("div").classes("happened")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        self.list.clear()
        with self.list:
            for event in reversed(run.events[-MAX_EVENTS:]):
                ui.label(f"episode {event.episode}: {event.text}")
            if not run.events:
                note("nothing yet")
