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
    passes = followed(rollout) if chained else rollout.valid

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


def followed(rollout: Rollout) -> Bool[Array, "*trajectories steps"]:
    """Whether a step counts or one after it does."""
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
    """∇̂_φ of the mean cost over steps and trajectories, as a pytree like `policy` (arrays only).

    Where `rollout` was measured this is the paper's estimate; where it was imagined by the same `dynamics` it is
    backpropagation through time, and `chained` takes it across invalid steps. With `outlier` set, a trajectory whose
    sensitivities are larger than that many times the median trajectory's is scaled down to it: one loop that the model
    believes unstable must not drown the others.
    """
    mu = jax.vmap(lambda one: command_sensitivities(policy, dynamics, cost, one, discount, chained=chained))(rollout)
    if outlier is not None:
        size = jnp.sqrt(jnp.sum(mu**2, axis=(1, 2), keepdims=True))
        usual = jnp.nanmedian(jnp.where(size > 0, size, jnp.nan))  # of those that say something
        mu = mu * jnp.where(size > 0, jnp.minimum(1.0, outlier * usual / size), 1.0)
    mu = mu / jnp.maximum(rollout.valid.sum(), 1)
    parameters, static = eqx.partition(policy, eqx.is_array)

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
    discount: Float[Array, ""] | float,
    limit: Float[Array, ""] | float,
    outlier: Float[Array, ""] | float | None = None,
    *,
    shrink: Float[Array, ""] | float = 0.92,
    max_tries: int = 6,
    chained: bool = False,
) -> tuple[PyTree, Float[Array, ""]]:
    """The closed-loop gradient with the largest γ of a few, from `discount` down, at which its norm is at most `limit`.

    Where the model believes the closed loop unstable, the gradient grows without bound along the trajectory, and the
    preconditioned step, which falls like 1/‖∇‖, stops all learning. A smaller γ looks less far ahead and stays
    meaningful: γ, sγ, s²γ, … with s = `shrink` are tried in turn, at most `max_tries` of them. The last is taken even
    if its gradient is still too large: the step's bounds hold all the same. Returns the gradient and its γ.
    """

    def again(carry):
        gamma, _, _, tries = carry
        gamma = jnp.where(tries == 0, gamma, shrink * gamma)
        gradient = closed_loop_gradient(policy, dynamics, cost, rollout, gamma, outlier, chained=chained)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
        return gamma, gradient, norm, tries + 1

    def unfinished(carry):
        _, _, norm, tries = carry
        return ~(norm <= limit) & (tries < max_tries)

    nothing = jax.tree.map(jnp.zeros_like, eqx.filter(policy, eqx.is_array))
    dtype = rollout.states.dtype
    start = (jnp.asarray(discount, dtype), nothing, jnp.asarray(jnp.inf, dtype), jnp.asarray(0, jnp.int32))
    gamma, gradient, _, _ = jax.lax.while_loop(unfinished, again, start)
    return gradient, gamma
