"""`real-excavator`: networks that our own code fitted to the public log of a real machine, as a robot.

The log is that of ZiqingZou/EfficientTrack (MIT licence, see LICENSE-EfficientTrack and NOTICE.md beside this file).
None of its rows is here: the work cycles for evaluation are of our own making, with the log's ranges, speeds and rests.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from firsthand_onboard.features import quintic_blend

from ...plants.sensors import Sensors
from ...tasks.base import EvaluationReference, Task
from ..logged_robot import LoggedRobot, read_logged_robot

FOLDER = Path(__file__).parent
CYCLE_S = 22.0
NUM_CYCLES = 3

KEYFRAMES = (
    (0.0, (-0.10, -0.20, 0.30, 0.50)),  # above the truck, bucket empty
    (1.0, (-0.10, -0.20, 0.30, 0.50)),
    (5.0, (0.05, -0.15, 0.28, -0.90)),  # swung to the trench
    (7.5, (0.38, -0.80, 0.45, -1.05)),  # lowered, reaching out
    (9.0, (0.38, -0.75, 0.90, -1.05)),  # into the ground
    (12.0, (0.36, -0.35, 1.60, -1.05)),  # dug
    (13.5, (0.20, -0.30, 2.00, -1.02)),  # bucket closed
    (15.0, (0.00, -0.25, 2.05, -0.80)),  # lifted
    (18.0, (-0.12, -0.20, 2.10, 0.40)),  # swung back
    (20.0, (-0.14, -0.05, 0.60, 0.50)),  # tipped out
    (21.0, (-0.15, 0.00, 0.25, 0.52)),
    (CYCLE_S, (-0.15, 0.00, 0.25, 0.52)),  # rest
)
"""A work cycle, as (seconds, pose): boom, arm, bucket, swing in rad."""
SPREAD = (0.05, 0.08, 0.12, 0.12)
"""How much the poses of a cycle differ from these, per joint, in rad."""


@cache
def load_description() -> LoggedRobot:
    """Names, limits and control period of the machine."""
    return read_logged_robot(FOLDER / "robot.toml")


def work_cycle(seed: int, period_s: float, speed: float = 1.0) -> np.ndarray:
    """A work cycle of our own making, `(steps, 4)`: smooth from pose to pose, with rests in between."""
    rng = np.random.default_rng([seed, 0xC1C])
    times = np.asarray([time for time, _ in KEYFRAMES]) / speed
    poses = np.asarray([pose for _, pose in KEYFRAMES])
    poses = poses + rng.uniform(-1.0, 1.0, poses.shape) * np.asarray(SPREAD)
    poses[1], poses[-1] = poses[0], poses[-2]  # rest before and after
    limits = load_description()
    poses = np.clip(poses, np.asarray(limits.position_low) + 0.02, np.asarray(limits.position_high) - 0.02)
    now = np.arange(round(CYCLE_S / speed / period_s)) * period_s
    which = np.clip(np.searchsorted(times, now, side="right") - 1, 0, len(times) - 2)
    share = quintic_blend((now - times[which]) / (times[which + 1] - times[which]))
    return poses[which] + share[:, None] * (poses[which + 1] - poses[which])


class WorkCycles:
    """Work cycles for evaluation; `speed` 1 is that of the log, which takes 22 s."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """Each from rest at its beginning."""
        period = load_description().period_s
        cycles = [work_cycle(seed, period, speed) for seed in range(NUM_CYCLES)]
        return tuple(EvaluationReference(f"cycle {i + 1}", c, c[0]) for i, c in enumerate(cycles))


def real_excavator_task() -> Task:
    """All four joints follow random poses; work cycles are for evaluation."""
    return replace(load_description().make_task(), evaluation=WorkCycles(), evaluation_speed=1.0)


def real_excavator_sensors() -> dict[str, Sensors | None]:
    """As in the log. That velocities come late is part of the plant."""
    step = np.deg2rad(0.01)
    real = Sensors(
        noise=(3e-4, 3e-4, 5e-4, 2e-4, 4e-3, 4e-3, 7e-3, 3e-3),
        resolution=(step, step, step, 9.6e-5, 0.0, 0.0, 0.0, 0.0),
    )
    return {"exact": None, "real": real.for_entries(load_description().spec().layout.measured)}
