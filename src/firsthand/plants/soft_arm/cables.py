"""Nine cables: how they run, what they pull with, and what friction leaves of it.

The three cables of a segment end at its end plate and run through all segments below it. In a segment bent by (a, b) a
cable at angle φ is shorter than the centre line by r (a cos φ + b sin φ), so the shortening of all cables is linear in
the bends: G q. A motor that draws in m stretches its cable by m − G q.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.soft_arm.parameters import SEGMENTS, SoftArmParameters


def directions(p: SoftArmParameters) -> np.ndarray:
    """Unit vectors from the centre line to the cables, `(segments, 3, 2)`."""
    angle = np.deg2rad(np.asarray(p.offsets_deg)[:, None] + np.asarray([0.0, 120.0, 240.0]))
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


PASSES = np.tril(np.ones((SEGMENTS, SEGMENTS)))
"""[s, j] is 1 where the cables of segment s run through segment j."""


def routing(p: SoftArmParameters) -> np.ndarray:
    """G, `(9, 6)`: how much each cable gets shorter per bend, m/rad."""
    return (p.radius_m * np.einsum("sj,scx->scjx", PASSES, directions(p))).reshape(9, 6)


def command_map(p: SoftArmParameters) -> np.ndarray:
    """`(9, 6)`, m: two cables per segment follow their commands, the third moves so that the three add up to zero."""
    return np.kron(np.diag(p.travel_m), np.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))


def cable_commands(command: Float[Array, "6"], p: SoftArmParameters) -> Float[Array, "9"]:
    """Commanded cable lengths to draw in, m."""
    return jnp.asarray(command_map(p)) @ command


def tensions(
    bends: Float[Array, "6"],
    motors: Float[Array, "9"],
    p: SoftArmParameters,
    pretension: Float[Array, "9"] | None = None,
) -> Float[Array, "9"]:
    """Tension at the spool, N: pretension and stiffness, and never below zero, over a rounded corner.

    `pretension` is that of each cable in N, where it is not the nominal one.
    """
    straight = p.pretension_n if pretension is None else pretension
    pull = straight + p.cable_stiffness * (motors - routing(p) @ bends)
    return 0.5 * (pull + jnp.sqrt(pull * pull + p.slack_rounding_n**2))


def wrap(bends: Float[Array, "6"], p: SoftArmParameters) -> Float[Array, "3"]:
    """Angle by which a cable has been turned from its spool to the middle of each segment, rad."""
    bent = jnp.sqrt(jnp.sum(bends.reshape(SEGMENTS, 2) ** 2, axis=1) + 1e-4)
    return p.base_wrap_rad + jnp.cumsum(bent) - 0.5 * bent


def next_slip(slip: Float[Array, "9"], bend_rates: Float[Array, "6"], dt: float, p: SoftArmParameters):
    """The friction's state after `dt`: Dahl's ż = v/δ − z |v|/δ by one implicit step, so that |z| stays below 1.

    v is the speed at which a cable is drawn into the arm and δ the breakaway length. z tells how much of the capstan
    friction acts and which way: 1 when the cable slides in, −1 when it slides out, in between after a reversal.
    """
    moved = (routing(p) * (dt / p.breakaway_m)) @ bend_rates
    return (slip + moved) / (1 + jnp.sqrt(moved * moved + 1e-8))


def cable_torques(
    bends: Float[Array, "6"],
    tension: Float[Array, "9"],
    slip: Float[Array, "9"],
    p: SoftArmParameters,
    friction: Float[Array, "9"] | None = None,
) -> Float[Array, "6"]:
    """Bending moments of all cables, N m; in segment j a cable has the tension T exp(−μ z Θ_j).

    `friction` is μ of each cable, where it is not the nominal one.
    """
    mu = p.friction if friction is None else friction.reshape(3, 3, 1)
    loss = jnp.exp(-mu * slip.reshape(3, 3, 1) * wrap(bends, p))
    pull = tension.reshape(3, 3, 1) * loss * PASSES[:, None, :]
    return p.radius_m * jnp.sum(pull[..., None] * directions(p)[:, :, None, :], axis=(0, 1)).reshape(6)


def motor_speeds(motors: Float[Array, "9"], wanted: Float[Array, "9"], dt: float, p: SoftArmParameters) -> Array:
    """Mean speed of the spools over `dt`: a first-order lag, limited."""
    share = -jnp.expm1(-jnp.asarray(dt / p.servo_s)) / dt
    return jnp.clip(share * (wanted - motors), -p.spool_speed, p.spool_speed)
