"""A pole on a cart that stays upright while the cart follows references along its rail.

firsthand train examples/pole.py:task --episodes 25
"""

import gymnasium
import numpy as np

import firsthand as fh
from firsthand import goals

PERIOD = 0.02  # seconds
FORCE, CART, POLE, HALF = 10.0, 1.0, 0.1, 0.5  # N; kg; kg; half the pole's length in m


class Pole(gymnasium.Env):
    """Gymnasium's CartPole with a continuous force. It ends where the pole has fallen or the rail ends."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
    dt = PERIOD

    def reset(self, *, seed=None, options=None):
        """Somewhere near the middle."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32), {}

    def step(self, action):
        """One control period."""
        place, angle, speed, turn = self.state
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (FORCE * float(action[0]) + POLE * HALF * turn**2 * sine) / (CART + POLE)
        spin = (9.8 * sine - cosine * push) / (HALF * (4.0 / 3.0 - POLE * cosine**2 / (CART + POLE)))
        speed += PERIOD * (push - POLE * HALF * spin * cosine / (CART + POLE))
        turn += PERIOD * spin
        self.state = np.array([place + PERIOD * speed, angle + PERIOD * turn, speed, turn])
        fallen = bool(abs(self.state[1]) > 0.6 or abs(self.state[0]) > 2.4)
        return self.state.astype(np.float32), 0.0, fallen, False, {}


def stand(env, position):
    """At rest there; the pole leans by the second position."""
    env.unwrapped.state = np.array([*position, 0.0, 0.0])
    return env.unwrapped.state.astype(np.float32)


task = fh.GymnasiumTask(
    name="pole",
    env=Pole,
    names=("cart", "pole", "cart speed", "pole speed"),
    units=("m", "rad", "m/s", "rad/s"),
    command_names=("push",),
    positions=("cart", "pole"),
    velocities=("cart speed", "pole speed"),
    position_low=(-2.4, -0.6),
    position_high=(2.4, 0.6),
    tracked=("cart",),
    goal_low=-1.2,
    goal_high=1.2,
    rate=0.5,
    goal=goals.Track(scale=0.5) + goals.Upright("pole", scale=0.3) + goals.Effort(0.01),
    place=stand,
)
