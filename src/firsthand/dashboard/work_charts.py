"""The curves of a work session over its blocks: error by conditions, and authority. Options for ECharts."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..units import Unit
from .echarts import FAINT, INK, PALETTE, chart, line, linear_axis, logarithmic_axis, points, vertical_marks
from .work import WorkFollower

SYMBOLS = ("circle", "rect", "triangle", "diamond")
"""Conditions beyond the number of colours have another symbol."""
MARKED_EVENTS = {
    "session": "session",
    "take_back": "base alone",
    "give_back": "learned part too",
    "policy": "policy taken back",
}
"""Kinds of events that the error is marked with, and the mark."""
MAX_MARKS = 12
"""Only the newest events are marked."""
LONG_MIN = 180.0
"""More minutes of work than this are shown as hours."""


def work_error_chart(work: WorkFollower, unit: Unit | None) -> dict[str, Any]:
    """Tracking error of each block, in the colour of its conditions."""
    name, factor = ("", 1.0) if unit is None else (f" ({unit.shown})", unit.factor)
    time, errors = _time(work), factor * work.blocks.column("error")
    contexts, true = work.blocks.column("context"), factor * work.blocks.column("true_error")
    series = [line("all", points(time, errors, positive=True), FAINT, width=1)]
    for number in np.unique(contexts[np.isfinite(contexts)]).astype(int):
        here = contexts == number
        found = points(time[here], errors[here], positive=True)
        color, symbol = PALETTE[number % len(PALETTE)], SYMBOLS[number // len(PALETTE) % len(SYMBOLS)]
        dots = line(f"conditions {number}", found, color, dots=True, width=0, symbol=symbol)
        series.append(dots)
    if np.isfinite(true).any():
        series.append(line("true error", points(time, true, positive=True), INK, width=1))
    series[0]["markLine"] = vertical_marks(_marks(work))
    return chart(_time_axis(work), logarithmic_axis(f"error{name}", [errors, true]), series, legend=True)


def authority_chart(work: WorkFollower) -> dict[str, Any]:
    """The share of the command range that the learned part had over its base; 0 where the base was alone."""
    authority = 100 * work.blocks.column("authority")
    curve = line("authority", points(_time(work), authority), PALETTE[0], step="middle")
    return chart(_time_axis(work), linear_axis("authority (%)", min=0, max=100), [curve])


def _scale(work: WorkFollower) -> tuple[float, str]:
    """Of a block's length, and the unit."""
    block_min = (math.nan if work.info is None else work.info.block_s) / 60
    last = work.blocks.last("block")
    return (block_min / 60, "hours of work") if block_min * last > LONG_MIN else (block_min, "minutes of work")


def _time(work: WorkFollower) -> np.ndarray:
    return _scale(work)[0] * work.blocks.column("block")


def _time_axis(work: WorkFollower) -> dict[str, Any]:
    name = _scale(work)[1]
    style = {"axisLabel": {"color": INK, "hideOverlap": True}, "splitLine": {"show": False}}
    return {"type": "value", "name": name, "nameLocation": "middle", "nameGap": 22, "min": 0, **style}


def _marks(work: WorkFollower) -> Mapping[float, str]:
    scale = _scale(work)[0]
    marked = [event for event in work.control.events if event.kind in MARKED_EVENTS][-MAX_MARKS:]
    return {scale * event.episode: MARKED_EVENTS[event.kind] for event in marked if math.isfinite(scale)}
