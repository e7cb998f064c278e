"""The page as a browser gets it: one `View` per browser, all of them reading the same followed runs.

Text from runs, robots and people is only ever set as text; nothing here makes HTML of it.
"""

import time
from collections.abc import Mapping
from importlib import resources
from typing import Any

from nicegui import run as background
from nicegui import ui
from nicegui.element import Element

from ..control.files import MOST_TEXT, Request, Status, send
from ..errors import UserError
from ..units import UNKNOWN, duration
from . import charts
from .follow import RunFollower, Runs

EVERY_S = 1.0
"""How often a browser is told what is new."""
CHARTS_S = 3.0
"""How often at most the charts are drawn anew: simulated episodes may be faster than a phone can draw."""
SHOWN_EVENTS = 40
MOST_EPISODES = 200
"""So many of the newest episodes are offered to go back to."""
UNANSWERED_S = 8.0
"""After so long a request without an answer is mentioned."""

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
"""What the trainer's state is called, and the kind of colour."""


class Drawing(Element, component="drawing.js"):
    """The robot moving along a trajectory; play and scrub happen in the browser."""

    def show(self, data: dict[str, Any] | None) -> None:
        """Draw another trajectory."""
        self._props["data"] = data
        self.update()


def add_page(runs: Runs) -> None:
    """Register the page with NiceGUI."""
    css = resources.files("firsthand.dashboard").joinpath("page.css").read_text("utf-8")

    @ui.page("/", title="firsthand")
    def page() -> None:
        ui.add_css(css)
        View(runs).build()


class View:
    """One browser's page."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.main = next(iter(runs.followers))
        self.compared: set[str] = set(list(runs.followers)[: len(charts.PALETTE)])
        self.episode: int | None = None
        """The episode that is drawn; None follows the newest."""
        self.trajectory: int | None = None
        """The trajectory of it; None is the last."""
        self.asked: dict[str, float] = {}
        """Requests without an answer yet, and when they were made."""
        self.shown_fault: int | None = None
        """Number of the fault that this browser shows."""
        self.shown_question: int | None = None
        """Number of the question that it shows."""
        self.drawn: Any = None
        self.drawn_at = 0.0
        self.offered: Any = None

    @property
    def run(self) -> RunFollower:
        """The run that is controlled and drawn."""
        return self.runs.followers[self.main]

    # Building.

    def build(self) -> None:
        """Make the page; `refresh` fills it."""
        with ui.element("div").classes("top"), ui.element("div").classes("top-line"):
            with ui.element("div"):
                self.title = ui.label().classes("run-name")
                self.subtitle = ui.label().classes("run-about")
            self.state = ui.label().classes("state").mark("state")
            with ui.element("div").classes("buttons"):
                self.pause = ui.button("Pause", on_click=self.press_pause).props("outline no-caps")
                self.stop = ui.button("Stop", on_click=self.press_stop).props("color=negative no-caps")
        with ui.element("div").classes("banner") as self.question:
            self.question_text = ui.label().classes("banner-text")
            ui.button("Approve", on_click=lambda: self.decide("approve")).props("no-caps color=positive")
            ui.button("Reject", on_click=lambda: self.decide("reject")).props("no-caps outline color=negative")
        with ui.element("div").classes("banner") as self.fault:
            self.fault_text = ui.label().classes("banner-text")
            self.acknowledge = ui.button("Acknowledge", on_click=self.press_acknowledge).props("no-caps")
        with ui.element("div").classes("banner") as self.trouble:
            self.trouble_text = ui.label().classes("banner-text")
        with ui.element("div").classes("numbers"):
            self.figures = {name: self._figure(name) for name in ("episodes", "error", "robot time", "time left")}
        with ui.element("div").classes("cards"):
            self._build_motion()
            self._build_error()
            self._build_losses()
            self._build_commands()
            self._build_health()
            self._build_operator()
            self._build_happened()
        self.refresh()
        ui.timer(EVERY_S, self.refresh)

    @staticmethod
    def _figure(name: str) -> tuple[Any, Any]:
        with ui.element("div").classes("figure"):
            return ui.label(UNKNOWN).classes("figure-big"), ui.label(name).classes("figure-small")

    @staticmethod
    def _panel(title: str, *, wide: bool = False) -> Any:
        panel = ui.element("div").classes("panel panel-wide" if wide else "panel")
        with panel:
            ui.label(title).classes("panel-title")
        return panel

    def _build_motion(self) -> None:
        with self._panel("Trajectory"):
            with ui.element("div").classes("panel-row"):
                self.episode_choice = (
                    ui.number(label="episode", placeholder="newest", min=1, precision=0, on_change=self.choose_episode)
                    .props("dense clearable stack-label debounce=400")
                    .style("width: 7.5rem")
                )
                self.trajectory_choice = (
                    ui.number(label="trajectory", placeholder="last", min=1, precision=0)
                    .on_value_change(self.choose_trajectory)
                    .props("dense clearable stack-label debounce=400")
                    .style("width: 7.5rem")
                )
                self.motion_note = ui.label().classes("panel-note")
            self.drawing = Drawing()
            ui.label("dashed: reference · line: what the robot did").classes("panel-note")

    def _build_error(self) -> None:
        with self._panel("Error per episode"):
            with ui.element("div").classes("panel-row") as self.choices:
                names = list(self.runs.followers)
                self.run_choice = ui.select(names, value=self.main, label="run", on_change=self.choose_run)
                self.run_choice.props("dense").style("min-width: 10rem; flex: 1")
                compared = [name for name in names if name in self.compared]
                self.compared_choice = ui.select(names, value=compared, multiple=True, label="compared")
                self.compared_choice.on_value_change(self.choose_compared)
                self.compared_choice.props("dense").style("min-width: 10rem; flex: 2")
            self.error = ui.echart({"series": []}).classes("chart fill").mark("error")

    def _build_losses(self) -> None:
        with self._panel("Learning"):
            self.controller = ui.echart({"series": []}).classes("chart").style("height: 11.5rem")
            self.model = ui.echart({"series": []}).classes("chart").style("height: 11.5rem")

    def _build_commands(self) -> None:
        with self._panel("Commands of the drawn trajectory"):
            ui.label("dashed: limits · dots: where the safety gate changed the command").classes("panel-note")
            self.commands = ui.echart({"series": [], "grid": [], "xAxis": [], "yAxis": []}).classes("chart")

    def _build_health(self) -> None:
        with self._panel("Model health", wide=True):
            self.health_note = ui.label().classes("panel-note")
            with ui.element("div").classes("minis"):
                self.health = {}
                for name, title in (
                    ("prediction", "Prediction error"),
                    ("growth", "Closed loop, as the model sees it"),
                    ("gradient", "Policy gradient"),
                    ("step", "Policy step"),
                ):
                    with ui.element("div"):
                        ui.label(title).classes("panel-note")
                        self.health[name] = ui.echart({"series": []}).classes("mini")

    def _build_operator(self) -> None:
        with self._panel("Operator"):
            with ui.element("div").classes("panel-row"):
                self.payload = (
                    ui.input(label="payload tag, or kg", validation={"too long": lambda v: len(v or "") <= MOST_TEXT})
                    .props("dense")
                    .style("flex: 1; min-width: 8rem")
                )
                self.payload_button = ui.button("Set payload", on_click=self.press_payload).props("outline no-caps")
            with ui.element("div").classes("panel-row").style("margin-top: 0.5rem"):
                self.earlier = (
                    ui.select({}, label="earlier policy or checkpoint").props("dense").style("flex: 1; min-width: 8rem")
                )
                self.return_button = ui.button("Return to it", on_click=self.press_return).props("outline no-caps")
            with ui.element("div").classes("panel-row").style("margin-top: 0.5rem"):
                self.checkpoint = ui.button("Keep a checkpoint", on_click=self.press_checkpoint)
                self.checkpoint.props("outline no-caps")
                self.operator_note = ui.label().classes("panel-note")

    def _build_happened(self) -> None:
        with self._panel("What happened"):
            self.happened = ui.element("div").classes("happened")

    # Refreshing.

    def refresh(self) -> None:
        """Show what is new."""
        run, status = self.run, self.run.status
        names = list(self.runs.followers)
        self.choices.set_visibility(len(names) > 1)
        if names != self.run_choice.options:
            self.run_choice.set_options(names)
            self.compared_choice.set_options(names)
        self._refresh_head(run, status)
        self._refresh_banners(run, status)
        self._refresh_answers(status)
        versions = tuple((name, follower.version) for name, follower in self.runs.followers.items())
        shown = (self.main, tuple(sorted(self.compared)), versions, self.episode, self.trajectory)
        chosen = self.drawn is None or shown[:2] + shown[3:] != self.drawn[:2] + self.drawn[3:]
        if shown != self.drawn and (chosen or time.monotonic() - self.drawn_at >= CHARTS_S):
            self.drawn, self.drawn_at = shown, time.monotonic()
            self._refresh_charts(run)
            self._refresh_earlier(run)
            self._refresh_happened(run)

    def _refresh_head(self, run: RunFollower, status: Status | None) -> None:
        about, alive = run.about, run.alive
        self.title.set_text(self.main)
        payload = (status.payload if status is not None else "") or (about.payload if about is not None else "")
        facts = [] if about is None else [about.robot, f"preset {about.preset}", f"seed {about.seed}"]
        self.subtitle.set_text(" · ".join([*facts, *([f"payload {payload}"] if payload else [])]))
        text, kind = self._state(run, status)
        self.state.set_text(text)
        self.state.classes(replace=f"state state-{kind}" if kind else "state")
        paused = alive and status is not None and status.state in ("paused", "pausing")
        self.pause.set_text("Resume" if paused else "Pause")
        busy = alive and status is not None and status.state != "stopping"
        self.pause.set_enabled(busy)
        machine = run.machine
        self.stop.set_enabled(busy or (machine is not None and machine["reachable"]))
        self.stop.set_text("Stop the machine" if about is not None and about.address is not None else "Stop")
        for button in (self.payload_button, self.return_button, self.checkpoint):
            button.set_enabled(busy)
        waits = f"waits for the end of the episode: {', '.join(status.pending)}" if status and status.pending else ""
        self.operator_note.set_text(waits or ("" if alive else "nobody is training this run now"))
        self._refresh_figures(run, status)

    @staticmethod
    def _state(run: RunFollower, status: Status | None) -> tuple[str, str]:
        if run.problem and run.about is None:
            return "waiting", "wait"
        if status is None:
            return ("no trainer", "") if run.episodes else ("not started", "wait")
        if run.alive or status.ended:
            text, kind = STATES.get(status.state, (status.state, ""))
            if status.state == "running" and status.phase == "moving":
                text = "robot moves"
            return text, kind
        return "no trainer", "bad"

    def _refresh_figures(self, run: RunFollower, status: Status | None) -> None:
        unit = None if run.about is None else run.about.unit
        done = int(run.last("episode")) if run.episodes else 0
        best = run.best_episode()
        errors = run.column("tracking_error")
        robot_left = status.robot_seconds_left if status is not None and run.alive else None
        left = status.seconds_left if status is not None and run.alive else None
        robot_time = run.last("robot_time_s")
        shown = {
            "episodes": (f"{done} of {run.planned}", "episodes"),
            "error": (
                UNKNOWN if unit is None or not run.episodes else unit.with_unit(run.last("tracking_error")),
                "error now"
                if best is None or unit is None
                else f"error now; best {unit.with_unit(float(errors[run.columns['episode'].index(best)]))} at {best}",
            ),
            "robot time": (
                duration(robot_time) if run.episodes else UNKNOWN,
                "robot time" if not robot_left else f"robot time; {duration(robot_left)} left",
            ),
            "time left": (UNKNOWN if left is None else duration(left), "time left"),
        }
        for name, (big, small) in shown.items():
            self.figures[name][0].set_text(big)
            self.figures[name][1].set_text(small)

    def _refresh_banners(self, run: RunFollower, status: Status | None) -> None:
        question = status.question if status is not None and run.alive else None
        self.question.set_visibility(question is not None)
        self.shown_question = None if question is None else int(question["number"])
        if question is not None:
            self.question_text.set_text(f"The next policy: {question['text']}. Shall it run?")
        machine = run.machine
        away = machine is not None and not machine["reachable"]
        faulty = machine is not None and (machine["state"] == "fault" or (away and run.alive))
        self.fault.set_visibility(faulty)
        self.shown_fault = int(machine["fault_number"]) if faulty and machine is not None else None
        if faulty and machine is not None:
            self.fault_text.set_text(f"The machine stands: {machine['fault']}")
            self.acknowledge.set_visibility(machine["reachable"])
        texts = [problem for problem in (self.runs.problem, run.problem) if problem]
        if status is not None and status.state == "failed":
            texts.append(f"Training ended: {status.message}")
        if status is not None and not run.alive and not status.ended:
            where = f"process {status.pid} on {status.host}"
            texts.append(f"No sign of the trainer ({where}): it was ended, or cannot be seen from here.")
        refused = run.last("refused_updates")
        if refused > 0:
            texts.append(f"{refused:.0f} updates were refused so far.")
        if run.damaged:
            texts.append(f"{run.damaged} lines of metrics.jsonl are damaged and left out.")
        self.trouble.set_visibility(bool(texts))
        self.trouble_text.set_text(" ".join(texts))

    def _refresh_answers(self, status: Status | None) -> None:
        for answer in status.answers if status is not None else ():
            if self.asked.pop(str(answer["request"]), None) is not None:
                text = str(answer["text"])
                ui.notify(text[:1].upper() + text[1:], type="positive" if answer["ok"] else "negative")
        for name, when in list(self.asked.items()):
            pending = status is not None and status.pending
            if not pending and time.monotonic() - when > UNANSWERED_S:
                del self.asked[name]
                ui.notify("The trainer has not answered yet.", type="warning")

    def _refresh_charts(self, run: RunFollower) -> None:
        order = list(self.runs.followers)
        shown = {name: self.runs.followers[name] for name in order if name in self.compared or name == self.main}
        self._set(self.error, charts.error_chart(shown, order, self.main))
        unit = "" if run.about is None else f" ({run.about.unit.name}²)"
        self._set(self.controller, charts.loss_chart(shown, order, "controller_loss", f"controller loss{unit}"))
        self._set(self.model, charts.loss_chart(shown, order, "model_loss", "model loss"))
        motion = run.motion(self.episode, self.trajectory)
        self.drawing.show(charts.drawing(run, motion))
        self._set(self.commands, charts.command_chart(run, motion))
        self.commands.style(f"height: {charts.command_height(run)}px")
        if motion is not None and run.about is not None:
            self.motion_note.set_text(
                f"episode {motion.episode}, trajectory {motion.trajectory} of {motion.trajectories}: "
                f"{run.about.unit.with_unit(motion.error)} off on average"
            )
        else:
            self.motion_note.set_text("" if self.episode is None else f"there is no episode {self.episode}")
        for name, make in (
            ("prediction", charts.prediction_chart),
            ("growth", charts.growth_chart),
            ("gradient", charts.gradient_chart),
            ("step", charts.step_chart),
        ):
            self._set(self.health[name], make(run))
        self.health_note.set_text(self._health_text(run))

    @staticmethod
    def _health_text(run: RunFollower) -> str:
        if not run.episodes:
            return "nothing to show yet"
        return (
            f"refused updates: {run.last('refused_updates'):.0f} · policy steps in the last episode: "
            f"{run.last('policy_steps'):.0f} · steps at a position limit: {run.last('limit_hits'):.0f} · "
            f"computing: {run.last('update_time_s'):.1f} s"
        )

    @staticmethod
    def _set(element: Any, options: dict[str, Any]) -> None:
        element.options.clear()
        element.options.update(options)
        element.update()

    def _refresh_earlier(self, run: RunFollower) -> None:
        unit = None if run.about is None else run.about.unit
        errors = dict(zip(run.columns["episode"], run.columns["tracking_error"], strict=True))
        newest = [int(episode) for episode in run.columns["episode"]][-MOST_EPISODES:]
        best = run.best_episode()
        options: dict[str, str] = {}
        if best is not None and unit is not None:
            options[f"return {best}"] = f"best: episode {best}, {unit.with_unit(errors[best])}"
        options |= {f"restore {k}": f"kept checkpoint after episode {k}: model and policy" for k in reversed(run.kept)}
        for episode in reversed(newest):
            if unit is not None and episode != best:
                options[f"return {episode}"] = f"episode {episode}, {unit.with_unit(errors[episode])}"
        if options != self.offered:
            self.offered = options
            value = self.earlier.value if self.earlier.value in options else None
            self.earlier.set_options(options, value=value)

    def _refresh_happened(self, run: RunFollower) -> None:
        self.happened.clear()
        with self.happened:
            for event in reversed(run.events[-SHOWN_EVENTS:]):
                ui.label(f"episode {event.episode}: {event.text}")
            if not run.events:
                ui.label("nothing yet").classes("panel-note")

    # What a person does.

    def choose_run(self, event: Any) -> None:
        """Another run is drawn and controlled."""
        if event.value in self.runs.followers:
            self.main, self.episode, self.trajectory = event.value, None, None
            self.asked.clear()
            self.refresh()

    def choose_compared(self, event: Any) -> None:
        """Which runs the curves show."""
        self.compared = {name for name in event.value or () if name in self.runs.followers}
        self.refresh()

    def choose_episode(self, event: Any) -> None:
        """Which episode is drawn; nothing is the newest."""
        self.episode = None if event.value is None else int(event.value)
        self.refresh()

    def choose_trajectory(self, event: Any) -> None:
        """Which of its trajectories; nothing is the last."""
        self.trajectory = None if event.value is None else int(event.value)
        self.refresh()

    async def press_pause(self) -> None:
        """Pause, or go on."""
        status = self.run.status
        await self.ask("resume" if status is not None and status.state in ("paused", "pausing") else "pause")

    async def press_stop(self) -> None:
        """Stop the trainer and its machine; a machine without a trainer is told directly."""
        await self.ask("stop")

    async def press_acknowledge(self) -> None:
        """The fault that is shown, and no other."""
        if self.shown_fault is not None:
            await self.ask("acknowledge", self.shown_fault)

    async def decide(self, kind: str) -> None:
        """Approve or reject what is shown."""
        if self.shown_question is not None:
            await self.ask(kind, self.shown_question)

    async def press_payload(self) -> None:
        """Mark the next episodes, or load a simulated robot."""
        await self.ask("payload", str(self.payload.value or ""))

    async def press_checkpoint(self) -> None:
        """Keep the newest checkpoint."""
        await self.ask("checkpoint")

    async def press_return(self) -> None:
        """Go back to what was chosen."""
        if self.earlier.value in (self.offered or {}):
            kind, _, episode = str(self.earlier.value).partition(" ")
            await self.ask(kind, int(episode))
        else:
            ui.notify("Choose an earlier policy first.", type="warning")

    async def ask(self, kind: str, value: int | str | None = None) -> None:
        """Send a request to the run's trainer."""
        run = self.run
        if run.status is None or not run.alive:
            if run.watch is None or kind not in ("stop", "acknowledge"):
                ui.notify("Nobody is training this run now.", type="warning")
                return
            try:
                ui.notify(await background.io_bound(run.watch.ask, kind, value), type="positive")
            except UserError as error:
                ui.notify(str(error), type="negative")
            return
        try:
            name = await background.io_bound(send, run.path, Request(kind, run.status.session, value))
        except UserError as error:
            ui.notify(str(error), type="negative")
        else:
            self.asked[str(name)] = time.monotonic()
