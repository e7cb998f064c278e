"""How the figures look, and how they become files."""

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; the darkest come first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, ALARM = "#222222", "#8A8A8A", "#D55E00"
REFERENCE = {"color": INK, "linestyle": (0, (4, 2.5)), "linewidth": 1.2}
"""How a reference is drawn, in every figure."""

STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.0,
    "figure.facecolor": "white",
    # Names of robots, joints and runs are text, never formulas: a "$" in one must not be an error.
    "text.parse_math": False,
    # The same run gives the same bytes.
    "svg.hashsalt": "firsthand",
}

DEFAULTS: Any = {
    name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name and name != "toolbar"
}
"""What a `matplotlibrc` has to say does not count: the first that is found may lie in the folder of a stranger's run,
and could ask for LaTeX to be run."""

LOGARITHMIC = (1e-200, 1e200)
"""What a logarithmic axis may span, whatever a file says: beyond it the library's own numbers overflow."""

styled = matplotlib.rc_context(DEFAULTS | STYLE)
"""Decorates every function that makes or saves a figure."""


@styled
def save(figure: Figure) -> tuple[bytes, bytes]:
    """The figure as PNG and as SVG."""
    _settle(figure)
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def _settle(figure: Figure) -> None:
    """Lay the panels out once, at rounded places: the layout's solver differs in the last bits from call to call."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(value, 5) for value in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def episode_axis(axes: Axes, episodes: np.ndarray) -> None:
    """Whole numbers, with room for a run of one episode."""
    low, high = (float(np.min(episodes)), float(np.max(episodes))) if episodes.size else (1.0, 1.0)
    room = max(0.02 * (high - low), 0.4)
    axes.set_xlim(low - room, high + room)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))


def plot_log(axes: Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """A curve for an axis that will be logarithmic.

    What a logarithm cannot show is marked, not hidden: zeros by triangles at the lower edge, and values that are not
    finite by crosses at the upper edge.
    """
    shown = np.isfinite(y) & (y > 0)
    axes.plot(x, np.where(shown, y, np.nan), **style)
    edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none", "zorder": 5}
    color = style.get("color", INK)
    zero, unknown = np.isfinite(y) & (y <= 0), ~np.isfinite(y)
    if zero.any():
        axes.plot(x[zero], np.full(zero.sum(), 0.02), marker="v", markersize=4, color=color, **edge)
    if unknown.any():
        axes.plot(x[unknown], np.full(unknown.sum(), 0.98), marker="x", markersize=5, color=color, **edge)


def log_scale(axes: Axes, values: Sequence[np.ndarray | float]) -> None:
    """A logarithmic vertical axis over the positive values, with plain numbers; linear and empty when there is none."""
    flat = np.concatenate([np.atleast_1d(np.asarray(v, float)) for v in values]) if len(values) else np.zeros(0)
    flat = np.clip(flat[np.isfinite(flat) & (flat > 0)], *LOGARITHMIC)
    if flat.size == 0:
        nothing(axes)
        return
    low, high = math.log10(flat.min()), math.log10(flat.max())
    room = max(0.06 * (high - low), 0.08)
    axes.set_yscale("log")
    axes.set_ylim(10 ** (low - room), 10 ** (high + room))
    span = high - low + 2 * room
    subs = (1.0, 2.0, 5.0) if span < 1.8 else (1.0,)
    if span < 0.45:
        subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axes.yaxis.set_minor_locator(LogLocator(subs=range(2, 10), numticks=99) if span < 4 else NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def nothing(axes: Axes) -> None:
    """An empty panel says so."""
    axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center", va="center", color=FAINT)
    axes.yaxis.set_major_locator(NullLocator())


def plain_number(value: float) -> str:
    """A tick label: 0.002, 50, 3000, and powers of ten beyond."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.6g}"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    factor = value / 10.0**exponent
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if abs(factor - 1) < 1e-6 else f"{factor:.2g}·{power}"
