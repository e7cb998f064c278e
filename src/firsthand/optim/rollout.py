"""Trajectories of a closed loop: measured on the system itself, or predicted by a model of it.

The system is anything with a state x, a command u and a reference r: x_{k+1} = f(x_k, u_k), u_k = π(x_k, r_k). A policy
sees a preview of the reference, an array of points of which the first is the reference at that step. Where there is
nothing to follow the reference has no entries.
"""

from collections.abc import Callable

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


ResidualFunction = Callable[
    [Float[Array, " state"], Float[Array, " commands"], Float[Array, " outputs"]], Float[Array, " residuals"]
]
"""Residuals of one step, for least squares: the step costs the sum of their squares."""


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

    @staticmethod
    def from_arrays(
        states: Float[Array, "trajectories steps_and_last state"],
        commands: Float[Array, "trajectories steps commands"],
        references: Float[Array, "trajectories steps outputs"] | None = None,
        *,
        previews: Float[Array, "trajectories steps points outputs"] | None = None,
        free: Bool[Array, "trajectories steps commands"] | None = None,
        valid: Bool[Array, "trajectories steps"] | None = None,
    ) -> "Rollout":
        """Trajectories as they were measured.

        Args:
            states: x_0 … x_H of every trajectory.
            commands: u_0 … u_{H-1}, as applied.
            references: r_0 … r_{H-1}; no entries if there is nothing to follow.
            previews: what the policy saw of the references, if that was more than one point.
            free: where the command was the policy's own; everywhere by default.
            valid: steps that happened; all by default.
        """
        trajectories, steps = commands.shape[:2]
        if references is None and previews is None:
            previews = jnp.zeros((trajectories, steps, 1, 0), states.dtype)
        return Rollout(
            states,
            commands,
            _previews(trajectories, None, references, previews, states.dtype),
            jnp.ones(commands.shape, bool) if free is None else free,
            jnp.ones(commands.shape[:2], bool) if valid is None else valid,
        )

    @property
    def references(self) -> Float[Array, "*trajectories steps outputs"]:
        """r_0 … r_{H-1}."""
        return self.previews[..., 0, :]


def model_errors(dynamics: DynamicsFunction, rollout: Rollout) -> Float[Array, "trajectories steps state"]:
    """x_{k+1} − f(x_k, u_k): what the model misses at each measured step; zero where a step is not valid.

    Args:
        dynamics: the model f(x, u).
        rollout: measured trajectories.
    """
    predicted = jax.vmap(jax.vmap(dynamics))(rollout.states[:, :-1], rollout.commands)
    errors = rollout.states[:, 1:] - predicted
    return jnp.where(rollout.valid[..., None], errors, 0.0)


def predict_trajectory(
    policy: PolicyFunction,
    dynamics: DynamicsFunction,
    start: Float[Array, " state"],
    previews: Float[Array, "steps points outputs"],
    errors: Float[Array, "steps state"] | None = None,
    applied: Float[Array, "steps commands"] | None = None,
    free: Bool[Array, "steps commands"] | None = None,
    offsets: Float[Array, "steps commands"] | None = None,
) -> tuple[Float[Array, "steps_and_last state"], Float[Array, "steps commands"]]:
    """One trajectory of the model: x_{k+1} = f(x_k, π(x_k, r_k)) + d_k.

    Args:
        policy: π(x, preview).
        dynamics: the model f(x, u).
        start: x_0.
        previews: the reference preview at each step.
        errors: d. With the measured `model_errors`, the policy that made the data repeats the measured trajectory.
        applied: what was commanded where `free` is false (a gate was active), whatever the policy says.
        free: where the command is the policy's own; everywhere if not given.
        offsets: added to the policy's commands: what a disturbance at the command, or exploration, would do.

    Returns:
        The states x_0 … x_H and the commands u_0 … u_{H-1}.
    """

    def step(state, inputs):
        preview, error, taken, own, offset = inputs
        command = policy(state, preview)
        if offset is not None:
            command = command + offset
        if own is not None:
            command = jnp.where(own, command, taken)
        following = dynamics(state, command)
        if error is not None:
            following = following + error
        return following, (following, command)

    _, (states, commands) = jax.lax.scan(step, start, (previews, errors, applied, free, offsets))
    return jnp.concat([start[None], states]), commands


def roll_out(
    policy: PolicyFunction,
    dynamics: DynamicsFunction,
    starts: Float[Array, "trajectories state"],
    references: Float[Array, "trajectories steps outputs"] | None = None,
    *,
    steps: int | None = None,
    previews: Float[Array, "trajectories steps points outputs"] | None = None,
    errors: Float[Array, "trajectories steps state"] | None = None,
    applied: Float[Array, "trajectories steps commands"] | None = None,
    free: Bool[Array, "trajectories steps commands"] | None = None,
    valid: Bool[Array, "trajectories steps"] | None = None,
    offsets: Float[Array, "trajectories steps commands"] | None = None,
) -> Rollout:
    """What a model predicts that a policy does, from each of `starts`; see `predict_trajectory`.

    Args:
        policy: π(x, preview).
        dynamics: the model f(x, u), or the system itself where it is known.
        starts: a start x_0 for every trajectory.
        references: what is to be followed; the policy then sees one point, the reference at that step.
        steps: H, where there is nothing to follow.
        previews: what the policy sees of the references, if that is more than one point.
        errors: what is added to each predicted state, for example the measured `model_errors`; nothing by default.
        applied: the commands where `free` is false.
        free: where the command is the policy's own; everywhere by default.
        valid: steps that count; all by default.
        offsets: added to the policy's commands; nothing by default.

    Returns:
        The predicted trajectories.
    """
    previews = _previews(starts.shape[0], steps, references, previews, starts.dtype)
    predict = jax.vmap(
        predict_trajectory,
        in_axes=(None, None, 0, 0, *(None if a is None else 0 for a in (errors, applied, free, offsets))),
    )
    states, commands = predict(policy, dynamics, starts, previews, errors, applied, free, offsets)
    return Rollout.from_arrays(states, commands, previews=previews, free=free, valid=valid)


def _previews(trajectories, steps, references, previews, dtype) -> Float[Array, "trajectories steps points outputs"]:
    given = [x for x in (steps, references, previews) if x is not None]
    if len(given) != 1:
        raise ValueError("Give exactly one of `references`, `previews` and `steps`.")
    if previews is not None:
        return previews
    return jnp.zeros((trajectories, steps, 1, 0), dtype) if references is None else references[:, :, None]
