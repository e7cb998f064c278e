"""The real-time iteration (Diehl, Bock, Schlöder 2005): one Gauss–Newton step on the commands of a horizon.

With residuals ρ(U) of x_{k+1} = f(x_k, u_k) from x_0, and J their derivative by U = (u_0 … u_{N-1}),

    ΔU = −(JᵀJ + μ I)⁻¹ Jᵀ ρ         over the commands that are free,

where a command at a limit that its gradient pushes beyond is not free. U + s ΔU is clipped to the limits, and s is the
best of `SHARES`: a step is never worse than none. J comes from the model's derivatives along the horizon, condensed.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

SHARES = (1.0, 0.5, 0.2, 0.05)
"""Lengths of a step that are tried."""

StepResiduals = Callable[[Float[Array, " state"], Float[Array, " commands"], Float[Array, " outputs"]], Array]


def horizon_cost(
    dynamics: Callable,
    residuals: StepResiduals,
    start: Float[Array, " state"],
    references: Float[Array, "horizon+1 outputs"],
    plan: Float[Array, "horizon commands"],
) -> Float[Array, ""]:
    """Σ |ρ_k|² over the horizon and its end; `references[k]` belongs to x_k."""

    def step(x, inputs):
        u, r = inputs
        return dynamics(x, u), jnp.sum(residuals(x, u, r) ** 2)

    end, costs = jax.lax.scan(step, start, (plan, references[:-1]))
    return jnp.sum(costs) + jnp.sum(residuals(end, plan[-1], references[-1]) ** 2)


def improve_plan(
    dynamics: Callable,
    residuals: StepResiduals,
    start: Float[Array, " state"],
    references: Float[Array, "horizon+1 outputs"],
    plan: Float[Array, "horizon commands"],
    *,
    low: Float[Array, " commands"],
    high: Float[Array, " commands"],
    damping: float,
) -> Float[Array, "horizon commands"]:
    """One Gauss–Newton step from `plan`, inside the limits; the plan itself where none is better."""
    horizon, count = plan.shape

    def step(x, u):
        after = dynamics(x, u)
        return after, x

    end, states = jax.lax.scan(step, start, plan)
    by_state, by_command = jax.vmap(jax.jacfwd(dynamics, argnums=(0, 1)))(states, plan)
    before = jnp.concatenate([states, end[None]])
    acting = jnp.concatenate([plan, plan[-1:]])
    values = jax.vmap(residuals)(before, acting, references)
    of_state, of_command = jax.vmap(jax.jacfwd(residuals, argnums=(0, 1)))(before, acting, references)
    pick = jnp.eye(horizon * count).reshape(horizon, count, horizon * count)

    def sensitivity(moved, inputs):
        A, B, here = inputs
        return A @ moved + B @ here, moved

    still = jnp.zeros((len(start), horizon * count))
    last, moved = jax.lax.scan(sensitivity, still, (by_state, by_command, pick))
    moved = jnp.concatenate([moved, last[None]])
    chosen = jnp.concatenate([pick, pick[-1:]])
    rows = of_state @ moved + of_command @ chosen
    J, rho = rows.reshape(-1, horizon * count), values.reshape(-1)
    gradient, flat = J.T @ rho, plan.reshape(-1)
    lowest, highest = jnp.tile(low, horizon), jnp.tile(high, horizon)
    held = ((flat <= lowest) & (gradient > 0)) | ((flat >= highest) & (gradient < 0))
    free = jnp.where(held, 0.0, 1.0)
    H = J.T @ J * free[:, None] * free + jnp.diag(damping + (1.0 - free))
    direction = -jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(H), gradient * free)
    shares = jnp.asarray((0.0, *SHARES))  # the plan first: the first of equals is taken
    tried = jnp.clip(flat + shares[:, None] * direction, lowest, highest).reshape(-1, horizon, count)
    tried = jnp.where(jnp.isfinite(tried).all(axis=(1, 2), keepdims=True), tried, plan)
    costs = jax.vmap(lambda p: horizon_cost(dynamics, residuals, start, references, p))(tried)
    return tried[jnp.argmin(jnp.where(jnp.isfinite(costs), costs, jnp.inf))]
