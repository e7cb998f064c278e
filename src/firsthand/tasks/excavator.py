"""The excavator's task: the shovel's tip follows a path in the vertical plane."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from firsthand_onboard import (
    ControlSpec,
    Limits,
    PlanarChain,
    PlanarJoint,
    PolicyShape,
    ReferenceSpec,
    Scales,
    StateLayout,
)
from firsthand_onboard.features import PEAK_OF_QUINTIC, quintic_blend
from firsthand_onboard.kinematics import nearest_configuration, output_of_positions

from . import paths
from .base import EvaluationReference, Task
from .cost import tracking_cost

JOINTS = ("boom", "dipper", "telescope", "pitch")
JOINT_LOW = (-1.34, 0.58, 0.0, -0.35)
JOINT_HIGH = (0.44, 2.78, 1.8, 2.28)
SOLO_LOW = (-0.46, -0.68, -0.21, -1.25)
SOLO_HIGH = (0.72, 0.74, 0.47, 1.70)
"""Speed of each joint moving alone towards lower and higher values, at full command (rad/s, m/s)."""
SPEED_SHARE = 0.8
"""References stay below this share of the solo speed: faster ones cannot be followed."""
BOX_LOW, BOX_HIGH = (3.5, 0.5), (6.5, 5.0)
"""The workspace of the tip, (x, z) in metres."""

CHAIN = PlanarChain(
    base=(0.703, 0.549),
    joints=(
        PlanarJoint("revolute", 2.84),
        PlanarJoint("revolute", 0.0),
        PlanarJoint("prismatic", 2.027, 0.369),
        PlanarJoint("revolute", 1.418, 0.053),
    ),
)


REACHES_M = (6.0, 5.9, 5.8, 5.7, 5.6, 5.5, 5.4, 5.3, 5.2, 5.1, 5.0)
"""How far in front the evaluation shapes may end: as in the paper, or nearer with a heavy load."""

FEW = 64
"""Candidates for a goal that are looked at first."""


@dataclass(frozen=True)
class ExcavatorGoals:
    """Random poses whose tip lies in the workspace box, reached by paths inside the box at allowed joint speeds."""

    duration_s: float
    candidates: int = 1024
    least_travel_m: float = 0.9
    """The tip moves at least this far: short hops would make the task easier than the paper's."""
    can_lift: Callable[[np.ndarray], np.ndarray] | None = None
    """Tells for poses, `(…, 4)`, whether the arm can lift its load there: paths then stay where it can."""

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """Each goal is drawn as if the last one had been reached."""
        low, high = np.asarray(JOINT_LOW), np.asarray(JOINT_HIGH)
        margin = 0.05 * (high - low)
        reach_low, reach_high = (
            SPEED_SHARE * np.asarray(v) * self.duration_s / PEAK_OF_QUINTIC for v in (SOLO_LOW, SOLO_HIGH)
        )
        at = np.clip(np.asarray(measured, float)[:4], low, high)
        goals = []
        for _ in range(count):
            nearest = np.maximum(low + margin, at + reach_low)
            farthest = np.minimum(high - margin, at + reach_high)
            # From a pose in a corner of the joint space the interval can be empty: then go back inside.
            nearest, farthest = np.minimum(nearest, high - margin), np.maximum(farthest, low + margin)
            poses = rng.uniform(np.minimum(nearest, farthest), np.maximum(nearest, farthest), (self.candidates, 4))
            few = self._shortfall(at, poses[:FEW])
            # Mostly one of the first few is as wanted; the answer is the same as with all of them.
            at = poses[np.argmin(few if few.min() == 0.0 else self._shortfall(at, poses))]
            goals.append(at)
        return np.stack(goals)

    def _shortfall(self, start: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """By how much each goal is not as wanted, in metres; zero for a good one."""
        travel = np.linalg.norm(output_of_positions(CHAIN, goals) - output_of_positions(CHAIN, start), axis=1)
        missing = outside_box(start, goals) + np.maximum(self.least_travel_m - travel, 0.0)
        if self.can_lift is None:
            return missing
        stuck = ~self.can_lift(poses_between(start, goals))
        return missing + stuck.mean(axis=0) + stuck[-1]


def poses_between(start: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Eight poses on the way from `start` to each goal, the goal last, `(8, goals, 4)`."""
    share = quintic_blend(np.linspace(0.0, 1.0, 9))[1:]
    return start + share[:, None, None] * (goals - start)


def outside_box(start: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """How far the path from `start` to each goal leaves the workspace box, in metres; zero for a path inside.

    Counts the worst point of the second half of the path twice: a path that starts outside shall at least come back.
    """
    tip = output_of_positions(CHAIN, poses_between(start, goals))
    low, high = np.asarray(BOX_LOW), np.asarray(BOX_HIGH)
    away = np.maximum(np.maximum(low - tip, tip - high), 0.0).sum(axis=-1)
    return away.max(axis=0) + away[4:].max(axis=0)


@dataclass(frozen=True)
class ExcavatorEvaluation:
    """Circle, square and line of the paper's figure 4."""

    period_s: float
    reach_m: float = REACHES_M[0]
    """Their farthest point. Nearer ones are smaller where they would leave the workspace."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """Each starts at rest at the inverse-kinematics solution nearest to the middle pose."""
        half, far = self._half(), self.reach_m
        center, near = (far - half, 1.5), far - 2 * half
        shapes = {
            "circle": paths.circle(center, half, speed=speed, period_s=self.period_s),
            "square": paths.square(center, 2 * half, speed=speed, period_s=self.period_s),
            "line": paths.there_and_back((near, 1.5), (far, 1.5), speed=speed, period_s=self.period_s),
        }
        return tuple(
            EvaluationReference(name, points, nearest_configuration(CHAIN, points[0], low=JOINT_LOW, high=JOINT_HIGH))
            for name, points in shapes.items()
        )

    def far_poses(self) -> np.ndarray:
        """The poses nearest to the middle one at the far end of the shapes: bottom, middle and top."""
        points = [(self.reach_m, 1.5 + side * self._half()) for side in (-1.0, 0.0, 1.0)]
        return np.stack([nearest_configuration(CHAIN, point, low=JOINT_LOW, high=JOINT_HIGH) for point in points])

    def _half(self) -> float:
        """Half the width of the shapes, m."""
        return min(1.0, (self.reach_m - BOX_LOW[0]) / 2)


def joint_space(
    low: tuple[float, ...],
    high: tuple[float, ...],
    solo_low: tuple[float, ...],
    solo_high: tuple[float, ...],
    *,
    steps: int,
    period_s: float,
) -> dict[str, Any]:
    """Scales, limits and reference of an arm that measures positions and velocities, with goals in joint space."""
    positions, speeds = np.asarray([low, high]), np.asarray([solo_low, solo_high])
    count, speed = len(low), (speeds[1] - speeds[0]) / 2
    rate_low, rate_high = (SPEED_SHARE * speeds).tolist()
    return {
        "scales": Scales(
            measured_center=(*((positions[0] + positions[1]) / 2).tolist(), *(0.0,) * count),
            measured_scale=(*((positions[1] - positions[0]) / 2).tolist(), *speed.tolist()),
            change_scale=(*(speed * period_s).tolist(), *(0.1 * speed).tolist()),
            error=0.3,
            preview=0.5,
        ),
        "limits": Limits(
            command_low=(-1.0,) * count, command_high=(1.0,) * count, position_low=low, position_high=high
        ),
        "reference": ReferenceSpec(space="position", steps=steps, rate_low=tuple(rate_low), rate_high=tuple(rate_high)),
    }


def excavator_task(
    *,
    trajectories: int = 10,
    steps: int = 125,
    hidden: tuple[int, ...] = (128, 128),
    command_memory: int = 8,
    measurement_memory: int = 2,
    preview: tuple[int, ...] = (2, 4, 6, 8, 10, 12, 15, 18),
    change_weight: float = 0.005,
    limit_weight: float = 0.1,
) -> Task:
    """The task of the paper's HEAP experiments: 10 trajectories of 5 s at 25 Hz, tip tracking in the plane."""
    period_s = 0.04
    spec = ControlSpec(
        robot="excavator",
        period_s=period_s,
        layout=StateLayout(
            measured=tuple(f"{j}.position" for j in JOINTS) + tuple(f"{j}.velocity" for j in JOINTS),
            position=(0, 1, 2, 3),
            velocity=(4, 5, 6, 7),
            commands=JOINTS,
            command_memory=command_memory,
            measurement_memory=measurement_memory,
        ),
        kinematics=CHAIN,
        preview=preview,
        policy=PolicyShape(hidden),
        **joint_space(JOINT_LOW, JOINT_HIGH, SOLO_LOW, SOLO_HIGH, steps=steps, period_s=period_s),
    )
    return Task(
        spec=spec,
        cost=tracking_cost(spec, length_scale=1.0, change_weight=change_weight, limit_weight=limit_weight),
        sample_goals=ExcavatorGoals(duration_s=steps * period_s),
        evaluation=ExcavatorEvaluation(period_s),
        evaluation_speed=0.5,
        home=(-0.85, 1.2, 0.6, 0.8),
        trajectories=trajectories,
    )


def within_lift(task: Task, can_lift: Callable[[np.ndarray], np.ndarray]) -> Task | None:
    """The same task where the arm can lift its load: goals stay there, and shapes come nearer as far as they must.

    None where it cannot lift it at home, or not even on the nearest shapes.
    """
    assert isinstance(task.sample_goals, ExcavatorGoals)
    for reach_m in REACHES_M if can_lift(np.asarray(task.home)) else ():
        evaluation = ExcavatorEvaluation(task.spec.period_s, reach_m)
        if can_lift(evaluation.far_poses()).all():
            return replace(task, sample_goals=replace(task.sample_goals, can_lift=can_lift), evaluation=evaluation)
    return None
