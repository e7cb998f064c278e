"""Going home between episodes without a policy: a slow smooth reference per joint, and a proportional controller.

For machines whose commands set joint speeds (valves, velocity drives), and only where the machine declares which
command moves which joint, and which way. Every command goes through the gate.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

import numpy as np

from .features import PEAK_OF_QUINTIC, quintic_blend
from .gate_limits import GateLimits
from .machine import MachineError
from .policy import fast_output
from .spec import CHAINS, ControlSpec, SpecError, whole_number

AWAY = "homing leads away from its reference"
NEAR = 0.03
"""A joint within this share of its range from home counts as being there."""
MAX_STEPS = 200_000
"""Going home from where it would take longer is refused: a reading so far away is wrong."""


@dataclass(frozen=True)
class Homing:
    """Where home is, and how the machine goes there. A machine declares it as `homing`, or a file names it."""

    position: tuple[float, ...]
    """Home, one entry per position of the layout."""
    gain: float = 5.0
    """Command, in half ranges, per error of a joint, in its ranges."""
    speed: float = 0.05
    """Fastest motion of the reference, in joint ranges per second."""
    authority: float = 0.3
    """Share of the command range around neutral that homing may use."""
    error: float = 0.15
    """A joint further than this from its reference, in its ranges, moves the wrong way or not at all: a fault."""
    settle_s: float = 2.0
    """How long the reference stays at home before the motion ends."""

    def __post_init__(self) -> None:
        for i, value in enumerate(self.position):
            if not math.isfinite(value):
                raise SpecError(f"homing.position[{i}] is {value}, but must be a number")
        for name, most in (("gain", 1000.0), ("speed", 2.0), ("authority", 1.0), ("error", 1.0), ("settle_s", 60.0)):
            value = getattr(self, name)
            if not 0 < value <= most:
                raise SpecError(f"homing.{name} is {value}, but must be above 0 and at most {most:g}")

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Homing:
        """From a file or a message; one sentence for what is wrong with it."""
        try:
            data = json.loads(text, parse_int=whole_number)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SpecError(f"the homing is not JSON: {error}") from None
        known = [field.name for field in dataclasses.fields(Homing)]
        if not isinstance(data, dict) or "position" not in data or any(name not in known for name in data):
            raise SpecError(f"the homing must be a JSON object with position, and otherwise fields out of {known}")
        position = data.pop("position")
        numbers = [*position, *data.values()] if isinstance(position, list) else [None]
        if not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers):
            raise SpecError("the homing must hold numbers, and a list of them as its position")
        return Homing(tuple(float(p) for p in position), **{name: float(v) for name, v in data.items()})


def _check_box(spec: ControlSpec, limits: GateLimits, homing: Homing) -> None:
    measured = np.zeros(spec.layout.num_measured, np.float32)
    measured[list(spec.layout.position)] = homing.position
    at = fast_output(spec)(measured)
    for i, (low, high) in enumerate(zip(limits.box_low, limits.box_high)):  # noqa: B905 (Python 3.10)
        if isinstance(spec.kinematics, CHAINS) and not low <= at[i] <= high:
            raise SpecError(
                f"home is at {at[i]:.3g} in coordinate {i} of the workspace box, which goes from {low} to {high}"
            )


class HomingController:
    """A homing prepared for one machine."""

    def __init__(self, spec: ControlSpec, limits: GateLimits, homing: Homing) -> None:
        low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        if len(homing.position) != len(low):
            raise SpecError(f"homing.position has {len(homing.position)} entries, but must have {len(low)}")
        for i, value in enumerate(homing.position):
            if not low[i] <= value <= high[i]:
                raise SpecError(f"homing.position[{i}] is {value}, but must lie between {low[i]} and {high[i]}")
        _check_box(spec, limits, homing)
        self.spec, self.homing = spec, homing
        self.home, self.range = np.asarray(homing.position), high - low
        self._index = np.asarray(spec.layout.position)
        self._neutral = np.asarray(limits.neutral)
        self._up = np.asarray(limits.high) - self._neutral
        self._down = self._neutral - np.asarray(limits.low)
        self._channels = [(c, j, s) for c, (j, s) in enumerate(zip(limits.joint, limits.sign)) if j >= 0]  # noqa: B905
        self.driven = sorted({joint for _, joint, _ in self._channels})
        if not self.driven:
            raise SpecError(
                "homing needs to know which joint a command moves, and which way: `directions` of the machine, or "
                "joint and sign in the limits"
            )

    def reference(self, measured: np.ndarray) -> np.ndarray:
        """Positions per step, from where the machine is to home; joints that no command moves are left out of it."""
        moving, steps = self._count_steps(measured)
        start = np.asarray(measured, float)[self._index]
        return start + quintic_blend(np.arange(1, steps + 1) / max(moving, 1))[:, None] * (self.home - start)

    def num_steps(self, measured: np.ndarray) -> int:
        """How many steps going home takes; `MachineError` where the machine cannot be that far away."""
        return self._count_steps(measured)[1]

    def _count_steps(self, measured: np.ndarray) -> tuple[int, int]:
        """Steps in which the reference moves, and all of them; counted before any memory is taken for them."""
        slowest = self.away(measured)
        moving = PEAK_OF_QUINTIC * slowest / self.homing.speed / self.spec.period_s
        settling = math.ceil(self.homing.settle_s / self.spec.period_s)
        if not moving + settling <= MAX_STEPS:  # false for NaN
            raise MachineError(
                f"a joint measures {slowest:.3g} of its ranges away from home, which is too far to go there: "
                f"going home may take at most {MAX_STEPS} steps"
            )
        return math.ceil(moving), math.ceil(moving) + settling

    def command(self, wanted: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """The command at one step; what is not finite is left to the gate."""
        error = (wanted - np.asarray(measured, float)[self._index]) / self.range
        command = self._neutral.copy()
        for channel, joint, sign in self._channels:
            share = min(max(sign * self.homing.gain * error[joint], -1.0), 1.0)
            command[channel] += share * (self._up if share > 0 else self._down)[channel]
        return command

    def leads_away(self, wanted: np.ndarray, measured: np.ndarray) -> bool:
        """Whether a driven joint is too far from where it should be by now."""
        error = np.abs(wanted - np.asarray(measured, float)[self._index]) / self.range
        return any(error[joint] > self.homing.error for joint in self.driven)  # a missing one is the gate's business

    def away(self, measured: np.ndarray) -> float:
        """How far the farthest driven joint is from home, in its ranges."""
        far = np.abs(np.asarray(measured, float)[self._index] - self.home) / self.range
        return float(far[self.driven].max())
