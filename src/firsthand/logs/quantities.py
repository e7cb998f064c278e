"""Whether positions and velocities of a log can be in the robot's units, with angles that go on counting."""

import math

import numpy as np
from jaxtyping import Float, Int

from firsthand_onboard import ControlSpec

from ..errors import UserError

OUTSIDE = 0.5
"""A position that is this share of its range outside its limits …"""
OUTSIDE_SHARE = 0.1
"""… in more than this share of the rows …"""
OUTSIDE_ROWS = 20
"""… and more rows than this is in another unit. Fewer may be a sensor that failed for a while."""
TRAVEL_S = 0.5
"""Over how long position and velocity are compared: long enough for noise to average out."""
LEAST_WINDOWS = 20
"""In how many such windows something must have moved for a verdict."""
AGREEMENT = 0.9
"""Least rank correlation of the two ways that a joint went, for a verdict: noise has none, another unit has 1."""
FACTOR = 2.0
"""By how much the two ways may differ."""
TURNS = (2 * math.pi, 360.0)
"""An angle that jumps does so by a turn."""


def check_units(
    spec: ControlSpec,
    path: str,
    rows: Int[np.ndarray, " rows"],
    time: Float[np.ndarray, " rows"],
    measured: Float[np.ndarray, "rows measured"],
) -> None:
    """One sentence when an angle is wrapped, a position far outside its limits, or a velocity not that of its position.

    `rows` are the numbers of the rows in the file, from 0.
    """
    layout, limits = spec.layout, spec.limits
    for i, entry in enumerate(layout.position):
        name, values = layout.measured[entry], measured[:, entry]
        _check_turns(path, name, rows, values)
        _check_limits(path, name, rows, values, limits.position_low[i], limits.position_high[i])
    for entry, partner in zip(layout.position, layout.velocity, strict=False):  # velocities may not be measured
        least = spec.scales.change_scale[entry]
        factor = travel_factor(time, measured[:, entry], measured[:, partner], least)
        if factor is not None and not 1 / FACTOR <= factor <= FACTOR:
            raise UserError(
                f"{path}: {layout.measured[entry]} changes {factor:.3g} times as fast as {layout.measured[partner]} "
                "says, but must change as fast; both must be in the robot's units and count in the same direction."
            )


def _check_turns(path: str, name: str, rows: np.ndarray, values: np.ndarray) -> None:
    """An angle that goes over one end of a turn comes back at the other, and stays there."""
    step = np.diff(values)
    known = np.abs(step[np.isfinite(step)])
    for turn in TURNS:
        if not known.size or np.median(known) > turn / 16:  # no jump would stand out
            continue
        with np.errstate(invalid="ignore"):
            near = np.abs(np.abs(step) - turn) < turn / 8
            lasting = np.abs(np.append(step[1:], 0.0)) < turn / 8
            # ±π, or 0 and 2π
            middle = (values[1:] + values[:-1]) / 2
            ends = (np.abs(middle) < turn / 16) | (np.abs(middle - turn / 2) < turn / 16)
        for k in np.flatnonzero(near & lasting & ends):
            raise UserError(
                f"{path}: {name} jumps from {values[k]:g} to {values[k + 1]:g} at row {rows[k + 1] + 1}, as an angle "
                "does that begins anew after each turn, but must go on counting; unwrap it first (numpy.unwrap)."
            )


def _check_limits(path: str, name: str, rows: np.ndarray, values: np.ndarray, low: float, high: float) -> None:
    known = np.isfinite(values)
    slack = OUTSIDE * (high - low)
    outside = np.flatnonzero(known & ((values < low - slack) | (values > high + slack)))
    if outside.size > max(OUTSIDE_SHARE * known.sum(), OUTSIDE_ROWS):
        at = outside[0]
        raise UserError(
            f"{path}: {name} is {values[at]:g} at row {rows[at] + 1} and far outside its limits in "
            f"{outside.size / known.sum():.0%} of the rows, but must lie between about {low:g} and {high:g}; give it "
            "in the robot's unit."
        )


def travel_factor(
    time: Float[np.ndarray, " rows"],
    position: Float[np.ndarray, " rows"],
    velocity: Float[np.ndarray, " rows"],
    least: float,
) -> float | None:
    """How many times as far as its velocity says a joint went; None where noise or standing still leaves that open.

    The ways in windows of `TRAVEL_S` are compared by rank and by spread, so that neither a few bad values, nor an
    offset of the velocity, nor its noise decide. One of them must vary by more than `least`.
    """
    steps = np.diff(time)
    window = max(round(TRAVEL_S / float(np.median(steps))), 4)
    count = (len(time) - 1) // window
    if count < LEAST_WINDOWS:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        said = ((velocity[1:] + velocity[:-1]) / 2 * steps)[: count * window].reshape(count, window).sum(axis=1)
    went = np.diff(position[: count * window + 1 : window])
    lasted = np.diff(time[: count * window + 1 : window])
    usable = np.isfinite(said) & np.isfinite(went) & (lasted < 2 * window * np.median(steps))
    said, went = said[usable], went[usable]
    if len(said) < LEAST_WINDOWS:
        return None
    moved = np.zeros(len(said), bool)
    for way in (said, went):
        moved |= np.abs(way) > 0.2 * np.quantile(np.abs(way), 0.95)
    said, went = said[moved], went[moved]
    if len(said) < LEAST_WINDOWS:
        return None
    spreads = [float(np.subtract(*np.quantile(way, (0.95, 0.05)))) for way in (went, said)]
    if min(spreads) <= 0 or max(spreads) < least:
        return None
    agreement = float(np.corrcoef(_ranks(said), _ranks(went))[0, 1])
    if abs(agreement) < AGREEMENT:
        return None
    return math.copysign(spreads[0] / spreads[1], agreement)


def _ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value in their order, which equal values share."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
