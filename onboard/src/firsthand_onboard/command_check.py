"""The watchdog's own check of every command: size, range, rate and age, independent of the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SLACK = 1e-3
"""Relative, for rounding and for a clock that is not exact; in seconds for a measurement from the future."""


@dataclass(frozen=True)
class CommandLimits:
    """What the watchdog lets through; the loop tells it once, before anything moves."""

    low: np.ndarray
    high: np.ndarray
    neutral: np.ndarray
    step: np.ndarray
    """Largest change per period away from neutral; infinite for no limit."""
    period_s: float
    """Of the clock, not of the specification: a simulation may run faster."""
    age_s: float
    """How old a measurement may be when the command made from it arrives; infinite for no limit."""

    def pack(self) -> np.ndarray:
        """As one row of numbers."""
        return np.concatenate([[self.period_s, self.age_s], self.low, self.high, self.neutral, self.step])

    @staticmethod
    def unpack(row: np.ndarray) -> CommandLimits:
        """From `pack`; `ValueError` for anything else."""
        size = (len(row) - 2) // 4
        if size < 1 or len(row) != 2 + 4 * size:
            raise ValueError(f"{len(row)} numbers are not limits")
        low, high, neutral, step = row[2:].reshape(4, size)
        sound = (low <= neutral) & (neutral <= high) & (step > 0) & np.isfinite(low) & np.isfinite(high)
        if not (sound.all() and row[0] > 0 and row[1] > 0):
            raise ValueError("the limits are not in order")
        return CommandLimits(low, high, neutral, step, float(row[0]), float(row[1]))


class CommandCheck:
    """Remembers the last command and how much change is left."""

    def __init__(self, limits: CommandLimits | None, *, lock_step: bool) -> None:
        self.limits, self._lock_step = limits, lock_step
        self.rest(-math.inf)

    def rest(self, now: float) -> None:
        """The machine was brought to neutral."""
        if self.limits is not None:
            self._last, self._left = self.limits.neutral, 2.0 * self.limits.step
        self._at = now

    def refuse(self, command: np.ndarray, read_at: float, now: float) -> str:
        """Why a command must not reach the machine; empty where it may."""
        if not np.isfinite(command).all():
            return "a command that is not finite"
        limits = self.limits
        if limits is None:
            return ""
        if command.shape != limits.low.shape:
            return f"a command of {command.size} values instead of {limits.low.size}"
        rounding = 1e-6 * (limits.high - limits.low)
        if not ((limits.low - rounding <= command) & (command <= limits.high + rounding)).all():
            return f"a command outside its range: {np.array2string(command, precision=4)}"
        if not self._lock_step and not -SLACK <= now - read_at <= limits.age_s:
            return f"a command {1000 * (now - read_at):.0f} ms after its measurement"
        return self._spend(limits, command, now, rounding)

    def _spend(self, limits: CommandLimits, command: np.ndarray, now: float, rounding: np.ndarray) -> str:
        """Changes away from neutral are paid for; what is left grows with time, up to two periods' worth."""
        passed = 1.0 if self._lock_step else (now - self._at) / limits.period_s
        with np.errstate(invalid="ignore"):
            left = np.minimum(self._left + passed * limits.step, 2.0 * limits.step)
            before, wanted = self._last - limits.neutral, command - limits.neutral
            crosses = before * wanted < 0
            cost = np.where(crosses, np.abs(wanted), np.abs(wanted) - np.abs(before))
            left = np.where(np.isinf(limits.step), np.inf, left - np.maximum(cost, 0.0))
        if not (left >= -SLACK * limits.step - rounding).all():
            return f"a command that changes faster than its rate: {np.array2string(command, precision=4)}"
        self._last, self._left, self._at = command, left, now
        return ""
