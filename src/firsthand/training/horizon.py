"""How long the trajectories of a robot are that falls or runs away: short at first, longer as it stays up.

A robot that ends most of its motions early learns little from what a model imagines of the time after the fall: there
the model knows nothing, and an unstable loop makes gradients explode. So both the robot's trajectories and the imagined
ones end after a horizon, which follows how long the robot stays up. Arrays keep their length, and steps beyond the
horizon count for nothing: nothing is compiled anew. A robot whose motions end when they should keeps the whole length.
"""

import math

import numpy as np

from ..robots import EpisodeRecord
from ..tasks import Task

MIN_HORIZON = 10
"""Shorter trajectories show nothing."""
FALLS = 0.25
"""Share of trajectories that end early, from which on the horizon is shortened."""
HEADROOM = 0.8
"""The horizon over the median length of the trajectories, where many end early."""
GROWTH = 1.3
"""What the horizon is multiplied by where hardly any trajectory ended early."""
STANDS = 0.1
"""Share of trajectories that may end early for that."""


class Horizon:
    """The number of steps that trajectories have now."""

    def __init__(self, task: Task) -> None:
        self.longest = task.steps
        self.steps = task.steps
        self.adaptive = task.adaptive_horizon

    def update(self, record: EpisodeRecord) -> float:
        """Learn how long the trajectories of an episode under this horizon were; the share that ended early."""
        lengths = record.valid.sum(axis=1)
        share = float(np.mean(lengths < min(self.steps, record.valid.shape[1])))
        if not self.adaptive:
            return share
        if share > FALLS:
            wanted = HEADROOM * float(np.median(lengths))
        elif share <= STANDS:
            wanted = GROWTH * self.steps
        else:
            wanted = self.steps
        self.steps = int(np.clip(math.ceil(wanted), min(MIN_HORIZON, self.longest), self.longest))
        return share
