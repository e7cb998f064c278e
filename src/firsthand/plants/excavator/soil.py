"""What soil does to a blade that is drawn through it: the fundamental equation of earth-moving, and an edge that sinks.

A blade of width w at rake angle ρ, drawn horizontally at depth d, pushes up a wedge of soil that breaks along a plane
at angle β. Equilibrium of the wedge (Reece, "The fundamental equation of earth-moving mechanics", 1964; McKyes, "Soil
Cutting and Tillage", 1985, chapter 3) gives the force between blade and soil, at angle δ to the blade's normal:

    P = w (γ g d² N_γ + c d N_c + γ v² d N_a)

γ is the density, c the cohesion, φ the angle of internal friction, δ that between soil and metal, v the speed. β is the
angle of least N_γ. There is no surcharge and no adhesion, and ρ does not follow the shovel: a grading blade is held at
its angle. An edge of thickness t that is pressed down meets Bekker's pressure k d (1969, with the exponent 1, so that
its derivative is finite). Both forces oppose motion: they grow from zero within a few centimetres per second.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

GRAVITY = 9.81


class WedgeFactors(NamedTuple):
    """N_γ, N_c and N_a, and the failure plane's angle β (rad) that they belong to."""

    weight: float
    cohesion: float
    inertia: float
    plane: float


def factors_at(
    plane: Float[np.ndarray, " planes"], rake: float, friction: float, tool_friction: float
) -> tuple[Float[np.ndarray, " planes"], ...]:
    """N_γ, N_c and N_a at failure planes β. Angles in rad."""
    cot = 1 / np.tan(plane + friction)
    common = np.cos(rake + tool_friction) + np.sin(rake + tool_friction) * cot
    weight = (1 / np.tan(rake) + 1 / np.tan(plane)) / (2 * common)
    cohesion = (1 + cot / np.tan(plane)) / common
    inertia = (np.tan(plane) + cot) / (common * (1 + np.tan(plane) / np.tan(rake)))
    return weight, cohesion, inertia


def wedge_factors(rake: float, friction: float, tool_friction: float) -> WedgeFactors:
    """The factors at the failure plane of least N_γ. Angles in rad."""
    planes = np.linspace(0.02, np.pi / 2 - friction - 0.02, 20_000)
    every = factors_at(planes, rake, friction, tool_friction)
    every = [np.where(every[0] > 0, values, np.inf) for values in every]
    best = int(np.argmin(every[0]))
    return WedgeFactors(*(float(values[best]) for values in every), plane=float(planes[best]))


@dataclass(frozen=True)
class Soil:
    """A compacted sandy loam, and the shovel's edge in it. Our estimates, inside the ranges of McKyes' tables."""

    density: float = 1700.0
    """kg/m³."""
    cohesion: float = 12e3
    """Pa."""
    friction: float = float(np.deg2rad(30.0))
    """Angle of internal friction, rad."""
    tool_friction: float = float(np.deg2rad(20.0))
    """Between soil and metal, rad."""
    rake: float = float(np.deg2rad(45.0))
    """Of the blade, from the horizontal, rad."""
    width: float = 1.2
    """Of the shovel, m."""
    edge: float = 0.03
    """Thickness of its edge, m."""
    bearing: float = 1.5e6
    """Pressure under the edge per depth, Pa/m."""
    onset: float = 0.03
    """Speed at which a force has grown to half, m/s."""
    crumble: float = 0.005
    """Depth over which contact sets in, m."""
    deepest: float = 0.5
    """Depth beyond which the force grows no more, m."""

    @cached_property
    def factors(self) -> WedgeFactors:
        """Of the wedge in front of the blade."""
        return wedge_factors(self.rake, self.friction, self.tool_friction)


def cutting_force(soil: Soil, depth: Float[Array, ""], speed: Float[Array, ""]) -> Float[Array, ""]:
    """P, N, of a blade that cuts at this depth and speed."""
    n = soil.factors
    per_width = soil.density * GRAVITY * depth**2 * n.weight + soil.cohesion * depth * n.cohesion
    return soil.width * (per_width + soil.density * speed**2 * depth * n.inertia)


class SoilForce(NamedTuple):
    """The soil's force on the edge, in x and z."""

    force: Float[Array, "2"]
    """N."""
    slope: Float[Array, "2"]
    """How much more it resists a motion in x, in z that is faster, N s/m: steep where a motion begins."""


def soil_force(
    soil: Soil, depth: Float[Array, ""], velocity: Float[Array, "2"], strength: Float[Array, ""]
) -> SoilForce:
    """The force on the edge, below the surface by `depth` (m, negative above) and moving at `velocity`.

    Soil is cut where the edge moves towards the machine, in −x. `strength` multiplies everything. A depth of more than
    half a metre changes nothing any more: no shovel works there.
    """
    deep = soil.crumble * jax.nn.softplus(depth / soil.crumble)
    deep = deep / (1 + (deep / soil.deepest) ** 4) ** 0.25
    forward, down = -velocity[0], -velocity[1]
    cutting, pressing = cutting_force(soil, deep, forward), soil.width * soil.edge * soil.bearing * deep
    cut, cut_slope = (factor * cutting for factor in _opposing(forward, soil.onset))
    press, press_slope = (factor * pressing for factor in _opposing(down, soil.onset))
    across, along = np.sin(soil.rake + soil.tool_friction), np.cos(soil.rake + soil.tool_friction)
    force = jnp.stack([across * cut, press - along * cut])
    return SoilForce(strength * force, strength * jnp.stack([across * cut_slope, press_slope]))


def _opposing(speed: Float[Array, ""], onset: float) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """From 0, for what stands or moves the other way, to 1; and the slope, which is continuous."""
    ahead = jnp.maximum(speed, 0.0)
    squared = ahead**2
    return squared / (squared + onset**2), 2 * ahead * onset**2 / (squared + onset**2) ** 2
