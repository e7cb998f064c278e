"""A pneumatic joint: two bellows pull at a lever, filled through slow valves, with hysteresis (Bouc–Wen) and a weight.

firsthand train joint.py:task
"""

import gymnasium
import numpy as np

import firsthand as fh


class Joint(gymnasium.Env):
    """Measures the angle and both pressures (bar); a command is the difference of the wanted pressures."""

    dt = 0.04

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))

    def reset(self, *, seed=None, options=None):
        """At rest in the middle, under 2 bar."""
        super().reset(seed=seed)
        self.angle = self.speed = self.memory = 0.0
        self.pressure = np.array([2.0, 2.0])
        return self._observe(), {}

    def step(self, action):
        """One control period, in eight parts."""
        wanted = 2.0 + 1.8 * float(action[0]) * np.array([1.0, -1.0])
        step = self.dt / 8
        for _ in range(8):
            self.pressure = self.pressure + step / 0.12 * (wanted - self.pressure)
            turn = 1.6 * (self.pressure[0] - self.pressure[1])
            self.memory += step * (8.0 * self.speed - 6.0 * abs(self.speed) * self.memory)
            force = turn - 4.0 * self.angle - 0.8 * self.memory - 0.5 * self.speed - 1.0 * np.sin(self.angle + 0.4)
            self.speed += step * force / 0.08
            self.angle += step * self.speed
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return np.array([self.angle, *self.pressure], np.float32)


task = fh.GymnasiumTask(
    name="pneumatic",
    env=Joint,
    positions=(0,),
    position_low=-1.0,
    position_high=0.8,
    rate=0.8,
    measurement_memory=1,
    unit="rad",
    sensors=fh.Sensors(noise=(0.001, 0.0, 0.0)),
)
