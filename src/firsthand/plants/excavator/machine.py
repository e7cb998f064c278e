"""The common part of all fidelities: interface, payload, oil temperature, sensors."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.plants.base import AbstractPlant
from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW
from firsthand.plants.excavator.hydraulics import MEMORY, delayed_command
from firsthand.plants.excavator.parameters import PERIOD_S, ExcavatorParameters

_Excavator = TypeVar("_Excavator", bound="AbstractExcavator")


def array_field(default: float) -> Any:
    """An array field; always of one type, so that another value never means another compilation."""
    return eqx.field(default=default, converter=lambda value: jnp.asarray(value, float))


class AbstractExcavator(AbstractPlant):
    """Menzi Muck M545 arm: four commands in [-1, 1], measured [q, dq] of four joints, 25 Hz.

    Joints are boom, dipper, telescope, pitch. u > 0 raises the boom (its angle falls), folds the dipper in, extends the
    telescope and curls the tool.
    """

    parameters: eqx.AbstractVar[ExcavatorParameters]
    payload_kg: Float[Array, ""] = array_field(0.0)
    """Mass held by the tool. See `PAYLOADS`."""
    oil_temperature_c: Float[Array, ""] = array_field(50.0)
    """At reset."""
    working_oil_c: Float[Array, ""] = array_field(75.0)
    """Where the oil temperature drifts to."""
    warming_rate: Float[Array, ""] = array_field(0.0)
    """How fast, 1/s: dT/dt = warming_rate · (working_oil_c - T). 0 means no drift; 1/900 a machine that warms up."""

    @property
    def period_s(self) -> float:
        """0.04 s."""
        return PERIOD_S

    @property
    def num_commands(self) -> int:
        """Boom, dipper, telescope, pitch."""
        return 4

    @property
    def num_measured(self) -> int:
        """Four positions, four velocities."""
        return 8

    @abstractmethod
    def advance(self, state: Any, command: Float[Array, "4"], dt: float) -> Any:
        """A short time `dt` with `command` at the valves: no dead time, no drift. For looking at the modes."""

    def oil_columns(self: _Excavator) -> _Excavator:
        """The machine as far as its oil columns are concerned: what `characterize` looks for modes in."""
        return self

    def with_payload(self: _Excavator, kg: float | Float[Array, ""]) -> _Excavator:
        """The same machine with `kg` at the tool; nothing is recompiled."""
        return eqx.tree_at(lambda plant: plant.payload_kg, self, jnp.asarray(kg, self.payload_kg.dtype))

    def measure(self, state: Any, *, key: PRNGKeyArray) -> Float[Array, "8"]:
        """[q, dq] in rad, m, rad/s, m/s."""
        del key
        return jnp.concatenate([state.position, state.velocity])

    def _inside(self, position: Float[Array, "4"]) -> Float[Array, "4"]:
        """`position`, moved inside the end stops."""
        return jnp.clip(jnp.asarray(position, float), jnp.asarray(POSITION_LOW), jnp.asarray(POSITION_HIGH))

    def _hold(
        self,
        state: Any,
        command: Float[Array, "4"],
        parts: int,
        advance: Callable[[Any, Float[Array, "4"], float], Any],
    ) -> Any:
        """One control period with `command`, clipped to [-1, 1], held: `parts` equal steps of `advance`.

        `advance(state, command, dt)` gets what has reached the valves by then.
        """
        commands = jnp.concatenate([jnp.clip(command, -1.0, 1.0)[None], state.memory])
        dt = PERIOD_S / parts
        seen = jnp.stack([delayed_command(commands, i * dt, (i + 1) * dt, self.parameters) for i in range(parts)])
        state, _ = jax.lax.scan(lambda s, u: (advance(s, u, dt), None), state, seen)
        return state._replace(memory=commands[:MEMORY], oil_temperature_c=self._warmer(state.oil_temperature_c))

    def _warmer(self, temperature_c: Float[Array, ""]) -> Float[Array, ""]:
        """The oil temperature one control period later."""
        return temperature_c + PERIOD_S * self.warming_rate * (self.working_oil_c - temperature_c)
