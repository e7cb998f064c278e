"""How the run learns: the error per episode, beside other runs, the losses, and the health of the model."""

import math

from nicegui import ui

from ...advice import advise, no_advice
from .. import charts
from ..follower import RunFollower
from ..state import PageState
from .elements import empty_chart, note, panel, row, show_chart

HEALTH_CHARTS = (
    ("Errors on new data over those on old data", charts.novelty_chart),
    ("Correlation of prediction errors from step to step", charts.correlation_chart),
    ("Closed loop, as the model sees it", charts.growth_chart),
    ("Prediction error", charts.prediction_chart),
    ("Policy gradient", charts.gradient_chart),
    ("Policy step", charts.step_chart),
)


class ErrorPanel:
    """The tracking error of the chosen runs, and the choice of them."""

    def __init__(self, state: PageState) -> None:
        self.state = state
        names = state.names
        with panel("Error per episode"):
            with row() as self.choices:
                self.main = ui.select(names, value=state.main, label="run")
                self.main.on_value_change(lambda e: state.choose_run(e.value))
                self.main.props("dense").style("min-width: 10rem; flex: 1")
                compared = [name for name in names if name in state.compared]
                self.compared = ui.select(names, value=compared, multiple=True, label="compared")
                self.compared.on_value_change(lambda e: state.choose_compared(e.value))
                self.compared.props("dense").style("min-width: 10rem; flex: 2")
            self.chart = empty_chart("chart fill").mark("error")

    def refresh_choices(self) -> None:
        """Offer the runs that have appeared."""
        names = self.state.names
        self.choices.set_visibility(len(names) > 1)
        if names != self.main.options:
            self.main.set_options(names)
            self.compared.set_options(names)

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        state = self.state
        show_chart(self.chart, charts.error_chart(state.compared_runs, state.names, state.main))


class LossPanel:
    """The losses of controller and model."""

    def __init__(self, state: PageState) -> None:
        self.state = state
        with panel("Learning"):
            self.controller = empty_chart().style("height: 11.5rem")
            self.model = empty_chart().style("height: 11.5rem")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        runs, names = self.state.compared_runs, self.state.names
        unit = "" if run.info is None else f" ({run.info.unit.name}²)"
        show_chart(self.controller, charts.loss_chart(runs, names, "controller_loss", f"controller loss{unit}"))
        show_chart(self.model, charts.loss_chart(runs, names, "model_loss", "model loss"))


class HealthPanel:
    """Whether model, policy steps and sensors look sound, and what to do about it."""

    def __init__(self) -> None:
        with panel("Model health", wide=True):
            self.advice = ui.element("div").classes("advice")
            self.note = note()
            with ui.element("div").classes("minis"):
                self.charts = [self._make(title) for title, _ in HEALTH_CHARTS]

    @staticmethod
    def _make(title: str) -> ui.echart:
        with ui.element("div"):
            note(title)
            return empty_chart("mini")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        for chart, (_, make_chart) in zip(self.charts, HEALTH_CHARTS, strict=True):
            show_chart(chart, make_chart(run))
        self.note.set_text(_summarize_health(run))
        lines = list(run.metrics.newest)
        self.advice.clear()
        with self.advice:
            found = advise(lines)
            for advice in found:
                ui.label(advice.text).classes("advice-urgent" if advice.urgent else "")
            if not found:
                note(no_advice(len(lines)))


def _summarize_health(run: RunFollower) -> str:
    if not run.metrics.episodes:
        return "nothing to show yet"
    last = run.metrics.last
    over_base = ""
    if math.isfinite(last("learned_authority")):
        over_base = (
            f" · authority of the learned part over the base: {100 * last('learned_authority'):.0f} % · the base alone "
            f"in {100 * last('base_share'):.0f} % of the last episode"
        )
    return (
        f"refused updates: {last('refused_updates'):.0f} · policy steps in the last episode: "
        f"{last('steps_taken'):.0f} · steps at a position limit: {last('limit_hits'):.0f} · "
        f"computing: {last('update_time_s'):.1f} s{over_base}"
    )
