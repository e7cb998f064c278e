"""The realistic excavator with its shovel in soil: a surface that is cut where the tip passes below it.

The ground lies in front of the machine, on a grid along x. It is uneven, and its strength differs from lane to lane;
neither is measured. Soil that is cut is gone: it is neither carried nor heaped up. While the shovel is well above the
ground the machine moves on to a lane that is not cut yet, a little different from the last.
"""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.plants.base import AbstractPlant
from firsthand.plants.excavator.machine import array_field
from firsthand.plants.excavator.parameters import PERIOD_S
from firsthand.plants.excavator.realistic import AbstractGround, ExcavatorRealistic, RealisticState
from firsthand.plants.excavator.soil import Soil, SoilForce, soil_force

LEVEL_M = 0.9
"""Mean height of ground that is not cut, m."""
CELL_M = 0.05
GRID_M = np.arange(3.0, 7.0 + CELL_M / 2, CELL_M)
"""Where along x the surface is known, m."""
BUMP_M, BUMP_LENGTH_M = 0.03, 1.3
"""Height and length of the unevenness."""
STRENGTH_SPREAD = 0.3
"""Standard deviation of the logarithm of the strength, from lane to lane."""
LIFTED_M = 0.2
"""A tip this far above ground that is not cut is in the air."""
LANE_S = 0.3
"""Time constant of moving on to another lane."""
LEAST_VARIANCE = 1e-6
"""Changes of a lane in one period below this do not count."""


class Ground(AbstractGround):
    """The ground as the machine meets it, held over a control period."""

    soil: Soil = eqx.field(static=True)
    surface: Float[Array, " cells"]
    """Heights on `GRID_M`, m."""
    strength: Float[Array, ""]

    def force(self, tip: Float[Array, "2"], velocity: Float[Array, "2"]) -> SoilForce:
        """On the shovel's tip. What counts is the surface one cell in front of the edge, which is not cut yet."""
        height = jnp.interp(tip[0] - CELL_M, jnp.asarray(GRID_M), self.surface)
        return soil_force(self.soil, height - tip[1], velocity, self.strength)


class GradingState(NamedTuple):
    """The machine and the ground."""

    machine: RealisticState
    surface: Float[Array, " cells"]
    """Heights on `GRID_M`, m."""
    lane: Float[Array, "2"]
    """Where the bumps are and how strong the soil is, in standard deviations."""


class ExcavatorGrading(AbstractPlant):
    """`ExcavatorRealistic` above soil; see there for commands and measurements."""

    machine: ExcavatorRealistic = eqx.field(default_factory=ExcavatorRealistic)
    soil: Soil | None = eqx.field(default=Soil(), static=True)
    """None for a machine in the air."""
    level_m: Float[Array, ""] = array_field(LEVEL_M)
    """Mean height of ground that is not cut."""

    @property
    def period_s(self) -> float:
        """0.04 s."""
        return self.machine.period_s

    @property
    def num_commands(self) -> int:
        """Boom, dipper, telescope, pitch."""
        return self.machine.num_commands

    @property
    def num_measured(self) -> int:
        """Four positions, four velocities."""
        return self.machine.num_measured

    def with_payload(self, kg: float) -> "ExcavatorGrading":
        """The same machine with `kg` at the tool."""
        return eqx.tree_at(lambda plant: plant.machine, self, self.machine.with_payload(kg))

    def in_air(self) -> "ExcavatorGrading":
        """The same machine without soil."""
        return replace(self, soil=None)

    def reset(self, position: Float[Array, "4"]) -> GradingState:
        """At rest, above or in ground of usual strength that is not cut."""
        lane = jnp.zeros(2)
        return GradingState(self.machine.reset(position), self.fresh(lane), lane)

    def fresh(self, lane: Float[Array, "2"]) -> Float[Array, " cells"]:
        """The surface of a lane before it is cut."""
        return self.level_m + BUMP_M * jnp.sin(2 * np.pi * jnp.asarray(GRID_M) / BUMP_LENGTH_M + 2 * lane[0])

    def step(self, state: GradingState, command: Float[Array, "4"], *, key: PRNGKeyArray) -> GradingState:
        """One control period; the ground changes at its end."""
        machine_key, lane_key = jax.random.split(key)
        machine = self.machine
        if self.soil is not None:
            ground = Ground(self.soil, state.surface, jnp.exp(STRENGTH_SPREAD * state.lane[1]))
            machine = replace(machine, ground=ground)
        after = machine.step(state.machine, command, key=machine_key)
        start, end = self.machine.shovel_tip(state.machine), self.machine.shovel_tip(after)
        surface = cut(state.surface, start, end)
        # In the air: on to another lane.
        high = end[1] - jnp.interp(end[0], jnp.asarray(GRID_M), self.fresh(state.lane))
        moved = PERIOD_S / LANE_S * jax.nn.sigmoid((high - LIFTED_M) / 0.02)
        keep, variance = jnp.exp(-moved), -jnp.expm1(-2 * moved)
        far = variance > LEAST_VARIANCE  # a root of 0 has no derivative
        spread = jnp.where(far, jnp.sqrt(jnp.where(far, variance, 1.0)), 0.0)
        lane = keep * state.lane + spread * jax.random.normal(lane_key, (2,))
        surface = surface + (1 - keep) * (self.fresh(lane) - surface)
        return GradingState(after, surface, lane)

    def measure(self, state: GradingState, *, key: PRNGKeyArray) -> Float[Array, "8"]:
        """[q, dq]; nothing of the ground."""
        return self.machine.measure(state.machine, key=key)


def cut(surface: Float[Array, " cells"], start: Float[Array, "2"], end: Float[Array, "2"]) -> Float[Array, " cells"]:
    """The surface after the tip has gone straight from `start` to `end`: nowhere on its way above the tip."""
    grid = jnp.asarray(GRID_M)
    low, high = jnp.minimum(start[0], end[0]), jnp.maximum(start[0], end[0])
    way = end[0] - start[0]
    share = (grid - start[0]) / jnp.where(jnp.abs(way) > 1e-9, way, 1e-9)
    height = start[1] + jnp.clip(share, 0.0, 1.0) * (end[1] - start[1])
    passed = (grid >= low) & (grid <= high)
    return jnp.where(passed, jnp.minimum(surface, height), surface)
