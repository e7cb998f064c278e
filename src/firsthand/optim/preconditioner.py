"""The trust-region step Δφ = −η Λ⁻¹ ∇ with Λ = ∇∇ᵀ + α J Jᵀ + ε I (eq. 7), without ever forming Λ.

By Sherman–Morrison Δφ = −η w / (1 + ∇ᵀw), where (ε I + α J Jᵀ) w = ∇. The linear system is solved by conjugate
gradients from zero with Jacobian-vector products, so time and memory are linear in the number of parameters and steps.

Three bounds hold for every iterate of conjugate gradients, not only for the exact solution, because each iterate
satisfies wᵀ (ε I + α J Jᵀ) w = ∇ᵀw =: s (it is a Galerkin projection). Hence ε‖w‖² ≤ s and α‖Jᵀw‖² ≤ s, and with
√s/(1 + s) ≤ 1/2:

    ‖Δφ‖ ≤ η/(2√ε),   ‖JᵀΔφ‖ ≤ η/(2√α),   −η < ∇ᵀΔφ ≤ 0.

With a large J the identity is lost to rounding, so w is finally scaled along its own direction until it holds again
(for an exact iterate the factor is one).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .parameters import split_parameters
from .rollout import Rollout

BOUND_SLACK = 1e-3
"""Relative slack on the three bounds, for rounding."""


class StepReport(NamedTuple):
    """What a step was like: a preconditioned one, or a Gauss–Newton step, whose system and bounds are others."""

    gradient_norm: Float[Array, ""]
    """‖∇‖."""
    step_norm: Float[Array, ""]
    """‖Δφ‖, at most η/(2√ε)."""
    command_step_norm: Float[Array, ""]
    """‖JᵀΔφ‖, at most η/(2√α): the predicted change of the commands of one trajectory (root of the mean square)."""
    predicted_decrease: Float[Array, ""]
    """−∇ᵀΔφ, in [0, η); of a Gauss–Newton step, by how much the linearised and damped cost falls."""
    relative_residual: Float[Array, ""]
    """‖(ε I + α J Jᵀ) w − ∇‖ / ‖∇‖ when conjugate gradients stopped, or the same of Gauss–Newton's system."""
    iterations: Int[Array, ""]
    """Iterations of conjugate gradients."""
    accepted: Bool[Array, ""]
    """Whether everything was finite and the three bounds held; otherwise Δφ is zero."""
    discount: Float[Array, ""]
    """γ with which the gradient was taken; NaN where the step was not told."""


def command_jacobian(
    policy: PyTree, rollout: Rollout, stride: int = 1, command_scale: Float[Array, " commands"] | float = 1.0
):
    """v ↦ Jᵀv and y ↦ Jy for J = ∂u/∂φ of size n_φ × (N·H·m), with the 1/√N of the mean over trajectories.

    Args:
        policy: π, a callable pytree.
        rollout: where the commands are looked at: at valid steps, and where they were the policy's own.
        stride: with s only every s-th step enters, weighted by √s: an estimate of the same J Jᵀ at 1/s of the work.
        command_scale: the unit of u, for example the half range of each channel, so that α means the same everywhere.

    Returns:
        The flat parameters, the two products, and the function back from flat parameters to a policy.
    """
    parameters, static = split_parameters(policy)
    flat, unravel = ravel_pytree(parameters)
    states, previews = rollout.states[:, :-1:stride], rollout.previews[:, ::stride]
    passes = (rollout.free & rollout.valid[..., None])[:, ::stride]
    weight = jnp.where(passes, jnp.sqrt(stride / states.shape[0]), 0.0).astype(flat.dtype)

    def commands(phi):
        current = eqx.combine(unravel(phi), static)
        return weight * jax.vmap(jax.vmap(current))(states, previews) / command_scale

    _, push = jax.linearize(commands, flat)
    transpose = jax.linear_transpose(push, flat)
    return flat, push, lambda y: transpose(y)[0], lambda phi: eqx.combine(unravel(phi), static)


def conjugate_gradients(product, right, *, iterations: int, tolerance: Float[Array, ""] | float):
    """w with M w ≈ `right` for a symmetric positive definite M, started at zero.

    Written out rather than taken from a library because the step's bounds rest on every iterate being the Galerkin
    projection, and on stopping by the residual alone.

    Args:
        product: v ↦ M v.
        right: the right-hand side.
        iterations: at most this many.
        tolerance: stop when ‖M w − right‖ ≤ `tolerance` · ‖right‖.

    Returns:
        w, that relative residual, and the number of iterations.
    """
    size = right @ right

    def unfinished(carry):
        _, _, _, square, count = carry
        return (count < iterations) & (square > tolerance**2 * size)

    def advance(carry):
        w, remainder, direction, square, count = carry
        image = product(direction)
        length = square / (direction @ image)
        w = w + length * direction
        remainder = remainder - length * image
        following = remainder @ remainder
        return w, remainder, remainder + (following / square) * direction, following, count + 1

    start = (jnp.zeros_like(right), right, right, size, jnp.asarray(0, jnp.int32))
    w, _, _, square, count = jax.lax.while_loop(unfinished, advance, start)
    return w, jnp.sqrt(square / jnp.maximum(size, jnp.finfo(right.dtype).tiny)), count


def preconditioned_step(
    policy: PyTree,
    gradient: PyTree,
    rollout: Rollout,
    *,
    eta: Float[Array, ""] | float,
    alpha: Float[Array, ""] | float,
    epsilon: Float[Array, ""] | float,
    iterations: int = 30,
    tolerance: Float[Array, ""] | float = 1e-2,
    stride: int = 1,
    command_scale: Float[Array, " commands"] | float = 1.0,
) -> tuple[PyTree, StepReport]:
    """One step −η Λ⁻¹ ∇. A step that is not finite or breaks a bound is refused.

    Args:
        policy: π, a callable pytree: its floating-point arrays are φ.
        gradient: ∇, a pytree like the parameters, for example of `closed_loop_gradient`.
        rollout: the trajectories along which the change of commands is weighed.
        eta: η, the largest predicted decrease of the cost.
        alpha: α, weighs the change of commands along `rollout`.
        epsilon: ε, weighs the change of parameters.
        iterations, tolerance: of `conjugate_gradients`.
        stride, command_scale: of `command_jacobian`.

    Returns:
        The policy after the step (unchanged if the step was refused), and what the step was like.
    """
    flat, delta, rebuild, report = _solve_step(
        policy, gradient, rollout, eta, alpha, epsilon, iterations, tolerance, stride, command_scale
    )
    return rebuild(flat + delta), report


def _solve_step(policy, gradient, rollout, eta, alpha, epsilon, iterations, tolerance, stride, command_scale):
    """φ and Δφ as flat arrays, the function from flat parameters to a policy, and the report."""
    flat, push, pull, rebuild = command_jacobian(policy, rollout, stride, command_scale)
    nabla, _ = ravel_pytree(gradient)

    def product(w):
        return epsilon * w + alpha * pull(push(w))

    safe = jnp.where(jnp.isfinite(nabla), nabla, 0.0)
    w, residual, used = conjugate_gradients(product, safe, iterations=iterations, tolerance=tolerance)
    along, image = safe @ w, push(w)
    restored = along / jnp.maximum(epsilon * (w @ w) + alpha * jnp.sum(image**2), jnp.finfo(flat.dtype).tiny)
    scale = -eta * restored / (1.0 + restored * along)
    delta = scale * w
    norm = jnp.linalg.norm(nabla)
    change = jnp.abs(scale) * jnp.linalg.norm(image)
    decrease = -scale * along
    limit = 1.0 + BOUND_SLACK
    accepted = (
        jnp.isfinite(norm)
        & jnp.all(jnp.isfinite(delta))
        & (jnp.linalg.norm(delta) <= limit * eta / (2.0 * jnp.sqrt(epsilon)))
        & ((alpha == 0) | (change <= limit * eta / (2.0 * jnp.sqrt(jnp.maximum(alpha, 1e-30)))))
        & (decrease >= -BOUND_SLACK * eta)
        & (decrease < limit * eta)
    )
    delta = jnp.where(accepted, delta, 0.0)
    report = StepReport(
        gradient_norm=norm,
        step_norm=jnp.linalg.norm(delta),
        command_step_norm=jnp.where(accepted, change, 0.0),
        predicted_decrease=jnp.where(accepted, decrease, 0.0),
        relative_residual=residual,
        iterations=used,
        accepted=accepted,
        discount=jnp.asarray(jnp.nan, flat.dtype),
    )
    return flat, delta, rebuild, report


class PreconditionState(NamedTuple):
    """State of the transformation `precondition`."""

    count: Int[Array, ""]
    """Updates so far, refused ones included."""
    report: StepReport
    """The report of the last step; all zero before the first."""


def precondition(
    apply: Callable | None = None,
    *,
    eta: optax.ScalarOrSchedule,
    alpha: Float[Array, ""] | float,
    epsilon: Float[Array, ""] | float,
    iterations: int = 30,
    tolerance: Float[Array, ""] | float = 1e-2,
    stride: int = 1,
    command_scale: Float[Array, " commands"] | float = 1.0,
) -> optax.GradientTransformationExtraArgs:
    """`preconditioned_step` as an Optax transformation.

    Its `update(gradient, state, params, rollout=rollout)` needs the parameters and the rollout. The updates already
    have the sign of descent: `optax.apply_updates(params, updates)` gives what `preconditioned_step` returns, and is
    zero where a step was refused (`state.report.accepted`).

    Args:
        apply: the policy as apply(params, x, preview). Without it, `params` themselves are called, as those of an
            `equinox.Module` whose leaves are all parameters.
        eta: η, or a schedule of it over the count of updates.
        alpha, epsilon, iterations, tolerance, stride, command_scale: as in `preconditioned_step`.

    Returns:
        A `optax.GradientTransformationExtraArgs`; its state is a `PreconditionState`.
    """

    def init(params: PyTree) -> PreconditionState:
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(params)))
        none = jnp.zeros((), jnp.int32)
        return PreconditionState(none, StepReport(zero, zero, zero, zero, zero, none, jnp.zeros((), bool), zero))

    def update(
        updates: PyTree,
        state: PreconditionState,
        params: PyTree | None = None,
        *,
        rollout: Rollout,
        **extra_args: object,
    ) -> tuple[PyTree, PreconditionState]:
        del extra_args  # of other transformations in the chain
        if params is None:
            raise ValueError("`precondition` needs the parameters: update(gradient, state, params, rollout=rollout).")
        policy = params if apply is None else jax.tree_util.Partial(apply, params)
        size = eta(state.count) if callable(eta) else eta
        _, delta, _, report = _solve_step(
            policy, updates, rollout, size, alpha, epsilon, iterations, tolerance, stride, command_scale
        )
        _, unravel = ravel_pytree(params)
        return unravel(delta), PreconditionState(state.count + 1, report)

    return optax.GradientTransformationExtraArgs(init, cast(Any, update))
