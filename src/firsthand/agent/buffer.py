"""All transitions seen so far, in arrays of fixed size, so that growing it never recompiles anything."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

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
    """Σ (y⁺ − y)² over all rows, added up episode by episode so that it does not depend on the capacity."""
    size: Int[Array, ""]
    """How many rows are in use."""

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
        )

    @property
    def capacity(self) -> int:
        """How many transitions fit."""
        return self.states.shape[0]


def written(
    buffer: Buffer,
    rows: tuple[Float[Array, "rows state"], Float[Array, "rows commands"], Float[Array, "rows measured"]],
    count: Int[Array, ""],
) -> Buffer:
    """The buffer with these rows (x, u, y⁺) behind its last; the first `count` of them count. They must fit."""
    at = buffer.size

    def put(store, new):
        return jax.lax.dynamic_update_slice_in_dim(store, new, at, axis=0)

    states, commands, following = rows
    used = jnp.arange(states.shape[0]) < count
    change = following - states[:, : following.shape[1]]
    return Buffer(
        put(buffer.states, states),
        put(buffer.commands, commands),
        put(buffer.following, following),
        buffer.squares + jnp.sum(jnp.where(used[:, None], change**2, 0.0), axis=0),
        at + count,
    )


@eqx.filter_jit(donate="all-except-first")
def _write(rows, buffer: Buffer, count: Int[Array, ""]) -> Buffer:
    return written(buffer, rows, count)


def append(buffer: Buffer, rollout: Rollout) -> Buffer:
    """The buffer with the valid transitions of an episode added; one episode gives exactly N·H when none was cut.

    `buffer` is consumed. When the episode no longer fits, the capacity doubles: the one case that compiles anew.
    """
    valid = np.asarray(rollout.valid).reshape(-1)
    block = valid.size
    measured = buffer.following.shape[1]
    order = np.argsort(~valid, kind="stable")  # valid rows first, in order; the rest is overwritten by the next episode
    states = np.asarray(rollout.states)
    x = states[:, :-1].reshape(block, -1)[order]
    y = states[:, 1:, :measured].reshape(block, -1)[order]
    u = np.asarray(rollout.commands).reshape(block, -1)[order]
    return append_rows(buffer, x, u, y, int(valid.sum()))


def append_rows(
    buffer: Buffer,
    states: Float[np.ndarray, "rows state"],
    commands: Float[np.ndarray, "rows commands"],
    following: Float[np.ndarray, "rows measured"],
    count: int | None = None,
) -> Buffer:
    """The buffer with the first `count` of these transitions added (all by default). `buffer` is consumed."""
    block = len(states)
    if int(buffer.size) + block > buffer.capacity:
        buffer = grown(buffer, int(buffer.size) + block)
    used = block if count is None else count
    return _write((states, commands, following), buffer, jnp.asarray(used, jnp.int32))


def grown(buffer: Buffer, at_least: int) -> Buffer:
    """The same transitions in a buffer of at least this capacity, rounded up to a power of two."""
    larger = Buffer.empty(at_least, buffer.states.shape[1], buffer.commands.shape[1], buffer.following.shape[1])
    at = slice(0, buffer.capacity)
    return Buffer(
        larger.states.at[at].set(buffer.states),
        larger.commands.at[at].set(buffer.commands),
        larger.following.at[at].set(buffer.following),
        buffer.squares,
        buffer.size,
    )


def sample(
    buffer: Buffer, count: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "count state"], Float[Array, "count commands"], Float[Array, "count measured"]]:
    """`count` transitions drawn uniformly with replacement."""
    rows = jax.random.randint(key, (count,), 0, jnp.maximum(buffer.size, 1))
    return buffer.states[rows], buffer.commands[rows], buffer.following[rows]
