"""Improving the policy after an episode: gradient and preconditioned step, once (the paper) or several times."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..models import Policy
from ..optim.gradient import damped_gradient, mean_cost
from ..optim.preconditioner import StepReport, preconditioned_step
from ..optim.rollout import CostFunction, DynamicsFunction, Rollout
from .buffer import ImaginedStarts
from .command_noise import CommandNoise, Saturated, disturb_commands, find_effects
from .corrected_model import command_deviation, half_range, make_rollout_inputs, predict_rollout
from .settings import Settings
from .track_record import limit_length
from .trees import select_tree


class PolicyReport(NamedTuple):
    """The report of an episode's policy update."""

    cost: Float[Array, ""]
    """Mean cost of the measured episode."""
    predicted_cost: Float[Array, ""]
    """Mean cost that the model predicts for the new policy; NaN when only the paper's one step was taken."""
    deviation: Float[Array, ""]
    """Predicted root mean square difference between the new policy's commands and the old one's, in half ranges."""
    steps_taken: Int[Array, ""]
    """Policy steps that led to the new policy."""
    step: StepReport
    """The last step's report; `accepted` tells whether every step was."""
    dead_band: Float[Array, ""] | float = math.nan
    """The widest dead band that the policy's commands are in: see `find_effects`; NaN where none was looked for."""
    surprise: Float[Array, ""] | float = math.nan
    """Measured cost over the cost predicted for this policy; NaN where nothing was predicted."""
    rolled_back: Bool[Array, ""] | bool = False
    """Whether the new policy is the last proven one, because the episode was much worse than usual."""


def improve_policy(
    policy: Policy,
    dynamics: DynamicsFunction,
    cost: CostFunction,
    rollout: Rollout,
    imagined: ImaginedStarts | None,
    radius: Float[Array, ""] | float,
    settings: Settings,
    usual_length: Float[Array, ""] | float = math.nan,
    *,
    noise: CommandNoise | None = None,
) -> tuple[Policy, PolicyReport]:
    """The policy after an episode's steps.

    With one step that is not judged and nothing imagined this is the paper's update, along the measured trajectories.
    Judged steps go on as long as the model can be trusted; see `improve_on_model`.
    """
    single = settings.policy_step.steps == 1 and not settings.policy_step.judged
    if single and imagined is None:
        return improve_on_measured(policy, dynamics, cost, rollout, settings)
    return improve_on_model(
        policy, dynamics, cost, rollout, imagined, jnp.asarray(radius), settings, jnp.asarray(usual_length), noise=noise
    )


def outlier_limit(settings: Settings) -> Float[Array, ""] | float | None:
    """The factor above which a trajectory is scaled down, or None where that is turned off for all members."""
    factor = settings.policy_step.outlier
    if isinstance(factor, float):
        return factor or None
    return jnp.where(factor > 0, factor, jnp.finfo(factor.dtype).max)


def is_on(number: Float[Array, ""] | float) -> bool:
    """Whether a setting that zero turns off may be on; a traced one, of several members side by side, may."""
    return not isinstance(number, float | int) or number > 0


def _one_step(
    policy,
    dynamics,
    cost,
    data: Rollout,
    settings: Settings,
    pace: Float[Array, ""] | float = 1.0,
    *,
    chained: bool = False,
):
    chosen = settings.policy_step
    gradient, discount = damped_gradient(
        policy,
        dynamics,
        cost,
        data,
        max_norm=chosen.gradient_limit,
        discount=chosen.discount,
        outlier=outlier_limit(settings),
        discount_factor=chosen.discount_shrink,
        max_attempts=chosen.discount_tries,
        chained=chained,
    )
    new, report = preconditioned_step(
        policy,
        gradient,
        data,
        eta=chosen.eta * pace,
        alpha=chosen.alpha,
        epsilon=chosen.epsilon,
        iterations=chosen.cg_iterations,
        tolerance=chosen.cg_tolerance,
        stride=chosen.jacobian_stride,
        command_scale=half_range(policy),
    )
    return new, report._replace(discount=discount)


@eqx.filter_jit
def improve_on_measured(
    policy: Policy, dynamics: DynamicsFunction, cost: CostFunction, rollout: Rollout, settings: Settings
) -> tuple[Policy, PolicyReport]:
    """The paper's update: one gradient along the measured trajectories, one preconditioned step."""
    new, report = _one_step(policy, dynamics, cost, rollout, settings)
    unknown = jnp.asarray(jnp.nan)
    return new, PolicyReport(mean_cost(cost, rollout), unknown, unknown, report.accepted.astype(jnp.int32), report)


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
    """Factor on η in the next step."""


def _initial_progress(policy: Policy) -> _Progress:
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


@eqx.filter_jit
def improve_on_model(
    policy: Policy,
    dynamics: DynamicsFunction,
    cost: CostFunction,
    rollout: Rollout,
    imagined: ImaginedStarts | None,
    radius: Float[Array, ""],
    settings: Settings,
    usual_length: Float[Array, ""] | float = math.nan,
    *,
    noise: CommandNoise | None = None,
) -> tuple[Policy, PolicyReport]:
    """Judged preconditioned steps along the trajectories that the corrected model predicts for each new policy.

    The model is rolled out from the measured starts with the measured model errors added back, so that it is
    exact at the policy that made the data. Imagined trajectories with fresh references keep the policy from fitting
    this episode's references alone. A trajectory whose first step is not valid has no start that the model could be
    rolled out from, and does not count. A step is kept when the predicted cost falls and the predicted commands differ
    from the old policy's by at most `radius` (root mean square); otherwise it is shortened and judged again. Where the
    settings limit it, the policy changes by at most `length_factor` times `usual_length`. The step size grows with
    every step that is kept, to at most η · radius/radius₀: as far as earlier predictions came true. With `noise`, the
    commands of imagined trajectories are disturbed (`disturb_commands`); the prediction that is returned is without.
    """
    inputs = calm = make_rollout_inputs(dynamics, rollout, imagined, settings.imagination.disturbances)
    measured, model = rollout.states.shape[0], dynamics
    dead_bands = jnp.zeros(policy.spec.layout.num_commands)
    disturbed = imagined is not None and noise is not None and is_on(settings.imagination.command_noise)
    if disturbed:
        assert noise is not None
        effects = find_effects(policy.spec, dynamics, rollout, settings)
        dead_bands = effects.dead_bands
        inputs = disturb_commands(calm, policy, measured, effects, settings, noise)
        model = Saturated(dynamics, policy.spec)
    as_in_paper = settings.policy_step.steps == 1 and imagined is None  # one gradient, along what was measured
    last_round = settings.policy_step.steps + settings.policy_step.retries
    fastest = jnp.maximum(radius / settings.trust_region.radius, 1.0)
    # Without excitation these are the measured commands; with it, what the policy alone would have commanded.
    before = predict_rollout(policy, dynamics, jax.tree.map(lambda a: a[:measured], calm)).commands

    def judge(now: _Progress) -> _Progress:
        data = predict_rollout(now.candidate, model, inputs)
        value = mean_cost(cost, data)
        moved = command_deviation(policy, data.commands, before, inputs)
        first = now.rounds == 0
        keep = (value < now.cost) & (moved <= radius)  # false where the value is not finite

        best = select_tree(keep, now.candidate, now.best)

        pace = now.pace * jnp.where(keep, settings.policy_step.pace_growth, settings.policy_step.backtrack)
        pace = jnp.where(first, 1.0, jnp.minimum(pace, fastest))

        def step_on():
            if as_in_paper:
                new, report = _one_step(best, dynamics, cost, rollout, settings, pace)
            else:
                new, report = _one_step(best, model, cost, data, settings, pace, chained=True)
            return limit_length(policy, new, usual_length, settings), report

        def step_back():
            share = settings.policy_step.backtrack
            return jax.tree.map(lambda b, c: b + share * (c - b), best, now.candidate), now.report

        # The last round only judges: a step from there would never be taken.
        steps = now.steps + (keep & ~first)
        more = (now.rounds < last_round) & (steps < settings.policy_step.steps)
        candidate, report = jax.lax.cond(keep & more, step_on, step_back)
        return _Progress(
            best=best,
            candidate=candidate,
            cost=jnp.where(keep, value, now.cost),
            deviation=jnp.where(keep, moved, now.deviation),
            steps=steps,
            rounds=now.rounds + 1,
            sound=now.sound & report.accepted & (jnp.isfinite(value) | ~first),
            report=report,
            pace=pace,
        )

    def unfinished(now: _Progress) -> Bool[Array, ""]:
        return now.sound & (now.rounds <= last_round) & (now.steps < settings.policy_step.steps)

    # One round more than steps and retries: the first only judges the policy that made the data.
    end = jax.lax.while_loop(unfinished, judge, _initial_progress(policy))
    report = end.report._replace(accepted=end.sound)
    predicted = mean_cost(cost, predict_rollout(end.best, dynamics, calm)) if disturbed else end.cost
    widest = dead_bands.max() if disturbed else math.nan
    return end.best, PolicyReport(
        mean_cost(cost, rollout), predicted, end.deviation, end.steps, report, dead_band=jnp.asarray(widest)
    )
