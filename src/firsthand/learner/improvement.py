"""Improving the policy after an episode: gradient and preconditioned step, once (the paper) or several times."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models import Dynamics, Policy
from .gradient import closed_loop_gradient, mean_cost
from .hyperparameters import Hyperparameters
from .preconditioner import StepReport, preconditioned_step
from .rollout import CostFunction, Rollout, imagine, residuals


class Imagined(eqx.Module):
    """Where imagined trajectories start and what they follow."""

    starts: Float[Array, "trajectories state"]
    """Initial states."""
    previews: Float[Array, "trajectories steps points outputs"]
    """Reference previews, with fresh references."""


@eqx.filter_jit
def improve_policy(
    policy: Policy,
    dynamics: Dynamics,
    cost: CostFunction,
    rollout: Rollout,
    imagined: Imagined | None,
    hyper: Hyperparameters,
) -> tuple[Policy, StepReport, Float[Array, ""]]:
    """The policy after `hyper.policy_steps` preconditioned steps, the report of each step, and the first mean cost.

    With one step this is the paper's update: the gradient is taken along the measured trajectories. Further steps need
    to know what the new policy would do; the model says it, rolled out from the measured starts with the measured
    one-step residuals added back, so that it is exact at the policy that made the data. Imagined trajectories with
    fresh references keep the policy from fitting this episode's references alone.
    """

    def one_step(policy, data):
        gradient = closed_loop_gradient(policy, dynamics, cost, data, hyper.discount)
        return preconditioned_step(
            policy,
            gradient,
            data,
            eta=hyper.eta,
            alpha=hyper.alpha,
            epsilon=hyper.epsilon,
            iterations=hyper.cg_iterations,
            tolerance=hyper.cg_tolerance,
        )

    measured_cost = mean_cost(cost, rollout)
    if hyper.policy_steps == 1 and imagined is None:
        policy, report = one_step(policy, rollout)
        return policy, jax.tree.map(lambda x: x[None], report), measured_cost

    missed = residuals(dynamics, rollout)
    starts, previews = rollout.states[:, 0], rollout.previews
    if imagined is not None:
        starts = jnp.concat([starts, imagined.starts])
        previews = jnp.concat([previews, imagined.previews])
        missed = jnp.concat([missed, jnp.zeros((imagined.starts.shape[0], *missed.shape[1:]))])
    extra = starts.shape[0] - rollout.states.shape[0]
    valid = jnp.concat([rollout.valid, jnp.ones((extra, rollout.valid.shape[1]), bool)])

    def scan_step(policy, _):
        states, commands = jax.vmap(imagine, in_axes=(None, None, 0, 0, 0))(policy, dynamics, starts, previews, missed)
        free = jnp.ones(commands.shape, bool)
        return one_step(policy, Rollout(states, commands, previews, free, valid))

    policy, reports = jax.lax.scan(scan_step, policy, length=hyper.policy_steps)
    return policy, reports, measured_cost
