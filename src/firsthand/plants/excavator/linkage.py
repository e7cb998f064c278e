"""Between cylinders and joints: dL/dq, the signed moment arm of each cylinder.

Boom and dipper are triangles with fixed sides a, b and the angle φ between them:
    L² = a² + b² - 2ab cos φ,      dL/dφ = a b sin φ / L.
The telescope's cylinder moves with the joint. The tool is driven through a four-bar linkage whose moment arm we take
as a shallow bow. The sign says which way a cylinder moves when q grows: the boom's shortens (a positive angle is
down), and so does the tool's, whose faster direction (M) is then the one that fills the smaller rod side.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

BOOM_SIDES = (0.4, 1.4446)
"""m (S)."""
BOOM_ANGLE = 0.943
"""φ = BOOM_ANGLE - q_boom, rad: gives the stroke of 0.62 m and moment arms of 0.25 to 0.40 m (S)."""
DIPPER_SIDES = (0.5, 1.4)
"""m (E)."""
DIPPER_ANGLE = -0.03
"""φ = DIPPER_ANGLE + q_dipper, rad (E)."""
PITCH_ARM = (0.8 * 0.24, 0.2 * 0.24, 1.2, 0.95)
"""Moment arm m0 + m1 cos(m2 (q - m3)), m and rad (E)."""

ARM_SIGNS = (-1.0, 1.0, 1.0, -1.0)
"""The sign of dL/dq, which never changes inside the joint ranges."""


def _triangle(sides: tuple[float, float], phi: Array) -> tuple[Array, Array]:
    a, b = sides
    length = jnp.sqrt(a * a + b * b - 2 * a * b * jnp.cos(phi))
    return length, a * b * jnp.sin(phi) / length


def cylinder_lengths(q: Float[Array, "4"]) -> Float[Array, "4"]:
    """Lengths in m; telescope and tool up to a constant."""
    boom, _ = _triangle(BOOM_SIDES, BOOM_ANGLE - q[0])
    dipper, _ = _triangle(DIPPER_SIDES, DIPPER_ANGLE + q[1])
    m0, m1, m2, m3 = PITCH_ARM
    pitch = -(m0 * (q[3] - m3) + m1 / m2 * jnp.sin(m2 * (q[3] - m3)))
    return jnp.stack([boom, dipper, q[2], pitch])


def moment_arms(q: Float[Array, "4"]) -> Float[Array, "4"]:
    """dL/dq per joint: m/rad, telescope 1. Negative where the cylinder shortens as q grows."""
    _, boom = _triangle(BOOM_SIDES, BOOM_ANGLE - q[0])
    _, dipper = _triangle(DIPPER_SIDES, DIPPER_ANGLE + q[1])
    m0, m1, m2, m3 = PITCH_ARM
    pitch = m0 + m1 * jnp.cos(m2 * (q[3] - m3))
    return jnp.stack([-boom, dipper, jnp.ones_like(boom), -pitch])
