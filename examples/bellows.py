"""A soft arm of two bellows side by side that pressure lengthens: its tip follows paths in the plane.

firsthand train examples/bellows.py:task --episodes 25
"""

import gymnasium
import numpy as np

import firsthand as fh
from firsthand import goals

PERIOD = 0.05  # seconds
LENGTH, GAP = 0.3, 0.06  # m: of a bellows at rest, between the two
STRETCH, LAG = 0.06, 0.15  # m per bar; seconds until the valve has let the air in
STIFFNESS, DAMPING = 60.0, 4.0  # 1/s² and 1/s: the arm swings, at about 1.2 Hz


class Bellows(gymnasium.Env):
    """Lengths follow pressures like a mass on a spring; a longer bellows is stiffer. Measures the tip and its speed."""

    action_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
    dt = PERIOD

    def reset(self, *, seed=None, options=None):
        """Half of the pressure in both."""
        super().reset(seed=seed)
        self.pressure = np.full(2, 0.5)
        self.longer, self.speed = np.full(2, 0.5 * STRETCH), np.zeros(2)
        self.tip = self._tip()
        return np.concatenate([self.tip, np.zeros(2)]).astype(np.float32), {}

    def step(self, action):
        """One control period, in ten parts."""
        for _ in range(10):
            self.pressure += PERIOD / 10 * (np.clip(action, 0.0, 1.0) - self.pressure) / LAG
            pull = STRETCH * self.pressure - self.longer * (1.0 + 4.0 * np.abs(self.longer))
            self.speed += PERIOD / 10 * (STIFFNESS * pull - DAMPING * self.speed)
            self.longer = self.longer + PERIOD / 10 * self.speed
        last, self.tip = self.tip, self._tip()
        measured = np.concatenate([self.tip, (self.tip - last) / PERIOD])
        return measured.astype(np.float32), 0.0, False, False, {}

    def _tip(self):
        """The end of an arc: as long as the bellows on average, bent by their difference."""
        arc, bend = LENGTH + self.longer.mean(), (self.longer[0] - self.longer[1]) / GAP
        return arc * np.array([np.sinc(bend / np.pi), 0.5 * bend * np.sinc(0.5 * bend / np.pi) ** 2])


task = fh.GymnasiumTask(
    name="bellows",
    env=Bellows,
    names=("tip.x", "tip.y", "tip.x speed", "tip.y speed"),
    units=("m", "m", "m/s", "m/s"),
    command_names=("upper pressure", "lower pressure"),
    command_units=("bar", "bar"),
    neutral=0.0,
    positions=("tip.x", "tip.y"),
    velocities=("tip.x speed", "tip.y speed"),
    position_low=(0.26, -0.15),
    position_high=(0.38, 0.15),
    goal_low=(0.305, -0.06),
    goal_high=(0.34, 0.06),
    rate=(0.02, 0.06),
    goal=goals.Track(scale=0.03) + goals.Effort(0.001),
    measurement_memory=1,
)
