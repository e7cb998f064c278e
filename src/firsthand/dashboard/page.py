"""The page as a browser gets it: one `View` per browser, all of them reading the same followed runs."""

import time
from importlib import resources

from nicegui import ui

from .panels import (
    Banners,
    CommandPanel,
    ErrorPanel,
    Figures,
    Header,
    HealthPanel,
    History,
    LossPanel,
    OperatorPanel,
    TrajectoryPanel,
    WorkPanel,
)
from .requests import Requests
from .run_list import RunList
from .state import PageState

REFRESH_S = 1.0
"""How often a browser is told what is new."""
DRAW_S = 3.0
"""Charts are not redrawn more often than this: simulated episodes may be faster than a phone can draw."""


def add_page(runs: RunList) -> None:
    """Register the page with NiceGUI."""
    css = resources.files("firsthand.dashboard").joinpath("page.css").read_text("utf-8")

    @ui.page("/", title="firsthand")
    def page() -> None:
        ui.add_css(css)
        View(runs)


class View:
    """One browser's page: its panels, and when each of them is brought up to date."""

    def __init__(self, runs: RunList) -> None:
        self.state = PageState(runs)
        self.requests = Requests(self.state)
        self.header = Header(self.state, self.requests)
        self.banners = Banners(self.state, self.requests)
        self.figures = Figures()
        with ui.element("div").classes("cards"):
            self.work = WorkPanel(self.requests)
            self.trajectory = TrajectoryPanel(self.state)
            self.error = ErrorPanel(self.state)
            self.losses = LossPanel(self.state)
            self.commands = CommandPanel(self.state)
            self.health = HealthPanel()
            self.operator = OperatorPanel(self.requests)
            self.history = History()
        self.drawn: tuple = ()
        """Choices and versions that the charts show."""
        self.drawn_at = 0.0
        self.state.refresh = self.refresh
        self.refresh()
        ui.timer(REFRESH_S, self.refresh)

    def refresh(self) -> None:
        """Show the newest data."""
        run = self.state.run
        self.error.refresh_choices()
        for part in (self.header, self.banners, self.figures, self.operator, self.work):
            part.refresh(run)
        self.requests.show_answers(run)
        choices, shown = self.state.choices, (self.state.choices, self.state.versions)
        another_choice = not self.drawn or choices != self.drawn[0]
        if shown != self.drawn and (another_choice or time.monotonic() - self.drawn_at >= DRAW_S):
            self.drawn, self.drawn_at = shown, time.monotonic()
            for part in (self.trajectory, self.error, self.losses, self.commands, self.health, self.history):
                part.refresh(run)
            self.operator.refresh_earlier(run)
            self.work.refresh_charts(run)
