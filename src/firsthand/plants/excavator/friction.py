"""Friction in cylinders that carry a load: Coulomb with the Stribeck effect, smooth at the reversal."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from firsthand.plants.excavator.effects import EffectSizes


class Friction(NamedTuple):
    """Force against the motion of each cylinder, N, and how it grows with the speed where it grows, N s/m."""

    force: Float[Array, " cylinders"]
    slope: Float[Array, " cylinders"]


def coulomb_level(force: Float[Array, "4"], seals: Float[Array, "4"], sizes: EffectSizes) -> Float[Array, "4"]:
    """Friction in motion, N: the seals' own, and a share of the force that the oil exerts."""
    return seals + sizes.friction * jnp.sqrt(force * force + seals * seals)


def stribeck(speed: Float[Array, " cylinders"], level: Float[Array, " cylinders"], sizes: EffectSizes) -> Friction:
    """level · tanh(v / v₀) · (1 + (s - 1) exp(-(v / v_s)²)) at the speeds v in m/s."""
    turn = jnp.tanh(speed / sizes.stick_speed)
    ratio = speed / sizes.stribeck_speed
    height = level * (1 + (sizes.stribeck - 1) * jnp.exp(-ratio * ratio))
    return Friction(height * turn, height * (1 - turn * turn) / sizes.stick_speed)
