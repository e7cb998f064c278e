"""The figures: functions from plain data to a matplotlib `Figure`, which no global state knows.

`learning_curves` and `path_grid` take several runs as well as one, so that a comparison draws with the same functions.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..advice import OVERFITTING
from ..units import METRES, Score, Unit
from .data import (
    NEWEST_EPISODES,
    Channel,
    History,
    PathAxes,
    PathPanel,
    Poses,
    TimeSeries,
    finite_mean,
    running_mean,
)
from .style import ALARM, INK, PALETTE, REFERENCE, episode_axis, log_scale, nothing, plot_log, styled

FEW = 30
"""A run with at most this number of episodes shows each as a dot."""
COMPARED = 500
"""Points of either half of a reference that are compared with each other."""
FLOOR_SHOWN = 0.05
"""A noise floor below this share of the smallest error is not drawn: it would squeeze the curve."""
NOVEL = "error on the newest episode, before learning from it"


# Learning curves.


@styled
def learning_curves(
    histories: Sequence[History], *, oracle_error: float | None = None, unit: Unit = METRES, score: Score | None = None
) -> Figure:
    """Tracking error, controller loss, and how well the model predicts, over the episodes of one run or several.

    `oracle_error` is drawn as a dashed line where it is known. `score` takes the place of the tracking error.
    """
    score = score or Score("tracking_error", "tracking error", "error", unit)
    figure = Figure(figsize=(6.6, 8.4), layout="constrained")
    error, controller, model = figure.subplots(3, 1, gridspec_kw={"height_ratios": (1.25, 1.0, 1.0)})
    episodes = np.concatenate([h.column("episode") for h in histories])
    shown: list[np.ndarray | float] = []
    for history, color in _with_colors(histories):
        x, y = history.column("episode"), score.unit.factor * history.column(score.key)
        _error_curve(error, x, y, color, None if len(histories) == 1 else history.label, _dots(history))
        shown.append(y)
    if oracle_error is not None and np.isfinite(oracle_error):
        error.axhline(unit.of(oracle_error), color=INK, linestyle="--", linewidth=1.2, label="oracle: true gradients")
        shown.append(unit.of(oracle_error))
    floor = unit.of(histories[0].recent_mean("noise_floor")) if len(histories) == 1 and score.key != "cost" else np.nan
    if np.isfinite(floor) and floor > FLOOR_SHOWN * np.nanmin(np.append(shown[0], np.inf)):
        error.axhline(floor, color=PALETTE[2], linestyle=":", linewidth=1.4, label="noise floor of the sensors")
        shown.append(floor)
    _finish(error, shown, episodes, score.label)
    if error.get_legend_handles_labels()[0]:
        error.legend(loc="best")
    _robot_time(error, histories)

    shown = []
    for history, color in _with_colors(histories):
        y = history.column("controller_loss")
        plot_log(controller, history.column("episode"), y, color=color, label=history.label, **_dots(history))
        shown.append(y)
    _finish(controller, shown, episodes, f"controller loss ({unit.name}²)")
    if len(histories) > 1:
        controller.legend(loc="best")

    shown = []
    for history, color in _with_colors(histories):
        x, loss, novel = (history.column(name) for name in ("episode", "model_loss", "held_out_loss"))
        if not np.isfinite(novel).any():  # trained on one-step predictions, or by an earlier version
            novel = history.column("prediction_error")
        if len(histories) == 1:
            labels, other = ("model loss, on what it learned from", NOVEL), PALETTE[1]
        else:  # the colour tells the run, the dashes what is drawn
            labels, other = (history.label, None), color
        plot_log(model, x, loss, color=color, label=labels[0], **_dots(history))
        plot_log(model, x, novel, color=other, linestyle=(0, (3, 1.5)), label=labels[1], **_dots(history))
        shown += [loss, novel]
    _finish(model, shown, episodes, "model loss")
    model.set_xlabel("episode")
    if len(histories) > 1:
        model.plot([], [], color=INK, linestyle=(0, (3, 1.5)), label=NOVEL)
    model.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)
    return figure


def _error_curve(axes: Axes, x: np.ndarray, y: np.ndarray, color: str, name: str | None, dots: dict[str, Any]) -> None:
    """The error of each episode, faint behind its running mean; a short run has no running mean, and no `name` either.

    The mean is drawn where its window is full: before that the first, bad episodes would lift it far above the curve.
    """
    if len(x) < 1.5 * NEWEST_EPISODES:
        plot_log(axes, x, y, color=color, label=name, **dots)
        return
    plot_log(axes, x, y, color=color, alpha=0.45, linewidth=1.0, label=None if name else "one episode", **dots)
    full = slice(NEWEST_EPISODES - 1, None)
    label = name or f"mean of {NEWEST_EPISODES} episodes"
    plot_log(axes, x[full], running_mean(y)[full], color=color, linewidth=2.2, label=label)


def _with_colors(histories: Sequence[History]) -> list[tuple[History, str]]:
    return [(history, PALETTE[i % len(PALETTE)]) for i, history in enumerate(histories)]


def _dots(history: History) -> dict[str, Any]:
    return {"marker": "o"} if len(history) <= FEW else {}


def _finish(axes: Axes, shown: Sequence[np.ndarray | float], episodes: np.ndarray, label: str) -> None:
    axes.set_ylabel(label)
    log_scale(axes, shown)
    episode_axis(axes, episodes)


def _robot_time(axes: Axes, histories: Sequence[History]) -> None:
    """Minutes of robot time along the top, where all runs have episodes of one length."""
    ratios = np.concatenate([h.column("robot_time_s") / h.column("episode") / 60 for h in histories])
    minutes = finite_mean(ratios)
    if not (minutes > 0 and np.allclose(ratios[np.isfinite(ratios)], minutes, rtol=1e-3)):
        axes.set_xlabel("episode")
        return
    top = axes.secondary_xaxis("top", functions=(lambda k: np.multiply(k, minutes), lambda t: np.divide(t, minutes)))
    top.set_xlabel("robot time (min)")
    top.spines["top"].set_visible(False)


# Paths.

LimitsOf = Literal["row", "all", "panel"]
"""Which panels have the same limits."""


@styled
def path_grid(
    rows: Sequence[Sequence[PathPanel]], path_axes: PathAxes, *, limits_of: LimitsOf = "row", unit: Unit = METRES
) -> Figure:
    """Paths (solid) against their references (dashed), one panel each.

    The panels of a row have the same limits, or all panels, or each has its own and is square.
    """
    across, shared = max(len(row) for row in rows), limits_of != "panel"
    everything = [panel for row in rows for panel in row]
    limits = [
        [
            _limits({"all": everything, "row": row, "panel": [panel]}[limits_of], path_axes.equal, not shared)
            for panel in row
        ]
        for row in rows
    ]
    # The panels are placed in inches: a layout engine lets titles and ticks of panels with equal axes overlap.
    width = 2.3 if across > 1 else 3.6
    heights = [width * (_height(row[0]) if path_axes.equal else 0.75) for row in limits]
    left, gap, above, below, legend = 0.75, 0.2 if shared else 0.5, 0.5, 0.35, 0.3
    total = left + across * width + (across - 1) * gap + 0.15, legend + sum(heights) + len(rows) * (above + below) + 0.3
    figure = Figure(figsize=total)
    top, handles = total[1] - legend, []
    for i, row in enumerate(rows):
        top -= above + heights[i]
        for j, panel in enumerate(row):
            box = (left + j * (width + gap), top, width, heights[i])
            axes = figure.add_axes((box[0] / total[0], box[1] / total[1], box[2] / total[0], box[3] / total[1]))
            handles = _paths(axes, panel, limits[i][j], unit)
            axes.tick_params(labelleft=j == 0 or not shared)
            if j == 0:
                axes.set_ylabel(path_axes.labels[1])
            if i == len(rows) - 1:
                axes.set_xlabel(path_axes.labels[0])
        top -= below
    figure.legend(handles=handles, loc="upper center", ncols=3, borderaxespad=0.3)
    return figure


def _paths(axes: Axes, panel: PathPanel, limits: np.ndarray, unit: Unit) -> list[Any]:
    handles = []
    for reference, path in panel.pairs:
        style = {"color": INK, "marker": "o", "markersize": 3.5, "linestyle": "none"}
        handles = [
            *axes.plot(*path.T, color=PALETTE[0], linewidth=1.5, label="what the robot did"),
            *axes.plot(*_once(reference).T, **REFERENCE, label="reference"),
            *axes.plot(*reference[:1].T, **style, label="start"),
        ]
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=(1, 2, 5, 10)))
    axes.text(0.5, 0.62, _remark(panel, limits), transform=axes.transAxes, horizontalalignment="center", color=INK)
    error = f"mean error {_short(panel.error_m, unit)}" if np.isfinite(panel.error_m) else "error not finite"
    axes.set_title(f"{panel.title}\n{error}", loc="left", linespacing=1.25)
    return handles


def _remark(panel: PathPanel, limits: np.ndarray) -> str:
    """Why no path is to be seen: it is a point, or all of it lies outside the limits. Empty where one is seen."""
    points = np.concatenate([path for _, path in panel.pairs])
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return ""
    if not ((points >= limits[:, 0]) & (points <= limits[:, 1])).all(axis=1).any():
        return "outside the picture"
    return "did not move" if (np.ptp(points, axis=0) < 0.01 * np.ptp(limits, axis=1)).all() else ""


def _short(value: float, unit: Unit) -> str:
    return f"{unit.of(value):.1f} {unit.shown}" if unit == METRES else unit.with_unit(value)


def _once(reference: np.ndarray) -> np.ndarray:
    """The first half of a reference that goes back the way it came: two dashed lines on each other look solid."""
    half = (len(reference) + 1) // 2
    there, back = reference[:half], reference[half:]
    if not len(back):
        return reference
    apart = np.linalg.norm(_thin_out(back)[:, None] - _thin_out(there), axis=-1).min(axis=1).max()
    return there if apart < 0.02 * np.ptp(reference, axis=0).max() else reference


def _thin_out(points: np.ndarray) -> np.ndarray:
    """At most `COMPARED` of the points, evenly spread."""
    return points[:: -(-len(points) // COMPARED)]


def _limits(row: Sequence[PathPanel], equal: bool, square: bool) -> np.ndarray:
    """((left, right), (low, high)) that shows every reference of the row, and the paths as far as is sensible.

    A policy that has not learned yet may swing far away; the reference must stay large enough to be seen, so the
    picture ends at most 60 % of the reference's size beyond it.
    """
    reference = _bounds([reference for panel in row for reference, _ in panel.pairs])
    paths = _bounds([path for panel in row for _, path in panel.pairs])
    size = np.maximum(reference[:, 1] - reference[:, 0], 1e-2)
    size = np.full(2, size.max()) if equal else size
    least, most = 0.06 * size, 0.6 * size
    low = np.clip(paths[:, 0] - least, reference[:, 0] - most, reference[:, 0] - least)
    high = np.clip(paths[:, 1] + least, reference[:, 1] + least, reference[:, 1] + most)
    if equal:
        # Equal scales, and panels between a square and a flat one: a line, too, needs some height to be looked at.
        wanted = np.full(2, (high - low).max()) if square else high - low
        wanted = np.maximum(wanted, (high - low)[::-1] * np.asarray([0.5, 0.45]))
        middle = (low + high) / 2
        low, high = middle - wanted / 2, middle + wanted / 2
    return np.stack([low, high], axis=1)


def _bounds(points: Sequence[np.ndarray]) -> np.ndarray:
    """((left, right), (low, high)) of what is finite."""
    flat = np.concatenate(points)
    flat = flat[np.isfinite(flat).all(axis=1)]
    if not len(flat):
        return np.asarray([[0.0, 1.0], [0.0, 1.0]])
    return np.stack([flat.min(axis=0), flat.max(axis=0)], axis=1)


def _height(limits: np.ndarray) -> float:
    """Height of a panel with equal scales over its width."""
    width, height = limits[:, 1] - limits[:, 0]
    return float(height / width)


# The robot along a path.


@styled
def poses(shown: Poses, path_axes: PathAxes) -> Figure:
    """The arm at several instants, early ones faint, with its path and the reference."""
    points = np.concatenate([shown.bodies.reshape(-1, 2), shown.reference, shown.path])
    points = points[np.isfinite(points).all(axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    room = 0.06 * (high - low).max()
    low, high = low - room, high + room
    width = 6.6
    height = float(np.clip((width - 1.0) * (high[1] - low[1]) / (high[0] - low[0]), 2.0, 6.0)) + 0.9
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    for i, body in enumerate(shown.bodies):
        share = (i + 1) / len(shown.bodies)
        last = i == len(shown.bodies) - 1
        axes.plot(
            *body.T,
            color=PALETTE[4],
            alpha=0.25 + 0.75 * share**2,
            linewidth=3.0,
            marker="o",
            markersize=4.5,
            markerfacecolor="white",
            markeredgecolor=INK,
            markeredgewidth=0.8,
            solid_capstyle="round",
            label="the arm, darker later" if last else None,
        )
    axes.plot(*shown.path.T, color=PALETTE[0], linewidth=1.8, label="what the robot did")
    axes.plot(*shown.reference.T, **REFERENCE, label="reference")
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlabel(path_axes.labels[0])
    axes.set_ylabel(path_axes.labels[1])
    axes.set_title(shown.title, loc="left")
    axes.legend(loc="best")
    return figure


# One trajectory over time.


@styled
def time_series(series: TimeSeries, unit: Unit = METRES) -> Figure:
    """Error, commands and positions of one trajectory, with their limits."""
    rows = max(len(series.commands), len(series.positions))
    figure = Figure(figsize=(7.6, 2.4 + 1.35 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=[1.35, *([1.0] * rows)])
    error = figure.add_subplot(grid[0, :])
    shown = unit.factor * np.where(np.isfinite(series.error_m), series.error_m, np.nan)
    error.plot(series.time, shown, color=PALETTE[0])
    error.axhline(unit.of(finite_mean(series.error_m)), color=INK, linewidth=1.0, linestyle=":")
    error.set_ylabel(f"error ({unit.shown})")
    error.set_ylim(bottom=0)
    error.set_title(f"{series.title}: tracking error (dotted: its mean)", loc="left")
    for column, (title, channels) in enumerate((("Commands", series.commands), ("Positions", series.positions))):
        for row, channel in enumerate(channels):
            axes = figure.add_subplot(grid[row + 1, column], sharex=error)
            _channel(axes, series.time, channel, PALETTE[0] if column == 0 else PALETTE[2])
            if row == 0:
                axes.set_title(f"{title} (dashed: limits)", loc="left")
            if row == len(channels) - 1:
                axes.set_xlabel("time (s)")
            else:
                axes.tick_params(labelbottom=False)
    if series.time.size > 1:
        error.set_xlim(series.time[0], series.time[-1])
    figure.align_ylabels()
    return figure


def _channel(axes: Axes, time: np.ndarray, channel: Channel, color: str) -> None:
    axes.plot(time, np.where(np.isfinite(channel.values), channel.values, np.nan), color=color, linewidth=1.3)
    for limit in (channel.low, channel.high):
        axes.axhline(limit, color=ALARM, linestyle="--", linewidth=1.0)
    room = 0.1 * (channel.high - channel.low)
    axes.set_ylim(channel.low - room, channel.high + room)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=(1, 2, 5, 10)))
    axes.set_ylabel(channel.name)


@styled
def coordinates(series: TimeSeries, unit: Unit = METRES) -> Figure:
    """Every coordinate of the tracked output over time, against its reference."""
    figure = Figure(figsize=(7.6, 0.8 + 1.35 * len(series.outputs)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(series.outputs), 1, sharex=True))
    for axes, output in zip(panels, series.outputs, strict=True):
        axes.plot(series.time, np.where(np.isfinite(output.values), output.values, np.nan), color=PALETTE[0])
        axes.plot(series.time, output.reference, **REFERENCE)
        axes.set_ylabel(f"{output.name} ({unit.name})" if "(" not in output.name else output.name)
    panels[0].set_title(f"{series.title}: every coordinate (dashed: reference)", loc="left")
    panels[-1].set_xlabel("time (s)")
    figure.align_ylabels()
    return figure


# Health.


@styled
def health(
    history: History, *, step_bound: float, steps_per_episode: int, trust_region: bool, cg_tolerance: float
) -> Figure:
    """Whether learning is sound: forecasts, closed loop, gradients and steps, what was refused, limits, chatter, time.

    `step_bound` is η/(2√ε); a run with a `trust_region` shows its radius, another how well each step was solved, and
    the bound.
    """
    figure = Figure(figsize=(7.6, 10.2), layout="constrained")
    axes = figure.subplots(5, 2)
    episodes = history.column("episode")

    def logarithmic(at: Axes, title: str, name: str, bound: float | None = None, bound_label: str = "") -> None:
        values = history.column(name)
        plot_log(at, episodes, values, color=PALETTE[0], **_dots(history))
        shown: list[np.ndarray | float] = [values]
        if bound is not None:
            at.axhline(bound, color=ALARM, linestyle="--", linewidth=1.2, label=bound_label)
            at.legend(loc="best")
            shown.append(bound)
        log_scale(at, shown)
        at.set_title(title, loc="left")

    def linear(at: Axes, title: str, values: np.ndarray, least: float = 1e-3, **style: Any) -> None:
        at.plot(episodes, values, color=PALETTE[0], **_dots(history), **style)
        at.set_title(title, loc="left")
        finite = values[np.isfinite(values)]
        if not finite.size:
            nothing(at)
        else:
            top = max(1.12 * float(finite.max()), least)
            at.set_ylim(-0.04 * top, top)  # a little below zero, so that dots at zero are whole

    def counts(at: Axes, title: str, values: np.ndarray) -> None:
        linear(at, title, values, drawstyle="steps-mid")
        if np.isfinite(values).any():
            top = max(at.get_ylim()[1], 1.2)
            at.set_ylim(-0.04 * top, top)
            at.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))

    overfits = OVERFITTING, "overfits, or machine changed"
    logarithmic(axes[0, 0], "Forecast error, new over old data", "forecast_error_ratio", *overfits)
    logarithmic(axes[0, 1], "Growth of a deviation per step", "closed_loop_growth", 1.0, "unstable above")
    logarithmic(axes[1, 0], "Gradient norm", "gradient_norm")
    # Where steps grow with the trust region, or are refined, η/(2√ε) bounds only the first of an episode.
    logarithmic(axes[1, 1], "Step norm", "step_norm", None if trust_region else step_bound, "bound η/(2√ε)")
    counts(axes[2, 0], "Policy steps taken", history.column("steps_taken"))
    counts(axes[2, 1], "Refused updates so far", history.column("refused_updates"))
    at_limit = 100 * history.column("limit_hits") / max(steps_per_episode, 1)
    linear(axes[3, 0], "Steps at a position limit (%)", at_limit, least=1.0)
    linear(axes[3, 1], "Change of command |Δu| per step", history.column("command_change"))
    robot_time = np.diff(history.column("robot_time_s"), prepend=0.0)
    share = 100 * history.column("update_time_s") / np.where(robot_time > 0, robot_time, np.nan)
    linear(axes[4, 0], "Computing time (% of robot time)", share)
    if trust_region:
        linear(axes[4, 1], "Trust-region radius (rms Δu)", history.column("radius"))
    else:
        logarithmic(axes[4, 1], "Residual of the step's solver", "cg_residual", cg_tolerance, "tolerance")
    for at in axes.flat:
        episode_axis(at, episodes)
    for at in axes[-1]:
        at.set_xlabel("episode")
    return figure
