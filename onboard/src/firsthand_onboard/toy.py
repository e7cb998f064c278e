"""A toy machine without JAX: two joints with dead time and lag, for tests, examples and a first try."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from .spec import ControlSpec, Limits, PlanarChain, PlanarJoint, PolicyShape, ReferenceSpec, Scales, StateLayout

SPEED = 1.0
"""Joint speed at full command, rad/s."""


def toy_spec(*, period_s: float = 0.04, steps: int = 50, hidden: tuple[int, ...] = (32, 32)) -> ControlSpec:
    """Two revolute links of one metre each; commands are joint speeds in [-1, 1]."""
    change = SPEED * period_s
    return ControlSpec(
        robot="toy",
        period_s=period_s,
        layout=StateLayout(
            measured=("shoulder.position", "elbow.position", "shoulder.velocity", "elbow.velocity"),
            position=(0, 1),
            velocity=(2, 3),
            commands=("shoulder", "elbow"),
            command_memory=3,
        ),
        kinematics=PlanarChain((0.0, 0.0), (PlanarJoint("revolute", 1.0), PlanarJoint("revolute", 1.0))),
        preview=(1, 2, 4, 8),
        scales=Scales((0.0, 0.0, 0.0, 0.0), (1.5, 1.5, 1.0, 1.0), (change, change, 0.2, 0.2), 0.3, 0.5),
        limits=Limits((-1.0, -1.0), (1.0, 1.0), (-2.0, -2.0), (2.0, 2.0)),
        reference=ReferenceSpec("position", steps, (-0.6, -0.6), (0.6, 0.6)),
        policy=PolicyShape(hidden),
    )


class Toy:
    """The toy's physics: a command arrives after one period, and the joint speed follows it with a lag of 0.15 s."""

    directions = ((0, 1), (1, 1))
    stopping: ClassVar[dict[str, Any]] = {"lag_s": 0.15, "dead_time_s": 0.04}
    homing: ClassVar[dict[str, Any]] = {"position": [-0.5, 1.0], "speed": 0.1}

    def __init__(self, period_s: float | str = 0.04) -> None:
        self.spec = toy_spec(period_s=float(period_s))
        self.reset(np.asarray([-0.5, 1.0]))

    def reset(self, position: np.ndarray) -> None:
        """At rest in a configuration."""
        self.position, self.velocity = np.asarray(position, float).copy(), np.zeros(2)
        self.waiting = np.zeros(2)

    def step(self, command: np.ndarray) -> None:
        """One period with a command held."""
        share = 1.0 - math.exp(-self.spec.period_s / 0.15)
        self.velocity = self.velocity + share * (SPEED * self.waiting - self.velocity)
        self.position = np.clip(self.position + self.spec.period_s * self.velocity, -2.0, 2.0)
        self.waiting = np.clip(np.asarray(command, float), -1.0, 1.0)

    def measure(self) -> np.ndarray:
        """Positions and velocities."""
        return np.concatenate([self.position, self.velocity])
