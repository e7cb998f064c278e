"""The excavator's task with its cabin turning: the tip follows paths in space, with five joints."""

from dataclasses import dataclass

import numpy as np

from firsthand_onboard import (
    ChainJoint,
    ControlSpec,
    PolicyShape,
    SerialChain,
    StateLayout,
)
from firsthand_onboard.features import PEAK_OF_QUINTIC
from firsthand_onboard.kinematics import nearest_configuration

from . import paths
from .base import EvaluationReference, Task
from .cost import tracking_cost
from .excavator import (
    CHAIN,
    JOINT_HIGH,
    JOINT_LOW,
    JOINTS,
    SOLO_HIGH,
    SOLO_LOW,
    SPEED_SHARE,
    ExcavatorGoals,
    joint_space,
)

CABIN_LOW, CABIN_HIGH = -1.2, 1.2
"""How far the cabin may turn, rad."""
CABIN_SPEED = 0.5
"""Its highest speed, rad/s."""
ARM = CHAIN.in_space()
CABIN_CHAIN = SerialChain((ChainJoint("revolute"), *ARM.joints), tip=ARM.tip)
"""The cabin turns about the vertical through the origin; the arm's plane turns with it."""
LOW, HIGH = (CABIN_LOW, *JOINT_LOW), (CABIN_HIGH, *JOINT_HIGH)
SLOW, FAST = (-CABIN_SPEED, *SOLO_LOW), (CABIN_SPEED, *SOLO_HIGH)
PERIOD_S = 0.04


@dataclass(frozen=True)
class CabinGoals:
    """Poses of the arm as `ExcavatorGoals` draws them, each with an angle of the cabin that can be reached."""

    arm: ExcavatorGoals

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """Each goal is drawn as if the last one had been reached."""
        poses = self.arm(rng, np.asarray(measured)[1:5], count)
        reach = SPEED_SHARE * CABIN_SPEED * self.arm.duration_s / PEAK_OF_QUINTIC
        margin = 0.05 * (CABIN_HIGH - CABIN_LOW)
        low, high = CABIN_LOW + margin, CABIN_HIGH - margin
        at, angles = float(np.clip(measured[0], low, high)), []
        for _ in range(count):
            at = float(rng.uniform(max(low, at - reach), min(high, at + reach)))
            angles.append(at)
        return np.concatenate([np.asarray(angles)[:, None], poses], axis=1)


@dataclass(frozen=True)
class CabinEvaluation:
    """A circle that leans back, a level square, and a slope from one side to the other, all 5 m in front."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """Each starts at rest at the configuration nearest to the middle pose."""
        flat = paths.circle((0.0, 0.0), 1.0, speed=speed, period_s=PERIOD_S)
        across, up = np.asarray([0.0, 1.0, 0.0]), np.asarray([0.6, 0.0, 0.8])
        shapes = {
            "circle": np.asarray([5.0, 0.0, 1.5]) + flat[:, :1] * across + flat[:, 1:] * up,
            "square": _corners([(5.8, -0.8), (5.8, 0.8), (4.2, 0.8), (4.2, -0.8), (5.8, -0.8)], 1.5, speed),
            "slope": _slope(speed),
        }
        return tuple(
            EvaluationReference(name, points, nearest_configuration(CABIN_CHAIN, points[0], low=LOW, high=HIGH))
            for name, points in shapes.items()
        )


def _corners(corners: list[tuple[float, float]], height: float, speed: float) -> np.ndarray:
    level = paths.polygon(corners, speed=speed, period_s=PERIOD_S)
    return np.concatenate([level, np.full((len(level), 1), height)], axis=1)


def _slope(speed: float) -> np.ndarray:
    start, end = np.asarray([5.0, -1.5, 1.0]), np.asarray([5.0, 1.5, 2.5])
    length = float(np.linalg.norm(end - start))
    share = paths.polygon([(0.0, 0.0), (length, 0.0), (0.0, 0.0)], speed=speed, period_s=PERIOD_S)[:, :1] / length
    return start + share * (end - start)


def excavator_cabin_task(*, trajectories: int = 10, steps: int = 125, hidden: tuple[int, ...] = (128, 128)) -> Task:
    """Tip tracking in space with cabin and arm; otherwise as `excavator_task`."""
    joints = ("cabin", *JOINTS)
    spec = ControlSpec(
        robot="excavator-cabin",
        period_s=PERIOD_S,
        layout=StateLayout(
            measured=tuple(f"{j}.position" for j in joints) + tuple(f"{j}.velocity" for j in joints),
            position=tuple(range(5)),
            velocity=tuple(range(5, 10)),
            commands=joints,
            command_memory=8,
            measurement_memory=2,
        ),
        kinematics=CABIN_CHAIN,
        preview=(2, 4, 6, 8, 10, 12, 15, 18),
        policy=PolicyShape(hidden),
        **joint_space(LOW, HIGH, SLOW, FAST, steps=steps, period_s=PERIOD_S),
    )
    return Task(
        spec=spec,
        cost=tracking_cost(spec, length_scale=1.0),
        sample_goals=CabinGoals(ExcavatorGoals(duration_s=steps * PERIOD_S)),
        evaluation=CabinEvaluation(),
        evaluation_speed=0.5,
        home=(0.0, -0.85, 1.2, 0.6, 0.8),
        trajectories=trajectories,
    )
