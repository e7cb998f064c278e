"""Refining a policy that the model predicts well: Gauss–Newton steps on the corrected model, each on fresh references.

The cost of a batch of trajectories is a sum of squares, g(φ) = ‖r(φ)‖², r the residuals of tracking, change of command
and joint limits along the closed loop, each with the square root of its weight. With R = ∂r/∂φ through the model and
the policy's feedback, and M = ε I + α J Jᵀ the paper's measure of a step, the step minimises

    ‖r + R Δφ‖² + λ ΔφᵀM Δφ,    so that    (RᵀR + λ M) Δφ = −Rᵀr.

The paper's Λ has the rank-one ∇∇ᵀ where this has RᵀR: what the cost's curvature is along every direction, not along
the gradient alone. That is what the last centimetre needs: late in a run directions differ by orders of magnitude in
how much they matter, and a gradient step is as short as the steepest of them allows.

The system is solved by a few conjugate gradients with Jacobian-vector products, linear in parameters and steps, begun
at a share of the last solution: directions of small curvature are worked out over many steps. The solution w is then
scaled along itself to the minimum, after which wᵀ(RᵀR + λM)w = wᵀRᵀr =: s holds whatever w is. By Cauchy–Schwarz
s ≤ ‖r‖² = g, and therefore

    ‖Δφ‖ ≤ √(g/(λε)),   ‖JᵀΔφ‖ ≤ √(g/(λα)),   0 ≤ s ≤ g:

the smaller the cost, the smaller the step.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..models import Dynamics, Policy
from ..optim.gradient import mean_cost
from ..optim.preconditioner import BOUND_SLACK, StepReport, command_jacobian, conjugate_gradients
from ..optim.rollout import Rollout, SquaresCost
from .ground import Ground, Imagined, deviation, ground_of, half_range, predicted
from .improvement import Improvement, outlier_limit
from .settings import Settings
from .trees import select_tree


class Refinement(eqx.Module):
    """What refinement carries from step to step and from episode to episode."""

    direction: Float[Array, " parameters"]
    """The last solution w, with which the next solve begins; zero where there is none."""
    damping: Float[Array, ""]
    """λ."""
    active: Bool[Array, ""]
    """Whether the policy now in use was refined: then its expected cost is one as `felt_cost` counts it."""

    @staticmethod
    def none(policy: Policy, settings: Settings) -> "Refinement":
        """Before the first refinement."""
        flat, _ = ravel_pytree(eqx.filter(policy, eqx.is_array))
        return Refinement(
            jnp.zeros_like(flat), jnp.asarray(settings.refinement.damping, flat.dtype), jnp.asarray(False)
        )


class Weighed(NamedTuple):
    """A batch's residuals at a policy, linearised."""

    value: Float[Array, ""]
    """g: the weighed mean cost over trajectories."""
    slope: Float[Array, " parameters"]
    """Rᵀr, half the gradient of g."""
    push: Callable[[Array], Array]
    """v ↦ R v."""
    pull: Callable[[Array], Array]
    """y ↦ Rᵀ y."""
    weights: Float[Array, "trajectories 1 1"]
    """What the residuals of each trajectory are multiplied by."""
    data: Rollout
    """What the model says that the policy does."""


def batch_residuals(policy: Policy, dynamics: Dynamics, cost: SquaresCost, on: Ground):
    """The residuals of every step, not weighed, and the rollout; a step that does not count has none."""
    data = predicted(policy, dynamics, on)
    each = jax.vmap(jax.vmap(cost.residuals))(data.states[:, :-1], data.commands, data.references)
    return jnp.where(on.valid[..., None], each, 0.0), data


def trajectory_weights(
    residuals: Float[Array, "trajectories steps residuals"],
    valid: Bool[Array, "trajectories steps"],
    outlier: Float[Array, ""] | float | None,
) -> Float[Array, "trajectories 1 1"]:
    """Roots of weights with which squared residuals add up to a mean cost over steps.

    A trajectory that costs more than `outlier` times the median gets the weight at which it costs just that: a motion
    that cannot be followed must not decide about all others. With None all weigh the same. A cost that is not finite
    makes all weights so, and the step is refused.
    """
    steps = valid.sum(axis=1)
    costs = jnp.sum(residuals**2, axis=(1, 2)) / jnp.maximum(steps, 1)
    usual = jnp.nanmedian(jnp.where(steps > 0, costs, jnp.nan))
    tiny = jnp.finfo(costs.dtype).tiny
    share = (
        jnp.minimum(1.0, outlier * usual / jnp.maximum(costs, tiny)) if outlier is not None else jnp.ones_like(costs)
    )
    share = jnp.where(steps > 0, share, 0.0)
    return jnp.sqrt(share / jnp.maximum((share * steps).sum(), tiny))[:, None, None]


def felt_cost(cost: SquaresCost, rollout: Rollout, settings: Settings) -> Float[Array, ""]:
    """What a refinement's prediction is held against: the measured mean cost, weighed in the same way.

    The weights would hide any number of failures among fewer than half of the trajectories, so a share of the plain
    mean counts where it is larger.
    """
    valid = rollout.valid & rollout.valid[:, :1]  # as in refinement: the others have no sound start
    each = jax.vmap(jax.vmap(cost.residuals))(rollout.states[:, :-1], rollout.commands, rollout.references)
    each = jnp.where(valid[..., None], each, 0.0)
    limits = (outlier_limit(settings), None)
    weighed, plain = (jnp.sum((trajectory_weights(each, valid, limit) * each) ** 2) for limit in limits)
    return jnp.maximum(weighed, settings.refinement.mean_share * plain)


def linearised(
    policy: Policy,
    dynamics: Dynamics,
    cost: SquaresCost,
    on: Ground,
    outlier: Float[Array, ""] | float | None,
) -> Weighed:
    """The weighed residuals r at a policy, with R = ∂r/∂φ as two products."""
    parameters, static = eqx.partition(policy, eqx.is_array)
    flat, unravel = ravel_pytree(parameters)

    def at(phi):
        return batch_residuals(eqx.combine(unravel(phi), static), dynamics, cost, on)

    each, forward, data = jax.linearize(at, flat, has_aux=True)
    transpose = jax.linear_transpose(forward, flat)
    weights = trajectory_weights(each, on.valid, outlier)

    def pull(rows):
        return transpose(weights * rows)[0]

    r = weights * each
    return Weighed(jnp.sum(r**2), pull(r), lambda v: weights * forward(v), pull, weights, data)


def gauss_newton_step(
    policy: Policy, at: Weighed, begin: Float[Array, " parameters"], damping: Float[Array, ""], settings: Settings
) -> tuple[Policy, Float[Array, " parameters"], StepReport]:
    """The policy after the step −w, w itself, and what the step was like; `begin` is where the solve of w begins.

    A step that is not finite or breaks a bound is refused: the policy comes back unchanged with `accepted` false.
    """
    alpha, epsilon = settings.policy_step.alpha, settings.policy_step.epsilon
    stride = settings.policy_step.jacobian_stride
    flat, push_u, pull_u, rebuild = command_jacobian(policy, at.data, stride, half_range(policy))

    def product(v):
        return at.pull(at.push(v)) + damping * (epsilon * v + alpha * pull_u(push_u(v)))

    missing = at.slope - product(begin)
    more, relative, used = conjugate_gradients(
        product, missing, iterations=settings.refinement.iterations, tolerance=settings.policy_step.cg_tolerance
    )
    w = begin + more
    tiny = jnp.finfo(flat.dtype).tiny
    image, commands = at.push(w), push_u(w)
    along = at.slope @ w
    curved = jnp.sum(image**2) + damping * (epsilon * (w @ w) + alpha * jnp.sum(commands**2))
    scale = along / jnp.maximum(curved, tiny)
    w, decrease = scale * w, scale * along
    length, change = jnp.linalg.norm(w), jnp.abs(scale) * jnp.linalg.norm(commands)
    limit = 1.0 + BOUND_SLACK
    accepted = (
        jnp.isfinite(at.value)
        & jnp.all(jnp.isfinite(w))
        & (epsilon * damping * length**2 <= limit * at.value)
        & (alpha * damping * change**2 <= limit * at.value)
        & (decrease <= limit * at.value)
    )
    w = jnp.where(accepted, w, 0.0)
    report = StepReport(
        gradient_norm=2.0 * jnp.linalg.norm(at.slope),
        step_norm=jnp.linalg.norm(w),
        command_change=jnp.where(accepted, change, 0.0),
        predicted_decrease=jnp.where(accepted, decrease, 0.0),
        relative_residual=relative * jnp.linalg.norm(missing) / jnp.maximum(jnp.linalg.norm(at.slope), tiny),
        iterations=used,
        accepted=accepted,
        discount=jnp.asarray(1.0, flat.dtype),
    )
    return rebuild(flat - w), w, report


class _Progress(NamedTuple):
    """Carried through the steps of `refine_on_model`."""

    policy: Policy
    direction: Float[Array, " parameters"]
    damping: Float[Array, ""]
    value: Float[Array, ""]
    """Predicted cost of `policy` on the last batch."""
    deviation: Float[Array, ""]
    steps: Int[Array, ""]
    sound: Bool[Array, ""]
    """Whether every step was finite and inside its bounds; otherwise the whole update is refused."""


def refine_on_model(
    policy: Policy,
    dynamics: Dynamics,
    cost: SquaresCost,
    rollout: Rollout,
    imagined: Imagined,
    radius: Float[Array, ""],
    refinement: Refinement,
    settings: Settings,
) -> tuple[Policy, Refinement, Improvement]:
    """`refinement_steps` Gauss–Newton steps, each on the measured trajectories and a batch of imagined ones of its own.

    Fresh references for every step, because tens of thousands of parameters fit any forty trajectories. A step is kept
    when the predicted cost of its own batch falls and the commands stay inside the trust region's radius; λ is then
    halved, down to `refinement_damping`, and otherwise multiplied by four.
    """
    steps, batch = settings.refinement.steps, settings.refinement.batch
    batches = jax.tree.map(lambda a: a[: steps * batch].reshape(steps, batch, *a.shape[1:]), imagined)
    measured = rollout.states.shape[0]
    fixed = ground_of(dynamics, rollout, jax.tree.map(lambda a: a[0], batches))
    before = predicted(policy, dynamics, jax.tree.map(lambda a: a[:measured], fixed)).commands
    least = settings.refinement.damping
    most = settings.refinement.damping_range * least
    easier, harder = settings.refinement.damping_decrease, settings.refinement.damping_increase

    def step(now: _Progress, fresh: Imagined) -> tuple[_Progress, StepReport]:
        on = fixed._replace(
            starts=fixed.starts.at[measured:].set(fresh.starts),
            previews=fixed.previews.at[measured:].set(fresh.previews),
        )
        at = linearised(now.policy, dynamics, cost, on, outlier_limit(settings))
        begin = settings.refinement.memory * now.direction
        candidate, w, report = gauss_newton_step(now.policy, at, begin, now.damping, settings)
        each, data = batch_residuals(candidate, dynamics, cost, on)
        value = jnp.sum((at.weights * each) ** 2)
        moved = deviation(policy, data.commands, before, on)
        keep = report.accepted & (value < at.value) & (moved <= radius)  # false where the value is not finite
        progress = _Progress(
            policy=select_tree(keep, candidate, now.policy),
            direction=jnp.where(keep, w, 0.0),
            damping=jnp.clip(now.damping * jnp.where(keep, easier, harder), least, most),
            value=jnp.where(keep, value, at.value),
            deviation=jnp.where(keep, moved, now.deviation),
            steps=now.steps + keep,
            sound=now.sound & report.accepted,
        )
        return progress, report

    zero = jnp.asarray(0.0, refinement.direction.dtype)
    first = _Progress(
        policy, refinement.direction, refinement.damping, zero, zero, jnp.asarray(0, jnp.int32), jnp.asarray(True)
    )
    end, reports = jax.lax.scan(step, first, batches)
    report = jax.tree.map(lambda a: a[-1], reports)._replace(accepted=end.sound)
    improvement = Improvement(mean_cost(cost, rollout), end.value, end.deviation, end.steps, report)
    return end.policy, Refinement(end.direction, end.damping, jnp.asarray(True)), improvement
