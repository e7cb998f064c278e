"""Leads joints that stand outside their limits back inside: slowly, without a policy, while an operator asks for it.

Each such joint gets a small command inward that grows until the joint creeps, and no further; every command goes
through the gate, which lets nothing lead further out.
"""

from __future__ import annotations

import numpy as np

from .gate_limits import GateLimits
from .machine import MachineError
from .spec import ControlSpec

SLOWEST, FASTEST = 0.02, 0.05
"""Between these speeds, in ranges per second, the command stays as it is."""
GROWS, SHRINKS = 0.1, 0.3
"""How fast the command grows below and shrinks above them, in shares of its range per second."""
MAX_SHARE = 0.3
"""Largest share of the command range."""
MAX_S = 120.0
"""Longer than this is not tried."""


class Recovery:
    """One recovery, from where the machine stands."""

    def __init__(self, spec: ControlSpec, limits: GateLimits, measured: np.ndarray) -> None:
        self._index = np.asarray(spec.layout.position)
        self._low, self._high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self._range = self._high - self._low
        self._names = [spec.layout.measured[at] for at in spec.layout.position]
        self._limits, self._period = limits, spec.period_s
        self.steps = round(MAX_S / spec.period_s)
        self._before = self._first = self._outside(measured)
        self._shares = np.zeros(len(self._index))
        for i in np.flatnonzero(self._first):
            if i not in limits.joint or (limits.brake and limits.brake[i] > 0):
                raise MachineError(f"{self._names[i]} cannot be led back by this program: lead it back by hand")

    def _outside(self, measured: np.ndarray) -> np.ndarray:
        """How far each joint is above its upper limit, or, negative, below its lower one, in its ranges."""
        position = np.asarray(measured, float)[self._index]
        return (np.maximum(position - self._high, 0.0) + np.minimum(position - self._low, 0.0)) / self._range

    def is_done(self, measured: np.ndarray) -> bool:
        """Whether every joint is inside."""
        return bool((self._outside(measured) == 0.0).all())

    def command(self, measured: np.ndarray) -> np.ndarray:
        """The command of this period; `MachineError` where a joint goes further out."""
        outside = self._outside(measured)
        tolerance = self._limits.limit_tolerance
        worse = ~(np.abs(outside) <= np.abs(self._first) + tolerance)
        if worse.any():
            raise MachineError(f"{self._names[int(np.argmax(worse))]} moves further out of its limits")
        speed = (np.abs(self._before) - np.abs(outside)) / self._period
        self._shares += self._period * np.where(speed < SLOWEST, GROWS, np.where(speed > FASTEST, -SHRINKS, 0.0))
        self._shares = np.where(outside == 0.0, 0.0, np.clip(self._shares, 0.0, MAX_SHARE))
        self._before = outside
        limits = self._limits
        command = np.asarray(limits.neutral, float).copy()
        for channel, (joint, sign) in enumerate(zip(limits.joint, limits.sign)):  # noqa: B905 (Python 3.10)
            if joint >= 0 and self._shares[joint] > 0:
                end = limits.low[channel] if sign * outside[joint] > 0 else limits.high[channel]
                command[channel] += self._shares[joint] * (end - command[channel])
        return command
