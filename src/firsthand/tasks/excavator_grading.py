"""Grading: the shovel is drawn along a slope below uneven ground, again and again, each time in a fresh lane.

A lane takes three trajectories: out to above the far end of the slope, down into the ground, and back along the slope.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from firsthand_onboard import ReferenceSpec
from firsthand_onboard.kinematics import nearest_configuration

from . import paths
from .base import EvaluationReference, Task
from .cost import tracking_cost
from .excavator import CHAIN, JOINT_HIGH, JOINT_LOW, excavator_task

LEVEL_M = 0.9
"""Mean height of ground that is not cut, m."""
DEPTH_LOW, DEPTH_HIGH = 0.05, 0.15
"""How far below it the slope is in its middle, m."""
SLOPE = 0.1
"""Steepest slope, to either side."""
FAR_LOW, FAR_HIGH = 5.7, 6.1
NEAR_LOW, NEAR_HIGH = 4.0, 4.4
"""Where passes begin and end, m."""
MIDDLE_M = 5.0
LIFT_M = 0.45
"""How far above the level the shovel goes back, m."""
TIP_SPEED = 1.0
"""Highest speed of references, m/s."""


@dataclass(frozen=True)
class Pass:
    """One slope, and where on it the shovel goes in and comes out."""

    depth: float
    slope: float
    far: float
    near: float

    def height(self, x: float) -> float:
        """Of the wanted surface, m."""
        return LEVEL_M - self.depth + self.slope * (x - MIDDLE_M)

    @property
    def corners(self) -> tuple[tuple[float, float], ...]:
        """Above the far end, in the ground there, and at the near end."""
        return (self.far, LEVEL_M + LIFT_M), (self.far, self.height(self.far)), (self.near, self.height(self.near))


@dataclass(frozen=True)
class GradingGoals:
    """Three goals per pass: above its far end, its far end, its near end."""

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """Beginning with the way out, wherever the tip is."""
        del measured
        goals = self._all(rng)
        return np.stack([next(goals) for _ in range(count)])

    def _all(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            drawn = Pass(
                depth=rng.uniform(DEPTH_LOW, DEPTH_HIGH),
                slope=rng.uniform(-SLOPE, SLOPE),
                far=rng.uniform(FAR_LOW, FAR_HIGH),
                near=rng.uniform(NEAR_LOW, NEAR_HIGH),
            )
            yield from map(np.asarray, drawn.corners)


EVALUATION = {
    "level": Pass(0.10, 0.0, 6.0, 4.1),
    "rising": Pass(0.10, 0.08, 6.0, 4.1),
    "falling": Pass(0.10, -0.08, 6.0, 4.1),
}
"""Passes for evaluation only, by name."""


@dataclass(frozen=True)
class GradingEvaluation:
    """A level pass, and one along a slope to either side; each goes in, along and out again."""

    period_s: float

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """From rest above the far end; passes are drawn at `speed`."""
        found = []
        for name, one in EVALUATION.items():
            corners = [*one.corners, (one.near, LEVEL_M + LIFT_M)]
            points = paths.polygon(corners, speed=speed, period_s=self.period_s)
            found.append(EvaluationReference(name, points, _pose(corners[0])))
        return tuple(found)


def _pose(tip: tuple[float, float]) -> np.ndarray:
    return nearest_configuration(CHAIN, np.asarray(tip), low=JOINT_LOW, high=JOINT_HIGH)


def is_pass(points: np.ndarray, one: Pass) -> np.ndarray:
    """Which points of an evaluation reference, `(steps, 2)`, are on the slope, 10 cm away from its ends."""
    on = np.abs(points[:, 1] - (LEVEL_M - one.depth + one.slope * (points[:, 0] - MIDDLE_M))) < 1e-4
    return on & (points[:, 0] < one.far - 0.1) & (points[:, 0] > one.near + 0.1)


def excavator_grading_task(*, trajectories: int = 9, steps: int = 125, hidden: tuple[int, ...] = (128, 128)) -> Task:
    """The excavator's task with straight paths of the tip, three per pass: nine trajectories are three passes."""
    task = excavator_task(trajectories=trajectories, steps=steps, hidden=hidden)
    spec = replace(
        task.spec,
        robot="excavator-grading",
        reference=ReferenceSpec(space="output", steps=steps, rate_low=(-TIP_SPEED,) * 2, rate_high=(TIP_SPEED,) * 2),
    )
    home = _pose((MIDDLE_M, LEVEL_M + LIFT_M))
    return replace(
        task,
        spec=spec,
        cost=tracking_cost(spec, length_scale=1.0),
        sample_goals=GradingGoals(),
        evaluation=GradingEvaluation(spec.period_s),
        evaluation_speed=0.4,
        home=tuple(float(f"{angle:.4f}") for angle in home),
    )
