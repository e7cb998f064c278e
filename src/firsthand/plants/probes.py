"""Two tiny linear plants whose best controller is known; `linear_quadratic` computes it.

Both are exactly linear in (state, command): commands are not clipped, there are no stops and there is no noise. What
a learner reaches on them can therefore be compared with the optimum.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from firsthand.plants.base import AbstractPlant


def _as_float(value: ArrayLike) -> Array:
    """A floating-point array; the width of a floating-point input is kept."""
    return jnp.asarray(value, dtype=jnp.result_type(value, float))


class _AbstractProbe(AbstractPlant):
    """One command, and a control period that is a field."""

    period: eqx.AbstractVar[float]

    def __check_init__(self):
        if not 0.0 < self.period < float("inf"):
            raise ValueError(f"{type(self).__name__}.period must be a positive number of seconds, not {self.period!r}.")

    @property
    def period_s(self) -> float:
        """The control period in seconds."""
        return self.period

    @property
    def num_commands(self) -> int:
        """One: u."""
        return 1


class ScalarPlant(_AbstractProbe):
    """One number with one command: x⁺ = a x + b u, of which x is measured.

    With a = 1 every position is at rest under u = 0. Otherwise only x = 0 is, and a `reset` to any other position
    starts the plant on its way to or from there.
    """

    a: Float[Array, ""] = eqx.field(converter=_as_float, default=1.0)
    """How much of x remains after one period."""
    b: Float[Array, ""] = eqx.field(converter=_as_float, default=0.1)
    """The change of x that one unit of command causes in one period."""
    period: float = eqx.field(static=True, default=0.1)
    """The control period in seconds. It does not enter the dynamics: a and b belong to it."""

    @property
    def num_measured(self) -> int:
        """One: x."""
        return 1

    def reset(self, position: Float[Array, "1"]) -> Float[Array, "1"]:
        """The state is x itself, here set to `position`."""
        return jnp.asarray(position, dtype=jnp.result_type(position, self.a, self.b))

    def step(self, state: Float[Array, "1"], command: Float[Array, "1"], *, key: PRNGKeyArray) -> Float[Array, "1"]:
        """x⁺ = a x + b u. The key is not used."""
        return self.a * state + self.b * command

    def measure(self, state: Float[Array, "1"], *, key: PRNGKeyArray) -> Float[Array, "1"]:
        """[x]. The key is not used."""
        return state


class DelayedDoubleIntegratorState(eqx.Module):
    """Where the mass is, how fast it moves, and the commands that have not reached it yet."""

    position: Float[Array, ""]
    """p_k."""
    velocity: Float[Array, ""]
    """v_k."""
    pending: Float[Array, " delay"]
    """[u_{k-1}, u_{k-2}, …, u_{k-delay}]: the last one acts during the next step."""


class DelayedDoubleIntegrator(_AbstractProbe):
    """A mass pushed by a command that arrives `delay` control steps late: p̈(t) = gain · u(t − delay · T).

    With the command held over each period T this is exactly

        p_{k+1} = p_k + T v_k + T²/2 · gain · u_{k-delay}
        v_{k+1} = v_k + T · gain · u_{k-delay}

    and [p, v] is measured. `reset` sets p to the given position, v and all earlier commands to zero.
    """

    gain: Float[Array, ""] = eqx.field(converter=_as_float, default=1.0)
    """Acceleration per unit of command, in units of position per s²."""
    delay: int = eqx.field(static=True, default=2)
    """The dead time in whole control steps; with 0 the command acts during the step in which it is given."""
    period: float = eqx.field(static=True, default=0.1)
    """The control period T in seconds."""

    def __check_init__(self):
        if not isinstance(self.delay, int) or self.delay < 0:
            raise ValueError(
                f"DelayedDoubleIntegrator.delay must be a whole number of steps, 0 or more, not {self.delay!r}."
            )

    @property
    def num_measured(self) -> int:
        """Two: position and velocity."""
        return 2

    def reset(self, position: Float[Array, "1"]) -> DelayedDoubleIntegratorState:
        """At rest at `position`, with zeros in the delay line."""
        dtype = jnp.result_type(position, self.gain)
        return DelayedDoubleIntegratorState(
            position=jnp.asarray(position[0], dtype=dtype),
            velocity=jnp.zeros((), dtype),
            pending=jnp.zeros(self.delay, dtype),
        )

    def step(
        self, state: DelayedDoubleIntegratorState, command: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> DelayedDoubleIntegratorState:
        """One period later: u_{k-delay} acts, and `command` enters the delay line. The key is not used."""
        line = jnp.concatenate([command, state.pending])
        acceleration = self.gain * line[-1]
        return DelayedDoubleIntegratorState(
            position=state.position + self.period * state.velocity + 0.5 * self.period**2 * acceleration,
            velocity=state.velocity + self.period * acceleration,
            pending=line[:-1],
        )

    def measure(self, state: DelayedDoubleIntegratorState, *, key: PRNGKeyArray) -> Float[Array, "2"]:
        """[p, v]. The key is not used."""
        return jnp.stack([state.position, state.velocity])
