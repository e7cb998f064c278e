"""Whether positions and velocities can be in the robot's units, with angles that count on beyond a turn."""

from __future__ import annotations

import math

import numpy as np

from ..spec import ControlSpec
from .settings import UnitSettings

DEFAULT = UnitSettings()


def describe_unit_error(
    spec: ControlSpec, rows: np.ndarray, time: np.ndarray, measured: np.ndarray, settings: UnitSettings = DEFAULT
) -> str:
    """One sentence for a wrapped angle, a position far outside its limits, or a velocity not that of its position.

    An empty text where nothing is wrong. `rows` are the numbers of the rows in their file, from 0; `time` is in
    seconds, `(rows,)`, and rises; `measured` is `(rows, measured)`.
    """
    layout, limits = spec.layout, spec.limits
    for i, entry in enumerate(layout.position):
        name, values = layout.measured[entry], measured[:, entry]
        error = _describe_wrapped_angle(name, rows, values, settings) or _describe_out_of_limits(
            name, rows, values, limits.position_low[i], limits.position_high[i], settings
        )
        if error:
            return error
    for entry, partner in zip(layout.position, layout.velocity):  # noqa: B905 (velocities may not be measured)
        factor = travel_factor(
            time, measured[:, entry], measured[:, partner], spec.scales.change_scale[entry], settings
        )
        if factor is not None and not 1 / settings.max_factor <= factor <= settings.max_factor:
            return (
                f"{layout.measured[entry]} changes {factor:.3g} times as fast as {layout.measured[partner]} "
                "says, but must change as fast; both must be in the robot's units and count in the same direction"
            )
    return ""


def _describe_wrapped_angle(name: str, rows: np.ndarray, values: np.ndarray, settings: UnitSettings) -> str:
    """A wrapped angle passes one end of a turn, comes back at the other, and stays there."""
    with np.errstate(invalid="ignore"):
        step = np.diff(values)
    known = np.abs(step[np.isfinite(step)])
    for turn in settings.turns:
        if not known.size or np.median(known) > turn / 16:  # no jump would stand out
            continue
        with np.errstate(invalid="ignore"):
            near = np.abs(np.abs(step) - turn) < turn / 8
            lasting = np.abs(np.append(step[1:], 0.0)) < turn / 8
            # ±π, or 0 and 2π
            middle = (values[1:] + values[:-1]) / 2
            ends = (np.abs(middle) < turn / 16) | (np.abs(middle - turn / 2) < turn / 16)
        for k in np.flatnonzero(near & lasting & ends):
            return (
                f"{name} jumps from {values[k]:g} to {values[k + 1]:g} at row {rows[k + 1] + 1}, as an angle "
                "that starts again after each turn does, but must go on counting; unwrap it first (numpy.unwrap)"
            )
    return ""


def _describe_out_of_limits(
    name: str, rows: np.ndarray, values: np.ndarray, low: float, high: float, settings: UnitSettings
) -> str:
    known = np.isfinite(values)
    slack = settings.outside_range * (high - low)
    outside = np.flatnonzero(known & ((values < low - slack) | (values > high + slack)))
    if outside.size <= max(settings.outside_share * known.sum(), settings.outside_rows):
        return ""
    at = outside[0]
    return (
        f"{name} is {values[at]:g} at row {rows[at] + 1} and far outside its limits in "
        f"{outside.size / known.sum():.0%} of the rows, but must lie between about {low:g} and {high:g}; give it "
        "in the robot's unit"
    )


def travel_factor(
    time: np.ndarray,
    position: np.ndarray,
    velocity: np.ndarray,
    min_travel: float,
    settings: UnitSettings = DEFAULT,
) -> float | None:
    """How many times as far as its velocity says a joint went; None where noise or standing still leaves that open.

    Measured and integrated travel in windows of `travel_window_s` are compared by rank and by spread, so that neither a
    few bad values, nor an offset of the velocity, nor its noise decide. One of them must vary by more than
    `min_travel`. All arrays are `(rows,)`.
    """
    if len(time) < 2:
        return None
    steps = np.diff(time)
    window = max(round(settings.travel_window_s / float(np.median(steps))), 4)
    count = (len(time) - 1) // window
    if count < settings.min_windows:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        integrated = ((velocity[1:] + velocity[:-1]) / 2 * steps)[: count * window].reshape(count, window).sum(axis=1)
        travelled = np.diff(position[: count * window + 1 : window])
    lasted = np.diff(time[: count * window + 1 : window])
    usable = np.isfinite(integrated) & np.isfinite(travelled) & (lasted < 2 * window * np.median(steps))
    integrated, travelled = integrated[usable], travelled[usable]
    if len(integrated) < settings.min_windows:
        return None
    moved = np.zeros(len(integrated), bool)
    for travel in (integrated, travelled):
        moved |= np.abs(travel) > 0.2 * np.quantile(np.abs(travel), 0.95)
    integrated, travelled = integrated[moved], travelled[moved]
    if len(integrated) < settings.min_windows:
        return None
    spreads = [float(np.subtract(*np.quantile(travel, (0.95, 0.05)))) for travel in (travelled, integrated)]
    if min(spreads) <= 0 or max(spreads) < min_travel:
        return None
    correlation = float(np.corrcoef(_ranks(integrated), _ranks(travelled))[0, 1])
    if abs(correlation) < settings.min_correlation:
        return None
    return math.copysign(spreads[0] / spreads[1], correlation)


def _ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value; equal values share theirs."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
