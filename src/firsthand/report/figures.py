"""The figures: functions from plain data to a matplotlib `Figure`, which no global state knows.

`learning_curves` and `path_grid` take several runs as well as one, so that a comparison draws with the same functions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .data import Channel, History, PathAxes, PathPanel, TimeSeries, finite_mean, running_mean
from .style import ALARM, INK, PALETTE, REFERENCE, episode_axis, log_scale, nothing, plot_log, styled

FEW = 30
"""A run with at most so many episodes shows each as a dot."""


# Learning curves.


@styled
def learning_curves(
    histories: Sequence[History], *, oracle_error_m: float | None = None, unit_cm: float = 100.0
) -> Figure:
    """Tracking error, controller loss, and how well the model predicts, over the episodes of one run or several.

    `oracle_error_m` is drawn as a dashed line where it is known.
    """
    figure = Figure(figsize=(6.6, 8.4))
    error, controller, model = figure.subplots(3, 1, gridspec_kw={"height_ratios": (1.25, 1.0, 1.0)})
    episodes = np.concatenate([h.column("episode") for h in histories])
    shown: list[np.ndarray | float] = []
    for history, color in _colored(histories):
        x, y = history.column("episode"), unit_cm * history.column("tracking_error_m")
        plot_log(error, x, y, color=color, alpha=0.45, linewidth=1.0, **_dots(history))
        mean = "mean of 10 episodes" if len(histories) == 1 else history.label
        plot_log(error, x, running_mean(y), color=color, linewidth=2.2, label=mean)
        shown.append(y)
    if len(histories) == 1:
        error.lines[0].set_label("one episode")
    if oracle_error_m is not None and np.isfinite(oracle_error_m):
        error.axhline(unit_cm * oracle_error_m, color=INK, linestyle="--", linewidth=1.2, label="oracle: best possible")
        shown.append(unit_cm * oracle_error_m)
    _finish(error, shown, episodes, "tracking error (cm)")
    error.legend(loc="best")
    _robot_time(error, histories)

    shown = []
    for history, color in _colored(histories):
        y = history.column("controller_loss")
        plot_log(controller, history.column("episode"), y, color=color, label=history.label, **_dots(history))
        shown.append(y)
    _finish(controller, shown, episodes, "controller loss (m²)")
    if len(histories) > 1:
        controller.legend(loc="best")

    shown = []
    for history, color in _colored(histories):
        x, loss, novel = (history.column(name) for name in ("episode", "model_loss", "prediction_error"))
        label = "" if len(histories) == 1 else f"{history.label}: "
        other = PALETTE[1] if len(histories) == 1 else color
        plot_log(model, x, loss, color=color, label=f"{label}model loss, on what it learned from", **_dots(history))
        text = f"{label}error on the newest episode, before learning from it"
        plot_log(model, x, novel, color=other, linestyle=(0, (3, 1.5)), label=text, **_dots(history))
        shown += [loss, novel]
    _finish(model, shown, episodes, "model loss (of 1)")
    model.set_xlabel("episode")
    model.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)
    return figure


def _colored(histories: Sequence[History]) -> list[tuple[History, str]]:
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
    top = axes.secondary_xaxis("top", functions=(lambda episode: episode * minutes, lambda time: time / minutes))
    top.set_xlabel("robot time (min)")
    top.spines["top"].set_visible(False)


# Paths.


@styled
def path_grid(rows: Sequence[Sequence[PathPanel]], path_axes: PathAxes) -> Figure:
    """Paths (solid) against their references (dashed), one panel each. The panels of a row share their limits."""
    across = max(len(row) for row in rows)
    limits = [_limits(row, path_axes.equal) for row in rows]
    width = 2.75 * across + 0.5 if across > 1 else 4.6
    heights = [_height(box, path_axes.equal) for box in limits]
    per_panel = (width - 0.5) / across
    figure = Figure(figsize=(width, per_panel * 0.9 * sum(heights) + 0.62 * len(rows) + 0.7))
    grid = figure.subplots(len(rows), across, squeeze=False, gridspec_kw={"height_ratios": heights})
    for i, row in enumerate(rows):
        for j, axes in enumerate(grid[i]):
            if j >= len(row):
                axes.set_axis_off()
                continue
            _paths(axes, row[j], limits[i])
            if path_axes.equal:
                axes.set_aspect("equal", adjustable="box")
            axes.tick_params(labelleft=j == 0)
            if j == 0:
                axes.set_ylabel(path_axes.labels[1])
            if i == len(rows) - 1:
                axes.set_xlabel(path_axes.labels[0])
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def _paths(axes: Axes, panel: PathPanel, limits: np.ndarray) -> None:
    for i, (reference, path) in enumerate(panel.pairs):
        axes.plot(*path.T, color=PALETTE[0], linewidth=1.5, label=None if i else "what the robot did")
        axes.plot(*reference.T, **REFERENCE, label=None if i else "reference")
        style = {"color": INK, "marker": "o", "markersize": 3.5, "linestyle": "none"}
        axes.plot(*reference[:1].T, **style, label=None if i else "start")
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=(1, 2, 5, 10)))
    error = f"mean error {100 * panel.error_m:.1f} cm" if np.isfinite(panel.error_m) else "error not finite"
    axes.set_title(f"{panel.title}\n{error}", loc="left", linespacing=1.25)
    if _leaves(panel, limits):
        axes.text(0.98, 0.02, "leaves the picture", transform=axes.transAxes, ha="right", va="bottom", color=ALARM)


def _limits(row: Sequence[PathPanel], equal: bool) -> np.ndarray:
    """((left, right), (low, high)) that shows every reference of the row, and the paths as far as is sensible.

    A policy that has not learned yet may swing far away; the reference must stay large enough to be seen, so the
    picture ends at most 60 % of the reference's size beyond it.
    """
    reference = _bounds([reference for panel in row for reference, _ in panel.pairs])
    paths = _bounds([path for panel in row for _, path in panel.pairs])
    size = np.maximum(reference[:, 1] - reference[:, 0], 1e-3)
    most = 0.6 * (np.full(2, size.max()) if equal else size)
    least = 0.06 * (np.full(2, size.max()) if equal else np.maximum(size, 1e-2))
    low = np.clip(paths[:, 0] - least, reference[:, 0] - most, reference[:, 0] - least)
    high = np.clip(paths[:, 1] + least, reference[:, 1] + least, reference[:, 1] + most)
    if equal and (high - low)[1] < 0.45 * (high - low)[0]:  # a line needs some height to be looked at
        middle, half = (low[1] + high[1]) / 2, 0.225 * (high - low)[0]
        low[1], high[1] = middle - half, middle + half
    return np.stack([low, high], axis=1)


def _bounds(points: Sequence[np.ndarray]) -> np.ndarray:
    """((left, right), (low, high)) of what is finite."""
    flat = np.concatenate(points)
    flat = flat[np.isfinite(flat).all(axis=1)]
    if not len(flat):
        return np.asarray([[0.0, 1.0], [0.0, 1.0]])
    return np.stack([flat.min(axis=0), flat.max(axis=0)], axis=1)


def _height(limits: np.ndarray, equal: bool) -> float:
    """Height of a panel over its width."""
    width, height = limits[:, 1] - limits[:, 0]
    return float(np.clip(height / width, 0.3, 2.0)) if equal else 0.75


def _leaves(panel: PathPanel, limits: np.ndarray) -> bool:
    path = np.concatenate([path for _, path in panel.pairs])
    path = path[np.isfinite(path).all(axis=1)]
    return bool(((path < limits[:, 0]) | (path > limits[:, 1])).any())


# One trajectory over time.


@styled
def time_series(series: TimeSeries) -> Figure:
    """Error, commands and joint positions of one trajectory, with the limits of commands and joints."""
    rows = max(len(series.commands), len(series.positions))
    figure = Figure(figsize=(7.6, 2.0 + 1.35 * rows + 0.4))
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=[1.35, *([1.0] * rows)])
    error = figure.add_subplot(grid[0, :])
    error.plot(series.time, 100 * np.where(np.isfinite(series.error_m), series.error_m, np.nan), color=PALETTE[0])
    error.axhline(100 * finite_mean(series.error_m), color=INK, linewidth=1.0, linestyle=":", label="mean")
    error.legend(loc="upper right")
    error.set_ylabel("error (cm)")
    error.set_ylim(bottom=0)
    error.set_title(f"{series.title}: tracking error", loc="left")
    for column, (title, channels) in enumerate((("Commands", series.commands), ("Joint positions", series.positions))):
        for row, channel in enumerate(channels):
            axes = figure.add_subplot(grid[row + 1, column], sharex=error)
            _channel(axes, series.time, channel, PALETTE[0] if column == 0 else PALETTE[2])
            if row == 0:
                axes.set_title(f"{title} (dashed: limits)", loc="left")
            if row == len(channels) - 1:
                axes.set_xlabel("time (s)")
            else:
                axes.tick_params(labelbottom=False)
    error.tick_params(labelbottom=False)
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


# Health.


@styled
def health(history: History, *, step_bound: float, steps_per_episode: int, trust_region: bool, cg_tolerance: float):
    """Whether learning is sound: size of gradients and steps, what was refused, limits, chatter, time.

    `step_bound` is η/(2√ε); a run with a `trust_region` shows its radius, another how well each step was solved.
    """
    figure = Figure(figsize=(7.6, 8.2))
    axes = figure.subplots(4, 2)
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

    def linear(at: Axes, title: str, values: np.ndarray, **style: Any) -> None:
        at.plot(episodes, values, color=PALETTE[0], **_dots(history), **style)
        at.set_title(title, loc="left")
        finite = values[np.isfinite(values)]
        if not finite.size:
            nothing(at)
        else:
            at.set_ylim(0, max(1.12 * float(finite.max()), 1e-3))

    def counts(at: Axes, title: str, values: np.ndarray) -> None:
        linear(at, title, values, drawstyle="steps-mid")
        if np.isfinite(values).any():
            at.set_ylim(0, max(at.get_ylim()[1], 1.2))
            at.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))

    logarithmic(axes[0, 0], "Gradient norm", "gradient_norm")
    logarithmic(axes[0, 1], "Step norm", "step_norm", step_bound, "bound η/(2√ε)")
    counts(axes[1, 0], "Policy steps taken", history.column("policy_steps"))
    counts(axes[1, 1], "Refused updates so far", history.column("refused_updates"))
    linear(axes[2, 0], "Steps at a joint limit (%)", 100 * history.column("limit_hits") / max(steps_per_episode, 1))
    linear(axes[2, 1], "Change of command |Δu| per step", history.column("command_change"))
    robot_time = np.diff(history.column("robot_time_s"), prepend=0.0)
    share = 100 * history.column("update_time_s") / np.where(robot_time > 0, robot_time, np.nan)
    linear(axes[3, 0], "Computing time (% of robot time)", share)
    if trust_region:
        linear(axes[3, 1], "Trust-region radius (rms Δu)", history.column("radius"))
    else:
        logarithmic(axes[3, 1], "Residual of the step's solver", "cg_residual", cg_tolerance, "tolerance")
    for at in axes.flat:
        episode_axis(at, episodes)
    for at in axes[-1]:
        at.set_xlabel("episode")
    return figure


