"""The top of the page: which run this is, what its trainer is doing, Pause and Stop, and the figures of the moment."""

from collections.abc import Mapping

from nicegui import ui

from ...control.files import Status
from ...units import UNKNOWN, duration
from ..follower import RunFollower
from ..requests import Requests
from ..state import PageState

STATES: Mapping[str, tuple[str, str]] = {
    "starting": ("starting", "wait"),
    "running": ("learning", "good"),
    "pausing": ("pausing …", "wait"),
    "paused": ("paused", "wait"),
    "asking": ("waits for you", "wait"),
    "stopping": ("stopping …", "wait"),
    "stopped": ("stopped", ""),
    "finished": ("finished", ""),
    "failed": ("failed", "bad"),
}
"""The trainer's states as the page names them, and the kind of colour."""
PAUSED_STATES = ("paused", "pausing")


class Header:
    """Name, state and buttons of the main run."""

    def __init__(self, state: PageState, requests: Requests) -> None:
        self.state, self.requests = state, requests
        with ui.element("div").classes("top"), ui.element("div").classes("top-line"):
            with ui.element("div"):
                self.title = ui.label().classes("run-name")
                self.subtitle = ui.label().classes("run-about")
            self.state_label = ui.label().classes("state").mark("state")
            with ui.element("div").classes("buttons"):
                self.pause = ui.button("Pause", on_click=self.press_pause).props("outline no-caps")
                self.stop = ui.button("Stop", on_click=self.press_stop).props("color=negative no-caps")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        status, info, machine = run.status, run.info, run.machine
        self.title.set_text(self.state.main)
        payload = (status.payload if status is not None else "") or (info.payload if info is not None else "")
        facts = [] if info is None else [info.robot, f"preset {info.preset}", f"seed {info.seed}"]
        self.subtitle.set_text(" · ".join([*facts, *([f"payload {payload}"] if payload else [])]))
        text, color = describe_state(run)
        self.state_label.set_text(text)
        self.state_label.classes(replace=f"state state-{color}" if color else "state")
        takes_requests = accepts_requests(run)
        self.pause.set_text("Resume" if run.alive and _is_paused(status) else "Pause")
        self.pause.set_enabled(takes_requests)
        self.stop.set_text("Stop the machine" if run.address is not None else "Stop")
        self.stop.set_enabled(takes_requests or (machine is not None and machine["reachable"]))

    async def press_pause(self) -> None:
        """Pause, or go on."""
        await self.requests.send("resume" if _is_paused(self.state.run.status) else "pause")

    async def press_stop(self) -> None:
        """Stop the trainer and its machine; a machine without a trainer is told directly."""
        await self.requests.send("stop")


class Figures:
    """Episodes, error and times in large type."""

    def __init__(self) -> None:
        with ui.element("div").classes("numbers"):
            self.figures = {name: self._make(name) for name in ("episodes", "error", "robot time", "time left")}

    @staticmethod
    def _make(name: str) -> tuple[ui.label, ui.label]:
        with ui.element("div").classes("figure"):
            return ui.label(UNKNOWN).classes("figure-big"), ui.label(name).classes("figure-small")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        status = run.status if run.alive else None
        left = status.seconds_left if status is not None else None
        robot_left = status.robot_seconds_left if status is not None else None
        metrics = run.metrics
        done = int(metrics.last("episode")) if metrics.episodes else 0
        robot_time = duration(metrics.last("robot_time_s")) if metrics.episodes else UNKNOWN
        self._show("episodes", f"{done} of {run.planned_episodes}", "episodes")
        self._show("error", *self._error_texts(run))
        self._show("robot time", robot_time, f"robot time; {duration(robot_left)} left" if robot_left else "robot time")
        self._show("time left", UNKNOWN if left is None else duration(left), "time left")

    @staticmethod
    def _error_texts(run: RunFollower) -> tuple[str, str]:
        score, metrics = None if run.info is None else run.info.score, run.metrics
        if score is None or not metrics.episodes:
            return UNKNOWN, "error now"
        newest, best = score.unit.with_unit(metrics.last(score.key)), metrics.best_episode(score.key)
        if best is None:
            return newest, f"{score.short} now"
        smallest = metrics.columns[score.key][metrics.columns["episode"].index(best)]
        return newest, f"{score.short} now; best {score.unit.with_unit(smallest)} at {best}"

    def _show(self, name: str, large: str, small: str) -> None:
        for label, text in zip(self.figures[name], (large, small), strict=True):
            label.set_text(text)


def accepts_requests(run: RunFollower) -> bool:
    """Whether a trainer is at work that is not about to end."""
    return run.alive and run.status is not None and run.status.state != "stopping"


def describe_state(run: RunFollower) -> tuple[str, str]:
    """The state of a run in a word or two, and the kind of colour."""
    status = run.status
    if run.problem and run.info is None:
        return "waiting", "wait"
    if run.work.alive and not run.alive:
        return "at work", "good"
    if status is None:
        return ("no trainer", "") if run.metrics.episodes else ("not started", "wait")
    if not (run.alive or status.ended):
        return "no trainer", "bad"
    text, color = STATES.get(status.state, (status.state, ""))
    return ("robot moves" if status.state == "running" and status.phase == "moving" else text), color


def _is_paused(status: Status | None) -> bool:
    return status is not None and status.state in PAUSED_STATES
