"""Goals and evaluation references that are held: set-points of a process, or nothing to follow at all."""

from dataclasses import dataclass

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import output_of_positions

from .base import EvaluationReference
from .box import MARGIN, GoalBox, start_of

SHARES = (0.75, 0.25, 0.5)
"""Where the set-points of the evaluation lie in the range of goals, one after the other."""
OFFSET = 0.1
"""Where there is but one set-point: how far from the middle of its range each position starts, over half of it."""


@dataclass(frozen=True)
class SetPoints:
    """Uniformly drawn set-points inside a box; the robot need not be anywhere near."""

    spec: ControlSpec
    """The specification, which defines goals."""
    box: GoalBox
    """Where set-points lie; a single point where low and high are equal."""

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """`count` of them."""
        low, high = np.asarray(self.box.low, float), np.asarray(self.box.high, float)
        margin = MARGIN * (high - low)
        return rng.uniform(low + margin, high - margin, (count, len(low)))


@dataclass(frozen=True)
class SetPointReferences:
    """Three set-points in turn, each held for a trajectory. Where there is but one: reached from either side of it."""

    spec: ControlSpec
    """The specification, which defines goals."""
    box: GoalBox
    """Where set-points lie."""
    home: tuple[float, ...]
    """The configuration that stands for those that cannot be computed."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """The references; there is no speed to them."""
        low, high = np.asarray(self.box.low, float), np.asarray(self.box.high, float)
        steps, spec = self.spec.reference.steps, self.spec
        middle = (low + high) / 2
        if (high > low).any():
            goals = np.stack([low + share * (high - low) for share in SHARES])
            start = middle if spec.reference.space == "position" else start_of(spec, middle, self.home)
            return (EvaluationReference("set-points", np.repeat(self._outputs(goals), steps, axis=0), start),)
        points = np.repeat(self._outputs(low[None]), 2 * steps, axis=0)
        half = np.asarray(spec.limits.position_high) - self.home
        return tuple(
            EvaluationReference(name, points, np.asarray(self.home) + side * OFFSET * half)
            for name, side in (("from above", 1.0), ("from below", -1.0))
        )

    def _outputs(self, goals: np.ndarray) -> np.ndarray:
        """The tracked output at goals `(count, goal)`; for the tip of a chain, goals are joint positions."""
        in_position = self.spec.reference.space == "position"
        return np.asarray(output_of_positions(self.spec.kinematics, goals) if in_position else goals)

    def speed(self) -> float:
        """A nominal one, for what is asked per unit of time."""
        return float(np.max(self.spec.reference.rate_high))
