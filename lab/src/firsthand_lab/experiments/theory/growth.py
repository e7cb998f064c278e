"""How fast a sum grows: the exponent p of S_T ∝ T^p."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..curves import mean_interval


class Interval(NamedTuple):
    """A mean over seeds, with the 95 % confidence interval of Student's t.

    Without ends for a single seed. Two seeds are the ends themselves: Student's interval of two numbers is absurd.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = f" ({self.low:.2f} to {self.high:.2f})" if np.isfinite(self.low) else ""
        return f"{self.mean:.2f}{ends}"


def interval(values: Sequence[float]) -> Interval:
    """The mean of what the seeds gave. What is not finite counts for nothing."""
    kept = np.asarray([v for v in values if np.isfinite(v)], float)
    if kept.size < 2:
        return Interval(float(kept[0]) if kept.size else float("nan"), float("nan"), float("nan"))
    if kept.size == 2:
        return Interval(float(kept.mean()), float(kept.min()), float(kept.max()))
    return Interval(*mean_interval(kept))


def log_slope(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> float:
    """The slope of log y over log x by least squares; NaN with fewer than two positive points."""
    good = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    if good.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(x[good]), np.log(y[good]), 1)[0])


def tail_exponent(terms: Float[np.ndarray, " episodes"], *, first: float = 0.25, blocks: int = 6) -> float:
    """q of terms ∝ t^q, fitted to the means of blocks of the tail that are equally long on the logarithmic axis.

    Unlike the exponent of a sum, which early terms can hold down for ever, it can come out above zero. Terms may be
    negative, block means that are count for nothing; NaN where fewer than half of the blocks are left.
    """
    values = np.asarray(terms, float)
    edges = np.unique(np.round(np.geomspace(max(first * len(values), 1), len(values), blocks + 1)).astype(int))
    parts = [slice(a, b) for a, b in pairwise(edges)]
    means = np.asarray([values[part].mean() for part in parts])
    times = np.asarray([np.sqrt((part.start + 1) * part.stop) for part in parts])
    return log_slope(times, means) if np.sum(means > 0) * 2 >= len(means) else float("nan")


def growth_exponent(terms: Float[np.ndarray, " episodes"], *, first: float = 0.25, points: int = 40) -> float:
    """p of Σ_{t ≤ T} `terms` ∝ T^p, fitted for T from the share `first` of the episodes to their end.

    The points lie evenly on the logarithmic axis, so that the many late ones do not outweigh the rest. p < 1 says that
    the mean term falls: the sum is o(T) as far as this run can tell. Sums of neighbouring T share most of their terms,
    so a fit's own confidence interval would be far too narrow: take `interval` over seeds.
    """
    sums = np.cumsum(np.asarray(terms, float))
    last = len(sums)
    start = max(1, int(np.ceil(first * last)))
    at = np.unique(np.round(np.geomspace(start, last, points)).astype(int))
    return log_slope(at.astype(float), sums[at - 1])
