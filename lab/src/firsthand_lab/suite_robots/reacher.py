"""Gymnasium's Reacher-v5 with three control periods of dead time: the fingertip follows paths in the plane.

firsthand train reacher.py:task
"""

from typing import Any

import gymnasium
import numpy as np

import firsthand as fh
from firsthand.robots.delay import DelayedCommands
from firsthand_onboard import PlanarChain, PlanarJoint

START = (0.75, -1.5)
"""rad, as MuJoCo counts them."""


class Reacher(gymnasium.Wrapper):
    """Begins in the middle of its limits, as far as its noise allows."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Reacher-v5"))

    def reset(self, *, seed=None, options=None):
        """The arm bent; Gymnasium begins with it stretched out, where it cannot be moved inward."""
        super().reset(seed=seed, options=options)
        env: Any = self.env.unwrapped
        position = env.data.qpos.copy()
        position[:2] += START
        env.set_state(position, 0.0 * env.data.qvel)
        return env._get_obs(), {}


def joints(observation):
    """Two joint angles and their speeds; the chain counts angles clockwise, MuJoCo counter-clockwise."""
    cosine, sine, speed = observation[0:2], observation[2:4], observation[6:8]
    return -np.concatenate([np.arctan2(sine, cosine), speed])


task = fh.GymnasiumTask(
    name="reacher",
    env=lambda: DelayedCommands(Reacher(), steps=3),
    observe=joints,
    positions=(0, 1),
    velocities=(2, 3),
    angles=(0,),
    tracked=PlanarChain(base=(0.0, 0.0), joints=(PlanarJoint("revolute", 0.1), PlanarJoint("revolute", 0.11))),
    position_low=(-2.5, 0.4),
    position_high=(1.0, 2.6),
    rate=2.0,
    command_low=-0.1,  # of 1: the motors could reach 200 rad/s
    command_high=0.1,
    command_memory=5,
)
