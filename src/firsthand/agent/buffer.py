"""What the agent learns from: all transitions seen so far, and where imagined trajectories start.

The buffer's arrays have a fixed size, so adding data recompiles nothing.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..optim.rollout import Rollout


class Buffer(eqx.Module):
    """Transitions (x, u, y⁺) in order of arrival. Rows from `size` on are unused."""

    states: Float[Array, "capacity state"]
    """x."""
    commands: Float[Array, "capacity commands"]
    """u, as applied."""
    following: Float[Array, "capacity measured"]
    """y⁺, what was measured next. The rest of x⁺ follows from x and u."""
    squares: Float[Array, " measured"]
    """Σ (y⁺ − y)² over all sound rows, added up episode by episode so that it does not depend on the capacity."""
    size: Int[Array, ""]
    """How many rows are in use."""
    sound_rows: Int[Array, " capacity"]
    """The rows without a spike or a stuck sensor, in order. Entries from `num_sound` on are unused."""
    num_sound: Int[Array, ""]
    """How many rows are sound."""

    @staticmethod
    def empty(capacity: int, state: int, commands: int, measured: int) -> "Buffer":
        """A buffer for at least `capacity` transitions; the capacity is rounded up to a power of two."""
        rows = 1 << max(int(capacity) - 1, 1).bit_length()
        return Buffer(
            jnp.zeros((rows, state)),
            jnp.zeros((rows, commands)),
            jnp.zeros((rows, measured)),
            jnp.zeros(measured),
            jnp.asarray(0, jnp.int32),
            jnp.zeros(rows, jnp.int32),
            jnp.asarray(0, jnp.int32),
        )

    @property
    def capacity(self) -> int:
        """How many transitions fit."""
        return self.states.shape[0]


class ImaginedStarts(eqx.Module):
    """Where imagined trajectories start and what they follow."""

    starts: Float[Array, "trajectories state"]
    """Initial states."""
    previews: Float[Array, "trajectories steps points outputs"]
    """Reference previews, with fresh references."""
    disturbance: Float[Array, " trajectories"] | None = None
    """Share of the measured model errors that each trajectory meets; None for all of them."""
    steps: Int[Array, " trajectories"] | None = None
    """How many steps of each trajectory count; None for all of them."""


def write_rows(
    buffer: Buffer,
    rows: tuple[Float[Array, "rows state"], Float[Array, "rows commands"], Float[Array, "rows measured"]],
    count: Int[Array, ""],
    sound: Bool[Array, " rows"],
) -> Buffer:
    """The buffer with these rows (x, u, y⁺) behind its last; the first `count` of them count. They must fit."""
    at = buffer.size

    def put(store, new, at):
        return jax.lax.dynamic_update_slice_in_dim(store, new, at, axis=0)

    states, commands, following = rows
    sound = sound & (jnp.arange(states.shape[0]) < count)
    change = following - states[:, : following.shape[1]]
    order = jnp.argsort(~sound, stable=True).astype(jnp.int32)
    return Buffer(
        put(buffer.states, states, at),
        put(buffer.commands, commands, at),
        put(buffer.following, following, at),
        buffer.squares + jnp.sum(jnp.where(sound[:, None], change**2, 0.0), axis=0),
        at + count,
        put(buffer.sound_rows, at + order, buffer.num_sound),
        buffer.num_sound + sound.sum().astype(jnp.int32),
    )


@eqx.filter_jit(donate="all-except-first")
def _write(rows, buffer: Buffer, count: Int[Array, ""]) -> Buffer:
    return write_rows(buffer, rows, count, jnp.ones(rows[0].shape[0], bool))


@eqx.filter_jit(donate="all-except-first")
def write_rollout(measured: tuple[Rollout, Bool[Array, "trajectories steps"] | None], buffer: Buffer) -> Buffer:
    """`append_rollout` with the episode and its sound steps as one argument, compiled: `buffer` is consumed."""
    rollout, sound = measured
    rows, valid = rollout_rows(rollout, buffer.following.shape[1])
    order = jnp.argsort(~valid, stable=True)  # valid rows first, in order; the rest is overwritten by the next episode
    x, u, y = (part[order] for part in rows)
    trusted = valid if sound is None else sound.reshape(-1)
    return write_rows(buffer, (x, u, y), valid.sum().astype(jnp.int32), trusted[order])


def rollout_rows(
    rollout: Rollout, measured: int
) -> tuple[
    tuple[Float[Array, "rows state"], Float[Array, "rows commands"], Float[Array, "rows measured"]],
    Bool[Array, " rows"],
]:
    """The transitions (x, u, y⁺) of an episode, one row per step, and which of them are valid."""
    valid = rollout.valid.reshape(-1)
    x = rollout.states[:, :-1].reshape(valid.size, -1)
    y = rollout.states[:, 1:, :measured].reshape(valid.size, -1)
    u = rollout.commands.reshape(valid.size, -1)
    return (x, u, y), valid


def append_rollout(buffer: Buffer, rollout: Rollout, sound: Bool[Array, "trajectories steps"] | None = None) -> Buffer:
    """The buffer with the valid transitions of an episode added; exactly N·H of them when none was cut.

    `sound` marks the steps without a spike or a stuck sensor; None means all. Pure, also under `jax.vmap`. `buffer` is
    consumed, and must have room for N·H rows: see `make_room`.
    """
    return write_rollout((rollout, sound), buffer)


def append(buffer: Buffer, rollout: Rollout, sound: Bool[Array, "trajectories steps"] | None = None) -> Buffer:
    """`append_rollout`, after making room where the episode does not fit. `buffer` is consumed."""
    return append_rollout(make_room(buffer, rollout.valid.size), rollout, sound)


def append_rows(
    buffer: Buffer,
    states: Float[np.ndarray, "rows state"],
    commands: Float[np.ndarray, "rows commands"],
    following: Float[np.ndarray, "rows measured"],
) -> Buffer:
    """The buffer with these transitions added; it grows if they do not fit. `buffer` is consumed."""
    rows = len(states)
    return _write((states, commands, following), make_room(buffer, rows), jnp.asarray(rows, jnp.int32))


def has_room(buffer: Buffer, rows: int) -> bool:
    """Whether this many more rows fit, also into every one of several buffers that are stacked along a leading axis."""
    return int(buffer.size.max()) + rows <= buffer.states.shape[-2]


def make_room(buffer: Buffer, rows: int) -> Buffer:
    """The same transitions in a buffer with room for this many more rows.

    The capacity doubles when they do not fit: the one case in which the programs of an update are compiled anew.
    """
    if has_room(buffer, rows):
        return buffer
    needed = int(buffer.size) + rows
    larger = Buffer.empty(needed, buffer.states.shape[1], buffer.commands.shape[1], buffer.following.shape[1])
    at = slice(0, buffer.capacity)
    return Buffer(
        larger.states.at[at].set(buffer.states),
        larger.commands.at[at].set(buffer.commands),
        larger.following.at[at].set(buffer.following),
        buffer.squares,
        buffer.size,
        larger.sound_rows.at[at].set(buffer.sound_rows),
        buffer.num_sound,
    )


def draw_rows(buffer: Buffer, count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    """`count` sound rows drawn uniformly with replacement."""
    return buffer.sound_rows[jax.random.randint(key, (count,), 0, jnp.maximum(buffer.num_sound, 1))]


def sample(
    buffer: Buffer, count: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "count state"], Float[Array, "count commands"], Float[Array, "count measured"]]:
    """`count` sound transitions drawn uniformly with replacement."""
    rows = draw_rows(buffer, count, key=key)
    return buffer.states[rows], buffer.commands[rows], buffer.following[rows]
