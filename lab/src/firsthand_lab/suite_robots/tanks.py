"""Two tanks in a row behind one pump that only fills: the level of the second follows slow references.

firsthand train tanks.py:task
"""

import gymnasium
import numpy as np

import firsthand as fh

AREA_M2, OUTLET_M2, PUMP_M3_S, GRAVITY = 0.015, 1.0e-4, 2.5e-4, 9.81


class Tanks(gymnasium.Env):
    """Measures both levels, in metres; the outlets obey Torricelli's law."""

    dt = 2.0

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.levels = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        """Both about half full."""
        super().reset(seed=seed)
        self.levels = self.np_random.uniform(0.14, 0.16, 2)
        return self._observe(), {}

    def step(self, action):
        """One control period, in ten parts."""
        for _ in range(10):
            out = OUTLET_M2 * np.sqrt(2 * GRAVITY * np.maximum(self.levels, 0.0))
            flow = np.array([PUMP_M3_S * float(action[0]) - out[0], out[0] - out[1]])
            self.levels = np.maximum(self.levels + self.dt / 10 * flow / AREA_M2, 0.0)
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return self.levels.astype(np.float32)


task = fh.GymnasiumTask(
    name="tanks",
    env=Tanks,
    positions=(0, 1),
    tracked=(1,),
    position_low=(0.0, 0.02),
    position_high=(0.32, 0.28),
    goal_low=0.06,
    goal_high=0.22,
    rate=0.001,
)
