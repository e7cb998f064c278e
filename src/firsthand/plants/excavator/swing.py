"""A payload that hangs in the gripper and swings in the plane of the arm.

A point mass m on a link of length ℓ, at the angle φ from hanging straight down, with n = (sin φ, -cos φ) along the link
and t = (cos φ, sin φ) across it. With p the gripper's place, J = ∂p/∂q and b = J̇ q̇:

    φ̈ = -(t·p̈ + g sin φ) / ℓ - 2 ζ ω φ̇,
    pull on the gripper = n m (ℓ φ̇² + g cos φ - n·p̈).

The part with p̈ = J q̈ + b is a mass along n only. So the arm moves as if it carried nothing, with the mass matrix
M + m (Jᵀn)(Jᵀn)ᵀ and the torque -m (ℓ φ̇² + g cos φ - n·b) Jᵀn to hold.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.excavator.effects import EffectSizes
from firsthand.plants.excavator.geometry import (
    BOOM_LENGTH,
    DIPPER_ALONG,
    DIPPER_PERPENDICULAR,
    GRAVITY,
    PAYLOAD_ALONG,
    PAYLOAD_PERPENDICULAR,
)
from firsthand.plants.excavator.loads import MassMatrix

SWING_LIMIT = 1.0
"""Angle at which the gripper touches the tool, rad …"""
STOP_HZ = 2.0
"""… with a spring of this frequency, critically damped."""

Scalar = Float[Array, ""]


class Hanging(NamedTuple):
    """The load of a hanging payload on the arm."""

    direction: Float[Array, "4"]
    """Jᵀn, m (telescope: 1)."""
    torque: Float[Array, "4"]
    """Additional load on the cylinders, N m (telescope: N)."""
    jacobian: Float[Array, "2 4"]
    """∂p/∂q."""
    drift: Float[Array, "2"]
    """J̇ q̇, m/s²."""


def link_length(sizes: EffectSizes) -> float:
    """ℓ of a pendulum with this frequency, m."""
    return GRAVITY / (2 * np.pi * sizes.swing_hz) ** 2


def gripper(q: Float[Array, "4"]) -> Float[Array, "2"]:
    """Where the payload hangs, (x, z) from the boom's pivot, m; `q` with the base's pitch."""
    a1, a2, a3 = q[0], q[0] + q[1], q[0] + q[1] + q[3]
    along = DIPPER_ALONG + q[2]
    c1, s1, c2, s2, c3, s3 = jnp.cos(a1), jnp.sin(a1), jnp.cos(a2), jnp.sin(a2), jnp.cos(a3), jnp.sin(a3)
    x = BOOM_LENGTH * c1 + along * c2 + DIPPER_PERPENDICULAR * s2 + PAYLOAD_ALONG * c3 + PAYLOAD_PERPENDICULAR * s3
    z = -BOOM_LENGTH * s1 - along * s2 + DIPPER_PERPENDICULAR * c2 - PAYLOAD_ALONG * s3 + PAYLOAD_PERPENDICULAR * c3
    return jnp.stack([x, z])


def hang(
    q: Float[Array, "4"], dq: Float[Array, "4"], swing: Float[Array, "2"], payload: Scalar, sizes: EffectSizes
) -> Hanging:
    """At the arm's absolute angles `q` and rates `dq`, with `swing` = (φ, φ̇)."""
    phi, rate = swing[0], swing[1]
    n = jnp.stack([jnp.sin(phi), -jnp.cos(phi)])
    jacobian, turned = jax.jvp(jax.jacfwd(gripper), (q,), (dq,))
    drift = jnp.sum(turned * dq, 1)
    direction = jnp.sum(n[:, None] * jacobian, 0)
    pull = payload * (link_length(sizes) * rate * rate + GRAVITY * jnp.cos(phi) - jnp.sum(n * drift))
    return Hanging(direction, -pull * direction, jacobian, drift)


def add_mass(matrix: MassMatrix, direction: Float[Array, "4"], mass: Scalar) -> MassMatrix:
    """M + m d dᵀ."""
    d1, d2, d3, d4 = direction[0], direction[1], direction[2], direction[3]
    pairs = (d1 * d1, d1 * d2, d1 * d3, d1 * d4, d2 * d2, d2 * d3, d2 * d4, d3 * d3, d3 * d4, d4 * d4)
    return MassMatrix(*(entry + mass * pair for entry, pair in zip(matrix, pairs, strict=True)))


def advance_swing(
    swing: Float[Array, "2"], acceleration: Float[Array, "2"], dt: float, sizes: EffectSizes
) -> Float[Array, "2"]:
    """(φ, φ̇) a short time later, the gripper accelerating by p̈ meanwhile: rate first, damping implicit."""
    phi, rate = swing[0], swing[1]
    push = acceleration[0] * jnp.cos(phi) + (acceleration[1] + GRAVITY) * jnp.sin(phi)
    beyond = phi - jnp.clip(phi, -SWING_LIMIT, SWING_LIMIT)
    damping = 4 * np.pi * (sizes.swing_damping * sizes.swing_hz + jnp.where(beyond == 0, 0.0, STOP_HZ))
    push = push / link_length(sizes) + (2 * np.pi * STOP_HZ) ** 2 * beyond
    rate = (rate - dt * push) / (1 + dt * damping)
    return jnp.stack([phi + dt * rate, rate])
