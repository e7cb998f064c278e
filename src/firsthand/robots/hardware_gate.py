"""The safety gate of the onboard program around a real robot that is stepped in this process.

A robot behind `firsthand-onboard serve` has the same gate, and a watchdog process besides. Here there is only the gate:
every command of hardware goes through it, and a fault ends the run with the robot in neutral.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.gate import Gate
from firsthand_onboard.gate_limits import GateLimits, check_stops_are_known
from firsthand_onboard.loop import MAX_BRAKING_S

from .base import neutral

TURNS = 200.0
"""Limits of an angle that may turn on and on, in half turns."""


class HardwareGate:
    """Limits commands before a real robot gets them, and remembers what it has seen of it."""

    def __init__(
        self,
        spec: ControlSpec,
        stopping: Mapping[str, Any] | None,
        directions: Sequence[Sequence[int]] | None,
        angles: Collection[int] = (),
    ) -> None:
        """`SpecError` where it is not declared how the robot stops. Entries that are `angles` have no stops."""
        low, high = list(spec.limits.position_low), list(spec.limits.position_high)
        for i, entry in enumerate(spec.layout.position):
            if entry in angles:
                low[i], high[i] = -TURNS * math.pi, TURNS * math.pi
        wide = dataclasses.replace(spec.limits, position_low=tuple(low), position_high=tuple(high))
        spec = dataclasses.replace(spec, limits=wide)
        if stopping is None:
            raise SpecError(
                'it is not declared how the robot stops: give stopping={"lag_s": SECONDS}, for how long a joint goes '
                "on at its speed after the neutral command; more than you have seen is careful. Where commands are "
                "forces or torques neutral does not stop it, and stopping must have brake and deceleration"
            )
        limits = GateLimits.of(spec, neutral(spec), directions, dict(stopping))
        check_stops_are_known(spec, limits, None, simulated=False)
        self._gate, self._braking_steps = Gate(spec, limits), math.ceil(MAX_BRAKING_S / spec.period_s)
        self._state = self._gate.start()

    def begin(self) -> None:
        """The robot stands, or its angles are counted from another turn."""
        self._state = self._gate.start(self._state)

    def __call__(
        self, command: Float[np.ndarray, " commands"], measured: Float[np.ndarray, " measured"]
    ) -> tuple[Float[np.ndarray, " commands"], Bool[np.ndarray, " commands"], str]:
        """What may be commanded, which channels are as they were wanted, and why the robot must stop if it must."""
        gated = self._gate(self._state, command, measured)
        self._state = gated.state
        return gated.command, gated.free, gated.fault

    def brake(self, measured: Float[np.ndarray, " measured"]) -> Float[np.ndarray, " commands"] | None:
        """The command that slows down what neutral does not stop; None where nothing is left to be slowed down."""
        if not self._gate.brakes or not np.isfinite(measured).all() or self._gate.is_slow(self._state, measured):
            return None
        return self._gate.rest(self._state, measured)

    def follow(self, command: Float[np.ndarray, " commands"], measured: Float[np.ndarray, " measured"]) -> None:
        """A braking command was applied, and this came of it."""
        self._state = self._gate.follow(self._state, command, measured)

    @property
    def braking_steps(self) -> int:
        """Steps after which braking is given up."""
        return self._braking_steps
