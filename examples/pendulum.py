"""Gymnasium's Pendulum-v1, hanging down: its angle follows references; `delayed` has three periods of dead time.

firsthand train examples/pendulum.py:task
"""

import dataclasses

import gymnasium
import numpy as np

import firsthand as fh
from firsthand.robots.delay import DelayedCommands


def angle_and_speed(observation):
    """The angle from its cosine and sine, and the angular speed."""
    cosine, sine, speed = observation
    return np.arctan2(sine, cosine), speed


task = fh.GymnasiumTask(
    name="pendulum",
    env=lambda: gymnasium.make("Pendulum-v1"),
    observe=angle_and_speed,
    positions=(0,),
    velocities=(1,),
    angles=(0,),
    position_low=np.pi - 0.4,  # the angle is 0 upright and π hanging
    position_high=np.pi + 0.4,
    rate=0.5,
)

delayed = dataclasses.replace(task, env=lambda: DelayedCommands(gymnasium.make("Pendulum-v1"), steps=3))
