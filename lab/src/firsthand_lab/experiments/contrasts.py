"""Several ways to learn with the same seeds, each compared with one of them.

    log e_ps = way_p + seed_s + noise_ps

A seed is hard or easy for all ways alike, so ways are compared seed by seed. The noise has one variance for all of
them, estimated from what the two effects leave open: with three seeds and thirteen ways from 24 degrees of freedom,
where each pair alone would have two. A way whose runs differ more than the others' widens their intervals, and has one
that is too narrow.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .curves import MIN_SEEDS


@dataclass(frozen=True)
class Contrasts:
    """Log errors over those of one way, the control."""

    differences: dict[str, float]
    """The mean over seeds, per way; the control is not in it."""
    deviation: float
    """Standard error of each difference; NaN below `MIN_SEEDS` seeds."""
    freedom: int
    """Degrees of freedom of that."""

    def ratio(self, way: str, tests: int) -> tuple[float, float, float]:
        """Error over the control's, and its interval: 95 % for so many comparisons together (Bonferroni).

        NaN for a way that is not there.
        """
        difference = self.differences.get(way, float("nan"))
        half = float("nan")
        if np.isfinite(self.deviation):
            half = float(stats.t.ppf(1 - 0.025 / tests, self.freedom)) * self.deviation
        ratio, low, high = np.exp([difference, difference - half, difference + half]).tolist()
        return ratio, low, high


def contrast(errors: Mapping[str, np.ndarray], control: str) -> Contrasts:
    """`errors` has one per seed, in the same order for every way; ways with one that is not finite are left out."""
    logs = {way: np.log(values) for way, values in errors.items() if np.isfinite(values).all() and np.all(values > 0)}
    if control not in logs:
        return Contrasts({}, float("nan"), 0)
    differences = {way: float(np.mean(values - logs[control])) for way, values in logs.items() if way != control}
    table = np.stack(list(logs.values()))
    ways, seeds = table.shape
    freedom = (ways - 1) * (seeds - 1)
    if seeds < MIN_SEEDS or ways < 2:
        return Contrasts(differences, float("nan"), freedom)
    left = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    variance = float(np.sum(left**2)) / freedom
    return Contrasts(differences, float(np.sqrt(2 * variance / seeds)), freedom)
