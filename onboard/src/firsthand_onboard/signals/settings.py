"""The thresholds of the signal checks."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ..spec import SpecError


def _check_positive(settings: Any, prefix: str) -> None:
    """Raise `SpecError` for a number that is not positive and finite."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if not (math.isfinite(number) and number > 0):
                raise SpecError(f"{prefix}.{field.name} is {value}, but must be positive and finite")


def _check_share(settings: Any, prefix: str, *names: str) -> None:
    """Raise `SpecError` for a share above 1."""
    for name in names:
        if getattr(settings, name) > 1:
            raise SpecError(f"{prefix}.{name} is {getattr(settings, name)}, but must be at most 1")


@dataclass(frozen=True)
class SignalSettings:
    """When a single sample is not believed."""

    max_scales: float = 100.0
    """A measurement further from its centre than this many of its scales is implausible."""
    command_slack: float = 1e-4
    """How far a logged command may lie outside its range, as a share of the range."""
    spike_quantile: float = 0.9
    """Which quantile of the distances from the neighbours counts as usual."""
    spike_ratio: float = 4.0
    """A spike lies further from its neighbours than this many times the usual distance …"""
    spike_change_scales: float = 5.0
    """… and further than this many change scales."""
    stuck_steps: int = 25
    """A sensor is suspected of being stuck when it shows the same value for this many steps …"""
    stuck_change_scales: float = 5.0
    """… and is stuck when position and velocity of its joint then disagree by more than this many change scales."""
    leap_speed: float = 3.0
    """A position leaps when it moves further in one period than this many times its speed allows …"""
    leap_range: float = 0.25
    """… and this share of its range besides."""
    frozen_s: float = 0.5
    """A sensor that shows the same for this long at full command, longer at less, is frozen; dead time comes on top."""
    unknown_dead_time_s: float = 0.2
    """The assumed dead time where it is not known."""
    frozen_command: float = 0.25
    """Commands below this share of their range need not move anything: valves have dead bands."""
    contradicted_steps: int = 5
    """A position or velocity must be the same for at least this many measurements before its partner contradicts it."""

    def __post_init__(self) -> None:
        _check_positive(self, "signals")
        _check_share(self, "signals", "spike_quantile", "frozen_command")
        for name in ("stuck_steps", "contradicted_steps"):
            if not isinstance(getattr(self, name), int):
                raise SpecError(f"signals.{name} is {getattr(self, name)!r}, but must be a whole number")


@dataclass(frozen=True)
class UnitSettings:
    """When a signal cannot be in the robot's unit."""

    outside_range: float = 0.5
    """A position is far outside its limits when it is beyond them by more than this share of its range."""
    outside_share: float = 0.1
    """A position is in another unit when it is far outside in more than this share of the rows …"""
    outside_rows: int = 20
    """… and in more rows than this. Fewer may be a sensor that failed for a while."""
    travel_window_s: float = 0.5
    """Over how long position and velocity are compared: long enough for noise to average out."""
    min_windows: int = 20
    """In how many such windows the joint must have moved for a verdict."""
    min_correlation: float = 0.9
    """Smallest rank correlation of measured and integrated travel for a verdict: noise has none, another unit has 1."""
    max_factor: float = 2.0
    """By how much measured and integrated travel may differ."""
    turns: tuple[float, ...] = (2 * math.pi, 360.0)
    """A wrapped angle jumps by one of these."""

    def __post_init__(self) -> None:
        _check_positive(self, "units")
        _check_share(self, "units", "outside_share", "min_correlation")


@dataclass(frozen=True)
class PeriodSettings:
    """When rows of a log follow each other at the control period."""

    tolerance: float = 0.02
    """A log whose period differs by no more than this share is taken as it is."""
    jitter: float = 0.3
    """A row may come this share of a period early or late; later than that there is a gap.

    In a faster log one row may be missing, but nothing longer than a control period and this share of it."""

    def __post_init__(self) -> None:
        _check_positive(self, "period")
        _check_share(self, "period", "tolerance", "jitter")
