"""Refining a policy that the model predicts well: Gauss–Newton steps on the corrected model, each on fresh references.

The residuals are those of tracking, change of command and joint limits; the step itself, its system and its bounds are
those of `optim.gauss_newton`. The last centimetre needs them: late in a run the curvature differs by orders of
magnitude between directions, and the steepest one limits a gradient step. Each solve starts from a share of the last
solution, so directions of small curvature are resolved over many steps.
"""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..models import Policy
from ..optim.gauss_newton import gauss_newton_step, linearise, step_residuals, trajectory_weights
from ..optim.gradient import mean_cost
from ..optim.parameters import split_parameters
from ..optim.preconditioner import StepReport
from ..optim.rollout import DynamicsFunction, Rollout
from .buffer import ImaginedStarts
from .corrected_model import (
    RolloutInputs,
    command_deviation,
    draw_lags,
    half_range,
    make_rollout_inputs,
    predict_rollout,
)
from .improvement import PolicyReport, is_on, outlier_limit
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
        """The residuals; c is the sum of their squares."""
        ...

    def with_steeper_limits(self, power: int) -> "LeastSquaresCost":
        """The same cost with a joint-limit term of at least this power: smaller in the margin, equal at the limit."""
        ...


class Refinement(eqx.Module):
    """The state of refinement, carried from step to step and from episode to episode."""

    direction: Float[Array, " parameters"]
    """The last solution w, with which the next solve begins; zero where there is none."""
    damping: Float[Array, ""]
    """λ."""
    active: Bool[Array, ""]
    """Whether the policy now in use was refined: its expected cost is then a `weighted_cost`."""
    ahead: Float[Array, " parameters"]
    """The policy that the next steps begin with, minus the one that runs; not zero where that is a running mean."""

    @staticmethod
    def initial(policy: Policy, settings: Settings) -> "Refinement":
        """Before the first refinement."""
        flat, _ = ravel_pytree(split_parameters(policy)[0])
        nothing = jnp.zeros_like(flat)
        return Refinement(
            nothing, jnp.asarray(settings.refinement.damping, flat.dtype), jnp.asarray(False), ahead=nothing
        )


def weighted_value(cost: LeastSquaresCost, rollout: Rollout, settings: Settings) -> Float[Array, ""]:
    """The mean cost with the trajectories weighted as in refinement."""
    each = step_residuals(cost.residuals, rollout)
    return jnp.sum((trajectory_weights(each, rollout.valid, outlier_limit(settings)) * each) ** 2)


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
    *,
    key: PRNGKeyArray,
    noise_share: Float[Array, ""] | float = 1.0,
) -> tuple[Policy, Refinement, PolicyReport]:
    """`settings.refinement.steps` Gauss–Newton steps, each on the measured trajectories and a new imagined batch.

    Fresh references for every step, because tens of thousands of parameters fit any forty trajectories. A step is kept
    when the predicted cost of its own batch falls and the commands stay inside the trust region's radius; λ is then
    multiplied by `damping_decrease`, down to `damping`, and otherwise by `damping_increase`.

    Imagined commands are late, by a random lag of up to `lag` (`LatePolicy`), as far as what the model misses is noise
    (`noise_share`): behind noise the model's delay is never quite that of the robot, and a loop without a phase margin
    swings on the robot where it does not in the model. What is predicted for the next episode is without.

    Each batch pulls the policy its own way. What runs is therefore a running mean of what the steps arrive at, with
    `newest_share` for the newest, unless that is better on a batch that no step has seen. Neither runs where the policy
    that runs now is better there, or where its commands would leave the trust region. The next steps go on from the
    newest, unless that has left the trust region itself. An update that predicts nothing finite is refused.
    """
    steps, batch = settings.refinement.steps, settings.refinement.batch
    batches = jax.tree.map(lambda a: a[: (steps + 1) * batch].reshape(steps + 1, batch, *a.shape[1:]), imagined)
    unseen = jax.tree.map(lambda a: a[-1], batches)
    batches = jax.tree.map(lambda a: a[:-1], batches)
    measured = rollout.states.shape[0]
    first_batch = jax.tree.map(lambda a: a[0], batches)
    fixed = make_rollout_inputs(dynamics, rollout, first_batch, settings.imagination.disturbances)
    before = predict_rollout(policy, dynamics, jax.tree.map(lambda a: a[:measured], fixed)).commands
    lowest = settings.refinement.damping
    highest = settings.refinement.damping_range * lowest
    decrease, increase = settings.refinement.damping_decrease, settings.refinement.damping_increase
    is_late = is_on(settings.refinement.lag)

    def of_batch(fresh: ImaginedStarts) -> RolloutInputs:
        return fixed._replace(
            starts=fixed.starts.at[measured:].set(fresh.starts),
            previews=fixed.previews.at[measured:].set(fresh.previews),
        )

    def step(now: _Progress, drawn: tuple[ImaginedStarts, PRNGKeyArray]) -> tuple[_Progress, StepReport]:
        fresh, step_key = drawn
        inputs = of_batch(fresh)
        if is_late:
            lags = draw_lags(policy, measured, batch, noise_share * settings.refinement.lag, key=step_key)
            inputs = inputs._replace(lags=lags)
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
            steps=now.steps + keep,
            sound=now.sound & report.accepted,
        )
        return progress, report

    parameters, static = split_parameters(policy)
    running, unravel = ravel_pytree(parameters)

    def rebuild(flat: Float[Array, " parameters"]) -> Policy:
        return eqx.combine(unravel(flat), static)

    first = _Progress(
        rebuild(running + refinement.ahead),
        refinement.direction,
        refinement.damping,
        steps=jnp.asarray(0, jnp.int32),
        sound=jnp.asarray(True),
    )
    end, reports = jax.lax.scan(step, first, (batches, jax.random.split(key, steps)))
    newest = ravel_pytree(split_parameters(end.policy)[0])[0]
    mean = running + settings.refinement.newest_share * (newest - running)
    candidates, inputs = jnp.stack([running, mean, newest]), of_batch(unseen)

    def judge(flat: Float[Array, " parameters"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        data = predict_rollout(rebuild(flat), dynamics, inputs)
        return weighted_value(cost, data, settings), command_deviation(policy, data.commands, before, inputs)

    values, moved = jax.lax.map(judge, candidates)
    inside = (moved <= radius).at[0].set(True)  # up to rounding, what runs does not differ from itself
    allowed = jnp.isfinite(values) & inside
    best = jnp.argmin(jnp.where(allowed, values, jnp.inf))  # the first of equals: nothing speaks for a change
    chosen = candidates[best]
    policy_report = PolicyReport(
        mean_cost(cost, rollout),
        predicted_cost=values[best],
        deviation=moved[best],
        steps_taken=end.steps,
        step=jax.tree.map(lambda a: a[-1], reports)._replace(accepted=end.sound & allowed[best]),
        dead_band=jnp.asarray(jnp.nan),
    )
    ahead = jnp.where(allowed[-1], newest - chosen, 0.0)
    after = Refinement(end.direction, end.damping, jnp.asarray(True), ahead=ahead)
    return rebuild(chosen), after, policy_report
