"""A pole on a cart, balanced while the cart follows references: it falls within a second without control.

firsthand train pole.py:task
"""

import gymnasium
import numpy as np

import firsthand as fh

GRAVITY, CART_KG, POLE_KG, HALF_LENGTH_M = 9.81, 1.0, 0.1, 0.5


class Pole(gymnasium.Env):
    """Gymnasium's CartPole with a continuous force; measures position and angle, and their speeds."""

    dt = 0.02

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(-10.0, 10.0, (1,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        self.state = np.zeros(4)

    def reset(self, *, seed=None, options=None):
        """Upright in the middle, nearly."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.05, 0.05, 4)
        return self._observe(), {}

    def step(self, action):
        """One control period, in four parts."""
        force, mass, moment = float(action[0]), CART_KG + POLE_KG, POLE_KG * HALF_LENGTH_M
        for _ in range(4):
            position, angle, speed, rate = self.state
            sine, cosine = np.sin(angle), np.cos(angle)
            pull = (force + moment * rate**2 * sine) / mass
            turn = (GRAVITY * sine - cosine * pull) / (HALF_LENGTH_M * (4 / 3 - POLE_KG * cosine**2 / mass))
            push = pull - moment * turn * cosine / mass
            speed, rate = speed + self.dt / 4 * push, rate + self.dt / 4 * turn
            self.state = np.array([position + self.dt / 4 * speed, angle + self.dt / 4 * rate, speed, rate])
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return self.state.astype(np.float32)


task = fh.GymnasiumTask(
    name="pole",
    env=Pole,
    positions=(0, 1),
    velocities=(2, 3),
    tracked=(0,),
    position_low=(-2.0, -0.4),
    position_high=(2.0, 0.4),
    rate=0.8,
)
