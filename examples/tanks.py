"""Two tanks in a row, filled by a pump that can only push: the level of the lower one follows set-points.

firsthand train examples/tanks.py:task --episodes 25
"""

import gymnasium
import numpy as np

import firsthand as fh

PERIOD = 2.0  # seconds
AREA, OUTLET = 0.05, 6e-4  # m² of each tank; outflow in m³/s per √m of level
PUMP_MAX = 10.0  # volts
FLOW = 6e-5  # m³/s per volt


class Tanks(gymnasium.Env):
    """The pump fills the upper tank, which empties into the lower one, which empties into a drain."""

    action_space = gymnasium.spaces.Box(0.0, PUMP_MAX, (1,))
    observation_space = gymnasium.spaces.Box(0.0, np.inf, (2,))
    dt = PERIOD

    def reset(self, *, seed=None, options=None):
        """Somewhere near the middle."""
        super().reset(seed=seed)
        return self._stand(self.np_random.uniform(0.2, 0.4)), {}

    def _stand(self, level):
        """Both tanks in balance at this level."""
        self.levels = np.array([level, level])
        return self.levels.astype(np.float32)

    def step(self, action):
        """One control period."""
        upper, lower = self.levels
        for _ in range(4):
            between, out = OUTLET * np.sqrt(max(upper, 0.0)), OUTLET * np.sqrt(max(lower, 0.0))
            upper = max(upper + PERIOD / 4 * (FLOW * float(action[0]) - between) / AREA, 0.0)
            lower = max(lower + PERIOD / 4 * (between - out) / AREA, 0.0)
        self.levels = np.array([upper, lower])
        return self.levels.astype(np.float32), 0.0, False, False, {}


task = fh.GymnasiumTask(
    name="tanks",
    env=Tanks,
    names=("upper level", "lower level"),
    units=("m", "m"),
    command_names=("pump",),
    command_units=("V",),
    neutral=0.0,  # the pump stands still at 0, not in the middle of its range
    positions=("upper level", "lower level"),
    position_low=0.0,
    position_high=1.0,
    tracked=("lower level",),
    goal_low=0.1,
    goal_high=0.6,
    reference="hold",  # a set-point: it jumps, and is held for a trajectory
    steps=150,
    trajectories=4,
    place=lambda env, levels: env.unwrapped._stand(float(levels[1])),
)
