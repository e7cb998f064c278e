"""Any plant, seen through sensors that spike and stick: to find out what a learner makes of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .base import AbstractPlant
from .wrapped import AbstractWrapper


class FaultySensors(AbstractWrapper):
    """A plant whose measurements are sometimes wrong. The plant itself does what it always does."""

    spike_share: Float[Array, ""]
    """How often a measured value is off, as a share of all values."""
    spike_size: Float[Array, " measured"]
    """By how much, per channel; up or down at random."""
    stuck: Float[Array, " measured"]
    """1 for a channel that keeps showing what it last showed, 0 for one that works."""

    @staticmethod
    def around(plant: AbstractPlant, *, spike_share: float = 0.0, spike_size: Any = 0.0) -> "FaultySensors":
        """`plant` with spikes of this share and size, and nothing stuck."""
        size = jnp.broadcast_to(jnp.asarray(spike_size, float), (plant.num_measured,))
        return FaultySensors(plant, jnp.asarray(spike_share, float), size, jnp.zeros(plant.num_measured))

    def with_stuck(self, *channels: int) -> "FaultySensors":
        """The same with these channels stuck, and no others; nothing is recompiled."""
        flags = jnp.zeros_like(self.stuck).at[jnp.asarray(channels, int)].set(1.0)
        return eqx.tree_at(lambda faulty: faulty.stuck, self, flags)

    def reset(self, position: Float[Array, " positions"]) -> Any:
        """The plant at rest, and what its sensors show there."""
        state = self.plant.reset(position)
        return state, self.plant.measure(state, key=jax.random.key(0))

    def step(self, state: Any, command: Float[Array, " commands"], *, key: PRNGKeyArray) -> Any:
        """The plant one period later; a stuck channel keeps its value."""
        before, shown = state
        step_key, sensor_key = jax.random.split(key)
        after = self.plant.step(before, command, key=step_key)
        return after, jnp.where(self.stuck > 0, shown, self.plant.measure(after, key=sensor_key))

    def measure(self, state: Any, *, key: PRNGKeyArray) -> Float[Array, " measured"]:
        """What the sensors show."""
        now, shown = state
        sensor_key, when_key, sign_key = jax.random.split(key, 3)
        measured = self.plant.measure(now, key=sensor_key)
        off = jax.random.bernoulli(when_key, self.spike_share, measured.shape)
        spike = jax.random.rademacher(sign_key, measured.shape, measured.dtype) * self.spike_size
        return jnp.where(self.stuck > 0, shown, measured + jnp.where(off, spike, 0.0))
