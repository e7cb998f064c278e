"""The flow-source model of the excavator arm: fast and differentiable, meant for learning.

Valves ask for flows; the pump grants them, lowest load pressure first; the granted flow moves a joint through one
damped oil-column mode. Load pressures are those of gravity and payload: a load's own acceleration does not reach the
pump (in `ExcavatorPressure` it does).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW, REFERENCE_POSE
from firsthand.plants.excavator.hydraulics import (
    MEMORY,
    advance_spool,
    end_cushion,
    supply_pressure,
    valve_gain,
)
from firsthand.plants.excavator.linkage import moment_arms
from firsthand.plants.excavator.loads import gravity_torque, mass_diagonal
from firsthand.plants.excavator.machine import AbstractExcavator
from firsthand.plants.excavator.parameters import (
    BAR,
    ExcavatorParameters,
    by_direction,
    oil_factors,
    stroke_factors,
)


class FlowState(NamedTuple):
    """State of the flow-source model. Joints in the order boom, dipper, telescope, pitch; rad, telescope m."""

    position: Float[Array, "4"]
    velocity: Float[Array, "4"]
    deflection: Float[Array, "4"]
    """Where the oil has put a joint minus where it is, beyond the deflection that carries the weight."""
    spool: Float[Array, "4"]
    """Spool positions in [-1, 1]."""
    memory: Float[Array, "3 4"]
    """The last three commands, the latest first: the dead time reads them."""
    oil_temperature_c: Float[Array, ""]


class Surroundings(NamedTuple):
    """The loads on the four joints during one control period."""

    start_plus: Float[Array, "4"]
    """Supply pressure at which oil begins to flow for u > 0, Pa."""
    start_minus: Float[Array, "4"]
    speed_plus: Float[Array, "4"]
    """Joint velocity at full stroke with oil enough, u > 0, rad/s or m/s."""
    speed_minus: Float[Array, "4"]
    omega: Float[Array, "4"]
    """Natural frequency of the oil column, rad/s."""
    damping: Float[Array, "4"]
    """Its damping ratio."""
    flow_factor: Float[Array, ""]
    """Of the oil temperature, on every flow."""
    dead_band_factor: Float[Array, ""]


class ExcavatorFlow(AbstractExcavator):
    """The arm in flow-source fidelity. See `AbstractExcavator` for commands, measurements and options."""

    parameters: ExcavatorParameters = eqx.field(default=ExcavatorParameters(), static=True)
    substeps: int = eqx.field(default=4, static=True)
    """Integration steps per control period."""

    def reset(self, position: Float[Array, "4"]) -> FlowState:
        """At rest at `position` (moved inside the end stops), spools centred."""
        position = self._inside(position)
        zero = jnp.zeros_like(position)
        return FlowState(position, zero, zero, zero, jnp.zeros((MEMORY, 4)), self.oil_temperature_c)

    def step(self, state: FlowState, command: Float[Array, "4"], *, key: PRNGKeyArray) -> FlowState:
        """One control period of 0.04 s with `command`, clipped to [-1, 1], held."""
        del key
        surroundings = self.surroundings(state)
        return self._hold(state, command, self.substeps, lambda s, u, dt: self.substep(s, u, surroundings, dt))

    def surroundings(self, state: FlowState) -> Surroundings:
        """Slow quantities, which are computed once per control period."""
        p = self.parameters
        q = state.position
        flow_factor, dead_band_factor, damping_factor = oil_factors(state.oil_temperature_c, p)
        area_plus, area_minus, sign_plus, _ = stroke_factors(p)
        arm = moment_arms(q)
        # A load that pulls along needs no pressure: a smooth max(load, 0).
        pull = gravity_torque(q, self.payload_kg) / arm * sign_plus
        # The joint-space stiffness of an oil column goes with the square of the moment arm.
        inertia = mass_diagonal(q, self.payload_kg)
        omega = 2 * np.pi * jnp.asarray(p.mode_hz) * jnp.asarray(_REFERENCE_SCALE) * jnp.abs(arm) / jnp.sqrt(inertia)
        return Surroundings(
            start_plus=_smooth_positive(pull / area_plus) + jnp.asarray(p.threshold_plus),
            start_minus=_smooth_positive(-pull / area_minus) + jnp.asarray(p.threshold_minus),
            speed_plus=flow_factor * jnp.asarray(p.speed_plus) * sign_plus / arm,
            speed_minus=flow_factor * jnp.asarray(p.speed_minus) * -sign_plus / arm,
            omega=omega,
            damping=damping_factor * jnp.asarray(p.mode_damping),
            flow_factor=flow_factor,
            dead_band_factor=dead_band_factor,
        )

    def substep(self, state: FlowState, command: Float[Array, "4"], surroundings: Surroundings, dt: float) -> FlowState:
        """One integration step of `dt` seconds with `command` at the valves."""
        p, around = self.parameters, surroundings
        q, dq, e = state.position, state.velocity, state.deflection
        spool = advance_spool(state.spool, command, dt, p)
        plus = spool > 0
        area_plus, area_minus, _, _ = stroke_factors(p)
        full_plus, full_minus = area_plus * jnp.asarray(p.speed_plus), area_minus * jnp.asarray(p.speed_minus)

        # What the valves ask for, less toward an end stop: cylinders have cushions.
        low, high = jnp.asarray(POSITION_LOW), jnp.asarray(POSITION_HIGH)
        gain = valve_gain(spool, around.dead_band_factor, p) * end_cushion(q, plus, p)

        # What the pump grants.
        demand = gain * around.flow_factor * by_direction(plus, full_plus, full_minus)
        start = by_direction(plus, around.start_plus, around.start_minus)
        ramp = by_direction(plus, p.ramp_plus, p.ramp_minus)
        supply = supply_pressure(demand, start, ramp, p)
        granted = gain * jnp.clip((supply - start) / ramp, 0.0, 1.0)
        v = granted * by_direction(plus, around.speed_plus, around.speed_minus)

        # The oil column by the trapezoidal rule: ė = v - q̇, q̈ = ω² e + 2ζω (v - q̇).
        both = dt * around.omega * (0.25 * dt * around.omega + around.damping)
        dq_new = (dq * (1 - both) + dt * around.omega**2 * e + 2 * both * v) / (1 + both)
        mean = 0.5 * (dq + dq_new)
        q_new = q + dt * mean

        # A piston at its end stays there until it is pulled back.
        inside = (q_new >= low) & (q_new <= high)
        return state._replace(
            position=jnp.clip(q_new, low, high),
            velocity=jnp.where(inside, dq_new, 0.0),
            deflection=jnp.where(inside, e + dt * (v - mean), 0.0),
            spool=spool,
        )

    def advance(self, state: FlowState, command: Float[Array, "4"], dt: float) -> FlowState:
        """A short time `dt`; see `AbstractExcavator.advance`."""
        return self.substep(state, command, self.surroundings(state), dt)


def _smooth_positive(pressure: Float[Array, "4"]) -> Float[Array, "4"]:
    """max(pressure, 0), rounded over 10 bar."""
    return 0.5 * (pressure + jnp.sqrt(pressure * pressure + (10 * BAR) ** 2))


def _reference_scale() -> tuple[float, ...]:
    """√inertia / arm at the reference pose, empty: turns a frequency there into one elsewhere."""
    with jax.ensure_compile_time_eval():
        q = jnp.asarray(REFERENCE_POSE)
        scale = jnp.sqrt(mass_diagonal(q, jnp.asarray(0.0))) / jnp.abs(moment_arms(q))
        return tuple(np.asarray(scale, np.float64).tolist())


_REFERENCE_SCALE = _reference_scale()
