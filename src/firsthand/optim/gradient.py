"""The closed-loop policy gradient along a trajectory, through the Jacobians of a model of the dynamics.

The paper's estimate (eq. 5, with the ∂g/∂u term that a cost on commands needs) is, for the stacked trajectory,

    ∇̂g = [∂g/∂x (I − (A + BK))⁻¹ B + ∂g/∂u (I + K (I − (A + BK))⁻¹ B)] ∂u/∂φ.

The matrix is block lower triangular with the blocks of A + BK just below the diagonal, so its inverse is a recursion
that runs backwards in time, linear in H in time and memory:

    λ_τ = ∂c/∂x_τ + Kᵀ ∂c/∂u_τ + (A + BK)ᵀ λ_{τ+1},   λ_H = 0,
    ∇̂g = Σ_τ (∂u_τ/∂φ)ᵀ (∂c/∂u_τ + Bᵀ λ_{τ+1}).

A[k] = ∂f/∂x and B[k] = ∂f/∂u at step k map step k to step k+1; K[k] = ∂π/∂x at step k. None of them is formed: the
recursion uses vector-Jacobian products.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .parameters import split_parameters
from .rollout import CostFunction, DynamicsFunction, PolicyFunction, Rollout


def trajectory_cost(cost: CostFunction, rollout: Rollout) -> Float[Array, ""]:
    """g of one trajectory: the sum of c(x_τ, u_τ, r_τ) over its H steps (not H + 1)."""
    costs = jax.vmap(cost)(rollout.states[:-1], rollout.commands, rollout.references)
    return jnp.sum(jnp.where(rollout.valid, costs, 0.0))


def mean_cost(cost: CostFunction, rollout: Rollout) -> Float[Array, ""]:
    """The mean of c over steps and trajectories. The mean, not the sum: α, ε and η are meant for this scale."""
    total = jax.vmap(lambda one: trajectory_cost(cost, one))(rollout).sum()
    return total / jnp.maximum(rollout.valid.sum(), 1)


def command_sensitivities(
    policy: PolicyFunction,
    dynamics: DynamicsFunction,
    cost: CostFunction,
    rollout: Rollout,
    discount: Float[Array, ""] | float = 1.0,
    *,
    chained: bool = False,
) -> Float[Array, "steps commands"]:
    """μ_τ = ∂c/∂u_τ + Bᵀ λ_{τ+1} for one trajectory: how its cost changes with each command, feedback included.

    `discount` γ multiplies A + BK, as the paper suggests for loops that are not yet stable. An invalid step cuts a
    measured trajectory in two: nothing is known across it, and λ starts again at zero. On a `chained` one `dynamics`
    made every state from the one before, and such a step only loses its cost.
    """
    passes = reaches_cost(rollout) if chained else rollout.valid

    def step(adjoint, inputs):
        state, command, preview, free, valid, passes = inputs
        slopes = jax.grad(lambda x, u: cost(x, u, preview[0]), argnums=(0, 1))(state, command)
        cost_x, cost_u = (jnp.where(valid, slope, 0.0) for slope in slopes)
        _, pull_dynamics = jax.vjp(dynamics, state, command)
        through_state, through_command = pull_dynamics(adjoint)  # Aᵀλ, Bᵀλ
        mu = jnp.where(free, cost_u + through_command, 0.0)
        _, pull_policy = jax.vjp(lambda x: policy(x, preview), state)
        # Kᵀ acts on ∂c/∂u undiscounted and on Bᵀλ discounted; both only where the gate let the command through.
        (feedback,) = pull_policy(jnp.where(free, cost_u + discount * through_command, 0.0))
        earlier = cost_x + discount * through_state + feedback
        return jnp.where(passes, earlier, 0.0), jnp.where(passes, mu, 0.0)

    inputs = (rollout.states[:-1], rollout.commands, rollout.previews, rollout.free, rollout.valid, passes)
    _, sensitivities = jax.lax.scan(step, jnp.zeros_like(rollout.states[0]), inputs, reverse=True)
    return sensitivities


def reaches_cost(rollout: Rollout) -> Bool[Array, "*trajectories steps"]:
    """Whether a step or one after it counts in the cost."""
    return jnp.flip(jnp.cumsum(jnp.flip(rollout.valid, -1), axis=-1), -1) > 0


def closed_loop_gradient(
    policy: PyTree,
    dynamics: DynamicsFunction,
    cost: CostFunction,
    rollout: Rollout,
    discount: Float[Array, ""] | float = 1.0,
    outlier: Float[Array, ""] | float | None = None,
    *,
    chained: bool = False,
) -> PyTree:
    """∇̂_φ of the mean cost over steps and trajectories.

    Where `rollout` was measured this is the paper's estimate; where the same `dynamics` predicted it, it is
    backpropagation through time.

    Args:
        policy: π, a callable pytree: its floating-point arrays are φ. `jax.tree_util.Partial(apply, params)` makes one
            of parameters and an apply function.
        dynamics: the model f(x, u), of which only derivatives are used.
        cost: c(x, u, r) of one step.
        rollout: the trajectories along which the derivatives are taken.
        discount: γ, multiplies A + BK.
        outlier: a trajectory whose sensitivities are larger than this many times the median trajectory's is scaled
            down to it: one loop that the model believes unstable must not drown the others. None or 0: no limit.
        chained: whether `dynamics` predicted every state from the one before. An invalid step then only loses its
            cost; in a measured trajectory nothing is known across it.

    Returns:
        A pytree like `policy`, with None in place of what is not a parameter.
    """
    mu = jax.vmap(lambda one: command_sensitivities(policy, dynamics, cost, one, discount, chained=chained))(rollout)
    if outlier is not None:
        size = jnp.sqrt(jnp.sum(mu**2, axis=(1, 2), keepdims=True))
        usual = jnp.nanmedian(jnp.where(size > 0, size, jnp.nan))  # of those that say something
        mu = mu * jnp.where((size > 0) & (outlier > 0), jnp.minimum(1.0, outlier * usual / size), 1.0)
    mu = mu / jnp.maximum(rollout.valid.sum(), 1)
    parameters, static = split_parameters(policy)

    def commands(phi):
        current = eqx.combine(phi, static)
        return jax.vmap(jax.vmap(current))(rollout.states[:, :-1], rollout.previews)

    _, pull = jax.vjp(commands, parameters)
    return pull(mu)[0]


def damped_gradient(
    policy: PyTree,
    dynamics: DynamicsFunction,
    cost: CostFunction,
    rollout: Rollout,
    *,
    max_norm: Float[Array, ""] | float,
    discount: Float[Array, ""] | float = 1.0,
    outlier: Float[Array, ""] | float | None = None,
    chained: bool = False,
    discount_factor: Float[Array, ""] | float = 0.92,
    max_attempts: int = 6,
) -> tuple[PyTree, Float[Array, ""]]:
    """The closed-loop gradient with the largest γ of a few, from `discount` down, whose norm is at most `max_norm`.

    Where the model believes the closed loop unstable, the gradient grows without bound along the trajectory, and the
    preconditioned step, which falls like 1/‖∇‖, stops all learning. A smaller γ looks less far ahead and stays
    meaningful: γ, sγ, s²γ, … with s = `discount_factor` are tried in turn. The last is taken even if its gradient is
    still too large: the step's bounds hold anyway.

    Args:
        policy, dynamics, cost, rollout, outlier, chained: as in `closed_loop_gradient`.
        max_norm: the largest norm of the gradient that is accepted at once.
        discount: the first γ.
        discount_factor: what γ is multiplied by for the next attempt.
        max_attempts: how many γ are tried.

    Returns:
        The gradient, and its γ.
    """

    def again(carry):
        gamma, _, _, attempts = carry
        gamma = jnp.where(attempts == 0, gamma, discount_factor * gamma)
        gradient = closed_loop_gradient(policy, dynamics, cost, rollout, gamma, outlier, chained=chained)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
        return gamma, gradient, norm, attempts + 1

    def unfinished(carry):
        _, _, norm, attempts = carry
        return ~(norm <= max_norm) & (attempts < max_attempts)

    nothing = jax.tree.map(jnp.zeros_like, split_parameters(policy)[0])
    dtype = rollout.states.dtype
    start = (jnp.asarray(discount, dtype), nothing, jnp.asarray(jnp.inf, dtype), jnp.asarray(0, jnp.int32))
    gamma, gradient, _, _ = jax.lax.while_loop(unfinished, again, start)
    return gradient, gamma
