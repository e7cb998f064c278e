"""Cylinder chambers of the pressure model: parameters, volumes, port flows."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW
from firsthand.plants.excavator.linkage import cylinder_lengths
from firsthand.plants.excavator.parameters import BAR, ExcavatorParameters, Four, piston_areas


@dataclass(frozen=True)
class ChamberParameters:
    """What the two-chamber model knows beyond `ExcavatorParameters`. Boom, dipper, telescope, pitch. Estimates (E)."""

    bulk_modulus: float = 1.2e9
    """β_eff of oil and hoses, Pa."""
    dead_volume: Four = (1.0e-3, 2.0e-3, 3.0e-3, 1.5e-3)
    """Oil in hoses and ports, per chamber, m³."""
    hose_ratio: Four = (1.4, 1.11, 2.44, 1.39)
    """Capacity of the hose behind its throttle over the chamber's own at mid stroke: what damps the oil column."""
    hose_s: Four = (0.126, 0.036, 0.011, 0.019)
    """Time constant of that exchange, s."""
    coulomb: Four = (4e3, 3e3, 5e2, 1e3)
    """Seal friction, N at the cylinder."""
    coulomb_speed: float = 0.02
    """Cylinder speed over which it builds up, m/s."""
    viscous: Four = (4.7e4, 3.3e4, 3.4e3, 1.5e4)
    """N s/m at the cylinder."""
    return_ratio: float = 1.097
    """What the return edge lets through over what the inlet edge lets in, per piston speed."""
    pilot: float = 27 * BAR
    """Inlet pressure that fully opens the counterbalance valve on the return side, Pa: a load cannot run ahead."""
    return_ramp: float = 12 * BAR
    """Back pressure scale of the return edge, Pa."""
    shock: float = 400 * BAR
    """Port relief, Pa."""
    guard: float = 4e-9
    """Slope of port relief and anti-cavitation valves, m³/s/Pa."""
    preload: float = 15 * BAR
    """Pressure in the unloaded chamber at rest, Pa."""
    stop_stiffness: Four = (3e8, 1e8, 2e7, 1e7)
    """End stops, N m/rad or N/m."""
    stop_damping: Four = (3e6, 8e5, 1.5e5, 6e4)
    """N m s/rad or N s/m, while in the stop."""


class Port(NamedTuple):
    """Flows through the two valve edges of each cylinder and their slopes in pressure (for the implicit step)."""

    flow: Float[Array, "4"]
    slope: Float[Array, "4"]


def _stroke_ends() -> tuple[Four, Four]:
    """Shortest and longest cylinder lengths over the joint ranges, m."""
    with jax.ensure_compile_time_eval():
        ends = [np.asarray(cylinder_lengths(jnp.asarray(q)), np.float64) for q in (POSITION_LOW, POSITION_HIGH)]
    return tuple(np.minimum(*ends).tolist()), tuple(np.maximum(*ends).tolist())


STROKE_LOW, STROKE_HIGH = _stroke_ends()


def volumes(
    length: Float[Array, "4"], p: ExcavatorParameters, c: ChamberParameters
) -> tuple[Float[Array, "4"], Float[Array, "4"]]:
    """Oil volumes (bore side, rod side), m³."""
    bore, rod = piston_areas(p)
    dead = jnp.asarray(c.dead_volume)
    return dead + bore * (length - jnp.asarray(STROKE_LOW)), dead + rod * (jnp.asarray(STROKE_HIGH) - length)


def hose_capacity(p: ExcavatorParameters, c: ChamberParameters) -> tuple[Array, Array]:
    """Capacity of the hoses in m³/Pa (bore side, rod side)."""
    bore, rod = piston_areas(p)
    half = 0.5 * (np.asarray(STROKE_HIGH) - np.asarray(STROKE_LOW))
    dead, factor = jnp.asarray(c.dead_volume), jnp.asarray(c.hose_ratio) / c.bulk_modulus
    return factor * (dead + bore * half), factor * (dead + rod * half)


def rest_pressures(
    force: Float[Array, "4"], p: ExcavatorParameters, c: ChamberParameters
) -> tuple[Float[Array, "4"], Float[Array, "4"]]:
    """Chamber pressures (bore, rod) in Pa that push with `force` newtons, the unloaded side at the preload or above."""
    bore, rod = piston_areas(p)
    base = c.preload * bore
    return (jnp.maximum(force, 0.0) + base) / bore, (jnp.maximum(-force, 0.0) + base) / rod


def guard_valves(pressure: Float[Array, "4"], c: ChamberParameters) -> Port:
    """Inflow of the anti-cavitation valve below tank pressure, outflow of the port relief above its setting."""
    low, high = pressure < 0.0, pressure > c.shock
    flow = c.guard * (jnp.where(low, -pressure, 0.0) - jnp.where(high, pressure - c.shock, 0.0))
    return Port(flow, jnp.where(low | high, c.guard, 0.0))


def return_edge(
    drain: Float[Array, "4"], pressure: Float[Array, "4"], inlet: Float[Array, "4"], c: ChamberParameters
) -> Port:
    """Outflow drain · p / √(p² + ramp²), times how far the inlet pressure holds the counterbalance valve open.

    In p it is an orifice at low pressure and compensated at high pressure.
    """
    demand = drain * jnp.clip(inlet / c.pilot, 0.0, 1.0)
    positive = jnp.maximum(pressure, 0.0)
    root = jax.lax.rsqrt(positive * positive + c.return_ramp**2)
    return Port(demand * positive * root, demand * c.return_ramp**2 * root * root * root)


def advance_chamber(pressure, hose, flow, slope, stiffness, conductance, hose_s, dt, c):
    """One linearly implicit step of a chamber and its hose, Pa.

    `flow` is what the valve and the piston bring in, `slope` how much less it would be per pascal more.
    """
    guard = guard_valves(pressure, c)
    net = flow + guard.flow - conductance * (pressure - hose)
    rate = dt * stiffness
    pressure = pressure + rate * net / (1 + rate * (slope + guard.slope + conductance))
    return pressure, hose + dt / (dt + hose_s) * (pressure - hose)


@runtime_checkable
class ValveState(Protocol):
    """What `advance_chambers` needs of a model's valves, held over one slow step."""

    @property
    def extends(self) -> Array:
        """Whether the valve feeds the bore side."""
        ...

    @property
    def demand(self) -> Array:
        """Flow asked for at the inlet edge, m³/s."""
        ...

    @property
    def drain(self) -> Array:
        """Flow the return edge may pass, m³/s."""
        ...

    @property
    def ramp(self) -> Array:
        """Of the inlet edge in supply pressure, Pa."""
        ...

    @property
    def bore_stiffness(self) -> Array:
        """Bulk modulus over volume, Pa/m³."""
        ...

    @property
    def rod_stiffness(self) -> Array:
        """The same of the rod side."""
        ...


class Chambers(NamedTuple):
    """Pressures of both chambers and their hoses, Pa."""

    bore: Float[Array, "4"]
    rod: Float[Array, "4"]
    bore_hose: Float[Array, "4"]
    rod_hose: Float[Array, "4"]

    def in_bar(self) -> dict[str, Float[Array, "4"]]:
        """The pressures by name, in bar, as the states of the models have them."""
        return {name: pressure / BAR for name, pressure in self._asdict().items()}


def advance_chambers(
    held: ValveState,
    now: Chambers,
    start: Float[Array, "4"],
    supply: Float[Array, ""],
    speed: Float[Array, "4"],
    dt: float,
    p: ExcavatorParameters,
    c: ChamberParameters,
) -> tuple[Chambers, Float[Array, "4"]]:
    """One step of all chambers with the pump at `supply`, and the flow into the cylinders, m³/s.

    An inlet edge opens at the supply pressure `start`. `speed` is the cylinders', m/s.
    """
    bore_area, rod_area = piston_areas(p)
    inlet = jnp.where(held.extends, now.bore, now.rod)
    outlet = jnp.where(held.extends, now.rod, now.bore)
    opening = (supply - start) / held.ramp
    flow_in = held.demand * jnp.clip(opening, 0.0, 1.0)
    slope_in = jnp.where((opening > 0) & (opening < 1), held.demand / held.ramp, 0.0)
    out = return_edge(held.drain, outlet, inlet, c)

    bore_capacity, rod_capacity = hose_capacity(p, c)
    hose_s = jnp.asarray(c.hose_s)
    bore, bore_hose = advance_chamber(
        now.bore,
        now.bore_hose,
        jnp.where(held.extends, flow_in, -out.flow) - bore_area * speed,
        jnp.where(held.extends, slope_in, out.slope),
        held.bore_stiffness,
        bore_capacity / hose_s,
        hose_s,
        dt,
        c,
    )
    rod, rod_hose = advance_chamber(
        now.rod,
        now.rod_hose,
        jnp.where(held.extends, -out.flow, flow_in) + rod_area * speed,
        jnp.where(held.extends, out.slope, slope_in),
        held.rod_stiffness,
        rod_capacity / hose_s,
        hose_s,
        dt,
        c,
    )
    return Chambers(bore, rod, bore_hose, rod_hose), flow_in
