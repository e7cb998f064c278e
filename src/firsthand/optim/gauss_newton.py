"""Gauss–Newton steps on the policy's parameters, for a cost that is a sum of squares.

The cost of a batch of trajectories is a sum of squares, g(φ) = ‖r(φ)‖², r the residuals of all steps along the
closed loop, each with the square root of its weight. With R = ∂r/∂φ through the model and
the policy's feedback, and M = ε I + α J Jᵀ the paper's measure of a step, the step minimises

    ‖r + R Δφ‖² + λ ΔφᵀM Δφ,    so that    (RᵀR + λ M) Δφ = −Rᵀr.

The paper's Λ has the rank-one ∇∇ᵀ in the place of RᵀR, which holds the cost's curvature along every direction, not only
along the gradient. Late in learning the curvature differs by orders of magnitude between directions, and the steepest
one limits a gradient step.

The system is solved by a few conjugate-gradient iterations with Jacobian-vector products, linear in parameters and
steps. The solve may start from the last solution: directions of small curvature are then resolved over many steps. The
solution w is scaled along itself to the minimum, after which wᵀ(RᵀR + λM)w = wᵀRᵀr =: s holds whatever w is. By
Cauchy–Schwarz s ≤ ‖r‖² = g, and therefore

    ‖Δφ‖ ≤ √(g/(λε)),   ‖JᵀΔφ‖ ≤ √(g/(λα)),   0 ≤ s ≤ g:

the smaller the cost, the smaller the step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from .parameters import split_parameters
from .preconditioner import BOUND_SLACK, StepReport, command_jacobian, conjugate_gradients
from .rollout import ResidualFunction, Rollout


class LeastSquares(NamedTuple):
    """The residuals of predicted trajectories at a policy, linearised in its parameters."""

    value: Float[Array, ""]
    """g = ‖r‖²: the weighted mean cost over steps and trajectories."""
    slope: Float[Array, " parameters"]
    """Rᵀr, half the gradient of g."""
    push: Callable[[Array], Array]
    """v ↦ R v."""
    pull: Callable[[Array], Array]
    """y ↦ Rᵀ y."""
    weights: Float[Array, "trajectories 1 1"]
    """Factor on the residuals of each trajectory."""
    rollout: Rollout
    """The policy's trajectories as the model predicts them."""


def step_residuals(residuals: ResidualFunction, rollout: Rollout) -> Float[Array, "trajectories steps residuals"]:
    """The residuals of every step, without weights; zero where a step is not valid."""
    each = jax.vmap(jax.vmap(residuals))(rollout.states[:, :-1], rollout.commands, rollout.references)
    return jnp.where(rollout.valid[..., None], each, 0.0)


def trajectory_weights(
    residuals: Float[Array, "trajectories steps residuals"],
    valid: Bool[Array, "trajectories steps"],
    outlier: Float[Array, ""] | float | None = None,
) -> Float[Array, "trajectories 1 1"]:
    """Roots of weights with which squared residuals add up to a mean cost over steps.

    Args:
        residuals: those of every step, as `step_residuals` gives them.
        valid: steps that count.
        outlier: a trajectory that costs more than this many times the median is given the weight at which it costs
            just that: a motion that nothing can follow must not decide about all others. None or 0: equal weights.

    Returns:
        A weight for each trajectory. If the residuals of one are not finite, no weight is, and a step is refused.
    """
    steps = valid.sum(axis=1)
    costs = jnp.sum(residuals**2, axis=(1, 2)) / jnp.maximum(steps, 1)
    usual = jnp.nanmedian(jnp.where(steps > 0, costs, jnp.nan))
    tiny = jnp.finfo(costs.dtype).tiny
    share = jnp.ones_like(costs)
    if outlier is not None:
        share = jnp.where(outlier > 0, jnp.minimum(1.0, outlier * usual / jnp.maximum(costs, tiny)), share)
    share = jnp.where(steps > 0, share, 0.0)
    return jnp.sqrt(share / jnp.maximum((share * steps).sum(), tiny))[:, None, None]


def linearise(
    policy: PyTree,
    predict: Callable[[Any], Rollout],
    residuals: ResidualFunction,
    *,
    outlier: Float[Array, ""] | float | None = None,
) -> LeastSquares:
    """The weighted residuals r along what a model predicts, with R = ∂r/∂φ as two products.

    Args:
        policy: π, a callable pytree: its floating-point arrays are φ.
        predict: the model's trajectories under a policy, for example `lambda p: roll_out(p, dynamics, starts)`.
        residuals: those of one step, as a function of x, u and r.
        outlier: as in `trajectory_weights`.

    Returns:
        The linear least-squares problem that `gauss_newton_step` solves.
    """
    parameters, static = split_parameters(policy)
    flat, unravel = ravel_pytree(parameters)

    def at(phi):
        rollout = predict(eqx.combine(unravel(phi), static))
        return step_residuals(residuals, rollout), rollout

    each, forward, rollout = jax.linearize(at, flat, has_aux=True)
    transpose = jax.linear_transpose(forward, flat)
    weights = trajectory_weights(each, rollout.valid, outlier)

    def pull(rows):
        return transpose(weights * rows)[0]

    r = weights * each
    return LeastSquares(jnp.sum(r**2), pull(r), lambda v: weights * forward(v), pull, weights, rollout)


def gauss_newton_step(
    policy: PyTree,
    problem: LeastSquares,
    *,
    damping: Float[Array, ""] | float,
    alpha: Float[Array, ""] | float,
    epsilon: Float[Array, ""] | float,
    begin: Float[Array, " parameters"] | None = None,
    iterations: int = 30,
    tolerance: Float[Array, ""] | float = 1e-2,
    stride: int = 1,
    command_scale: Float[Array, " commands"] | float = 1.0,
) -> tuple[PyTree, Float[Array, " parameters"], StepReport]:
    """One damped step Δφ = −w. A step that is not finite or breaks a bound is refused.

    Args:
        policy: π, a callable pytree, the one at which `problem` was linearised.
        problem: r and R, from `linearise`.
        damping: λ.
        alpha: α, weighs the change of commands in M.
        epsilon: ε, weighs the change of parameters in M.
        begin: where the solve for w begins; zero by default.
        iterations, tolerance: of `conjugate_gradients`.
        stride, command_scale: of `command_jacobian`.

    Returns:
        The policy after the step (unchanged if the step was refused), w, and what the step was like.
    """
    flat, push_u, pull_u, rebuild = command_jacobian(policy, problem.rollout, stride, command_scale)

    def product(v):
        return problem.pull(problem.push(v)) + damping * (epsilon * v + alpha * pull_u(push_u(v)))

    missing = problem.slope if begin is None else problem.slope - product(begin)
    more, relative, used = conjugate_gradients(product, missing, iterations=iterations, tolerance=tolerance)
    w = more if begin is None else begin + more
    tiny = jnp.finfo(flat.dtype).tiny
    image, commands = problem.push(w), push_u(w)
    along = problem.slope @ w
    curved = jnp.sum(image**2) + damping * (epsilon * (w @ w) + alpha * jnp.sum(commands**2))
    scale = along / jnp.maximum(curved, tiny)
    w, decrease = scale * w, scale * along
    length, change = jnp.linalg.norm(w), jnp.abs(scale) * jnp.linalg.norm(commands)
    limit = 1.0 + BOUND_SLACK
    accepted = (
        jnp.isfinite(problem.value)
        & jnp.all(jnp.isfinite(w))
        & (epsilon * damping * length**2 <= limit * problem.value)
        & (alpha * damping * change**2 <= limit * problem.value)
        & (decrease <= limit * problem.value)
    )
    w = jnp.where(accepted, w, 0.0)
    report = StepReport(
        gradient_norm=2.0 * jnp.linalg.norm(problem.slope),
        step_norm=jnp.linalg.norm(w),
        command_step_norm=jnp.where(accepted, change, 0.0),
        predicted_decrease=jnp.where(accepted, decrease, 0.0),
        relative_residual=relative * jnp.linalg.norm(missing) / jnp.maximum(jnp.linalg.norm(problem.slope), tiny),
        iterations=used,
        accepted=accepted,
        discount=jnp.asarray(1.0, flat.dtype),
    )
    return rebuild(flat - w), w, report
