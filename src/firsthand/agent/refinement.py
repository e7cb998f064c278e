"""Refining a policy that the model predicts well: Gauss–Newton steps on the corrected model, each on fresh references.

The residuals are those of tracking, change of command and joint limits; the step itself, its system and its bounds are
those of `optim.gauss_newton`. The last centimetre needs it: late in a run directions differ by orders of magnitude in
how much they matter, and a gradient step is as short as the steepest of them allows. Each solve begins at a share of
the last solution, so that directions of small curvature are worked out over many steps.
"""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..models import Policy
from ..optim.gauss_newton import gauss_newton_step, linearise, step_residuals, trajectory_weights
from ..optim.gradient import mean_cost
from ..optim.preconditioner import StepReport
from ..optim.rollout import DynamicsFunction, Rollout
from .buffer import ImaginedStarts
from .corrected_model import command_deviation, half_range, make_rollout_inputs, predict_rollout
from .improvement import PolicyReport, outlier_limit
from .settings import Settings
from .trees import select_tree


@runtime_checkable
class LeastSquaresCost(Protocol):
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

    def with_steeper_limits(self, power: int) -> "LeastSquaresCost":
        """The same cost with a joint-limit term of at least this power: smaller in the margin, equal at the limit."""
        ...


class Refinement(eqx.Module):
    """What refinement carries from step to step and from episode to episode."""

    direction: Float[Array, " parameters"]
    """The last solution w, with which the next solve begins; zero where there is none."""
    damping: Float[Array, ""]
    """λ."""
    active: Bool[Array, ""]
    """Whether the policy now in use was refined: its expected cost is then a `weighted_cost`."""

    @staticmethod
    def initial(policy: Policy, settings: Settings) -> "Refinement":
        """Before the first refinement."""
        flat, _ = ravel_pytree(eqx.filter(policy, eqx.is_array))
        return Refinement(
            jnp.zeros_like(flat), jnp.asarray(settings.refinement.damping, flat.dtype), jnp.asarray(False)
        )


def weighted_cost(cost: LeastSquaresCost, rollout: Rollout, settings: Settings) -> Float[Array, ""]:
    """The measured mean cost with the trajectories weighted as in refinement, to compare with its prediction.

    The weights would hide any number of failures among fewer than half of the trajectories, so a share of the plain
    mean counts where it is larger.
    """
    valid = rollout.valid & rollout.valid[:, :1]  # as in refinement: the others have no sound start
    each = step_residuals(cost.residuals, dataclasses.replace(rollout, valid=valid))
    limits = (outlier_limit(settings), None)
    weighted, plain = (jnp.sum((trajectory_weights(each, valid, limit) * each) ** 2) for limit in limits)
    return jnp.maximum(weighted, settings.refinement.mean_share * plain)


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
    dynamics: DynamicsFunction,
    cost: LeastSquaresCost,
    rollout: Rollout,
    imagined: ImaginedStarts,
    radius: Float[Array, ""],
    refinement: Refinement,
    settings: Settings,
) -> tuple[Policy, Refinement, PolicyReport]:
    """`settings.refinement.steps` Gauss–Newton steps, each on the measured trajectories and a new imagined batch.

    Fresh references for every step, because tens of thousands of parameters fit any forty trajectories. A step is kept
    when the predicted cost of its own batch falls and the commands stay inside the trust region's radius; λ is then
    multiplied by `damping_decrease`, down to `damping`, and otherwise by `damping_increase`.
    """
    steps, batch = settings.refinement.steps, settings.refinement.batch
    batches = jax.tree.map(lambda a: a[: steps * batch].reshape(steps, batch, *a.shape[1:]), imagined)
    measured = rollout.states.shape[0]
    first_batch = jax.tree.map(lambda a: a[0], batches)
    fixed = make_rollout_inputs(dynamics, rollout, first_batch, settings.imagination.disturbances)
    before = predict_rollout(policy, dynamics, jax.tree.map(lambda a: a[:measured], fixed)).commands
    lowest = settings.refinement.damping
    highest = settings.refinement.damping_range * lowest
    decrease, increase = settings.refinement.damping_decrease, settings.refinement.damping_increase

    def step(now: _Progress, fresh: ImaginedStarts) -> tuple[_Progress, StepReport]:
        inputs = fixed._replace(
            starts=fixed.starts.at[measured:].set(fresh.starts),
            previews=fixed.previews.at[measured:].set(fresh.previews),
        )
        outlier = outlier_limit(settings)
        at = linearise(now.policy, lambda p: predict_rollout(p, dynamics, inputs), cost.residuals, outlier=outlier)
        candidate, w, report = gauss_newton_step(
            now.policy,
            at,
            damping=now.damping,
            alpha=settings.policy_step.alpha,
            epsilon=settings.policy_step.epsilon,
            begin=settings.refinement.memory * now.direction,
            iterations=settings.refinement.iterations,
            tolerance=settings.policy_step.cg_tolerance,
            stride=settings.policy_step.jacobian_stride,
            command_scale=half_range(policy),
        )
        data = predict_rollout(candidate, dynamics, inputs)
        value = jnp.sum((at.weights * step_residuals(cost.residuals, data)) ** 2)
        moved = command_deviation(policy, data.commands, before, inputs)
        keep = report.accepted & (value < at.value) & (moved <= radius)  # false where the value is not finite
        progress = _Progress(
            policy=select_tree(keep, candidate, now.policy),
            direction=jnp.where(keep, w, 0.0),
            damping=jnp.clip(now.damping * jnp.where(keep, decrease, increase), lowest, highest),
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
    unknown = jnp.asarray(jnp.nan)
    policy_report = PolicyReport(
        mean_cost(cost, rollout), end.value, end.deviation, end.steps, report, dead_band=unknown
    )
    return end.policy, Refinement(end.direction, end.damping, jnp.asarray(True)), policy_report
