"""The soft arm's task: the tip follows a path in the horizontal plane, seen by motion capture."""

from dataclasses import dataclass

import numpy as np

from firsthand_onboard import (
    ControlSpec,
    Limits,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    StateLayout,
)
from firsthand_onboard.features import PEAK_OF_QUINTIC

from . import paths
from .base import EvaluationReference, Task
from .cost import tracking_cost

ENDS = ("lower", "middle", "tip")
COORDINATES = tuple(f"{end}.{axis}" for end in ENDS for axis in "xyz")
MOTORS = tuple(f"{segment}.{cable}" for segment in ("lower", "middle", "upper") for cable in ("first", "second"))
"""Two of the three cables of each segment are commanded."""
HOME = (0.0, 0.0, 0.3, 0.0, 0.0, 0.6, 0.0, 0.0, 0.9)
"""The segment ends of the arm that stands upright, in metres."""
TIP = (6, 7)
"""Where the tip's x and y are among the measured."""
POSITION_LOW = (-0.25, -0.25, 0.1, -0.6, -0.6, 0.15, -1.0, -1.0, 0.1)
POSITION_HIGH = (0.25, 0.25, 0.4, 0.6, 0.6, 0.8, 1.0, 1.0, 1.2)
"""Wider than the motors can bend the arm, so that the soft limits only speak when something is wrong."""
REACH_M = 0.33
"""Goals lie in the disk of this radius: the circle of 0.25 m and the corners of the square (0.283 m) with a margin."""
SPEED_M_S = 0.2
"""No reference asks the tip for more, along x or y."""


@dataclass(frozen=True)
class SoftArmGoals:
    """Points in the disk, evenly spread, at least some way from the last one and near enough for the time given."""

    duration_s: float
    radius_m: float = REACH_M
    least_travel_m: float = 0.15
    """Short hops would make the task easier than the paper's."""
    candidates: int = 64

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """Each goal is drawn as if the last one had been reached."""
        farthest = SPEED_M_S * self.duration_s / PEAK_OF_QUINTIC
        at = np.asarray(measured, float)[list(TIP)]
        goals = []
        for _ in range(count):
            angle = rng.uniform(0.0, 2 * np.pi, self.candidates)
            radius = self.radius_m * np.sqrt(rng.uniform(0.0, 1.0, self.candidates))
            points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
            way = np.abs(points - at)
            short = np.maximum(self.least_travel_m - np.linalg.norm(points - at, axis=1), 0.0)
            at = points[np.argmin(short + np.maximum(way.max(axis=1) - farthest, 0.0))]
            goals.append(at)
        return np.stack(goals)


@dataclass(frozen=True)
class SoftArmEvaluation:
    """Circle and square of the paper's figure 11, each from rest upright: out to its start, then once round."""

    period_s: float

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """The way out is travelled at the same speed and counts like the rest."""
        center = (0.0, 0.0)
        shapes = {
            "circle": paths.circle(center, 0.25, speed=speed, period_s=self.period_s),
            "square": paths.square(center, 0.4, speed=speed, period_s=self.period_s),
        }
        references = []
        for name, points in shapes.items():
            out = paths.polygon([center, tuple(points[0])], speed=speed, period_s=self.period_s)
            references.append(EvaluationReference(name, np.concatenate([out, points[1:]]), np.asarray(HOME)))
        return tuple(references)


def soft_arm_task(
    *,
    trajectories: int = 10,
    steps: int = 120,
    hidden: tuple[int, ...] = (128, 128),
    command_memory: int = 4,
    measurement_memory: int = 3,
    preview: tuple[int, ...] = (1, 2, 4, 6, 8, 10, 13, 16),
    change_weight: float = 0.005,
    length_scale: float = 0.2,
) -> Task:
    """The task of the paper's soft-arm experiment: 10 trajectories of 6 s at 20 Hz, tip tracking in the plane."""
    period_s = 0.05
    spec = ControlSpec(
        robot="soft-arm",
        period_s=period_s,
        layout=StateLayout(
            measured=COORDINATES,
            position=tuple(range(9)),
            velocity=(),
            commands=MOTORS,
            command_memory=command_memory,
            measurement_memory=measurement_memory,
        ),
        kinematics=SelectedOutput(TIP),
        preview=preview,
        scales=Scales(
            measured_center=HOME,
            measured_scale=(0.05, 0.05, 0.02, 0.15, 0.15, 0.05, 0.3, 0.3, 0.1),
            change_scale=(0.004, 0.004, 0.002, 0.008, 0.008, 0.003, 0.016, 0.016, 0.006),
            error=0.06,
            preview=0.1,
        ),
        limits=Limits(
            command_low=(-1.0,) * 6, command_high=(1.0,) * 6, position_low=POSITION_LOW, position_high=POSITION_HIGH
        ),
        reference=ReferenceSpec(space="output", steps=steps, rate_low=(-SPEED_M_S,) * 2, rate_high=(SPEED_M_S,) * 2),
        policy=PolicyShape(hidden),
    )
    return Task(
        spec=spec,
        cost=tracking_cost(spec, length_scale=length_scale, change_weight=change_weight),
        sample_goals=SoftArmGoals(duration_s=steps * period_s),
        evaluation=SoftArmEvaluation(period_s),
        evaluation_speed=0.125,
        home=HOME,
        trajectories=trajectories,
    )
