"""The length of trajectories of a robot that falls or runs away: short at first, longer as it stays up.

A robot that ends most of its motions early learns little from imagined motion after the fall: the model knows nothing
there, and an unstable loop makes gradients explode. So both the robot's trajectories and the imagined ones end after a
horizon, which follows how long the robot stays up. Arrays keep their length and steps beyond the horizon do not count,
so nothing is recompiled. A robot whose motions end as planned keeps the whole length. Imagined trajectories are twice
as long as the robot's: a policy that does not see the fall coming does not learn to avoid it.
"""

import math

import numpy as np

from ..robots import EpisodeRecord
from ..tasks import Task

MIN_HORIZON = 10
"""Shorter trajectories show nothing."""
IMAGINED = 2
"""Steps of imagined trajectories over those of the robot's."""
STANDING_SHARE = 1.0
"""The horizon over the time that the robot stands between two falls."""
GROWTH = 1.3
"""By this factor the horizon grows at most, from one episode to the next."""


class Horizon:
    """The number of steps that trajectories have now."""

    def __init__(self, task: Task) -> None:
        self.longest = task.steps
        self.steps = task.steps
        self.adaptive = task.adaptive_horizon

    @property
    def imagined_steps(self) -> int:
        """The number of steps of imagined trajectories that count."""
        return min(IMAGINED * self.steps, self.longest)

    def resume(self, steps: int, record: EpisodeRecord) -> None:
        """Go on after an episode whose trajectories had so many steps; `ValueError` where none can have had them."""
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= self.longest:
            raise ValueError(f"horizon is {str(steps)[:20]}, but must lie between 1 and {self.longest}")
        self.steps = steps
        self.update(record)

    def update(self, record: EpisodeRecord) -> float:
        """Learn how long the trajectories of an episode under this horizon were; the share that ended early.

        Trajectories that never began, as after a failure of the robot, say nothing about how long it stays up.
        """
        share = record.early_ends(self.steps)
        lengths = record.valid.sum(axis=1)
        lengths = lengths[lengths > 0]
        if not self.adaptive or not len(lengths):
            return share
        falls = round(share * len(lengths))
        stands = float(lengths.sum()) / falls if falls else math.inf
        wanted = min(STANDING_SHARE * stands, GROWTH * self.steps)
        self.steps = int(np.clip(math.ceil(wanted), min(MIN_HORIZON, self.longest), self.longest))
        return share
