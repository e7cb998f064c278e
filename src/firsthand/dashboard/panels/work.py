"""A machine at work: its error by conditions, the authority of the learned part, and the operator's buttons."""

from nicegui import ui

from .. import work_charts
from ..follower import RunFollower
from ..requests import Requests
from ..work import WorkFollower
from .elements import empty_chart, note, panel, row, show_chart

MAX_EVENTS = 20


class WorkPanel:
    """The work of the chosen run; hidden for a run without work."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.card = panel("Work", wide=True)
        with self.card:
            with row():
                self.take_back = ui.button("Base alone", on_click=self.press_take_back).mark("take-back")
                self.give_back = ui.button("Learned part too", on_click=self.press_give_back).mark("give-back")
                self.note = note().mark("work")
            self.error = empty_chart()
            self.authority = empty_chart("mini")
            self.list = ui.element("div").classes("happened")
        for button in (self.take_back, self.give_back):
            button.props("outline no-caps")

    def refresh(self, run: RunFollower) -> None:
        """Show whether there is work, how it is, and what may be asked."""
        work, status = run.work, run.work.control.status
        self.card.set_visibility(work.info is not None)
        on_base = work.info is not None and work.info.on_base
        base_alone = status is not None and bool(status.work and status.work["base_alone"])
        for button, wanted in ((self.take_back, not base_alone), (self.give_back, base_alone)):
            button.set_visibility(on_base)
            button.set_enabled(work.alive and wanted)
        self.note.set_text(describe_work(work))

    def refresh_charts(self, run: RunFollower) -> None:
        """Draw the newest blocks, and what happened."""
        work = run.work
        if work.info is None:
            return
        show_chart(self.error, work_charts.work_error_chart(work, None if run.info is None else run.info.unit))
        self.authority.set_visibility(work.info.on_base)
        show_chart(self.authority, work_charts.authority_chart(work))
        self.list.clear()
        with self.list:
            for event in reversed(work.control.events[-MAX_EVENTS:]):
                ui.label(f"block {event.episode}: {event.text}")

    async def press_take_back(self) -> None:
        """Let the base drive alone."""
        await self.requests.send_to_work("take_back")

    async def press_give_back(self) -> None:
        """Let the learned part take part again."""
        await self.requests.send_to_work("give_back")


def describe_work(work: WorkFollower) -> str:
    """The state of the work in a line."""
    status = work.control.status
    about = None if status is None else status.work
    if about is None:
        return "no session has begun"
    parts = [f"{about['block']} blocks", f"conditions {about['context']}"]
    if about["base_alone"]:
        parts.append("the base alone drives, as the operator has chosen")
    elif about["measuring"]:
        parts.append("the base alone drives, to be compared with")
    elif about["on_base"] and about["authority"] is not None:
        parts.append(f"authority of the learned part {100 * about['authority']:.0f} %")
    return " · ".join([*parts, *([] if work.alive else ["no session is at work"])])
