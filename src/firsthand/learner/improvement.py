"""Improving the policy after an episode: gradient and preconditioned step, once (the paper) or several times."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..models import Dynamics, Policy
from .gradient import closed_loop_gradient, mean_cost
from .hyperparameters import Hyperparameters
from .model_learning import keep_if
from .preconditioner import StepReport, preconditioned_step
from .rollout import CostFunction, Rollout, imagine, residuals


class Imagined(eqx.Module):
    """Where imagined trajectories start and what they follow."""

    starts: Float[Array, "trajectories state"]
    """Initial states."""
    previews: Float[Array, "trajectories steps points outputs"]
    """Reference previews, with fresh references."""


class Improvement(NamedTuple):
    """How an episode's policy update went."""

    cost: Float[Array, ""]
    """Mean cost of the measured episode."""
    predicted_cost: Float[Array, ""]
    """Mean cost that the model predicts for the new policy; NaN when only the paper's one step was taken."""
    deviation: Float[Array, ""]
    """Root mean square by which the new policy's commands differ from the measured ones, as the model predicts."""
    steps_taken: Int[Array, ""]
    """Policy steps that led to the new policy."""
    step: StepReport
    """The last step's report; `accepted` tells whether every step was."""


def improve_policy(
    policy: Policy,
    dynamics: Dynamics,
    cost: CostFunction,
    rollout: Rollout,
    imagined: Imagined | None,
    radius: Float[Array, ""] | float,
    hyper: Hyperparameters,
) -> tuple[Policy, Improvement]:
    """The policy after an episode's steps.

    With one step and nothing imagined this is the paper's update, along the measured trajectories. Further steps go on
    as long as the model can be trusted; see `improve_on_model`.
    """
    if hyper.policy_steps == 1 and imagined is None:
        return improve_on_measured(policy, dynamics, cost, rollout, hyper)
    return improve_on_model(policy, dynamics, cost, rollout, imagined, jnp.asarray(radius), hyper)


def _one_step(policy, dynamics, cost, data: Rollout, hyper: Hyperparameters):
    gradient = closed_loop_gradient(policy, dynamics, cost, data, hyper.discount, hyper.outlier or None)
    return preconditioned_step(
        policy,
        gradient,
        data,
        eta=hyper.eta,
        alpha=hyper.alpha,
        epsilon=hyper.epsilon,
        iterations=hyper.cg_iterations,
        tolerance=hyper.cg_tolerance,
        stride=hyper.jacobian_stride,
    )


@eqx.filter_jit
def improve_on_measured(
    policy: Policy, dynamics: Dynamics, cost: CostFunction, rollout: Rollout, hyper: Hyperparameters
) -> tuple[Policy, Improvement]:
    """The paper's update: one gradient along the measured trajectories, one preconditioned step."""
    new, report = _one_step(policy, dynamics, cost, rollout, hyper)
    unknown = jnp.asarray(jnp.nan)
    return new, Improvement(mean_cost(cost, rollout), unknown, unknown, report.accepted.astype(jnp.int32), report)


class _Progress(NamedTuple):
    """Carried through the steps of `improve_on_model`."""

    policy: Policy
    best: Policy
    best_cost: Float[Array, ""]
    best_deviation: Float[Array, ""]
    best_steps: Int[Array, ""]
    count: Int[Array, ""]
    active: Bool[Array, ""]
    sound: Bool[Array, ""]
    report: StepReport


@eqx.filter_jit
def improve_on_model(
    policy: Policy,
    dynamics: Dynamics,
    cost: CostFunction,
    rollout: Rollout,
    imagined: Imagined | None,
    radius: Float[Array, ""],
    hyper: Hyperparameters,
) -> tuple[Policy, Improvement]:
    """Several preconditioned steps on what the model says the new policy would do.

    The model is rolled out from the measured starts with the measured one-step residuals added back, so that it is
    exact at the policy that made the data. Imagined trajectories with fresh references keep the policy from fitting
    this episode's references alone. The steps end when the predicted commands differ from the measured ones by more
    than `radius` (root mean square), or when the predicted cost rises: the policy with the lowest predicted cost
    inside the radius is the result.
    """
    missed = residuals(dynamics, rollout)
    starts, previews = rollout.states[:, 0], rollout.previews
    measured = starts.shape[0]
    if imagined is not None:
        starts = jnp.concat([starts, imagined.starts])
        previews = jnp.concat([previews, imagined.previews])
        missed = jnp.concat([missed, jnp.zeros((imagined.starts.shape[0], *missed.shape[1:]))])
    extra = starts.shape[0] - measured
    valid = jnp.concat([rollout.valid, jnp.ones((extra, rollout.valid.shape[1]), bool)])

    def predict(policy):
        states, commands = jax.vmap(imagine, in_axes=(None, None, 0, 0, 0))(policy, dynamics, starts, previews, missed)
        data = Rollout(states, commands, previews, jnp.ones(commands.shape, bool), valid)
        change = jnp.where(rollout.valid[..., None], commands[:measured] - rollout.commands, 0.0)
        count = jnp.maximum(rollout.valid.sum() * commands.shape[-1], 1)
        return data, mean_cost(cost, data), jnp.sqrt(jnp.sum(change**2) / count)

    def advance(now: _Progress) -> _Progress:
        data, value, deviation = predict(now.policy)
        trusted = jnp.isfinite(value) & ((deviation <= radius) | (now.count == 0))
        better = trusted & (value < now.best_cost)
        best = keep_if(better, now.policy, now.best)
        new, report = _one_step(now.policy, dynamics, cost, data, hyper)
        # The first prediction is the old policy itself; a rise beyond a tenth means the steps have overshot.
        active = trusted & (value <= 1.1 * now.best_cost) & report.accepted
        return _Progress(
            policy=keep_if(active, new, now.policy),
            best=best,
            best_cost=jnp.where(better, value, now.best_cost),
            best_deviation=jnp.where(better, deviation, now.best_deviation),
            best_steps=jnp.where(better, now.count, now.best_steps),
            count=now.count + 1,
            active=active,
            sound=now.sound & (report.accepted | ~trusted),
            report=keep_if(trusted, report, now.report),
        )

    shapes = jax.eval_shape(lambda: _one_step(policy, dynamics, cost, predict(policy)[0], hyper)[1])
    start = _Progress(
        policy=policy,
        best=policy,
        best_cost=jnp.asarray(jnp.inf),
        best_deviation=jnp.asarray(0.0),
        best_steps=jnp.asarray(0, jnp.int32),
        count=jnp.asarray(0, jnp.int32),
        active=jnp.asarray(True),
        sound=jnp.asarray(True),
        report=jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes),
    )
    # One round more than steps: the last one only judges the last step.
    end = jax.lax.while_loop(lambda now: now.active & (now.count <= hyper.policy_steps), advance, start)
    report = end.report._replace(accepted=end.sound)
    return end.best, Improvement(mean_cost(cost, rollout), end.best_cost, end.best_deviation, end.best_steps, report)
