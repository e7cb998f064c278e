"""What the robot did in one episode, and the same thing done by the model."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

PolicyFunction = Callable[[Float[Array, " state"], Float[Array, "points outputs"]], Float[Array, " commands"]]
"""π(x, r): state and reference preview to command."""
DynamicsFunction = Callable[[Float[Array, " state"], Float[Array, " commands"]], Float[Array, " state"]]
"""f(x, u): the next state."""
CostFunction = Callable[[Float[Array, " state"], Float[Array, " commands"], Float[Array, " outputs"]], Float[Array, ""]]
"""c(x, u, r): the cost of one step; r is the reference at that step."""


@runtime_checkable
class SquaresCost(Protocol):
    """A cost that is a sum of squares, as refinement needs it; a `CostFunction` like any other besides."""

    def __call__(
        self, state: Float[Array, " state"], command: Float[Array, " commands"], reference: Float[Array, " outputs"], /
    ) -> Float[Array, ""]:
        """c(x, u, r)."""
        ...

    def residuals(
        self, state: Float[Array, " state"], command: Float[Array, " commands"], reference: Float[Array, " outputs"], /
    ) -> Float[Array, " residuals"]:
        """What c is the sum of squares of."""
        ...

    def steepened(self, power: int) -> "SquaresCost":
        """The same cost with joint limits that are felt later and more suddenly."""
        ...


class Rollout(eqx.Module):
    """N trajectories of H steps. Written with a leading trajectory axis; strip it with `jax.vmap`."""

    states: Float[Array, "*trajectories steps_and_last state"]
    """x_0 … x_H, as measured."""
    commands: Float[Array, "*trajectories steps commands"]
    """u_0 … u_{H-1}, as applied (after any safety gate)."""
    previews: Float[Array, "*trajectories steps points outputs"]
    """The reference preview at each step; entry 0 of the points is the reference at that step."""
    free: Bool[Array, "*trajectories steps commands"]
    """Where the applied command was the policy's own: only there does a derivative pass through the command."""
    valid: Bool[Array, "*trajectories steps"]
    """Steps that happened. A trajectory cut short is padded with its last state, and its padding counts for nothing."""

    @property
    def references(self) -> Float[Array, "*trajectories steps outputs"]:
        """r_0 … r_{H-1}."""
        return self.previews[..., 0, :]


def residuals(dynamics: DynamicsFunction, rollout: Rollout) -> Float[Array, "trajectories steps state"]:
    """x_{k+1} − f_θ(x_k, u_k): what the model misses at each measured step."""
    predicted = jax.vmap(jax.vmap(dynamics))(rollout.states[:, :-1], rollout.commands)
    missed = rollout.states[:, 1:] - predicted
    return jnp.where(rollout.valid[..., None], missed, 0.0)


def imagine(
    policy: PolicyFunction,
    dynamics: DynamicsFunction,
    start: Float[Array, " state"],
    previews: Float[Array, "steps points outputs"],
    residual: Float[Array, "steps state"],
    applied: Float[Array, "steps commands"] | None = None,
    free: Bool[Array, "steps commands"] | None = None,
) -> tuple[Float[Array, "steps_and_last state"], Float[Array, "steps commands"]]:
    """One trajectory of the model: x_{k+1} = f_θ(x_k, π(x_k, r_k)) + d_k.

    With d the measured residuals, the trajectory of the policy that made the data is exactly the measured one. Where a
    gate was active (`free` is false) the command is the `applied` one, whatever the policy says.
    """

    def step(state, inputs):
        preview, missed, taken, own = inputs
        command = policy(state, preview)
        if own is not None:
            command = jnp.where(own, command, taken)
        following = dynamics(state, command) + missed
        return following, (following, command)

    _, (states, commands) = jax.lax.scan(step, start, (previews, residual, applied, free))
    return jnp.concat([start[None], states]), commands
