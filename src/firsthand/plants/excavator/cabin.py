"""The excavator with its cabin turning: the arm of `ExcavatorFlow` on a swing drive.

The swing drive is our own assumption, without published facts. A hydraulic motor with dead band and dead time turns the
cabin; the farther the tip reaches, the longer it takes to speed up. The arm does not feel the turning.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.plants.base import AbstractPlant
from firsthand.plants.excavator.flow import ExcavatorFlow, FlowState
from firsthand.plants.excavator.geometry import forward_kinematics

CABIN_LOW, CABIN_HIGH = -1.2, 1.2
"""How far the cabin may turn, rad."""
CABIN_SPEED = 0.5
"""Its highest speed, rad/s."""
DEAD_BAND = 0.06
"""Share of the stroke that moves nothing."""
DEAD_STEPS = 3
"""Dead time in control periods: 0.12 s, as the arm's."""
NEAREST_S, FARTHEST_S = 0.15, 0.35
"""Time constant of the turning speed with the tip near and at 6 m."""


class CabinState(NamedTuple):
    """The arm, and the cabin it stands on."""

    arm: FlowState
    angle: Float[Array, ""]
    """Of the cabin, rad; positive to the left, seen from above counter-clockwise."""
    speed: Float[Array, ""]
    """rad/s."""
    memory: Float[Array, " dead_steps"]
    """The last commands of the swing drive, the latest first."""


class ExcavatorCabin(AbstractPlant):
    """Five commands in [-1, 1]: cabin, then those of the arm; measured are five positions, then five velocities."""

    arm: ExcavatorFlow = eqx.field(default_factory=ExcavatorFlow)

    @property
    def period_s(self) -> float:
        """0.04 s."""
        return self.arm.period_s

    @property
    def num_commands(self) -> int:
        """Cabin, boom, dipper, telescope, pitch."""
        return 5

    @property
    def num_measured(self) -> int:
        """Five positions, five velocities."""
        return 10

    def with_payload(self, kg: float) -> "ExcavatorCabin":
        """The same machine with `kg` at the tool."""
        return eqx.tree_at(lambda plant: plant.arm, self, self.arm.with_payload(kg))

    def reset(self, position: Float[Array, "5"]) -> CabinState:
        """At rest."""
        angle = jnp.clip(jnp.asarray(position, float)[0], CABIN_LOW, CABIN_HIGH)
        return CabinState(self.arm.reset(position[1:]), angle, jnp.zeros_like(angle), jnp.zeros(DEAD_STEPS))

    def step(self, state: CabinState, command: Float[Array, "5"], *, key: PRNGKeyArray) -> CabinState:
        """One control period."""
        command = jnp.clip(jnp.asarray(command, float), -1.0, 1.0)
        late = state.memory[-1]
        stroke = jnp.sign(late) * jnp.maximum(jnp.abs(late) - DEAD_BAND, 0.0) / (1 - DEAD_BAND)
        reach = forward_kinematics(state.arm.position)[0] / 6.0
        lag = NEAREST_S + (FARTHEST_S - NEAREST_S) * reach**2
        speed = state.speed + (1 - jnp.exp(-self.period_s / lag)) * (CABIN_SPEED * stroke - state.speed)
        angle = state.angle + self.period_s * (state.speed + speed) / 2
        inside = (angle >= CABIN_LOW) & (angle <= CABIN_HIGH)
        return CabinState(
            arm=self.arm.step(state.arm, command[1:], key=key),
            angle=jnp.clip(angle, CABIN_LOW, CABIN_HIGH),
            speed=jnp.where(inside, speed, 0.0),
            memory=jnp.concatenate([command[:1], state.memory[:-1]]),
        )

    def measure(self, state: CabinState, *, key: PRNGKeyArray) -> Float[Array, "10"]:
        """Positions and velocities, the cabin's first."""
        measured = self.arm.measure(state.arm, key=key)
        return jnp.concatenate([state.angle[None], measured[:4], state.speed[None], measured[4:]])
