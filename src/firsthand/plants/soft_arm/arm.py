"""The soft arm as a plant: three segments standing upright, nine cables, six commanded motors.

Without effects it repeats itself exactly. With those of `ArmEffects` it does so as badly as hardware: friction is drawn
anew in the first step after `reset`, then wanders; pretension drifts away from its nominal value; markers sit beside
the centre line. Both random parts are Ornstein–Uhlenbeck processes, fed by the key of `step`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.plants.base import AbstractPlant
from firsthand.plants.soft_arm.body import (
    Inertia,
    elastic_torques,
    inertia,
    next_creep,
    taut_stiffness,
    upright,
)
from firsthand.plants.soft_arm.cables import (
    cable_commands,
    cable_torques,
    command_map,
    motor_speeds,
    next_slip,
    routing,
    tensions,
)
from firsthand.plants.soft_arm.geometry import bends_of_ends, marked_points, segment_ends
from firsthand.plants.soft_arm.parameters import PERIOD_S, ArmEffects, SoftArmParameters


class SoftArmState(NamedTuple):
    """State of the soft arm. Bends run over the segments from the base up, two each, in rad."""

    bends: Float[Array, "6"]
    rates: Float[Array, "6"]
    """Their rates of change, rad/s."""
    creep: Float[Array, "6"]
    """Bends to which the helicoids have crept."""
    slip: Float[Array, "9"]
    """State of each cable's friction, in (-1, 1)."""
    motors: Float[Array, "9"]
    """How much cable each motor has drawn in, m."""
    seen: Float[Array, "6"]
    """The bends that the motion capture sees: those of a moment ago."""
    tightness: Float[Array, "9"]
    """Drift of each cable's pretension, in standard deviations."""
    roughness: Float[Array, "9"]
    """ln of each cable's friction over the nominal one, in standard deviations."""
    begun: Float[Array, "1"]
    """0 until the first step after `reset`, then 1."""


def _number(default: float) -> Any:
    """An array field; always of one type, so that another value never means another compilation."""
    return eqx.field(default=default, converter=lambda value: jnp.asarray(value, float))


class SoftArm(AbstractPlant):
    """Six motor commands in [-1, 1], measured the positions of the three segment ends (9 numbers, m), 20 Hz.

    Commands are motor positions, two per segment: at 0 the arm stands upright, and it stays where constant commands
    hold it.
    """

    parameters: SoftArmParameters = eqx.field(default=SoftArmParameters(), static=True)
    effects: ArmEffects = eqx.field(default=ArmEffects.none(), static=True)
    """Its imperfections; none by default. The robot `soft-arm` has all of them."""
    substeps: int = eqx.field(default=10, static=True)
    """Integration steps per control period."""
    payload_kg: Float[Array, ""] = _number(0.0)
    """Load at the tip."""

    @property
    def period_s(self) -> float:
        """0.05 s."""
        return PERIOD_S

    @property
    def num_commands(self) -> int:
        """Two motors per segment."""
        return 6

    @property
    def num_measured(self) -> int:
        """x, y, z of three segment ends."""
        return 9

    def with_payload(self, kg: float | Float[Array, ""]) -> "SoftArm":
        """The same arm with `kg` at its tip; nothing is recompiled."""
        return eqx.tree_at(lambda plant: plant.payload_kg, self, jnp.asarray(kg, self.payload_kg.dtype))

    def reset(self, position: Float[Array, "9"]) -> SoftArmState:
        """At rest with the segment ends at `position`, crept, the motors where they hold it, friction relaxed.

        With the arm upright the motors are at zero. Anywhere else neutral commands will move it back: commands of this
        robot are positions.
        """
        return _at_rest(self, jnp.asarray(position, float))

    def holding_command(self, bends: Float[Array, "6"]) -> Float[Array, "6"]:
        """The command that holds the arm there for long; not clipped to [-1, 1].

        Newton's method with the Jacobian of taut cables, which is constant.
        """
        p = self.parameters
        others = inertia(bends, self.payload_kg, p).gravity + elastic_torques(bends, p.creep_share * bends, p)
        inverse = np.linalg.inv(p.cable_stiffness * routing(p).T @ command_map(p))

        def improve(command, _):
            tension = tensions(bends, cable_commands(command, p), p)
            unbalanced = cable_torques(bends, tension, jnp.zeros(9, bends.dtype), p) + others
            return command - inverse @ unbalanced, None

        return jax.lax.scan(improve, jnp.zeros_like(bends), None, length=12)[0]

    def step(self, state: SoftArmState, command: Float[Array, "6"], *, key: PRNGKeyArray) -> SoftArmState:
        """One control period of 0.05 s with `command`, clipped to [-1, 1], held. `key` feeds what drifts."""
        p = self.parameters
        state = self._drift(state, key)
        dt = PERIOD_S / self.substeps
        wanted = cable_commands(jnp.clip(command, -1.0, 1.0), p)
        around = inertia(state.bends, self.payload_kg, p)
        admittance = self.admittance(around, dt)

        def advance(state, _):
            state = self.substep(state, wanted, around, admittance, dt)
            return state, state.bends

        after, passed = jax.lax.scan(advance, state, None, length=self.substeps)
        late = round(p.delay_s / dt)
        return after._replace(creep=next_creep(state.creep, after.bends, PERIOD_S, p), seen=passed[-1 - late])

    def pretension(self, state: SoftArmState) -> Float[Array, "9"] | None:
        """Of each cable now, N; None where it is the nominal one."""
        p = self.parameters
        return p.pretension_n * (1 + p.pretension_spread * state.tightness) if self.effects.pretension else None

    def friction(self, state: SoftArmState) -> Float[Array, "9"] | None:
        """μ of each cable now; None where it is the nominal one."""
        p = self.parameters
        return p.friction * jnp.exp(p.friction_spread * state.roughness) if self.effects.friction else None

    def _drift(self, state: SoftArmState, key: PRNGKeyArray) -> SoftArmState:
        p, effects = self.parameters, self.effects
        if not (effects.pretension or effects.friction):
            return state
        drawn = jax.random.normal(key, (2, 9), state.bends.dtype)
        if effects.pretension:
            state = state._replace(tightness=_wander(state.tightness, drawn[0], p.pretension_s))
        if effects.friction:
            later = _wander(state.roughness, drawn[1], p.friction_s)
            state = state._replace(roughness=jnp.where(state.begun > 0, later, drawn[1]))
        return state._replace(begun=jnp.ones_like(state.begun))

    def admittance(self, around: Inertia, dt: float) -> Float[Array, "6 6"]:
        """(M + dt D + dt² K)⁻¹: change of velocity per impulse of a linearly implicit step."""
        p = self.parameters
        return jnp.linalg.inv(around.mass + (dt * upright(p).damping + dt * dt * taut_stiffness(p)))

    def substep(
        self,
        state: SoftArmState,
        wanted: Float[Array, "9"],
        around: Inertia,
        admittance: Float[Array, "6 6"],
        dt: float,
    ) -> SoftArmState:
        """One integration step of `dt` seconds with the motors on their way to `wanted`."""
        p = self.parameters
        bends, rates = state.bends, state.rates
        motors = state.motors + dt * motor_speeds(state.motors, wanted, dt, p)
        slip = next_slip(state.slip, rates, dt, p)
        torque = around.gravity + elastic_torques(bends, state.creep, p)
        tension = tensions(bends, motors, p, self.pretension(state))
        torque = torque + cable_torques(bends, tension, slip, p, self.friction(state))
        drag = (upright(p).damping + dt * taut_stiffness(p)) @ rates
        rates = rates + admittance @ (dt * (torque - drag))
        return state._replace(bends=bends + dt * rates, rates=rates, slip=slip, motors=motors)

    def measure(self, state: SoftArmState, *, key: PRNGKeyArray) -> Float[Array, "9"]:
        """x, y, z of the markers at the first, second and third segment's end in metres, z up."""
        del key
        if self.effects.marker:
            return marked_points(state.seen, self.parameters.length_m, self.parameters.markers_m).reshape(9)
        return segment_ends(state.seen, self.parameters.length_m).reshape(9)


@eqx.filter_jit
def _at_rest(plant: SoftArm, position: Float[Array, "9"]) -> SoftArmState:
    """`SoftArm.reset`, compiled as a whole also when called outside of a compiled function."""
    p = plant.parameters
    bends = bends_of_ends(position.reshape(3, 3))
    return SoftArmState(
        bends=bends,
        rates=jnp.zeros_like(bends),
        creep=p.creep_share * bends,
        slip=jnp.zeros(9, bends.dtype),
        motors=cable_commands(plant.holding_command(bends), p),
        seen=bends,
        tightness=jnp.zeros(9, bends.dtype),
        roughness=jnp.zeros(9, bends.dtype),
        begun=jnp.zeros(1, bends.dtype),
    )


def _wander(value: Float[Array, "9"], drawn: Float[Array, "9"], time_s: float) -> Float[Array, "9"]:
    """One control period of a process with unit variance that forgets within `time_s`."""
    keep = np.exp(-PERIOD_S / time_s)
    return keep * value + np.sqrt(1 - keep**2) * drawn
