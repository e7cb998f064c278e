"""The theory's quantities in one episode of one seed."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from firsthand.agent import Rollout, Settings
from firsthand.agent.corrected_model import half_range
from firsthand.agent.improvement import outlier_limit
from firsthand.models import Dynamics, Policy
from firsthand.optim.gradient import damped_gradient
from firsthand.optim.preconditioner import command_jacobian
from firsthand.plants.base import AbstractPlant
from firsthand.tasks import Task

from .closed_loop import closed_loop_matrices, growth_per_step, product_growth, spectral_radii, state_scales
from .gradients import Starts, plant_gradient
from .model_regret import episode_loss, transition_losses

POWER_ITERATIONS = 10
LOOKED_AT = 25
"""Eigenvalues of A + BK are taken once in this number of steps, singular values of products over all of them."""


class GradientReport(NamedTuple):
    """The learner's gradient beside the plant's, and what the step made of it."""

    gradient_norm: Float[Array, ""]
    """‖∇̂g‖, the learner's."""
    true_norm: Float[Array, ""]
    """‖∇g‖, the plant's, without discount."""
    error: Float[Array, ""]
    """‖δ‖ = ‖∇̂g − ∇g‖."""
    model_error: Float[Array, ""]
    """‖∇̂g − ∇g‖ with the learner's discount in both: what the model alone is to blame for."""
    discounted_norm: Float[Array, ""]
    """‖∇g‖ with the learner's discount."""
    cosine: Float[Array, ""]
    """Of the angle between ∇̂g and ∇g."""
    slope: Float[Array, ""]
    """∇gᵀΔφ: what the step should have changed, to first order."""
    step: Float[Array, ""]
    """‖Δφ‖."""
    cost_after: Float[Array, ""]
    """g(φ_{t+1}; x̃_t): the new policy on the same references from the same starts."""
    curvature: Float[Array, ""]
    """‖∇g(φ_{t+1}) − ∇g(φ_t)‖ / ‖Δφ‖ there: at most β_g."""
    largest: Float[Array, ""]
    """Largest eigenvalue of Λ_t, as ε + α‖J‖² + ‖∇̂g‖², which it cannot exceed."""
    discount: Float[Array, ""]
    """γ that the learner used."""


@eqx.filter_jit
def gradient_report(
    plant: AbstractPlant,
    task: Task,
    settings: Settings,
    policy: Policy,
    following: Policy,
    dynamics: Dynamics,
    rollout: Rollout,
    starts: Starts,
    references: Float[Array, "trajectories points outputs"],
) -> GradientReport:
    """After an episode that `policy` ran and that led to `following`; `dynamics` is the model that was used for it."""
    estimate, gamma = damped_gradient(
        policy,
        dynamics,
        task.cost,
        rollout,
        max_norm=settings.policy_step.gradient_limit,
        discount=settings.policy_step.discount,
        outlier=outlier_limit(settings),
    )

    arrays, static = eqx.partition(policy, eqx.is_array)
    both = jax.tree.map(lambda a, b: jnp.stack([a, a, b]), arrays, eqx.filter(following, eqx.is_array))

    def true(inputs):
        """One after the other: the differentiated plant is compiled once."""
        parameters, discount, replay = inputs
        value, gradient = plant_gradient(
            plant,
            eqx.combine(parameters, static),
            task.spec,
            task.cost,
            starts,
            references,
            rollout.commands,
            discount,
            replay,
        )
        return value, ravel_pytree(gradient)[0]

    estimate = ravel_pytree(estimate)[0]
    discounts, replays = jnp.stack([jnp.ones_like(gamma), gamma, jnp.ones_like(gamma)]), jnp.array([True, True, False])
    values, (exact, discounted, there) = jax.lax.map(true, (both, discounts, replays))
    flat = [ravel_pytree(eqx.filter(p, eqx.is_array))[0] for p in (policy, following)]
    change = flat[1] - flat[0]
    length = jnp.linalg.norm(change)
    tiny = jnp.finfo(change.dtype).tiny
    norms = jnp.linalg.norm(estimate), jnp.linalg.norm(exact)
    commands = _largest_square(policy, rollout, settings.policy_step.jacobian_stride)
    return GradientReport(
        gradient_norm=norms[0],
        true_norm=norms[1],
        error=jnp.linalg.norm(estimate - exact),
        model_error=jnp.linalg.norm(estimate - discounted),
        discounted_norm=jnp.linalg.norm(discounted),
        cosine=estimate @ exact / jnp.maximum(norms[0] * norms[1], tiny),
        slope=exact @ change,
        step=length,
        cost_after=values[2],
        curvature=jnp.linalg.norm(there - exact) / jnp.maximum(length, tiny),
        largest=settings.policy_step.epsilon + settings.policy_step.alpha * commands + norms[0] ** 2,
        discount=gamma,
    )


def _largest_square(policy: Policy, rollout: Rollout, stride: int) -> Float[Array, ""]:
    """‖J‖², by power iteration."""
    flat, push, pull, _ = command_jacobian(policy, rollout, stride, half_range(policy))

    def again(_, v):
        w = pull(push(v))
        return w / jnp.linalg.norm(w)

    start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
    v = jax.lax.fori_loop(0, POWER_ITERATIONS, again, start / jnp.linalg.norm(start))
    return jnp.sum(push(v) ** 2)


@eqx.filter_jit
def _loop(policy, dynamics, rollout):
    return jax.vmap(lambda one: closed_loop_matrices(policy, dynamics, one))(rollout)


def loop_report(policy: Policy, dynamics: Dynamics, rollout: Rollout, trajectories: int = 3) -> dict[str, float]:
    """How A + BK behaves along the first trajectories: the worst of them counts."""
    part = jax.tree.map(lambda leaf: leaf[:trajectories], rollout)
    matrices = np.asarray(_loop(policy, dynamics, part), np.float64)
    growths = [product_growth(one, state_scales(policy.spec)) for one in matrices]
    return {
        "spectral_radius": float(spectral_radii(matrices[:, ::LOOKED_AT]).max()),
        "growth_per_step": max(growth_per_step(growth) for growth in growths),
        "largest_product": float(max(growth.max() for growth in growths)),
    }


@eqx.filter_jit
def _losses(dynamics, rollout):
    return episode_loss(dynamics, rollout), transition_losses(dynamics, rollout).max()


def model_report(before: Dynamics, after: Dynamics, rollout: Rollout) -> dict[str, Any]:
    """ℓ on the newest episode before and after learning from it, and the largest loss of a transition."""
    (predicted, _), (learned, largest) = _losses(before, rollout), _losses(after, rollout)
    return {"loss_before": float(predicted), "loss_after": float(learned), "loss_largest": float(largest)}
