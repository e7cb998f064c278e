"""The two-chamber pressure model of the excavator arm: slower and more faithful. No learner is tuned on it.

Each cylinder has a bore and a rod chamber with compressible oil, fed by a compensated inlet edge and emptied through a
return edge; hoses exchange oil with the chambers through a throttle and so damp the oil column; the arm is the full
rigid chain, M(q) q̈ + c(q, q̇) + g(q) = τ. Accelerations therefore reach the pump, and joints shake one another.

    V_a ṗ_a = β (Q_a - A_a L̇ - C (p_a - h_a) / T),     ḣ_a = (p_a - h_a) / T,     and likewise on the rod side.

Valve strokes, the mass matrix and the linkage move slowly and are held for 10 ms; pressures and motion take 2 ms steps,
velocity first and pressure with the new velocity, its stiff part (valve slopes) implicitly.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from firsthand.plants.excavator.chambers import (
    ChamberParameters,
    Chambers,
    advance_chambers,
    rest_pressures,
    volumes,
)
from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW
from firsthand.plants.excavator.hydraulics import (
    MEMORY,
    advance_spool,
    end_cushion,
    supply_pressure,
    valve_gain,
)
from firsthand.plants.excavator.linkage import cylinder_lengths, moment_arms
from firsthand.plants.excavator.loads import coriolis_torque, gravity_torque, mass_matrix
from firsthand.plants.excavator.machine import AbstractExcavator
from firsthand.plants.excavator.parameters import (
    BAR,
    PRESSURE_MODEL,
    ExcavatorParameters,
    by_direction,
    oil_factors,
    piston_areas,
    stroke_factors,
)


class PressureState(NamedTuple):
    """State of the pressure model. Joints in the order boom, dipper, telescope, pitch; rad, telescope m; bar."""

    position: Float[Array, "4"]
    velocity: Float[Array, "4"]
    bore: Float[Array, "4"]
    """Pressure on the bore side."""
    rod: Float[Array, "4"]
    """Pressure on the rod side."""
    bore_hose: Float[Array, "4"]
    """Pressure in the hose behind its throttle."""
    rod_hose: Float[Array, "4"]
    spool: Float[Array, "4"]
    """Spool positions in [-1, 1]."""
    memory: Float[Array, "3 4"]
    """The last three commands, the latest first: the dead time reads them."""
    oil_temperature_c: Float[Array, ""]


class Held(NamedTuple):
    """Quantities that are constant over one slow step (10 ms)."""

    extends: Bool[Array, "4"]
    """Whether the valve feeds the bore side."""
    demand: Float[Array, "4"]
    """Flow asked for at the inlet edge, m³/s."""
    drain: Float[Array, "4"]
    """Flow the return edge may pass, m³/s."""
    threshold: Float[Array, "4"]
    ramp: Float[Array, "4"]
    """Of the inlet edge in supply pressure, Pa; see `ExcavatorParameters`."""
    arm: Float[Array, "4"]
    inverse_mass: Float[Array, "4 4"]
    bias: Float[Array, "4"]
    """Gravity and velocity-product torques, N m."""
    bore_stiffness: Float[Array, "4"]
    """β / V, Pa/m³."""
    rod_stiffness: Float[Array, "4"]
    damping_factor: Float[Array, ""]
    """Of the oil temperature, on viscous friction."""


class ExcavatorPressure(AbstractExcavator):
    """The arm in two-chamber fidelity. See `AbstractExcavator` for commands, measurements and options."""

    parameters: ExcavatorParameters = eqx.field(default=PRESSURE_MODEL, static=True)
    chambers: ChamberParameters = eqx.field(default=ChamberParameters(), static=True)
    slow_steps: int = eqx.field(default=4, static=True)
    """Per control period: valves, inertia, linkage."""
    fast_steps: int = eqx.field(default=5, static=True)
    """Per slow step: pressures and motion."""

    def reset(self, position: Float[Array, "4"]) -> PressureState:
        """At rest at `position` (moved inside the end stops), spools centred, pressures carrying the weight."""
        q = self._inside(position)
        force = gravity_torque(q, self.payload_kg) / moment_arms(q)
        bore, rod = rest_pressures(force, self.parameters, self.chambers)
        bore, rod, zero = bore / BAR, rod / BAR, jnp.zeros_like(q)
        memory = jnp.zeros((MEMORY, 4), q.dtype)
        return PressureState(q, zero, bore, rod, bore, rod, zero, memory, self.oil_temperature_c)

    def step(self, state: PressureState, command: Float[Array, "4"], *, key: PRNGKeyArray) -> PressureState:
        """One control period of 0.04 s with `command`, clipped to [-1, 1], held."""
        del key
        return self._hold(state, command, self.slow_steps, self._slow_step)

    def advance(self, state: PressureState, command: Float[Array, "4"], dt: float) -> PressureState:
        """A short time `dt`; see `AbstractExcavator.advance`."""
        state = state._replace(spool=advance_spool(state.spool, command, dt, self.parameters))
        return self._fast_step(state, self._hold_slow(state), dt)

    def _slow_step(self, state: PressureState, command: Float[Array, "4"], dt: float) -> PressureState:
        state = state._replace(spool=advance_spool(state.spool, command, dt, self.parameters))
        held = self._hold_slow(state)
        fast = dt / self.fast_steps
        state, _ = jax.lax.scan(
            lambda s, _: (self._fast_step(s, held, fast), None), state, None, length=self.fast_steps
        )
        return state

    def _hold_slow(self, state: PressureState) -> Held:
        p, c = self.parameters, self.chambers
        q, dq, spool = state.position, state.velocity, state.spool
        flow_factor, dead_band_factor, damping_factor = oil_factors(state.oil_temperature_c, p)
        plus = spool > 0
        area_plus, area_minus, sign_plus, sign_minus = stroke_factors(p)
        speed = flow_factor * end_cushion(q, plus, p) * by_direction(plus, p.speed_plus, p.speed_minus)
        speed = speed * valve_gain(spool, dead_band_factor, p)
        length = cylinder_lengths(q)
        bore_volume, rod_volume = volumes(length, p, c)
        return Held(
            extends=by_direction(plus, sign_plus, sign_minus) > 0,
            demand=speed * by_direction(plus, area_plus, area_minus),
            drain=c.return_ratio * speed * by_direction(plus, area_minus, area_plus),
            threshold=by_direction(plus, p.threshold_plus, p.threshold_minus),
            ramp=by_direction(plus, p.ramp_plus, p.ramp_minus),
            arm=moment_arms(q),
            inverse_mass=mass_matrix(q, self.payload_kg).inverse(),
            bias=gravity_torque(q, self.payload_kg) + coriolis_torque(q, dq, self.payload_kg),
            bore_stiffness=c.bulk_modulus / bore_volume,
            rod_stiffness=c.bulk_modulus / rod_volume,
            damping_factor=damping_factor,
        )

    def _fast_step(self, state: PressureState, held: Held, dt: float) -> PressureState:
        p, c = self.parameters, self.chambers
        q, dq = state.position, state.velocity
        bore, rod = state.bore * BAR, state.rod * BAR
        bore_area, rod_area = piston_areas(p)

        # Motion.
        speed = held.arm * dq
        friction = jnp.asarray(c.coulomb) * jnp.tanh(speed / c.coulomb_speed)
        friction = friction + held.damping_factor * jnp.asarray(c.viscous) * speed
        low, high = jnp.asarray(POSITION_LOW), jnp.asarray(POSITION_HIGH)
        beyond = q - jnp.clip(q, low, high)
        stop = jnp.asarray(c.stop_stiffness) * beyond + jnp.where(beyond == 0, 0.0, jnp.asarray(c.stop_damping)) * dq
        torque = held.arm * (bore * bore_area - rod * rod_area - friction) - held.bias - stop
        dq = dq + dt * jnp.sum(held.inverse_mass * torque, 1)
        q = q + dt * dq
        speed = held.arm * dq

        # Valve edges. The pump serves the lowest inlet pressure first.
        start = jnp.maximum(jnp.where(held.extends, bore, rod), 0.0) + held.threshold
        supply = supply_pressure(held.demand, start, held.ramp, p)
        now = Chambers(bore, rod, state.bore_hose * BAR, state.rod_hose * BAR)
        after, _ = advance_chambers(held, now, start, supply, speed, dt, p, c)
        return state._replace(position=q, velocity=dq, **after.in_bar())
