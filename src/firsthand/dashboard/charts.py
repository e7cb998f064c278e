"""The curves over episodes: error, losses and the health of the model. Options for ECharts, made from followed runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..advice import LASTING, OVERFITTING
from ..units import TRACKING
from .echarts import (
    ALARM,
    INK,
    PALETTE,
    chart,
    episode_axis,
    horizontal_marks,
    line,
    linear_axis,
    logarithmic_axis,
    plain_label,
    points,
    vertical_marks,
)
from .follower import RunFollower

MARKED_EVENTS = ("payload", "return", "restore", "fault")
"""Kinds of events that a curve is marked with."""
MAX_MARKS = 12
"""Only the newest events are marked in a chart."""
MAX_DOTS = 40
"""Curves of more episodes are drawn without a dot for each."""


def event_marks(run: RunFollower) -> dict[str, Any]:
    """Vertical lines where something was changed."""
    texts: dict[int, str] = {}
    for event in run.events:
        if event.kind in MARKED_EVENTS:
            earlier = texts.get(event.episode)
            texts[event.episode] = event.text if earlier is None else f"{earlier}, {event.text}"
    return vertical_marks(dict(list(texts.items())[-MAX_MARKS:]))


def error_chart(runs: Mapping[str, RunFollower], order: Sequence[str], main: str) -> dict[str, Any]:
    """Tracking error per episode of one run or several, with the marks of the main one.

    `order` are the names of all runs: a run's colour does not change when others are shown or hidden.
    """
    known = {name: run for name, run in runs.items() if run.info is not None}
    scores = {name: run.info.score for name, run in known.items() if run.info is not None}
    first = scores.get(main) or next((scores[name] for name in order if name in scores), TRACKING)
    known = {name: run for name, run in known.items() if scores[name].key == first.key}  # others do not compare
    factors = {name: scores[name].unit.factor for name in known}
    tracks = first.key == TRACKING.key and main in known
    floor = "noise_floor" if tracks and np.isfinite(known[main].metrics.column("noise_floor")).any() else ""
    return _compare_runs(known, order, first.key, first.label, factors=factors, marked=main, floor=floor)


def loss_chart(runs: Mapping[str, RunFollower], order: Sequence[str], field: str, label: str) -> dict[str, Any]:
    """A loss of one run or several on a logarithmic axis."""
    return _compare_runs(runs, order, field, label)


def _compare_runs(
    runs: Mapping[str, RunFollower],
    order: Sequence[str],
    field: str,
    label: str,
    *,
    factors: Mapping[str, float] | None = None,
    marked: str | None = None,
    floor: str = "",
) -> dict[str, Any]:
    """One field of several runs, times each run's factor; the events of the run `marked` are marked.

    With `floor`, that field of the run `marked` is drawn beside it.
    """
    series, values, factors = [], [], factors or {}
    for index, name in enumerate(order):
        if name in runs:
            column = factors.get(name, 1.0) * runs[name].metrics.column(field)
            values.append(column)
            curve = _curve(runs[name], plain_label(name), column, PALETTE[index % len(PALETTE)])
            series.append({**curve, "markLine": event_marks(runs[name])} if name == marked else curve)
            if floor and name == marked:
                lowest = factors.get(name, 1.0) * runs[name].metrics.column(floor)
                series.append(_curve(runs[name], "noise floor", lowest, INK))
    last = max((run.metrics.last("episode") for run in runs.values() if run.metrics.episodes), default=1.0)
    return chart(episode_axis(last), logarithmic_axis(label, values), series, legend=len(series) > 1)


def prediction_chart(run: RunFollower) -> dict[str, Any]:
    """The model's loss on the newest episode, before it learned from it, against that on the buffer."""
    newest, loss = run.metrics.column("held_out_loss"), run.metrics.column("model_loss")
    if not np.isfinite(newest).any():  # trained on one-step predictions, or by an earlier version
        newest = run.metrics.column("prediction_error")
    series = [_curve(run, "newest episode", newest, PALETTE[1]), _curve(run, "buffer", loss, PALETTE[0])]
    return chart(_episodes(run), logarithmic_axis("error", [newest, loss]), series, legend=True)


def novelty_chart(run: RunFollower) -> dict[str, Any]:
    """Errors on the newest episode over those on the data that the model learned from; `worst` is the worst channel."""
    fields = (
        ("forecast", "forecast_error_ratio"),
        ("one step", "one_step_error_ratio"),
        ("worst", "innovation_size"),
    )
    columns = [run.metrics.column(field) for _, field in fields]
    series = [_curve(run, name, run.metrics.column(field), PALETTE[i]) for i, (name, field) in enumerate(fields)]
    series[0]["markLine"] = horizontal_marks(
        [OVERFITTING], _bound_label("above: overfits, or changed", "insideStartTop")
    )
    shown = [*columns, np.asarray([0.5, OVERFITTING])]
    return chart(_episodes(run), logarithmic_axis("new over old", shown), series, legend=True)


def correlation_chart(run: RunFollower) -> dict[str, Any]:
    """Autocorrelation of the innovations; zero where they are white."""
    curve = _curve(run, "correlation", run.metrics.column("innovation_correlation"), PALETTE[0], positive=False)
    curve["markLine"] = horizontal_marks([LASTING], _bound_label("above: errors last", "insideEndBottom"))
    return chart(_episodes(run), linear_axis("correlation", min=-1.0, max=1.0), [curve])


def growth_chart(run: RunFollower) -> dict[str, Any]:
    """Growth of a deviation per step; above one the model believes the loop unstable."""
    curve = _curve(run, "growth", run.metrics.column("closed_loop_growth"), PALETTE[0], positive=False)
    values = [y for _, y in curve["data"] if y is not None]
    low, high = math.floor(20 * min([0.9, *values])) / 20, math.ceil(20 * max([1.1, *values])) / 20
    curve["markLine"] = horizontal_marks([1.0], _bound_label("above: unstable", "insideEndBottom"))
    return chart(_episodes(run), linear_axis("growth per step", min=low, max=high), [curve])


def gradient_chart(run: RunFollower) -> dict[str, Any]:
    """Norm of the policy gradient."""
    values = run.metrics.column("gradient_norm")
    curve = _curve(run, "gradient norm", values, PALETTE[0])
    return chart(_episodes(run), logarithmic_axis("gradient norm", [values]), [curve])


def step_chart(run: RunFollower) -> dict[str, Any]:
    """Length of the policy step against its bound."""
    values, bound = run.metrics.column("step_norm"), run.info.step_bound if run.info is not None else 1.0
    curve = _curve(run, "step norm", values, PALETTE[0])
    curve["markLine"] = horizontal_marks([bound], _bound_label("η/(2√ε): bound at pace 1", "insideEndTop"))
    return chart(_episodes(run), logarithmic_axis("step norm", [values, np.asarray([bound])]), [curve])


def _curve(run: RunFollower, name: str, values: np.ndarray, color: str, *, positive: bool = True) -> dict[str, Any]:
    data = points(run.metrics.column("episode"), values, positive=positive)
    return line(name, data, color, dots=run.metrics.episodes <= MAX_DOTS)


def _episodes(run: RunFollower) -> dict[str, Any]:
    return episode_axis(run.metrics.last("episode"))


def _bound_label(text: str, position: str) -> dict[str, Any]:
    return {"formatter": text, "position": position, "color": ALARM, "fontSize": 10}
