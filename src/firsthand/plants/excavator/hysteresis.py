"""Hysteresis of a valve's spool: a sum of plays (Prandtl–Ishlinskii).

Each play follows its input only after that has turned back by twice the play's radius. The sum

    u ↦ w u + Σ w play_k(u),      w = 1 / (plays + 1),

is rate-independent, never flat, and remembers where its input has turned. After a large swing it is behind its input
by w Σ r_k: half the width of the loop.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

PLAYS = 3
SOFT = 0.05
"""Share of a play's radius over which it is engaged softly: otherwise every held command would stand on a kink."""


def radii(width: float) -> tuple[float, ...]:
    """Radii of the plays, evenly spaced, for a loop of this width."""
    total = PLAYS * (PLAYS + 1) / 2
    return tuple(0.5 * width * (PLAYS + 1) * (k + 1) / total for k in range(PLAYS))


def advance_plays(plays: Float[Array, "3 4"], command: Float[Array, "4"], width: float) -> Float[Array, "3 4"]:
    """The plays after their input has gone, without turning, to `command`."""
    radius = jnp.asarray(radii(width))[:, None]
    behind = (command - plays) / radius
    beyond = jnp.maximum(jnp.abs(behind) - (1 - SOFT), 0.0)
    held = jnp.where(beyond > 0, jnp.sign(behind) * (1 - SOFT + SOFT * jnp.tanh(beyond / SOFT)), behind)
    return command - radius * held


def spool_target(plays: Float[Array, "3 4"], command: Float[Array, "4"]) -> Float[Array, "4"]:
    """Where the spools go."""
    return (command + jnp.sum(plays, 0)) / (PLAYS + 1)
