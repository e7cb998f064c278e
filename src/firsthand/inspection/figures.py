"""The figures of an inspection, in the style of the reports."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..report.style import ALARM, FAINT, INK, PALETTE, nothing, styled
from .findings import ChannelFindings
from .inspection import Inspection
from .response import SETTLED, DeadBand
from .summary import edge_text

COLUMNS = 2
HEAT = LinearSegmentedColormap.from_list("effects", [PALETTE[1], "#FFFFFF", PALETTE[0]])


def _panels(inspection: Inspection, height: float) -> tuple[Figure, list[Axes]]:
    count = len(inspection.findings.channels)
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(4.1 * columns + 0.4, height * rows + 0.3), layout="constrained")
    axes = list(np.asarray(figure.subplots(rows, columns, squeeze=False)).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


@styled
def step_responses(inspection: Inspection) -> Figure:
    """Each channel's mean response to its largest push, with dead time, rise and settling marked."""
    figure, panels = _panels(inspection, 2.7)
    for channel, axes in zip(inspection.findings.channels, panels, strict=True):
        _step(inspection, channel, axes)
    return figure


def _step(inspection: Inspection, channel: ChannelFindings, axes: Axes) -> None:
    if channel.response is None or channel.kind is None or channel.dead_time_steps is None:
        axes.set_title(f"{channel.name}: no response", loc="left")
        nothing(axes)
        return
    response = channel.response
    values = np.concatenate([[0.0], response.of(channel.kind)])
    time = np.concatenate([[0.0], response.time_s])
    dead = inspection.seconds(channel.dead_time_steps)
    axes.axvspan(0.0, dead, color=PALETTE[4], alpha=0.45, linewidth=0, label=f"dead time {dead:.2g} s")
    rise, settled = inspection.seconds(channel.rise_steps), inspection.seconds(channel.settling_steps)
    if math.isfinite(rise):
        axes.axvline(rise, color=FAINT, linestyle=":", linewidth=1.3, label=f"63 % at {rise:.2g} s")
    if math.isfinite(settled):
        final = float(np.mean(values[-max(len(values) // 4, 1) :]))
        around = (1 - SETTLED) * final, (1 + SETTLED) * final
        axes.axhspan(*around, color=PALETTE[2], alpha=0.2, linewidth=0, label=f"± {100 * SETTLED:g} %")
        axes.axvline(settled, color=PALETTE[2], linestyle="--", linewidth=1.3, label=f"settled at {settled:.2g} s")
    axes.plot(time, values, color=PALETTE[0], marker="o", markersize=2.5)
    axes.axhline(0.0, color=INK, linewidth=0.6)
    axes.set_xlim(0.0, time[-1])
    axes.set_title(f"{channel.name} pushed by {response.command:.2g}", loc="left")
    axes.set_ylabel(inspection.unit(channel))
    axes.set_xlabel("time since the command (s)")
    axes.legend(loc="best", fontsize=8.5)


@styled
def static_gains(inspection: Inspection) -> Figure:
    """What each command leads to in the long run, with the dead band shaded."""
    figure, panels = _panels(inspection, 2.7)
    for channel, axes in zip(inspection.findings.channels, panels, strict=True):
        if not channel.curve:
            axes.set_title(f"{channel.name}: no response", loc="left")
            nothing(axes)
            continue
        command = np.asarray([p.command for p in channel.curve])
        response = np.asarray([p.response for p in channel.curve])
        error = 2 * np.asarray([p.standard_error for p in channel.curve])
        _shade(axes, channel.dead_band_minus, -1.0)
        _shade(axes, channel.dead_band_plus, 1.0)
        axes.errorbar(command, response, error, color=PALETTE[0], marker="o", linewidth=1.3, elinewidth=1.0)
        axes.axhline(0.0, color=INK, linewidth=0.6)
        axes.axvline(0.0, color=INK, linewidth=0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.set_title(_gain_title(channel), loc="left")
        axes.set_xlabel("command, from neutral")
        axes.set_ylabel(inspection.unit(channel))
    return figure


def _shade(axes: Axes, band: DeadBand | None, direction: float) -> None:
    if band is not None and band.is_known and math.isfinite(band.edge) and band.edge > 0:
        axes.axvspan(*sorted((0.0, direction * band.edge)), color=PALETTE[4], alpha=0.45, linewidth=0)
        axes.axvline(direction * band.responding, color=ALARM, linestyle=":", linewidth=1.0)


def _gain_title(channel: ChannelFindings) -> str:
    bands = [b for b in (channel.dead_band_minus, channel.dead_band_plus) if b is not None]
    if all(b.is_known and not b.edge > 0 for b in bands):
        return f"{channel.name}: no dead band seen"
    return f"{channel.name}: dead band " + " / ".join(edge_text(b) for b in bands)


@styled
def coupling_maps(inspection: Inspection) -> Figure:
    """How strongly each command moves each quantity, alone and with all channels together."""
    effects, layout = inspection.findings.coupling, inspection.spec.layout
    shown = [("one channel alone", np.where(effects.clear, effects.alone, 0.0))]
    if np.isfinite(effects.together).any():
        shown.append(("all channels together", effects.together))
    strongest = np.max(np.nan_to_num(np.abs(shown[0][1])), axis=1, keepdims=True)
    rows, columns = effects.alone.shape
    width, height = 1.9 + len(shown) * (0.8 * columns + 0.9), 1.5 + 0.42 * rows
    figure = Figure(figsize=(max(width, 4.6), height), layout="constrained")
    panels = np.asarray(figure.subplots(1, len(shown), squeeze=False))[0]
    for i, (axes, (title, matrix)) in enumerate(zip(panels, shown, strict=True)):
        relative = np.divide(matrix, strongest, out=np.zeros_like(matrix), where=strongest > 0)
        axes.imshow(relative, cmap=HEAT, vmin=-1, vmax=1, aspect="auto")
        axes.grid(False)
        for (row, column), value in np.ndenumerate(relative):
            if math.isfinite(value) and abs(value) >= 0.005:
                color = "white" if abs(value) > 0.7 else INK
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8.5, color=color)
        axes.set_xticks(range(columns), layout.commands, rotation=30, ha="right")
        axes.set_yticks(range(rows), layout.measured if i == 0 else [""] * rows)
        axes.set_title(title, loc="left")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return figure
