"""What a person must see at once: a question of the trainer, a fault of the machine, anything that is wrong."""

from nicegui import ui

from ..follower import RunFollower
from ..requests import Requests
from ..state import PageState


class Banners:
    """Three banners, each shown only while there is something to say."""

    def __init__(self, state: PageState, requests: Requests) -> None:
        self.state, self.requests = state, requests
        self.shown_question: int | None = None
        """Number of the question that this browser shows."""
        self.shown_fault: int | None = None
        """Number of the fault that it shows."""
        with ui.element("div").classes("banner") as self.question:
            self.question_text = ui.label().classes("banner-text")
            ui.button("Approve", on_click=lambda: self.decide("approve")).props("no-caps color=positive")
            ui.button("Reject", on_click=lambda: self.decide("reject")).props("no-caps outline color=negative")
        with ui.element("div").classes("banner") as self.fault:
            self.fault_text = ui.label().classes("banner-text")
            self.acknowledge = ui.button("Acknowledge", on_click=self.press_acknowledge).props("no-caps")
        with ui.element("div").classes("banner") as self.trouble:
            self.trouble_text = ui.label().classes("banner-text")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        self._refresh_question(run)
        self._refresh_fault(run)
        texts = [*([self.state.runs.problem] if self.state.runs.problem else []), *describe_trouble(run)]
        self.trouble.set_visibility(bool(texts))
        self.trouble_text.set_text(" ".join(texts))

    async def decide(self, kind: str) -> None:
        """Approve or reject the question that is shown, and no other."""
        if self.shown_question is not None:
            await self.requests.send(kind, self.shown_question)

    async def press_acknowledge(self) -> None:
        """Acknowledge the fault that is shown, and no other."""
        if self.shown_fault is not None:
            await self.requests.send("acknowledge", self.shown_fault)

    def _refresh_question(self, run: RunFollower) -> None:
        question = run.status.question if run.status is not None and run.alive else None
        self.question.set_visibility(question is not None)
        self.shown_question = None if question is None else int(question["number"])
        if question is not None:
            self.question_text.set_text(f"The next policy: {question['text']}. Shall it run?")

    def _refresh_fault(self, run: RunFollower) -> None:
        machine = run.machine
        if machine is None or not (machine["state"] == "fault" or (run.alive and not machine["reachable"])):
            self.fault.set_visibility(False)
            self.shown_fault = None
            return
        self.fault.set_visibility(True)
        self.shown_fault = int(machine["fault_number"])
        self.fault_text.set_text(f"The machine stands: {machine['fault']}")
        self.acknowledge.set_visibility(machine["reachable"])


def describe_trouble(run: RunFollower) -> list[str]:
    """What is wrong with a run, a sentence each."""
    texts, status = [run.problem] if run.problem else [], run.status
    if status is not None and status.state == "failed":
        texts.append(f"Training ended: {status.message}")
    if status is not None and not run.alive and not status.ended:
        where = f"process {status.pid} on {status.host}"
        texts.append(f"No sign of the trainer ({where}): it was ended, or cannot be seen from here.")
    texts += run.work.trouble()
    refused = run.metrics.last("refused_updates")
    if refused > 0:
        texts.append(f"{refused:.0f} updates were refused so far.")
    if run.metrics.damaged_lines:
        texts.append(f"{run.metrics.damaged_lines} lines of metrics.jsonl are damaged and left out.")
    return texts
