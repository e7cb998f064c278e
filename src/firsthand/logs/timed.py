"""Resampling of timed rows to the robot's control period."""

from collections import Counter

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.signals import (
    IMPLAUSIBLE,
    compare_period,
    describe_unit_error,
    find_joined_rows,
    find_row_faults,
)

from ..errors import UserError
from .base import Log, mark_strange, pieces, stretches


def on_the_period(
    spec: ControlSpec, path: str, sha256: str, time: np.ndarray, measured: np.ndarray, commands: np.ndarray, note: str
) -> Log:
    """The log of rows at `time` (s): as they are, or, where they are faster than the robot, brought to its period.

    Faster rows are resampled: measurements by linear interpolation, commands by their mean over a period.
    """
    known = np.flatnonzero(np.isfinite(time))
    rows = len(time)
    refused: Counter[str] = Counter()
    if len(known) < rows:
        refused["its time is missing or not a number"] = rows - len(known)
        time, measured, commands = time[known], measured[known], commands[known]
    if len(time) < 2:
        raise UserError(f"{path} has {len(time)} rows with a time, but at least 2 are needed.")
    steps = np.diff(time)
    if (steps <= 0).any():
        at = int(np.argmax(steps <= 0))
        raise UserError(
            f"{path}: time goes from {time[at]:g} to {time[at + 1]:g} s at row {at + 2}, but must rise from row to "
            "row; sort the log, or give each recording in a file of its own."
        )
    period, own = spec.period_s, float(np.median(steps))
    rate = compare_period(steps, period)
    if rate == "slower":
        joined = find_joined_rows(steps, period)
        if joined.mean() >= TWO_RATES:
            _check_one_rate(path, steps, joined)
        raise UserError(
            f"{path} has a row every {own:.4g} s, but {spec.robot} is controlled every {period:g} s: what happened in "
            "between is unknown; log at least as often."
        )
    joined = find_joined_rows(steps, period)
    _check_one_rate(path, steps, joined)
    if rate == "same":
        joined |= find_late_rows(steps, period)
        series = stretches(spec, measured, commands, joined, refused)
        return _check(spec, Log(path, sha256, series, rows, refused, note), known, time, measured)
    # Nothing is interpolated or averaged across a bad row: it ends a stretch like a gap.
    joined &= np.diff(known) == 1
    faults = find_row_faults(spec, measured, commands)
    mark_strange(spec, measured, joined, faults, on_the_period=False)
    refused.update(faults[faults != ""].tolist())
    resampled, taken = [], refused.total()
    for piece in pieces(faults == "", joined):
        grid = np.arange(time[piece][0], time[piece][-1] + 1e-9, period)
        y = np.stack([np.interp(grid, time[piece], column) for column in measured[piece].T], axis=1)
        u = held_mean(time[piece], commands[piece], grid)
        resampled += stretches(spec, y, u, np.ones(len(grid) - 1, bool), refused)
        taken += len(grid)
    what = f"resampled from {own:g} to {period:g} s: {rows} rows became {taken}"
    note = f"{note}; {what}" if note else what
    return _check(spec, Log(path, sha256, tuple(resampled), taken, refused, note), known, time, measured)


TWO_RATES = 0.2
"""Share of the rows from which on another, steady rate is one, and not a few gaps."""
LATE = 0.9
"""A row may be late by this share of the period, if the next one is in time again."""


def _check_one_rate(path: str, steps: np.ndarray, joined: np.ndarray) -> None:
    """One sentence for a log in which the rate changes on the way."""
    other = steps[~joined]
    if len(other) < TWO_RATES * len(steps):
        return
    low, middle, high = np.quantile(other, (0.2, 0.5, 0.8))
    if high - low < 0.2 * middle:
        raise UserError(
            f"{path} has two rates: a row every {np.median(steps[joined]) if joined.any() else middle:.3g} s, and "
            f"every {middle:.3g} s in {100 * len(other) / len(steps):.0f} % of it; give a file for each."
        )


def find_late_rows(steps: np.ndarray, period_s: float) -> np.ndarray:
    """Steps to a single row that came late or early, with the next in time again: jitter, not a gap."""
    late = np.abs(steps - period_s) <= LATE * period_s
    pair = late[:-1] & late[1:] & (np.abs(steps[:-1] + steps[1:] - 2 * period_s) <= 0.3 * period_s)
    found = np.zeros(len(steps), bool)
    found[:-1] |= pair
    found[1:] |= pair
    return found


def _check(spec: ControlSpec, log: Log, known: np.ndarray, time: np.ndarray, measured: np.ndarray) -> Log:
    """The log, if its quantities can be in the robot's units; `known` are the numbers of the rows."""
    if (
        log.usable or log.refused[IMPLAUSIBLE]
    ):  # otherwise nothing can be used for a reason that has nothing to do with it
        error = describe_unit_error(spec, known, time, measured)
        if error:
            raise UserError(f"{log.path}: {error}.")
    return log


def held_mean(time: np.ndarray, commands: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The mean of each command, held from row to row, from each point of the grid to the next.

    The last point has no next one; it gets the command at its time.
    """
    covered = np.concatenate(
        [np.zeros((1, commands.shape[1])), np.cumsum(commands[:-1] * np.diff(time)[:, None], axis=0)]
    )
    at = np.stack([np.interp(grid, time, column) for column in covered.T], axis=1)
    mean = np.diff(at, axis=0) / np.diff(grid)[:, None]
    last = commands[np.searchsorted(time, grid[-1], side="right") - 1]
    return np.concatenate([mean, last[None]])
