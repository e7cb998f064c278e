"""Implausible samples: out of range, spikes, stuck sensors, leaps.

Arrays are `(trajectories, samples, measured)` unless a docstring gives another shape. Nothing here warns or raises for
values that are not finite.
"""

from __future__ import annotations

import numpy as np

from ..spec import ControlSpec
from .settings import SignalSettings

DEFAULT = SignalSettings()

NOT_FINITE = "a value is missing or not a number"
IMPLAUSIBLE = f"a measurement is more than {DEFAULT.max_scales:.0f} scales from its centre"
OUT_OF_RANGE = "a command is outside its range"
SPIKE = "a measurement jumps out and straight back"
STUCK = "a sensor is stuck: position and velocity of its joint disagree"


def _is_near(spec: ControlSpec, measured: np.ndarray, settings: SignalSettings) -> np.ndarray:
    """Which measurements `(…, measured)` lie within their scales; false for NaN."""
    center, scale = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.measured_scale)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(measured - center) <= settings.max_scales * scale)


def is_plausible(spec: ControlSpec, states: np.ndarray, settings: SignalSettings = DEFAULT) -> np.ndarray:
    """Which states `(…, state)` hold only finite values, with every measurement within `max_scales` of its centre."""
    layout = spec.layout
    memory = (1 + layout.measurement_memory, layout.num_measured)
    measured = states[..., : layout.command_start].reshape(*states.shape[:-1], *memory)
    near = _is_near(spec, measured, settings).all(axis=(-2, -1))
    return np.asarray(near & np.isfinite(states).all(axis=-1))


def find_row_faults(
    spec: ControlSpec, measured: np.ndarray, commands: np.ndarray, settings: SignalSettings = DEFAULT
) -> np.ndarray:
    """Why each row of `(rows, measured)` and `(rows, commands)` cannot be used, as texts; empty where it can."""
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    slack = settings.command_slack * (high - low)
    faults = np.full(len(measured), "", dtype=object)
    with np.errstate(invalid="ignore"):
        faults[((commands < low - slack) | (commands > high + slack)).any(axis=1)] = OUT_OF_RANGE
    faults[~_is_near(spec, measured, settings).all(axis=1)] = IMPLAUSIBLE
    faults[~(np.isfinite(measured).all(axis=1) & np.isfinite(commands).all(axis=1))] = NOT_FINITE
    return faults


def find_spikes(
    spec: ControlSpec, measured: np.ndarray, valid: np.ndarray, settings: SignalSettings = DEFAULT
) -> np.ndarray:
    """Which samples hold a value that jumps out and straight back.

    Such a value is far from the median of itself and its two neighbours; a fast but lasting change is not. What is
    usual is taken from the steps that happened, `valid` `(trajectories, samples - 1)`.
    """
    found = np.zeros(measured.shape[:2], bool)
    if measured.shape[1] < 3 or not valid[:, 1:].any():
        return found
    inner = measured[:, 1:-1]
    with np.errstate(invalid="ignore"):
        distance = np.abs(inner - np.median(np.stack([measured[:, :-2], inner, measured[:, 2:]]), axis=0))
        happened = np.nan_to_num(distance, posinf=0.0)[valid[:, 1:]]
        usual = np.quantile(happened, settings.spike_quantile, axis=0)
        smallest = settings.spike_change_scales * np.asarray(spec.scales.change_scale)
        found[:, 1:-1] = (distance > np.maximum(settings.spike_ratio * usual, smallest)).any(axis=-1)
    return found


def find_stuck_sensors(spec: ControlSpec, measured: np.ndarray, settings: SignalSettings = DEFAULT) -> np.ndarray:
    """Which samples show a position or velocity that no longer changes although its partner says that it must."""
    found = np.zeros(measured.shape[:2], bool)
    samples, window = measured.shape[1], settings.stuck_steps
    if not spec.layout.velocity or samples <= window:
        return found
    position, velocity = (measured[..., list(part)] for part in (spec.layout.position, spec.layout.velocity))
    allowed = settings.stuck_change_scales * np.asarray(spec.scales.change_scale)[list(spec.layout.position)]
    with np.errstate(invalid="ignore", over="ignore"):
        # A sample that was not measured hides the travel of its own periods, not that of all later ones.
        travel = np.cumsum(np.nan_to_num((velocity[:, 1:] + velocity[:, :-1]) / 2, posinf=0.0, neginf=0.0), axis=1)
        travel = travel * spec.period_s
        travel = np.concatenate([np.zeros_like(travel[:, :1]), travel], axis=1)
        disagrees = np.abs((position - travel)[:, window:] - (position - travel)[:, :-window]) > allowed
        unchanged = [np.diff(values, axis=1) == 0 for values in (position, velocity)]
    for same in unchanged:
        count = np.cumsum(same, axis=1)
        count = np.concatenate([np.zeros_like(count[:, :1]), count], axis=1)
        frozen = (count[:, window:] - count[:, :-window] == window) & disagrees
        for trajectory, start in np.argwhere(frozen.any(axis=-1)):
            found[trajectory, start : start + window + 1] = True
    return found


def mark_memory(doubtful: np.ndarray, memory: int) -> np.ndarray:
    """Which states hold a doubtful sample of `(trajectories, samples)`: its own and, for `memory` steps, later ones."""
    marked = doubtful.copy()
    for age in range(1, memory + 1):
        marked[:, age:] |= doubtful[:, :-age]
    return marked


def find_leaps(spec: ControlSpec, measured: np.ndarray, settings: SignalSettings = DEFAULT) -> np.ndarray:
    """In which steps of `(samples, measured)` a position moves further than its speed explains, like a wrapped angle.

    All false where velocities are not measured, and where a value is not finite.
    """
    if not spec.layout.velocity:
        return np.zeros(len(measured) - 1, bool)
    with np.errstate(invalid="ignore"):
        moved = np.abs(np.diff(measured[:, list(spec.layout.position)], axis=0))
        speed = np.abs(measured[:, list(spec.layout.velocity)])
        width = np.asarray(spec.limits.position_high) - np.asarray(spec.limits.position_low)
        fastest = np.maximum(speed[:-1], speed[1:])
        reach = settings.leap_speed * spec.period_s * fastest + settings.leap_range * width
        return np.asarray((moved > reach).any(axis=1))
