"""Inertia, gravity and elasticity of the arm."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.soft_arm.cables import routing
from firsthand.plants.soft_arm.geometry import motion
from firsthand.plants.soft_arm.parameters import GRAVITY, SEGMENTS, SoftArmParameters


def fixed_masses(p: SoftArmParameters) -> np.ndarray:
    """kg at the middle and the end of each segment: a segment is 1/6 foot, 4/6 middle and 1/6 end (Simpson)."""
    ends = [p.segment_kg / 3 + p.plate_kg] * (SEGMENTS - 1) + [p.segment_kg / 6 + p.plate_kg]
    return np.stack([np.full(SEGMENTS, p.segment_kg * 4 / 6), ends], axis=1).ravel()


def point_masses(payload_kg: Float[Array, ""], p: SoftArmParameters) -> Float[Array, "6"]:
    """The same with the load at the tip."""
    return jnp.asarray(fixed_masses(p), payload_kg.dtype).at[-1].add(payload_kg)


class Inertia(NamedTuple):
    """What the masses feel in one configuration."""

    mass: Float[Array, "6 6"]
    """Mass matrix, kg m²."""
    gravity: Float[Array, "6"]
    """Moments of gravity, N m."""


def inertia(bends: Float[Array, "6"], payload_kg: Float[Array, ""], p: SoftArmParameters) -> Inertia:
    """Mass matrix Jᵀ m J and the moments −Jᵀ m g. Velocity products are left out: they are too small to be seen."""
    moving = motion(bends, p.length_m)
    weighed = moving.jacobian * point_masses(payload_kg, p)[:, None, None]
    mass = moving.jacobian.reshape(18, 6).T @ weighed.reshape(18, 6)
    return Inertia(mass, -GRAVITY * jnp.sum(weighed * moving.up[:, :, None], axis=(0, 1)))


def elastic_torques(bends: Float[Array, "6"], creep: Float[Array, "6"], p: SoftArmParameters) -> Float[Array, "6"]:
    """Moments of the helicoids, N m: they pull towards where they have crept, and stiffen when their turns touch."""
    pairs = bends.reshape(SEGMENTS, 2)
    beyond = jnp.maximum(jnp.sum(pairs**2, axis=1, keepdims=True) - p.stop_rad**2, 0.0)
    return -p.helicoid_stiffness * (bends - creep) - (p.stop_stiffness * beyond**2 * pairs).reshape(6)


def next_creep(creep: Float[Array, "6"], bends: Float[Array, "6"], dt: float, p: SoftArmParameters) -> Array:
    """Where the helicoids have crept to after `dt` with the bends held."""
    return creep + (1 - np.exp(-dt / p.creep_s)) * (p.creep_share * bends - creep)


def taut_stiffness(p: SoftArmParameters) -> np.ndarray:
    """Stiffness of helicoids and taut cables with the motors locked, gravity not counted, `(6, 6)` N m/rad."""
    g = routing(p)
    return p.cable_stiffness * g.T @ g + p.helicoid_stiffness * np.eye(6)


def _straight_integrals(p: SoftArmParameters) -> tuple[np.ndarray, np.ndarray]:
    """For the six points of the straight arm: ∂x/∂bends `(6, 3)` and −∂²z/∂bends² `(6, 3, 3)`, in one plane.

    The direction at arc length s is Σ φ_j(s) q_j with φ_j rising from 0 to 1 along segment j; x integrates it and z
    loses half the integral of its square. Simpson's rule on half segments is exact.
    """
    halves = np.arange(2 * SEGMENTS)[:, None] / 2 + np.asarray([0.0, 0.25, 0.5])
    rise = np.clip(halves[..., None] - np.arange(SEGMENTS), 0.0, 1.0)
    weights = p.length_m / 2 * np.asarray([1.0, 4.0, 1.0]) / 6
    across = np.einsum("w,hwi->hi", weights, rise).cumsum(0)
    return across, np.einsum("w,hwi,hwj->hij", weights, rise, rise).cumsum(0)


class Upright(NamedTuple):
    """The empty arm that stands straight, linearised; `(6, 6)` each."""

    mass: np.ndarray
    """Mass matrix, kg m²."""
    stiffness: np.ndarray
    """Of helicoids and taut cables with the motors locked, less what gravity takes away, N m/rad."""
    damping: np.ndarray
    """N m s/rad; modal: D = M V (2 ζ Ω) Vᵀ M with Vᵀ M V = 1 has the same ratio ζ in every mode."""


@functools.lru_cache(maxsize=16)
def upright(p: SoftArmParameters) -> Upright:
    """Mass, stiffness and damping of the straight arm; `ValueError` if it buckles under its own weight."""
    masses, (across, drop) = fixed_masses(p), _straight_integrals(p)
    mass = np.kron(np.einsum("p,pi,pj->ij", masses, across, across), np.eye(2))
    stiffness = taut_stiffness(p) - GRAVITY * np.kron(np.einsum("p,pij->ij", masses, drop), np.eye(2))
    factor = np.linalg.inv(np.linalg.cholesky(mass))
    squares, vectors = np.linalg.eigh(factor @ stiffness @ factor.T)
    if squares[0] <= 0:
        raise ValueError("the arm buckles: its cables and helicoids are not stiff enough to carry its weight")
    modes = mass @ factor.T @ vectors
    return Upright(mass, stiffness, modes @ np.diag(2 * p.damping_ratio * np.sqrt(squares)) @ modes.T)
