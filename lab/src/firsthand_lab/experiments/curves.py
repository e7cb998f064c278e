"""Learning curves of several seeds: gathered, averaged on a log scale, and their power law found."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .base import Result
from .learning import CURVES

BOOTSTRAPS = 400
"""Resampled sets of seeds, which show how far a fit depends on them."""
CANDIDATES = 36
"""Episodes, evenly spread on a log scale, at which a segment may begin or end."""
MIN_POINTS = 4
"""Episodes in each segment, at least (burn-in may be two: learning can set in at once)."""
MIN_SEEDS = 3
"""Seeds that an interval needs: with two, Student's t is 13 times their spread, and says nothing."""
MIN_SPAN, MIN_FALL = 1.5, 1.5
"""The decreasing segment ends later than it begins at least by the first factor, and lower by the second."""


@dataclass(frozen=True)
class Curves:
    """One quantity over episodes for several seeds."""

    episodes: np.ndarray
    """1 … T, `(episodes,)`."""
    values: np.ndarray
    """`(seeds, episodes)`."""

    def log_mean(self) -> np.ndarray:
        """The mean on a log scale, over the seeds where the value is positive and finite, `(episodes,)`."""
        return np.exp(self._log_moments()[0])

    def log_band(self) -> tuple[np.ndarray, np.ndarray]:
        """One standard deviation on a log scale below and above the mean."""
        mean, deviation = self._log_moments()
        return np.exp(mean - deviation), np.exp(mean + deviation)

    def _log_moments(self) -> tuple[np.ndarray, np.ndarray]:
        logs = np.log(np.where(np.isfinite(self.values) & (self.values > 0), self.values, np.nan))
        some = np.isfinite(logs).any(axis=0)
        mean, deviation = np.full(logs.shape[1], np.nan), np.full(logs.shape[1], np.nan)
        mean[some], deviation[some] = np.nanmean(logs[:, some], axis=0), np.nanstd(logs[:, some], axis=0)
        return mean, deviation

    def around(self, episode: int, width: int = 10) -> float:
        """The log-scale mean over the seeds and the last `width` episodes up to this one (fewer early on)."""
        width = min(width, max(episode // 2, 1))
        near = (self.episodes > episode - width) & (self.episodes <= episode)
        values = self.values[:, near]
        values = values[np.isfinite(values) & (values > 0)]
        return float(np.exp(np.mean(np.log(values)))) if values.size else float("nan")


def gather(results: Sequence[Result], column: str) -> Curves:
    """A column of curves.csv over all seeds of these jobs, which are one set-up."""
    tables = [result.csv(CURVES) for result in results]
    episodes = np.unique(tables[0]["episode"]).astype(int)
    values = [table[column][table["seed"] == seed] for table in tables for seed in np.unique(table["seed"])]
    return Curves(episodes, np.stack(values))


@dataclass(frozen=True)
class PowerLaw:
    """ℓ_t ∝ t^(−exponent) between two episodes that were found, not assumed."""

    exponent: float
    """Of the decreasing segment; NaN when there is none."""
    low: float
    """Lower end of what 95 % of resampled sets of seeds give: with few seeds much narrower than a 95 % interval."""
    high: float
    """Upper end."""
    burn_in: int
    """Episode at which the decreasing segment begins."""
    plateau: int
    """Episode at which it ends; the last one when no plateau was reached."""
    prefactor: float
    """ℓ_t = prefactor · t^(−exponent) in the segment."""
    explained: float
    """R² of the whole three-piece fit, on log axes."""


def power_law(curves: Curves, *, seed: int = 0) -> PowerLaw:
    """The decreasing segment of the log-scale mean, and how far its exponent depends on the seeds.

    A continuous line of three pieces is fitted to log ℓ against log t by least squares, with weights 1/t so that each
    stretch of the log axis counts alike. The two corners are searched exhaustively over `CANDIDATES` episodes; among
    the fits whose middle piece falls more steeply than both others, and by `MIN_FALL` at all, the best one counts.
    The middle piece is the decreasing segment: what is before it is burn-in, what is after it the plateau. `low` and
    `high` come from resampling seeds and fitting anew, corners included. No verdict rests on them: resampled, two seeds
    cover the truth half the time, and four 78 % of the time.
    """
    logs = np.log(np.where(np.isfinite(curves.values) & (curves.values > 0), curves.values, np.nan))
    usable = np.isfinite(logs).all(axis=0)
    time, logs = curves.episodes[usable].astype(float), logs[:, usable]
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(logs), (BOOTSTRAPS, len(logs)))
    samples = np.concatenate([logs.mean(axis=0)[None], logs[drawn].mean(axis=1)]).T if logs.size else logs.T
    if len(time) < 3 * MIN_POINTS:
        return PowerLaw(*(float("nan"),) * 3, burn_in=1, plateau=len(time), prefactor=np.nan, explained=np.nan)
    fits = _three_pieces(np.log(time), samples, 1.0 / time)
    slope, level, first, last, explained = (part[0] for part in fits)
    spread = -fits[0][1:]
    spread = spread[np.isfinite(spread)]
    low, high = np.quantile(spread, [0.025, 0.975]) if spread.size else (np.nan, np.nan)
    if not np.isfinite(slope):
        return PowerLaw(*(float("nan"),) * 3, burn_in=1, plateau=int(time[-1]), prefactor=np.nan, explained=np.nan)
    return PowerLaw(
        exponent=float(-slope),
        low=float(low),
        high=float(high),
        burn_in=round(float(np.exp(first))),
        plateau=round(float(np.exp(last))),
        prefactor=float(np.exp(level - slope * first)),
        explained=float(explained),
    )


@dataclass(frozen=True)
class Slope:
    """ℓ_t ∝ t^(−exponent) between two episodes that are given."""

    exponent: float
    """The mean of the seeds' own."""
    low: float
    """Lower end of its 95 % interval over seeds, by Student's t; NaN below `MIN_SEEDS`."""
    high: float
    """Upper end."""


def slope_between(curves: Curves, first: int, last: int) -> Slope:
    """The exponent of the log-scale mean between two episodes, each stretch of the log axis counting alike.

    The fit is linear in log ℓ. So the exponent of the mean is the mean of the seeds' exponents, which are independent
    of each other. NaN where fewer than `MIN_POINTS` episodes lie between the two.
    """
    inside = (curves.episodes >= first) & (curves.episodes <= last)
    time, values = curves.episodes[inside].astype(float), curves.values[:, inside]
    logs = np.log(np.where(np.isfinite(values) & (values > 0), values, np.nan))
    usable = np.isfinite(logs).all(axis=0)
    if usable.sum() < MIN_POINTS:
        return Slope(*(float("nan"),) * 3)
    x, logs, weights = np.log(time[usable]), logs[:, usable], 1.0 / time[usable]
    centred = x - weights @ x / weights.sum()
    return Slope(*mean_interval(-(logs @ (weights * centred)) / (weights @ centred**2)))


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean of independent values, and its 95 % interval by Student's t; NaN for that below `MIN_SEEDS` values."""
    mean, count = float(np.mean(values)), len(values)
    if count < MIN_SEEDS:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / np.sqrt(count))
    return mean, mean - half, mean + half


def _three_pieces(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """For each column of `y`: slope of the middle piece, value at its begin, begin, end, R². NaN where none falls."""
    corners = _candidates(x)
    columns = y.shape[1]
    y_mean = (weights @ y) / weights.sum()
    y = y - y_mean
    total = weights @ y**2
    best = np.full(columns, np.inf)
    slope, level, first, last = (np.full(columns, np.nan) for _ in range(4))
    for i, a in enumerate(corners):
        for b in corners[i + 1 :]:
            inside = np.sum((x > a) & (x < b)) + 2
            if inside < MIN_POINTS or b - a < np.log(MIN_SPAN):
                continue
            design = np.stack([np.ones_like(x), x, np.maximum(x - a, 0), np.maximum(x - b, 0)], axis=1)
            weighted = weights[:, None] * design
            moments = weighted.T @ y
            solution = np.linalg.solve(weighted.T @ design, moments)
            error = total - np.sum(solution * moments, axis=0)
            before, middle, after = solution[1], solution[1:3].sum(axis=0), solution[1:4].sum(axis=0)
            falls = middle * (b - a) <= -np.log(MIN_FALL)
            better = (error < best) & (middle < before) & (middle < after) & falls
            best = np.where(better, error, best)
            slope = np.where(better, middle, slope)
            level = np.where(better, solution[0] + solution[1] * a + y_mean, level)
            first, last = np.where(better, a, first), np.where(better, b, last)
    return slope, level, first, last, 1.0 - best / total


def _candidates(x: np.ndarray) -> np.ndarray:
    """Corners to try: episodes spread evenly on the log axis, with some left on both sides."""
    inner = x[1 : len(x) - MIN_POINTS + 1]
    wanted = np.linspace(inner[0], inner[-1], CANDIDATES)
    return np.unique(inner[np.abs(inner[:, None] - wanted).argmin(axis=0)])
