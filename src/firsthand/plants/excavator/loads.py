"""Gravity and inertia of the arm.

With absolute link angles a1 = q_boom, a2 = a1 + q_dipper, a3 = a2 + q_pitch every mass moment enters through one
vector per link, (A_k, P_k) = Σ mass · (along, perpendicular), and

    V = g Σ_k (-A_k sin a_k + P_k cos a_k),        ∂V/∂a_k = -g (A_k cos a_k + P_k sin a_k).

The mass matrix is first written in (a1, a2, a3, telescope), where it couples links only through cos and sin of angle
differences, and then added up into joint coordinates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from firsthand.plants.excavator.geometry import (
    BOOM_LENGTH,
    DIPPER_ALONG,
    DIPPER_PERPENDICULAR,
    GRAVITY,
    LINK_SUMS,
    PAYLOAD_ALONG,
    PAYLOAD_PERPENDICULAR,
)

Scalar = Float[Array, ""]


class Moments(NamedTuple):
    """First moments (kg m) of everything a link carries, seen from the link's own pivot, and masses (kg)."""

    a1: Scalar
    p1: Scalar
    a2: Scalar
    p2: Scalar
    a3: Scalar
    p3: Scalar
    slide: Scalar
    """All that moves with the telescope: telescope, roto base, tool, payload."""
    tool: Scalar
    """All that turns with the pitch joint, payload included."""


def moments(telescope: Scalar, payload: Scalar) -> Moments:
    """The mass moments at this telescope extension (m) with this payload (kg)."""
    s = LINK_SUMS
    tool = s.tool_mass + payload
    slide = s.slide_mass + tool
    return Moments(
        a1=s.boom_along + BOOM_LENGTH * (s.dipper_mass + slide),
        p1=jnp.asarray(s.boom_perp),
        a2=s.dipper_along + s.slide_along + DIPPER_ALONG * tool + slide * telescope,
        p2=s.dipper_perp + s.slide_perp + DIPPER_PERPENDICULAR * tool,
        a3=s.tool_along + PAYLOAD_ALONG * payload,
        p3=s.tool_perp + PAYLOAD_PERPENDICULAR * payload,
        slide=slide,
        tool=tool,
    )


def potential_energy(q: Float[Array, "4"], payload: Scalar) -> Scalar:
    """V(q) in J, up to a constant."""
    m = moments(q[2], payload)
    a1, a2 = q[0], q[0] + q[1]
    a3 = a2 + q[3]
    return GRAVITY * (
        -m.a1 * jnp.sin(a1)
        + m.p1 * jnp.cos(a1)
        - m.a2 * jnp.sin(a2)
        + m.p2 * jnp.cos(a2)
        - m.a3 * jnp.sin(a3)
        + m.p3 * jnp.cos(a3)
    )


def gravity_torque(q: Float[Array, "4"], payload: Scalar) -> Float[Array, "4"]:
    """∂V/∂q: what the cylinders must hold, in N m (telescope: N)."""
    m = moments(q[2], payload)
    a1, a2 = q[0], q[0] + q[1]
    a3 = a2 + q[3]
    t1 = -GRAVITY * (m.a1 * jnp.cos(a1) + m.p1 * jnp.sin(a1))
    t2 = -GRAVITY * (m.a2 * jnp.cos(a2) + m.p2 * jnp.sin(a2))
    t3 = -GRAVITY * (m.a3 * jnp.cos(a3) + m.p3 * jnp.sin(a3))
    return jnp.stack([t1 + t2 + t3, t2 + t3, -GRAVITY * m.slide * jnp.sin(a2), t3])


class MassMatrix(NamedTuple):
    """The ten different entries of M(q), kg m² (with the telescope: kg m, kg).

    1 boom, 2 dipper, 3 telescope, 4 pitch.
    """

    m11: Scalar
    m12: Scalar
    m13: Scalar
    m14: Scalar
    m22: Scalar
    m23: Scalar
    m24: Scalar
    m33: Scalar
    m34: Scalar
    m44: Scalar

    def dense(self) -> Float[Array, "4 4"]:
        """As a square matrix."""
        m11, m12, m13, m14, m22, m23, m24, m33, m34, m44 = self
        rows = [[m11, m12, m13, m14], [m12, m22, m23, m24], [m13, m23, m33, m34], [m14, m24, m34, m44]]
        return jnp.stack([jnp.stack(row) for row in rows])

    def inverse(self) -> Float[Array, "4 4"]:
        """M⁻¹, written out by blocks of two: a library call costs more than the whole rest of a small step."""
        a, b, c = (
            (self.m11, self.m12, self.m22),
            (self.m13, self.m14, self.m23, self.m24),
            (self.m33, self.m34, self.m44),
        )
        # Schur complement of the (telescope, pitch) block C: S = A - B C⁻¹ Bᵀ.
        det = c[0] * c[2] - c[1] * c[1]
        c11, c12, c22 = c[2] / det, -c[1] / det, c[0] / det
        x11, x12 = b[0] * c11 + b[1] * c12, b[0] * c12 + b[1] * c22
        x21, x22 = b[2] * c11 + b[3] * c12, b[2] * c12 + b[3] * c22
        s11 = a[0] - x11 * b[0] - x12 * b[1]
        s12 = a[1] - x11 * b[2] - x12 * b[3]
        s22 = a[2] - x21 * b[2] - x22 * b[3]
        det = s11 * s22 - s12 * s12
        i11, i12, i22 = s22 / det, -s12 / det, s11 / det
        i13, i14 = -(i11 * x11 + i12 * x21), -(i11 * x12 + i12 * x22)
        i23, i24 = -(i12 * x11 + i22 * x21), -(i12 * x12 + i22 * x22)
        i33 = c11 - x11 * i13 - x21 * i23
        i34 = c12 - x11 * i14 - x21 * i24
        i44 = c22 - x12 * i14 - x22 * i24
        return MassMatrix(i11, i12, i13, i14, i22, i23, i24, i33, i34, i44).dense()


def mass_matrix(q: Float[Array, "4"], payload: Scalar) -> MassMatrix:
    """M(q) with kinetic energy ½ q̇ᵀ M q̇."""
    s, m = LINK_SUMS, moments(q[2], payload)
    dipper, pitch = q[1], q[3]
    along, perp = DIPPER_ALONG + q[2], DIPPER_PERPENDICULAR
    c2, s2 = jnp.cos(dipper), jnp.sin(dipper)
    c4, s4 = jnp.cos(pitch), jnp.sin(pitch)
    c24, s24 = c2 * c4 - s2 * s4, s2 * c4 + c2 * s4
    # In (a1, a2, a3, telescope):
    h11 = s.boom_second + BOOM_LENGTH**2 * (s.dipper_mass + m.slide)
    h12 = BOOM_LENGTH * (m.a2 * c2 + m.p2 * s2)
    h13 = BOOM_LENGTH * (m.a3 * c24 + m.p3 * s24)
    h1t = BOOM_LENGTH * m.slide * s2
    h22 = (
        s.dipper_second
        + s.slide_second
        + q[2] * (2 * s.slide_along + q[2] * s.slide_mass)
        + m.tool * (along * along + perp * perp)
    )
    h23 = along * (m.a3 * c4 + m.p3 * s4) + perp * (m.p3 * c4 - m.a3 * s4)
    h2t = s.slide_perp + perp * m.tool
    h33 = s.tool_second + payload * (PAYLOAD_ALONG**2 + PAYLOAD_PERPENDICULAR**2)
    h3t = m.p3 * c4 - m.a3 * s4
    return MassMatrix(
        m11=h11 + h22 + h33 + 2 * (h12 + h13 + h23),
        m12=h12 + h13 + h22 + h33 + 2 * h23,
        m13=h1t + h2t + h3t,
        m14=h13 + h23 + h33,
        m22=h22 + h33 + 2 * h23,
        m23=h2t + h3t,
        m24=h23 + h33,
        m33=m.slide,
        m34=h3t,
        m44=h33,
    )


def kinetic_energy(q: Float[Array, "4"], dq: Float[Array, "4"], payload: Scalar) -> Scalar:
    """½ q̇ᵀ M(q) q̇ in J."""
    return 0.5 * dq @ mass_matrix(q, payload).dense() @ dq


def coriolis_torque(q: Float[Array, "4"], dq: Float[Array, "4"], payload: Scalar) -> Float[Array, "4"]:
    """c(q, q̇) = Ṁ q̇ - ½ ∂(q̇ᵀ M q̇)/∂q, N m (telescope: N)."""

    def momentum(q):
        m11, m12, m13, m14, m22, m23, m24, m33, m34, m44 = mass_matrix(q, payload)
        v1, v2, v3, v4 = dq[0], dq[1], dq[2], dq[3]
        return jnp.stack(
            [
                m11 * v1 + m12 * v2 + m13 * v3 + m14 * v4,
                m12 * v1 + m22 * v2 + m23 * v3 + m24 * v4,
                m13 * v1 + m23 * v2 + m33 * v3 + m34 * v4,
                m14 * v1 + m24 * v2 + m34 * v3 + m44 * v4,
            ]
        )

    _, change = jax.jvp(momentum, (q,), (dq,))
    return change - 0.5 * jax.grad(lambda q: jnp.sum(dq * momentum(q)))(q)


def mass_diagonal(q: Float[Array, "4"], payload: Scalar) -> Float[Array, "4"]:
    """The inertia each joint moves with the others locked."""
    m = mass_matrix(q, payload)
    return jnp.stack([m.m11, m.m22, m.m33, m.m44])
