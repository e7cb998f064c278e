"""Curves of several seeds: mean and standard deviation on a logarithmic scale, as in the paper's figures."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from firsthand.report.style import INK, plain_number

from ..curves import Curves


def band(axes: Axes, x: np.ndarray, values: Float[np.ndarray, "seeds points"], color: str, **style: Any) -> np.ndarray:
    """Draw mean and spread; points where nothing was measured are skipped. Returns what was drawn, for the axis."""
    curves = Curves(x, values)
    mean, (low, high) = curves.log_mean(), curves.log_band()
    at = np.isfinite(mean)
    axes.plot(x[at], mean[at], color=color, **style)
    if len(values) > 1:
        axes.fill_between(x[at], low[at], high[at], color=color, alpha=0.18, linewidth=0)
    return np.concatenate([mean[at], low[at], high[at]])


def guide(axes: Axes, x: np.ndarray, through: float, power: float, label: str) -> None:
    """A thin line ∝ x^power that ends at `through`."""
    axes.plot(x, through * (x / x[-1]) ** power, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    at = x[len(x) // 3]
    place = (at, through * (at / x[-1]) ** power)
    axes.annotate(label, place, xytext=(5, -5), textcoords="offset points", va="top", fontsize=9)


def log_across(axes: Axes) -> None:
    """A logarithmic horizontal axis with plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
