"""Building blocks of charts as options for ECharts: plain data, no NiceGUI, no text that is evaluated."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, ALARM = "#333333", "#8A8A8A", "#D55E00"
MAX_POINTS = 400
"""Curves with more points are thinned out, so that a phone can draw a run of thousands of episodes."""
MAX_LABEL = 44
"""Characters of a name or a mark."""
THREE_DIGITS = "v => String(Number(v.toPrecision(3)))"
"""The one piece of script among the options, and a constant: 0.03125 as 0.0313."""
TOOLTIP = {"trigger": "axis", "renderMode": "richText", "confine": True}
"""Drawn on the canvas: a run's name can never become a tag."""
TEXT_STYLE = {"fontFamily": "inherit"}
LEGEND = {"show": True, "type": "scroll", "top": 0, "right": 0, "left": "34%", "itemWidth": 14, "itemHeight": 8}
"""To the right of the axis' name."""


def thin_curve(x: np.ndarray, y: np.ndarray, max_points: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """About `max_points` points of a curve: of each stretch its lowest and its highest, so that no spike is lost."""
    if len(x) <= max_points:
        return x, y
    edges = np.linspace(0, len(x), max_points // 2 + 1).astype(int)
    chosen = set()
    for start, end in itertools.pairwise(edges):
        part = y[start:end]
        if np.isfinite(part).any():
            chosen |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
    index = np.asarray(sorted(chosen | {len(x) - 1}))
    return x[index], y[index]


def points(x: np.ndarray, y: np.ndarray, *, positive: bool = False) -> list[list[float | None]]:
    """[[x, y], …] for ECharts; what is not finite, or not positive where that is needed, becomes a gap."""
    x, y = thin_curve(np.asarray(x, float), np.asarray(y, float))
    good = np.isfinite(y) & ((y > 0) | (not positive))
    return [[round_value(a), round_value(b) if ok else None] for a, b, ok in zip(x, y, good, strict=True)]


def round_value(value: float) -> float:
    """Five digits, which is more than can be seen."""
    return float(f"{value:.5g}")


def plain_label(text: str) -> str:
    """A short label without ECharts' own markup: it would fill in {a} and cut at {style|."""
    text = text.replace("{", "(").replace("}", ")").replace("|", "/")
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def logarithmic_axis(name: str, values: Sequence[np.ndarray]) -> dict[str, Any]:
    """A logarithmic axis with ticks where people want them."""
    flat = np.concatenate([np.asarray(v, float).ravel() for v in values]) if len(values) else np.zeros(0)
    flat = flat[np.isfinite(flat) & (flat > 0)]
    axis: dict[str, Any] = {"type": "log", "name": name, **_axis_style()}
    if not len(flat):
        return axis | {"logBase": 10, "min": 1, "max": 10, "interval": 1}
    narrow = flat.max() / flat.min() < 30
    base = 2.0 if narrow else 10.0
    low = math.floor(math.log(flat.min(), base) + 1e-9)
    high = max(math.ceil(math.log(flat.max(), base) - 1e-9), low + 1)
    return axis | {"logBase": base, "min": base**low, "max": base**high, "interval": math.ceil((high - low) / 4)}


def linear_axis(name: str, **more: Any) -> dict[str, Any]:
    """A linear axis."""
    return {"type": "value", "name": name, "scale": True, **_axis_style(), **more}


def _axis_style() -> dict[str, Any]:
    return {
        "nameTextStyle": {"color": INK, "align": "left"},
        "nameGap": 8,
        "axisLabel": {"color": INK, "hideOverlap": True, ":formatter": THREE_DIGITS},
        "splitLine": {"lineStyle": {"color": "#E8E8E8"}},
        "splitNumber": 4,
    }


def episode_axis(last: float) -> dict[str, Any]:
    """Whole episodes, up to the last one."""
    return {
        "type": "value",
        "name": "episode",
        "nameLocation": "middle",
        "nameGap": 22,
        "min": 1 if last > 1 else 0,
        "max": last if last > 2 else 2,
        "minInterval": 1,
        "axisLabel": {"color": INK, "hideOverlap": True},
        "splitLine": {"show": False},
    }


def chart(
    x_axis: Mapping[str, Any], y_axis: Mapping[str, Any], series: list[dict[str, Any]], *, legend: bool = False
) -> dict[str, Any]:
    """One plot with its axes and curves."""
    return {
        "animation": False,
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 30, "containLabel": True},
        "tooltip": TOOLTIP,
        "legend": LEGEND if legend else {"show": False},
        "xAxis": dict(x_axis),
        "yAxis": dict(y_axis),
        "series": series,
        "textStyle": TEXT_STYLE,
    }


def line(name: str, data: list, color: str, *, dots: bool = False, width: float = 2, **more: Any) -> dict[str, Any]:
    """One curve."""
    return {
        "type": "line",
        "name": name,
        "data": data,
        "showSymbol": dots,
        "symbol": "circle",
        "symbolSize": 5,
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": width, "type": "solid"},
        **more,
    }


def horizontal_marks(values: Sequence[float], label: Mapping[str, Any]) -> dict[str, Any]:
    """Limits, as dashed lines across."""
    return {
        "silent": True,
        "symbol": "none",
        "data": [{"yAxis": round_value(value)} for value in values],
        "label": dict(label),
        "lineStyle": {"color": ALARM, "type": "dashed"},
    }


def vertical_marks(texts: Mapping[int, str] | Mapping[float, str]) -> dict[str, Any]:
    """Dotted lines at values of x, with a text each."""
    return {
        "silent": True,
        "symbol": "none",
        "data": [
            {"xAxis": x, "label": {"formatter": plain_label(text), "color": INK, "fontSize": 10}}
            for x, text in texts.items()
        ],
        "label": {"position": "insideEndTop"},
        "lineStyle": {"color": FAINT, "type": "dotted"},
    }
