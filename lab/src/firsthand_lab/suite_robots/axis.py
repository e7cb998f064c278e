"""A linear axis whose slide hangs on a worn spindle: Coulomb friction and backlash; `drifting` also wears and spikes.

firsthand train axis.py:task
"""

import gymnasium
import numpy as np

import firsthand as fh

BACKLASH_M, FRICTION = 0.004, 0.15
"""Play between spindle and slide; friction as a share of the largest force."""
DRIFT_PER_S, SPIKE = 1e-4, 0.002
"""Of the drifting axis: share of its force lost per second, and share of samples that are off by 0.15 m."""


class Axis(gymnasium.Env):
    """Measures where the slide is, once per period."""

    dt = 0.02

    def __init__(self, *, drifts: bool = False) -> None:
        self.drifts = drifts
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self.time_s = 0.0

    def reset(self, *, seed=None, options=None):
        """In the middle; wear is not undone."""
        super().reset(seed=seed)
        self.spindle = self.slide = self.speed = 0.0
        return self._observe(), {}

    def step(self, action):
        """One control period, in four parts."""
        self.time_s += self.dt
        strength = 1.0 - min(DRIFT_PER_S * self.time_s, 0.5) if self.drifts else 1.0
        for _ in range(4):
            force = strength * float(action[0]) - FRICTION * np.tanh(self.speed / 0.005) - 1.0 * self.speed
            self.speed += self.dt / 4 * force / 0.15
            self.spindle += self.dt / 4 * self.speed
            self.slide = np.clip(self.slide, self.spindle - BACKLASH_M / 2, self.spindle + BACKLASH_M / 2)
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return np.array([self.slide], np.float32)


def _task(name: str, *, drifts: bool) -> fh.GymnasiumTask:
    return fh.GymnasiumTask(
        name=name,
        env=lambda: Axis(drifts=drifts),
        positions=(0,),
        position_low=-0.5,
        position_high=0.5,
        rate=0.3,
        measurement_memory=2,
        sensors=fh.Sensors(resolution=1e-4, outlier_share=SPIKE if drifts else 0.0, outlier_size=0.15),  # an encoder
    )


task, drifting = _task("axis", drifts=False), _task("axis-drifting", drifts=True)
