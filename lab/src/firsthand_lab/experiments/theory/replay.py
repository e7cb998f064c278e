"""What really happened behind noisy sensors: recorded commands, played again on the plant without noise."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.base import AbstractPlant
from firsthand.robots.base import EpisodeRecord


def truly(plant: AbstractPlant, start: Any, record: EpisodeRecord) -> EpisodeRecord:
    """The record with the true measurements in place of the noisy ones; `start` is the plant state before it."""
    return dataclasses.replace(record, measured=np.asarray(played(plant, start, record.commands), np.float32))


@eqx.filter_jit
def played(
    plant: AbstractPlant, start: Any, commands: Float[Array, "trajectories steps commands"] | np.ndarray
) -> Float[Array, "trajectories steps_and_last measured"]:
    """What a plant without noise measures under these commands, one trajectory after the other."""
    key = jax.random.key(0)

    def step(state, command):
        state = plant.step(state, command, key=key)
        return state, plant.measure(state, key=key)

    def trajectory(state, commands):
        first = plant.measure(state, key=key)
        state, measured = jax.lax.scan(step, state, commands)
        return state, jnp.concatenate([first[None], measured])

    return jax.lax.scan(trajectory, start, jnp.asarray(commands))[1]
