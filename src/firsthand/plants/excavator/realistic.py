"""The realistic excavator: the two-chamber model with what a hydraulics engineer would insist on.

Every effect is one of `Effects` and can be switched off; with none of them this is `ExcavatorPressure`. The order in
which a command meets them:

    dead time → hysteresis → spool → dead band (drifts), oil, droop, flow noise → what the valve asks for
    load-sensing pump (engine, power limit, lag) → supply pressure → chambers
    chambers, friction → arm, with the payload that swings in the gripper → base, which pitches

What is slow (valves, pump, inertia, linkage, swing) is held for 10 ms; pressures and motion take 2 ms steps. The base
pitches about the boom's pivot, so that its angle adds to the boom's: arm and gripper move with q + (θ, 0, 0, 0), the
boom's cylinder with q. What is measured are the joints, not the base.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from firsthand.plants.excavator.chambers import (
    ChamberParameters,
    Chambers,
    advance_chambers,
    rest_pressures,
    volumes,
)
from firsthand.plants.excavator.effects import Effects, EffectSizes
from firsthand.plants.excavator.friction import coulomb_level, stribeck
from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW, REFERENCE_POSE, forward_kinematics
from firsthand.plants.excavator.hydraulics import (
    MEMORY,
    advance_spool,
    end_cushion,
    supply_pressure,
    valve_gain,
)
from firsthand.plants.excavator.hysteresis import PLAYS, advance_plays, spool_target
from firsthand.plants.excavator.linkage import cylinder_lengths, moment_arms
from firsthand.plants.excavator.load_sensing import Pump, advance_pump, pump_at_rest
from firsthand.plants.excavator.loads import coriolis_torque, gravity_torque, mass_matrix
from firsthand.plants.excavator.machine import AbstractExcavator, array_field
from firsthand.plants.excavator.parameters import (
    BAR,
    LITRE_PER_MINUTE,
    PERIOD_S,
    REALISTIC_MODEL,
    ExcavatorParameters,
    by_direction,
    oil_factors,
    piston_areas,
    stroke_factors,
)
from firsthand.plants.excavator.soil import SoilForce
from firsthand.plants.excavator.swing import add_mass, advance_swing, hang

Scalar = Float[Array, ""]


class RealisticState(NamedTuple):
    """State of the realistic excavator. Joints in the order boom, dipper, telescope, pitch; rad, telescope m; bar."""

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
    plays: Float[Array, "3 4"]
    """The state of the spools' hysteresis."""
    pump: Pump
    supply: Scalar
    """Supply pressure."""
    flow: Float[Array, "4"]
    """The pump's flow to each cylinder, l/min."""
    fluctuation: Float[Array, "4"]
    """Of the flows, in standard deviations."""
    dead_band_shift: Float[Array, "4"]
    """Drift of the dead bands, in standard deviations."""
    engine: Scalar
    """Wandering of the engine's speed, in standard deviations."""
    swing: Float[Array, "2"]
    """Angle of the hanging payload from the vertical (rad), and its rate."""
    base: Float[Array, "2"]
    """Pitch of the machine (rad, positive is nose down), and its rate."""
    memory: Float[Array, "3 4"]
    """The last three commands, the latest first: the dead time reads them."""
    oil_temperature_c: Scalar


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
    """Torques of gravity, payload and products of velocities, N m."""
    bore_stiffness: Float[Array, "4"]
    """β / V, Pa/m³."""
    rod_stiffness: Float[Array, "4"]
    damping_factor: Scalar
    """Of the oil temperature, on viscous friction."""
    friction: Float[Array, "4"]
    """Of each cylinder in motion, N."""
    contact: "Contact | None"
    """Where the tip is, for a machine that stands before ground."""


class Contact(NamedTuple):
    """The tip as it was at the start of a slow step; from there on it moves along its Jacobian."""

    tip: Float[Array, "2"]
    """(x, z), m."""
    jacobian: Float[Array, "2 4"]
    position: Float[Array, "4"]
    """Of the joints, with the base's pitch."""


class AbstractGround(eqx.Module):
    """The external force at the shovel's tip."""

    @abstractmethod
    def force(self, tip: Float[Array, "2"], velocity: Float[Array, "2"]) -> SoilForce:
        """In x and z, and how steep it is in the velocity."""


class ExcavatorRealistic(AbstractExcavator):
    """The arm with every effect. See `AbstractExcavator` for commands, measurements and options."""

    parameters: ExcavatorParameters = eqx.field(default=REALISTIC_MODEL, static=True)
    chambers: ChamberParameters = eqx.field(default=ChamberParameters(), static=True)
    effects: Effects = eqx.field(default=Effects(), static=True)
    sizes: EffectSizes = eqx.field(default=EffectSizes(), static=True)
    oil_temperature_c: Scalar = array_field(30.0)
    """At reset: a machine that has stood overnight. Without the effect `oil` it is the nominal one throughout."""
    warming_rate: Scalar = array_field(1 / 10_800)
    """1/s: 72 °C after eight hours."""
    slow_steps: int = eqx.field(default=4, static=True)
    """Per control period: valves, pump, inertia, linkage."""
    fast_steps: int = eqx.field(default=5, static=True)
    """Per slow step: pressures and motion."""
    ground: AbstractGround | None = None
    """The soil that the shovel touches; None in the air."""

    def without(self, *names: str) -> "ExcavatorRealistic":
        """The same machine with these effects switched off."""
        return replace(self, effects=self.effects.without(*names))

    def at_work(self) -> "ExcavatorRealistic":
        """The same machine with oil at its nominal temperature from the start."""
        return eqx.tree_at(lambda plant: plant.oil_temperature_c, self, jnp.asarray(self.parameters.nominal_oil_c))

    def oil_columns(self) -> "ExcavatorRealistic":
        """Without friction, which sticks at rest, and without the modes of base and gripper."""
        return self.without("friction", "base", "swing")

    def shovel_tip(self, state: RealisticState) -> Float[Array, "2"]:
        """Where the tip really is, (x, z) in m: with the base's pitch, which the joints do not show."""
        return forward_kinematics(self._arm(state)[0])

    def reset(self, position: Float[Array, "4"]) -> RealisticState:
        """At rest at `position` (moved inside the end stops), spools centred, pressures carrying the weight."""
        q = self._inside(position)
        pitch = self._resting_pitch(q)
        force = self._weight(q, pitch) / moment_arms(q)
        bore, rod = rest_pressures(force, self.parameters, self.chambers)
        bore, rod, zero = bore / BAR, rod / BAR, jnp.zeros_like(q)
        nothing, still = jnp.zeros((), q.dtype), jnp.zeros(2, q.dtype)
        return RealisticState(
            position=q,
            velocity=zero,
            bore=bore,
            rod=rod,
            bore_hose=bore,
            rod_hose=rod,
            spool=zero,
            plays=jnp.zeros((PLAYS, 4), q.dtype),
            pump=pump_at_rest(self.parameters, self.sizes),
            supply=nothing + self.sizes.margin / BAR,
            flow=zero,
            fluctuation=zero,
            dead_band_shift=zero,
            engine=nothing,
            swing=still,
            base=still.at[0].set(pitch),
            memory=jnp.zeros((MEMORY, 4), q.dtype),
            oil_temperature_c=self.oil_temperature_c if self.effects.oil else nothing + self.parameters.nominal_oil_c,
        )

    def step(self, state: RealisticState, command: Float[Array, "4"], *, key: PRNGKeyArray) -> RealisticState:
        """One control period of 0.04 s with `command`, clipped to [-1, 1], held. `key` feeds noise and drift."""
        return self._hold(self._drift(state, key), command, self.slow_steps, self._slow_step)

    def advance(self, state: RealisticState, command: Float[Array, "4"], dt: float) -> RealisticState:
        """A short time `dt`; see `AbstractExcavator.advance`."""
        state = self._open_valves(state, command, dt)
        held = self._hold_slow(state)
        state = self._feed(state, held, dt)
        return self._sway(state, self._fast_step(state, held, dt), dt)

    # Once per control period: what is random.

    def _drift(self, state: RealisticState, key: PRNGKeyArray) -> RealisticState:
        effects, sizes = self.effects, self.sizes
        if not (effects.noise or effects.deadband or effects.engine):
            return state
        drawn = jax.random.normal(key, (9,), state.position.dtype)

        def wander(value, new, time_s):
            keep = np.exp(-PERIOD_S / time_s)
            return keep * value + np.sqrt(1 - keep**2) * new

        if effects.noise:
            state = state._replace(fluctuation=wander(state.fluctuation, drawn[:4], sizes.noise_s))
        if effects.deadband:
            state = state._replace(dead_band_shift=wander(state.dead_band_shift, drawn[4:8], sizes.deadband_s))
        if effects.engine:
            state = state._replace(engine=wander(state.engine, drawn[8], sizes.engine_s))
        return state

    def _warmer(self, temperature_c: Scalar) -> Scalar:
        return super()._warmer(temperature_c) if self.effects.oil else temperature_c

    # Every 10 ms: valves, pump, inertia.

    def _slow_step(self, state: RealisticState, command: Float[Array, "4"], dt: float) -> RealisticState:
        state = self._open_valves(state, command, dt)
        held = self._hold_slow(state)
        state = before = self._feed(state, held, dt)
        fast = dt / self.fast_steps
        state, _ = jax.lax.scan(
            lambda s, _: (self._fast_step(s, held, fast), None), state, None, length=self.fast_steps
        )
        return self._sway(before, state, dt)

    def _open_valves(self, state: RealisticState, command: Float[Array, "4"], dt: float) -> RealisticState:
        """Hysteresis, then the spools."""
        if self.effects.hysteresis:
            plays = advance_plays(state.plays, command, self.sizes.hysteresis)
            state, command = state._replace(plays=plays), spool_target(plays, command)
        return state._replace(spool=advance_spool(state.spool, command, dt, self.parameters))

    def _feed(self, state: RealisticState, held: Held, dt: float) -> RealisticState:
        """The pump answers what the valves ask for."""
        needed = _inlet(state, held) * BAR + held.threshold + held.ramp
        engine = 1 + self.sizes.engine * state.engine if self.effects.engine else jnp.ones_like(state.engine)
        pump = advance_pump(
            state.pump, held.demand, needed, state.supply * BAR, engine, dt, self.parameters, self.effects, self.sizes
        )
        return state._replace(pump=pump)

    def _sway(self, before: RealisticState, state: RealisticState, dt: float) -> RealisticState:
        """The payload swings with how the gripper was accelerated."""
        if not self.effects.swing:
            return state
        angles, rates = self._arm(before)
        hanging = hang(angles, rates, before.swing, self.payload_kg, self.sizes)
        acceleration = jnp.sum(hanging.jacobian * (self._arm(state)[1] - rates), 1) / dt + hanging.drift
        return state._replace(swing=advance_swing(before.swing, acceleration, dt, self.sizes))

    def _hold_slow(self, state: RealisticState) -> Held:
        p, c, sizes = self.parameters, self.chambers, self.sizes
        q, spool = state.position, state.spool
        flow_factor, dead_band_factor, damping_factor = oil_factors(state.oil_temperature_c, p)
        if self.effects.deadband:
            least = sizes.least_deadband / np.asarray(p.dead_band)
            shift = sizes.deadband / np.asarray(p.dead_band) * state.dead_band_shift
            dead_band_factor = jnp.maximum(dead_band_factor + shift, least)
        plus = spool > 0
        area_plus, area_minus, sign_plus, sign_minus = stroke_factors(p)
        extends = by_direction(plus, sign_plus, sign_minus) > 0
        speed = flow_factor * end_cushion(q, plus, p) * by_direction(plus, p.speed_plus, p.speed_minus)
        speed = speed * valve_gain(spool, dead_band_factor, p)
        if self.effects.droop:
            load = jnp.maximum(jnp.where(extends, state.bore, state.rod), 0.0) * BAR
            speed = speed * (1 - sizes.droop / sizes.droop_over * load)
        if self.effects.noise:
            speed = speed * (1 + sizes.noise * state.fluctuation)
        bore_volume, rod_volume = volumes(cylinder_lengths(q), p, c)
        bore_area, rod_area = piston_areas(p)

        angles, rates = self._arm(state)
        rigid = jnp.zeros_like(self.payload_kg) if self.effects.swing else self.payload_kg
        inertia = mass_matrix(angles, rigid)
        bias = gravity_torque(angles, rigid) + coriolis_torque(angles, rates, rigid)
        if self.effects.swing:
            hanging = hang(angles, rates, state.swing, self.payload_kg, sizes)
            inertia, bias = add_mass(inertia, hanging.direction, self.payload_kg), bias + hanging.torque

        seals = jnp.asarray(c.coulomb)
        force = (state.bore * bore_area - state.rod * rod_area) * BAR
        return Held(
            extends=extends,
            demand=speed * by_direction(plus, area_plus, area_minus),
            drain=c.return_ratio * speed * by_direction(plus, area_minus, area_plus),
            threshold=by_direction(plus, p.threshold_plus, p.threshold_minus),
            ramp=by_direction(plus, p.ramp_plus, p.ramp_minus),
            arm=moment_arms(q),
            inverse_mass=inertia.inverse(),
            bias=bias,
            bore_stiffness=c.bulk_modulus / bore_volume,
            rod_stiffness=c.bulk_modulus / rod_volume,
            damping_factor=damping_factor,
            friction=coulomb_level(force, seals, sizes) if self.effects.friction else seals,
            contact=None if self.ground is None else _touch(angles),
        )

    # Every 2 ms: pressures and motion.

    def _fast_step(self, state: RealisticState, held: Held, dt: float) -> RealisticState:
        p, c, sizes = self.parameters, self.chambers, self.sizes
        q, dq = state.position, state.velocity
        bore, rod = state.bore * BAR, state.rod * BAR
        bore_area, rod_area = piston_areas(p)

        # Motion. Friction is steep where a cylinder turns round, soil where its cutting begins: both are therefore
        # implicit, joint by joint.
        speed = held.arm * dq
        viscous = held.damping_factor * jnp.asarray(c.viscous) * speed
        low, high = jnp.asarray(POSITION_LOW), jnp.asarray(POSITION_HIGH)
        beyond = q - jnp.clip(q, low, high)
        stop = jnp.asarray(c.stop_stiffness) * beyond + jnp.where(beyond == 0, 0.0, jnp.asarray(c.stop_damping)) * dq
        damping = None
        if self.effects.friction:
            rubbing = stribeck(speed, held.friction, sizes)
            damping = dt * rubbing.slope * held.arm * held.arm
            friction = rubbing.force
        else:
            friction = held.friction * jnp.tanh(speed / c.coulomb_speed)
        torque = held.arm * (bore * bore_area - rod * rod_area - friction - viscous) - stop
        bias = held.bias
        if self.ground is not None and held.contact is not None:
            contact, (angles, rates) = held.contact, self._arm(state)
            tip = contact.tip + jnp.sum(contact.jacobian * (angles - contact.position), 1)
            push = self.ground.force(tip, jnp.sum(contact.jacobian * rates, 1))
            bias = bias - jnp.sum(contact.jacobian * push.force[:, None], 0)
            steep = dt * jnp.sum(contact.jacobian**2 * push.slope[:, None], 0)
            damping = steep if damping is None else damping + steep
        share = 1.0 if damping is None else 1 / (1 + damping * jnp.diagonal(held.inverse_mass))
        acceleration = jnp.sum(held.inverse_mass * (torque - bias), 1)
        if self.effects.base:
            base, pitching = self._pitch(state.base, torque[0], dt)
            acceleration = acceleration.at[0].add(-pitching)
            state = state._replace(base=base)
        dq = dq + dt * share * acceleration
        q = q + dt * dq
        speed = held.arm * dq

        # Valve edges. The pump serves the lowest inlet pressure first, and keeps its margin above the load it senses.
        start = jnp.maximum(jnp.where(held.extends, bore, rod), 0.0) + held.threshold
        supply = supply_pressure(held.demand, start, held.ramp, p, state.pump.flow * LITRE_PER_MINUTE)
        if self.effects.pump:
            supply = jnp.minimum(supply, state.pump.sensed * BAR + sizes.margin)
        now = Chambers(bore, rod, state.bore_hose * BAR, state.rod_hose * BAR)
        after, flow_in = advance_chambers(held, now, start, supply, speed, dt, p, c)
        return state._replace(
            position=q,
            velocity=dq,
            **after.in_bar(),
            supply=supply / BAR,
            flow=flow_in / LITRE_PER_MINUTE,
        )

    # The base.

    def _arm(self, state: RealisticState) -> tuple[Float[Array, "4"], Float[Array, "4"]]:
        """Joint angles and rates with the base's pitch: what gravity and inertia see."""
        if not self.effects.base:
            return state.position, state.velocity
        return state.position.at[0].add(state.base[0]), state.velocity.at[0].add(state.base[1])

    def _pitch(self, base: Float[Array, "2"], torque: Scalar, dt: float) -> tuple[Float[Array, "2"], Scalar]:
        """(θ, θ̇) a short time later under the boom's torque, which pushes the base back; and θ̈."""
        stiffness, damping = base_spring(self.sizes)
        acceleration = -(stiffness * base[0] + damping * base[1] + torque) / self.sizes.base_inertia
        rate = base[1] + dt * acceleration
        return jnp.stack([base[0] + dt * rate, rate]), acceleration

    def _weight(self, q: Float[Array, "4"], pitch: Scalar) -> Float[Array, "4"]:
        """What the cylinders hold at rest, N m (telescope: N); the same for a hanging payload as for a fixed one."""
        return gravity_torque(q.at[0].add(pitch), self.payload_kg)

    def _resting_pitch(self, q: Float[Array, "4"]) -> Scalar:
        """θ at which the base carries the arm: -k θ is what the boom's cylinder holds at q + θ."""
        pitch = jnp.zeros((), q.dtype)
        if self.effects.base:
            for _ in range(4):  # each time the error shrinks to a hundredth
                pitch = -self._weight(q, pitch)[0] / base_spring(self.sizes)[0]
        return pitch


def _touch(angles: Float[Array, "4"]) -> Contact:
    return Contact(forward_kinematics(angles), jax.jacfwd(forward_kinematics)(angles), angles)


def _inlet(state: RealisticState, held: Held) -> Float[Array, "4"]:
    """Pressure on the side that is filled, bar."""
    return jnp.maximum(jnp.where(held.extends, state.bore, state.rod), 0.0)


def base_spring(sizes: EffectSizes) -> tuple[float, float]:
    """Stiffness (N m/rad) and damping (N m s/rad) between base and ground."""
    inertia, omega = sizes.base_inertia + _ARM_INERTIA, 2 * np.pi * sizes.base_hz
    return inertia * omega**2, 2 * sizes.base_damping * omega * inertia


def _arm_inertia() -> float:
    """Of the whole arm about the boom's pivot in the reference pose, kg m²."""
    with jax.ensure_compile_time_eval():
        return float(mass_matrix(jnp.asarray(REFERENCE_POSE), jnp.asarray(0.0)).m11)


_ARM_INERTIA = _arm_inertia()
