"""One trajectory: its commands over time as options for ECharts, and the data of the animated drawing."""

from typing import Any

import numpy as np

from ..drawing import axis_labels, output_names
from .echarts import ALARM, INK, PALETTE, TEXT_STYLE, TOOLTIP, horizontal_marks, line, plain_label, points, round_value
from .motion import Motion
from .run_info import RunInfo

STRIP_PX, FIRST_PX, PLOT_PX = 72, 22, 46
"""Height of a command channel's strip, where the first one begins, and height of the plot in it."""


def command_chart(info: RunInfo | None, motion: Motion | None) -> dict[str, Any]:
    """Commands over time, a strip per channel with its limits; dots where the safety gate changed the command."""
    if info is None or motion is None:
        return {"series": [], "xAxis": [], "yAxis": [], "grid": []}
    channels = range(len(info.spec.layout.commands))
    return {
        "animation": False,
        "grid": [{"left": 46, "right": 16, "top": FIRST_PX + STRIP_PX * i, "height": PLOT_PX} for i in channels],
        "xAxis": [_time_axis(motion, i, last=i == channels[-1]) for i in channels],
        "yAxis": [_command_axis(info, i) for i in channels],
        "series": [series for i in channels for series in _command_series(info, motion, i)],
        "tooltip": TOOLTIP,
        "textStyle": TEXT_STYLE,
    }


def command_chart_height(info: RunInfo | None) -> int:
    """Height of the command chart in pixels."""
    channels = 1 if info is None else len(info.spec.layout.commands)
    return FIRST_PX + STRIP_PX * channels + 10


PLANE = 2
"""Coordinates that the drawing can show."""


def coordinate_chart(info: RunInfo | None, motion: Motion | None) -> dict[str, Any]:
    """Every coordinate of the tracked output over time, a strip each; empty where the drawing shows all of them."""
    if info is None or motion is None or info.spec.num_outputs <= PLANE:
        return {"series": [], "xAxis": [], "yAxis": [], "grid": []}
    names = output_names(info.spec)
    channels = range(len(names))
    time = motion.period_s * np.arange(len(motion.outputs))
    series = []
    for i in channels:
        axes: dict[str, Any] = {"xAxisIndex": i, "yAxisIndex": i}
        series.append(line(plain_label(names[i]), points(time, motion.outputs[:, i]), PALETTE[0], width=1.5, **axes))
        wanted = line("reference", points(time, motion.wanted[:, i]), INK, width=1.2, **axes)
        series.append({**wanted, "lineStyle": {"type": "dashed", "width": 1.2, "color": INK}})
    return {
        "animation": False,
        "grid": [{"left": 46, "right": 16, "top": FIRST_PX + STRIP_PX * i, "height": PLOT_PX} for i in channels],
        "xAxis": [_time_axis(motion, i, last=i == channels[-1]) for i in channels],
        "yAxis": [
            {
                "type": "value",
                "gridIndex": i,
                "scale": True,
                "name": plain_label(names[i]),
                "nameTextStyle": {"color": INK, "align": "left"},
                "nameGap": 4,
                "splitNumber": 2,
                "splitLine": {"show": False},
                "axisLabel": {"color": INK},
            }
            for i in channels
        ],
        "series": series,
        "tooltip": TOOLTIP,
        "textStyle": TEXT_STYLE,
    }


def coordinate_chart_height(info: RunInfo | None) -> int:
    """Height of the chart of coordinates in pixels; 0 where there is none."""
    if info is None or info.spec.num_outputs <= PLANE:
        return 0
    return FIRST_PX + STRIP_PX * info.spec.num_outputs + 10


def _time_axis(motion: Motion, channel: int, *, last: bool) -> dict[str, Any]:
    return {
        "type": "value",
        "gridIndex": channel,
        "min": 0,
        "max": round_value(motion.period_s * len(motion.commands)),
        "axisLabel": {"show": last, "formatter": "{value} s", "color": INK, "hideOverlap": True},
        "splitLine": {"show": False},
        "axisTick": {"show": last},
        "axisLine": {"onZero": False},
    }


def _command_axis(info: RunInfo, channel: int) -> dict[str, Any]:
    low, high = info.spec.limits.command_low[channel], info.spec.limits.command_high[channel]
    room = 0.06 * (high - low)
    return {
        "type": "value",
        "gridIndex": channel,
        "min": round_value(low - room),
        "max": round_value(high + room),
        "name": plain_label(info.spec.layout.command_label(channel).replace(".", " ")),
        "nameTextStyle": {"color": INK, "align": "left"},
        "nameGap": 4,
        "splitNumber": 2,
        "splitLine": {"show": False},
        "axisLabel": {"showMinLabel": False, "showMaxLabel": False, "color": INK},
    }


def _command_series(info: RunInfo, motion: Motion, channel: int) -> list[dict[str, Any]]:
    """The command with its limits, and a dot for each step at which the safety gate changed it."""
    time, commands = motion.period_s * np.arange(len(motion.commands)), motion.commands[:, channel]
    axes: dict[str, Any] = {"xAxisIndex": channel, "yAxisIndex": channel}
    name = plain_label(info.spec.layout.commands[channel])
    limits = [info.spec.limits.command_low[channel], info.spec.limits.command_high[channel]]
    curve = line(name, points(time, commands), PALETTE[0], width=1.5, **axes)
    curve["markLine"] = horizontal_marks(limits, {"show": False})
    gated = ~motion.free[:, channel]
    changed = points(time[gated], commands[gated]) if gated.any() else []
    dots = {"type": "scatter", "name": "gate", "data": changed, "symbolSize": 4, "itemStyle": {"color": ALARM}}
    return [curve, dots | axes]


def drawing_data(info: RunInfo | None, motion: Motion | None) -> dict[str, Any] | None:
    """What the animated drawing shows, rounded to what can be seen."""
    if info is None or motion is None:
        return None
    return {
        "reference": _coordinates(motion.reference),
        "actual": _coordinates(motion.actual),
        "body": None if motion.body is None else _coordinates(motion.body),
        "period": motion.period_s,
        "labels": list(axis_labels(info.spec, info.unit.name)),
        "equal": motion.body is not None or info.spec.num_outputs > 1,
        "key": f"{motion.episode}.{motion.trajectory}",
    }


def _coordinates(values: np.ndarray) -> list:
    """A sensor that fails leaves a gap in the data, but not in the page."""
    return np.round(np.nan_to_num(values), 4).tolist()
