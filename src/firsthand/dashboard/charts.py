"""What the charts of the page show, as options for ECharts: plain data, no NiceGUI, no text that is evaluated."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .follow import Motion, RunFollower

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, ALARM = "#333333", "#8A8A8A", "#D55E00"
MOST_POINTS = 400
"""Curves with more are thinned out, so that a phone can draw a run of thousands of episodes."""
MOST_MARKS = 12
"""So many of the newest events are marked in a chart."""
SHORT = "v => String(Number(v.toPrecision(3)))"
"""The one piece of script among the options, and a constant: 0.03125 as 0.0313."""
MOST_LABEL = 44
"""Characters of a name or a mark."""
MARKED = ("payload", "return", "restore", "fault")
"""Events that a curve is marked with."""


def thinned(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points of a curve: of each stretch its lowest and its highest, so that no spike is lost."""
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(x), most // 2 + 1).astype(int)
    chosen = set()
    for start, end in itertools.pairwise(edges):
        part = y[start:end]
        if np.isfinite(part).any():
            chosen |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
    index = np.asarray(sorted(chosen | {len(x) - 1}))
    return x[index], y[index]


def points(x: np.ndarray, y: np.ndarray, *, positive: bool = False) -> list[list[float | None]]:
    """[[x, y], …] for ECharts; what is not finite, or not positive where that is needed, becomes a gap."""
    x, y = thinned(np.asarray(x, float), np.asarray(y, float))
    good = np.isfinite(y) & ((y > 0) | (not positive))
    return [[_round(a), _round(b) if ok else None] for a, b, ok in zip(x, y, good, strict=True)]


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def logarithmic(name: str, values: Sequence[np.ndarray]) -> dict[str, Any]:
    """A logarithmic axis with ticks where people want them."""
    flat = np.concatenate([np.asarray(v, float).ravel() for v in values]) if len(values) else np.zeros(0)
    flat = flat[np.isfinite(flat) & (flat > 0)]
    axis: dict[str, Any] = {"type": "log", "name": name, **_axis()}
    if not len(flat):
        return axis | {"logBase": 10, "min": 1, "max": 10, "interval": 1}
    narrow = flat.max() / flat.min() < 30
    base = 2.0 if narrow else 10.0
    low = math.floor(math.log(flat.min(), base) + 1e-9)
    high = max(math.ceil(math.log(flat.max(), base) - 1e-9), low + 1)
    return axis | {"logBase": base, "min": base**low, "max": base**high, "interval": math.ceil((high - low) / 4)}


def linear(name: str, **more: Any) -> dict[str, Any]:
    """A linear axis."""
    return {"type": "value", "name": name, "scale": True, **_axis(), **more}


def _axis() -> dict[str, Any]:
    return {
        "nameTextStyle": {"color": INK, "align": "left"},
        "nameGap": 8,
        "axisLabel": {"color": INK, "hideOverlap": True, ":formatter": SHORT},
        "splitLine": {"lineStyle": {"color": "#E8E8E8"}},
        "splitNumber": 4,
    }


def episode_axis(most: float) -> dict[str, Any]:
    """Whole episodes."""
    return {
        "type": "value",
        "name": "episode",
        "nameLocation": "middle",
        "nameGap": 22,
        "min": 1 if most > 1 else 0,
        "max": most if most > 2 else 2,
        "minInterval": 1,
        "axisLabel": {"color": INK, "hideOverlap": True},
        "splitLine": {"show": False},
    }


def chart(x_axis: Mapping[str, Any], y_axis: Mapping[str, Any], series: list[dict[str, Any]], **more: Any) -> dict:
    """A chart. Tooltips are drawn on the canvas: a run's name can never become a tag."""
    return {
        "animation": False,
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 30, "containLabel": True},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
        "legend": {"show": False},
        "xAxis": dict(x_axis),
        "yAxis": dict(y_axis),
        "series": series,
        "textStyle": {"fontFamily": "inherit"},
        **more,
    }


LEGEND = {"show": True, "type": "scroll", "top": 0, "right": 0, "left": "34%", "itemWidth": 14, "itemHeight": 8}
"""To the right of the axis' name."""
STRIP_PX, FIRST_PX, PLOT_PX = 72, 22, 46
"""Height of a command channel's strip, where the first one begins, and of its plot."""


def line(name: str, data: list, color: str, *, dashed: bool = False, dots: bool = False, **more: Any) -> dict:
    """One curve."""
    return {
        "type": "line",
        "name": name,
        "data": data,
        "showSymbol": dots,
        "symbol": "circle",
        "symbolSize": 5,
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": 2, "type": "dashed" if dashed else "solid"},
        **more,
    }


def bound(value: float, label: str) -> dict[str, Any]:
    """A limit, as a dashed line across."""
    return {
        "silent": True,
        "symbol": "none",
        "data": [{"yAxis": _round(value), "name": label}],
        "label": {"formatter": label, "position": "insideEndTop", "color": ALARM, "fontSize": 10},
        "lineStyle": {"color": ALARM, "type": "dashed"},
    }


def marks(run: RunFollower) -> dict[str, Any]:
    """Vertical lines where something was changed."""
    together: dict[int, str] = {}
    for event in run.events:
        if event.kind in MARKED:
            before = together.get(event.episode)
            together[event.episode] = event.text if before is None else f"{before}, {event.text}"
    data = [
        {"xAxis": episode, "label": {"formatter": _plain(text), "color": INK, "fontSize": 10}}
        for episode, text in list(together.items())[-MOST_MARKS:]
    ]
    return {
        "silent": True,
        "symbol": "none",
        "data": data,
        "label": {"position": "insideEndTop"},
        "lineStyle": {"color": FAINT, "type": "dotted"},
    }


def _plain(text: str) -> str:
    """ECharts would fill in {a} and cut at {style|; people write neither."""
    text = text.replace("{", "(").replace("}", ")").replace("|", "/")
    return text if len(text) <= MOST_LABEL else text[: MOST_LABEL - 1] + "…"


def _few(run: RunFollower) -> bool:
    return run.episodes <= 40


def _most(runs: Mapping[str, RunFollower]) -> float:
    return max((run.last("episode") for run in runs.values() if run.episodes), default=1.0)


def colored(runs: Mapping[str, RunFollower], order: Sequence[str]) -> list[tuple[str, RunFollower, str]]:
    """Each run with its colour, which does not change when others are shown or hidden."""
    return [(name, runs[name], PALETTE[order.index(name) % len(PALETTE)]) for name in order if name in runs]


def error_chart(runs: Mapping[str, RunFollower], order: Sequence[str], main: str) -> dict[str, Any]:
    """Tracking error per episode of one run or several; marks are those of the main one."""
    series, shown, unit = [], [], None
    for name, run, color in colored(runs, order):
        if run.about is None:
            continue
        unit = run.about.unit if unit in (None, run.about.unit) else unit
        error = run.about.unit.factor * run.column("tracking_error")
        shown.append(error)
        data = points(run.column("episode"), error, positive=True)
        one = line(_plain(name), data, color, dots=_few(run))
        series.append({**one, "markLine": marks(run)} if name == main else one)
    label = f"tracking error ({unit.shown if unit is not None else ''})"
    legend = LEGEND if len(series) > 1 else {"show": False}
    return chart(episode_axis(_most(runs)), logarithmic(label, shown), series, legend=legend)


def loss_chart(runs: Mapping[str, RunFollower], order: Sequence[str], field: str, label: str) -> dict[str, Any]:
    """A loss on a logarithmic axis."""
    series, shown = [], []
    for name, run, color in colored(runs, order):
        values = run.column(field)
        shown.append(values)
        series.append(line(_plain(name), points(run.column("episode"), values, positive=True), color, dots=_few(run)))
    legend = LEGEND if len(series) > 1 else {"show": False}
    return chart(episode_axis(_most(runs)), logarithmic(label, shown), series, legend=legend)


def prediction_chart(run: RunFollower) -> dict[str, Any]:
    """The model on the newest episode, before it learned from it, against its loss on the buffer."""
    x = run.column("episode")
    newest, loss = run.column("prediction_error"), run.column("model_loss")
    series = [
        line("newest episode", points(x, newest, positive=True), PALETTE[1], dots=_few(run)),
        line("buffer", points(x, loss, positive=True), PALETTE[0], dots=_few(run)),
    ]
    return chart(episode_axis(run.last("episode")), logarithmic("error", [newest, loss]), series, legend=LEGEND)


def growth_chart(run: RunFollower) -> dict[str, Any]:
    """Growth of a deviation per step; above one the model believes the loop unstable."""
    data = points(run.column("episode"), run.column("closed_loop_growth"))
    values = [y for _, y in data if y is not None]
    low, high = math.floor(20 * min([0.9, *values])) / 20, math.ceil(20 * max([1.1, *values])) / 20
    one = line("growth", data, PALETTE[0], dots=_few(run), markLine=bound(1.0, "above: unstable"))
    one["markLine"]["label"]["position"] = "insideEndBottom"
    axis = linear("growth per step", min=low, max=high)
    return chart(episode_axis(run.last("episode")), axis, [one])


def gradient_chart(run: RunFollower) -> dict[str, Any]:
    """Norm of the policy gradient."""
    values = run.column("gradient_norm")
    one = line("gradient norm", points(run.column("episode"), values, positive=True), PALETTE[0], dots=_few(run))
    return chart(episode_axis(run.last("episode")), logarithmic("gradient norm", [values]), [one])


def step_chart(run: RunFollower) -> dict[str, Any]:
    """Length of the policy step against its bound."""
    values, most = run.column("step_norm"), run.about.step_bound if run.about is not None else 1.0
    one = line("step norm", points(run.column("episode"), values, positive=True), PALETTE[0], dots=_few(run))
    one["markLine"] = bound(most, "η/(2√ε): bound at pace 1")
    return chart(episode_axis(run.last("episode")), logarithmic("step norm", [values, np.asarray([most])]), [one])


def command_chart(run: RunFollower, motion: Motion | None) -> dict[str, Any]:
    """Commands over time, a strip per channel with its limits; dots where the safety gate changed the command."""
    if run.about is None or motion is None:
        return {"series": [], "xAxis": [], "yAxis": [], "grid": []}
    spec = run.about.spec
    names, low, high = spec.layout.commands, spec.limits.command_low, spec.limits.command_high
    count = len(names)
    grids, xs, ys, series = [], [], [], []
    time = motion.period_s * np.arange(len(motion.commands))
    for i, name in enumerate(names):
        room = 0.06 * (high[i] - low[i])
        grids.append({"left": 46, "right": 16, "top": FIRST_PX + STRIP_PX * i, "height": PLOT_PX})
        last = {"show": i == count - 1}
        xs.append(
            {"type": "value", "gridIndex": i, "min": 0, "max": _round(motion.period_s * len(time))}
            | {"axisLabel": {**last, "formatter": "{value} s", "color": INK, "hideOverlap": True}}
            | {"splitLine": {"show": False}, "axisTick": last, "axisLine": {"onZero": False}}
        )
        ys.append(
            {"type": "value", "gridIndex": i, "min": _round(low[i] - room), "max": _round(high[i] + room)}
            | {"name": _plain(name.replace(".", " ")), "nameTextStyle": {"color": INK, "align": "left"}, "nameGap": 4}
            | {"splitNumber": 2, "splitLine": {"show": False}}
            | {"axisLabel": {"showMinLabel": False, "showMaxLabel": False, "color": INK}}
        )
        one = line(_plain(name), points(time, motion.commands[:, i]), PALETTE[0], xAxisIndex=i, yAxisIndex=i)
        one["lineStyle"]["width"] = 1.5
        one["markLine"] = {
            "silent": True,
            "symbol": "none",
            "label": {"show": False},
            "lineStyle": {"color": ALARM, "type": "dashed"},
            "data": [{"yAxis": low[i]}, {"yAxis": high[i]}],
        }
        gated = ~motion.free[:, i]
        held = points(time[gated], motion.commands[gated, i]) if gated.any() else []
        dots = {"type": "scatter", "name": "gate", "data": held, "symbolSize": 4, "itemStyle": {"color": ALARM}}
        series += [one, dots | {"xAxisIndex": i, "yAxisIndex": i}]
    return {
        "animation": False,
        "grid": grids,
        "xAxis": xs,
        "yAxis": ys,
        "series": series,
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
        "textStyle": {"fontFamily": "inherit"},
    }


def command_height(run: RunFollower) -> int:
    """Of the command chart, in pixels."""
    channels = 1 if run.about is None else len(run.about.spec.layout.commands)
    return FIRST_PX + STRIP_PX * channels + 10


def drawing(run: RunFollower, motion: Motion | None) -> dict[str, Any] | None:
    """What the animated drawing shows: rounded to what can be seen."""
    if run.about is None or motion is None:
        return None
    from ..drawing import axis_labels

    labels = axis_labels(run.about.spec, run.about.unit.name)
    finite = np.nan_to_num  # a sensor that fails leaves a gap in the data, not in the page
    return {
        "reference": np.round(finite(motion.reference), 4).tolist(),
        "actual": np.round(finite(motion.actual), 4).tolist(),
        "body": None if motion.body is None else np.round(finite(motion.body), 4).tolist(),
        "period": motion.period_s,
        "labels": list(labels),
        "equal": motion.body is not None or run.about.spec.num_outputs > 1,
        "key": f"{motion.episode}.{motion.trajectory}",
    }
