"""A bounded store of a machine's work, which forgets by novelty, not by age alone.

Work comes in chunks of one trajectory's length. When the store is full, the older of the two most similar chunks is
dropped. So motion that is repeated all day is kept once, in its newest form (a machine drifts), and rare motion is kept
until something similar happens. The newest chunks are never dropped.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from firsthand_onboard import ControlSpec

from ...agent.buffer import Buffer, rollout_rows
from ...optim.rollout import Rollout


class Chunk(NamedTuple):
    """One trajectory's worth of transitions."""

    states: Float[np.ndarray, "rows state"]
    commands: Float[np.ndarray, "rows commands"]
    following: Float[np.ndarray, "rows measured"]
    sound: Bool[np.ndarray, " rows"]
    features: Float[np.ndarray, " features"]
    """Features for comparing chunks: mean and spread of measurements and commands, in units of their scales."""


class ChunkStore:
    """At most `capacity` chunks, of which the newest `recent` are safe."""

    def __init__(self, spec: ControlSpec, *, capacity: int, recent: int) -> None:
        if not 1 <= recent < capacity:
            raise ValueError(f"recent is {recent}, but must be at least 1 and below the capacity, {capacity}")
        self.spec, self.capacity, self.recent = spec, capacity, recent
        self.chunks: list[Chunk] = []
        """Oldest first."""

    def add(self, rollout: Rollout, sound: Bool[Array, "trajectories steps"]) -> list[Chunk]:
        """A chunk per trajectory that has a valid step; the new ones."""
        size = self.spec.layout.num_measured
        steps = rollout.commands.shape[1]
        (states, commands, following), valid = rollout_rows(rollout, size)
        new: list[Chunk] = []
        parts = [np.asarray(part) for part in (states, commands, following, valid, sound.reshape(-1))]
        for i in range(rollout.commands.shape[0]):
            x, u, y, happened, trusted = (part[i * steps : (i + 1) * steps] for part in parts)
            if happened.any():
                kept = (x[happened], u[happened], y[happened], trusted[happened])
                new.append(Chunk(*kept, self._features(kept[2], kept[1])))
        self.chunks += new
        self.forget()
        return new

    def forget(self) -> None:
        """Drop what is most redundant until no more is left than there is room for."""
        while len(self.chunks) > self.capacity:
            del self.chunks[self._most_redundant()]

    def _features(self, measured: np.ndarray, commands: np.ndarray) -> np.ndarray:
        scales, limits = self.spec.scales, self.spec.limits
        y = (measured - np.asarray(scales.measured_center)) / np.asarray(scales.measured_scale)
        half = (np.asarray(limits.command_high) - np.asarray(limits.command_low)) / 2
        u = commands / half
        return np.concatenate([y.mean(0), y.std(0), u.mean(0), u.std(0)])

    def _most_redundant(self) -> int:
        """The older chunk of the closest pair, among those that are not safe."""
        features = np.stack([chunk.features for chunk in self.chunks])
        old = len(self.chunks) - self.recent
        distances = np.linalg.norm(features[:old, None] - features[None], axis=-1)
        later = np.arange(len(self.chunks))[None] > np.arange(old)[:, None]
        nearest = np.where(later, distances, np.inf).min(axis=1)
        return int(np.argmin(nearest))

    def buffer(self, capacity: int) -> Buffer:
        """The chunks as the learner's buffer, with room for at least `capacity` rows in all."""
        layout = self.spec.layout
        empty = Buffer.empty(capacity, layout.size, layout.num_commands, layout.num_measured)
        if not self.chunks:
            return empty
        x, u, y, sound = (np.concatenate([chunk[i] for chunk in self.chunks]) for i in range(4))
        rows = len(x)
        change = np.where(sound[:, None], y - x[:, : layout.num_measured], 0.0)
        trusted = np.zeros(empty.capacity, np.int32)
        trusted[: sound.sum()] = np.flatnonzero(sound)

        def filled(store: Array, values: np.ndarray) -> Array:
            whole = np.zeros(store.shape, np.float32)
            whole[:rows] = values
            return jnp.asarray(whole)

        return Buffer(
            filled(empty.states, x),
            filled(empty.commands, u),
            filled(empty.following, y),
            jnp.asarray((change**2).sum(0), jnp.float32),
            jnp.asarray(rows, jnp.int32),
            jnp.asarray(trusted),
            jnp.asarray(int(sound.sum()), jnp.int32),
        )
