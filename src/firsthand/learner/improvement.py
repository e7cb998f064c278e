"""Improving the policy after an episode: gradient and preconditioned step, once (the paper) or several times."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..models import Dynamics, Policy
from .gradient import damped_gradient, mean_cost
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
    """Root mean square by which the new policy's commands differ from the old one's, as the model predicts."""
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


def half_range(policy: Policy) -> Float[Array, " commands"]:
    """Half the range of each command channel: what commands are counted in, so that every robot's are of order one."""
    limits = policy.spec.limits
    return (jnp.asarray(limits.command_high) - jnp.asarray(limits.command_low)) / 2


def _one_step(
    policy,
    dynamics,
    cost,
    data: Rollout,
    hyper: Hyperparameters,
    pace: Float[Array, ""] | float = 1.0,
    *,
    chained: bool = False,
):
    gradient, discount = damped_gradient(
        policy, dynamics, cost, data, hyper.discount, hyper.gradient_limit, hyper.outlier or None, chained=chained
    )
    new, report = preconditioned_step(
        policy,
        gradient,
        data,
        eta=hyper.eta * pace,
        alpha=hyper.alpha,
        epsilon=hyper.epsilon,
        iterations=hyper.cg_iterations,
        tolerance=hyper.cg_tolerance,
        stride=hyper.jacobian_stride,
        command_scale=half_range(policy),
    )
    return new, report._replace(discount=discount)


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

    best: Policy
    """The policy with the lowest predicted cost inside the radius so far."""
    candidate: Policy
    """The policy to be judged next."""
    cost: Float[Array, ""]
    """Predicted mean cost of `best`."""
    deviation: Float[Array, ""]
    """Predicted deviation of `best` from the measured commands."""
    steps: Int[Array, ""]
    """Steps that led to `best`."""
    rounds: Int[Array, ""]
    """Candidates judged."""
    sound: Bool[Array, ""]
    """Whether every step was finite and inside its bounds."""
    report: StepReport
    """The last step's report."""
    pace: Float[Array, ""]
    """What η is multiplied by in the next step."""


def _first(policy: Policy) -> _Progress:
    zero = jnp.asarray(0.0)
    no_step = StepReport(zero, zero, zero, zero, zero, jnp.asarray(0, jnp.int32), jnp.asarray(True), zero)
    return _Progress(
        best=policy,
        candidate=policy,
        cost=jnp.asarray(jnp.inf),
        deviation=jnp.asarray(0.0),
        steps=jnp.asarray(0, jnp.int32),
        rounds=jnp.asarray(0, jnp.int32),
        sound=jnp.asarray(True),
        report=no_step,
        pace=jnp.asarray(1.0),
    )


class _Ground(NamedTuple):
    """What the model is rolled out on: the measured trajectories, then the imagined ones."""

    starts: Float[Array, "trajectories state"]
    previews: Float[Array, "trajectories steps points outputs"]
    missed: Float[Array, "trajectories steps state"]
    """The measured one-step residuals; zero on imagined trajectories."""
    applied: Float[Array, "trajectories steps commands"]
    free: Bool[Array, "trajectories steps commands"]
    valid: Bool[Array, "trajectories steps"]
    """Steps that count. None does on a measured trajectory whose first step is not valid: it has no sound start."""


def _ground(dynamics: Dynamics, rollout: Rollout, imagined: Imagined | None) -> _Ground:
    missed = residuals(dynamics, rollout)
    starts, previews = rollout.states[:, 0], rollout.previews
    extra = 0
    if imagined is not None:
        extra = imagined.starts.shape[0]
        starts = jnp.concat([starts, imagined.starts])
        previews = jnp.concat([previews, imagined.previews])
        missed = jnp.concat([missed, jnp.zeros((extra, *missed.shape[1:]))])
    blank = jnp.zeros((extra, *rollout.commands.shape[1:]))
    return _Ground(
        starts,
        previews,
        missed,
        applied=jnp.concat([rollout.commands, blank]),
        free=jnp.concat([rollout.free, jnp.ones(blank.shape, bool)]),
        valid=jnp.concat([rollout.valid & rollout.valid[:, :1], jnp.ones(blank.shape[:2], bool)]),
    )


def _predicted(policy: Policy, dynamics: Dynamics, on: _Ground) -> Rollout:
    """What the model says that a policy does."""
    predict = jax.vmap(imagine, in_axes=(None, None, 0, 0, 0, 0, 0))
    states, commands = predict(policy, dynamics, on.starts, on.previews, on.missed, on.applied, on.free)
    return Rollout(states, commands, on.previews, on.free, on.valid)


BACKTRACK = 0.4
"""A step that the prediction does not bear out is shortened to this share."""


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
    this episode's references alone. A trajectory whose first step is not valid has no start that the model could be
    rolled out from, and does not count. A step is kept when the predicted cost falls and the predicted commands differ
    from the old policy's by at most `radius` (root mean square); otherwise it is shortened and judged again. The step
    size grows with every step that is kept, to at most η · radius/radius₀: as far as earlier predictions came true.
    """
    ground = _ground(dynamics, rollout, imagined)
    measured = rollout.states.shape[0]
    counted = ground.valid[:measured]
    commanded = jnp.maximum(counted.sum() * rollout.commands.shape[-1], 1)
    fastest = jnp.maximum(radius / hyper.radius, 1.0)
    # Without excitation these are the measured commands; with it, what the policy alone would have commanded.
    before = _predicted(policy, dynamics, jax.tree.map(lambda a: a[:measured], ground)).commands

    def judge(now: _Progress) -> _Progress:
        data = _predicted(now.candidate, dynamics, ground)
        value = mean_cost(cost, data)
        change = jnp.where(counted[..., None], (data.commands[:measured] - before) / half_range(policy), 0.0)
        deviation = jnp.sqrt(jnp.sum(change**2) / commanded)
        first = now.rounds == 0
        keep = (value < now.cost) & (deviation <= radius)  # false where the value is not finite

        best = keep_if(keep, now.candidate, now.best)

        pace = now.pace * jnp.where(keep, hyper.pace_growth, BACKTRACK)
        pace = jnp.where(first, 1.0, jnp.minimum(pace, fastest))

        def step_on():
            return _one_step(best, dynamics, cost, data, hyper, pace, chained=True)

        def step_back():
            return jax.tree.map(lambda b, c: b + BACKTRACK * (c - b), best, now.candidate), now.report

        # The last round only judges: a step from there would never be taken.
        candidate, report = jax.lax.cond(keep & (now.rounds < hyper.policy_steps), step_on, step_back)
        return _Progress(
            best=best,
            candidate=candidate,
            cost=jnp.where(keep, value, now.cost),
            deviation=jnp.where(keep, deviation, now.deviation),
            steps=now.steps + (keep & ~first),
            rounds=now.rounds + 1,
            sound=now.sound & report.accepted & (jnp.isfinite(value) | ~first),
            report=report,
            pace=pace,
        )

    # One round more than steps: the first only judges the policy that made the data.
    end = jax.lax.while_loop(lambda now: now.sound & (now.rounds <= hyper.policy_steps), judge, _first(policy))
    report = end.report._replace(accepted=end.sound)
    return end.best, Improvement(mean_cost(cost, rollout), end.cost, end.deviation, end.steps, report)
