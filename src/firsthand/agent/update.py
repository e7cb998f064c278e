"""One episode's update: the model, then the policy. Values that are not finite never reach the parameters."""

import dataclasses
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..models import Policy
from ..optim.gradient import mean_cost
from ..optim.rollout import CostFunction, Rollout
from .buffer import Buffer, ImaginedStarts
from .command_noise import CommandNoise
from .estimation import learn_candidates
from .improvement import PolicyReport, improve_policy
from .memory import loop_cost, loop_dynamics
from .model_learning import ModelReport, learn_model
from .refinement import LeastSquaresCost, Refinement, refine_on_model, weighted_cost
from .settings import Settings
from .state import LearnerState
from .track_record import is_surprise, typical_cost, update_record
from .trees import select_tree

COMMAND_NOISE, LAGS = 1, 2
"""Which of the random numbers that follow from a state's key are for the commands of imagined trajectories."""


@eqx.filter_jit
def update_model(
    state: LearnerState, buffer: Buffer, rollout: Rollout, settings: Settings
) -> tuple[LearnerState, ModelReport]:
    """Adam steps on the model, and on the observer where there is one. One that is not finite is refused.

    An episode without a single valid step (a robot that measures nothing) teaches nothing and is refused too.
    """
    key, batch_key = jax.random.split(state.key)
    before = state.dynamics, state.optimizer, state.estimation
    if state.estimation is None:
        dynamics, optimizer, report = learn_model(
            state.dynamics, state.optimizer, buffer, settings, newest=rollout, key=batch_key
        )
        estimation = None
    else:
        estimation, optimizer, report = learn_candidates(
            state.estimation, state.optimizer, buffer, rollout, settings, key=batch_key
        )
        dynamics = estimation.dynamics
    accepted = report.accepted & jnp.any(rollout.valid)
    dynamics, optimizer, estimation = select_tree(accepted, (dynamics, optimizer, estimation), before)
    report = report._replace(accepted=accepted)
    state = dataclasses.replace(state, dynamics=dynamics, optimizer=optimizer, key=key, estimation=estimation)
    return state, report


@eqx.filter_jit
def update_policy(
    state: LearnerState,
    cost: CostFunction,
    rollout: Rollout,
    imagined: ImaginedStarts | None,
    model: ModelReport,
    settings: Settings,
    generalises: Bool[Array, ""] | None = None,
) -> tuple[LearnerState, PolicyReport]:
    """Closed-loop gradient and preconditioned step(s), or refinement, or the last proven policy after a surprise.

    Counts the episodes with a refused update.

    On top of a base `rollout` and `imagined` are of (x, m); see `agent.memory`.

    `imagined` holds `settings.imagined_trajectories` trajectories, or is None. Refinement waits while the model does
    not predict new episodes (`generalises`; None where nothing was predicted), and while the policy is bad.
    """
    cost = loop_cost(state.policy, cost)
    measured = mean_cost(cost, rollout)
    comparable = measured  # of the same kind as `state.expected_cost`
    if settings.refines:
        weighted = weighted_cost(refinement_cost(cost, settings), rollout, settings)
        comparable = jnp.where(state.refinement.active, weighted, measured)
    comparable = jnp.where(jnp.any(rollout.valid), comparable, jnp.nan)  # nothing was seen: not a cost of zero
    radius = adapt_radius(state, comparable, settings)
    largest = jnp.fmax(state.largest_cost, jnp.where(jnp.any(rollout.valid), measured, 0.0)).astype(jnp.float32)
    due = is_refinement_due(measured, largest, settings)
    due = due if generalises is None else due & generalises
    noise_share = state.noise_share(settings)
    if imagined is not None and state.estimation is not None:
        shares = jnp.broadcast_to(noise_share, imagined.starts.shape[:1])
        imagined = dataclasses.replace(imagined, disturbance=shares)
    need = jnp.sqrt(jnp.clip(measured / (settings.refinement.progress * largest), 0.0, 1.0))
    noise = CommandNoise(jax.random.fold_in(state.key, COMMAND_NOISE), need)
    noise = noise if state.policy.control is None else None  # a base is out of its dead bands already
    policy, refinement, report = _improve_or_refine(
        state, cost, rollout, imagined, radius, due, noise, noise_share, settings
    )
    report = report._replace(cost=measured, surprise=comparable / state.expected_cost)
    accepted = model.accepted & report.step.accepted & jnp.isfinite(report.cost)
    typical = typical_cost(cost, rollout, settings)
    surprise = is_surprise(state.record, typical, state.expected_cost, settings)
    policy = select_tree(surprise, state.record.proven, select_tree(accepted, policy, state.policy))
    record = update_record(state.record, state.policy, policy, typical, state.expected_cost, surprise, settings)
    report = report._replace(
        step=report.step._replace(accepted=accepted),
        steps_taken=jnp.where(surprise, 0, report.steps_taken),
        rolled_back=surprise,
    )
    refused = jnp.where(accepted, 0, 1).astype(jnp.int32)
    goes_on = accepted & ~surprise
    state = LearnerState(
        policy=policy,
        dynamics=state.dynamics,
        optimizer=state.optimizer,
        key=state.key,
        radius=radius,
        expected_cost=jnp.where(goes_on, report.predicted_cost, jnp.nan).astype(jnp.float32),
        refinement=select_tree(goes_on, refinement, Refinement.initial(state.policy, settings)),
        record=record,
        largest_cost=largest,
        refused=state.refused + refused,
        refused_in_a_row=(state.refused_in_a_row + 1) * refused,
        estimation=state.estimation,
    )
    return state, report


def _improve_or_refine(
    state: LearnerState,
    cost: CostFunction,
    rollout: Rollout,
    imagined: ImaginedStarts | None,
    radius: Float[Array, ""],
    due: Bool[Array, ""],
    noise: CommandNoise | None,
    noise_share: Float[Array, ""],
    settings: Settings,
) -> tuple[Policy, Refinement, PolicyReport]:
    """Preconditioned steps while the trust region grows; once it is as wide as it gets, refinement where it is due.

    One surprise does not end refinement; a second one before the radius is wide again does. It neither begins nor goes
    on where nothing was predicted for the policy that ran: after an operator's or the guard's change, for example.
    """
    dynamics = loop_dynamics(state.policy, state.dynamics)
    few = None if imagined is None else jax.tree.map(lambda a: a[: settings.imagination.trajectories], imagined)

    def improve() -> tuple[Policy, Refinement, PolicyReport]:
        usual_length = state.record.usual_length
        policy, report = improve_policy(
            state.policy, dynamics, cost, rollout, few, radius, settings, usual_length, noise=noise
        )
        return policy, Refinement.initial(policy, settings), report

    def refine() -> tuple[Policy, Refinement, PolicyReport]:
        assert imagined is not None
        steep = refinement_cost(cost, settings)
        key = jax.random.fold_in(state.key, LAGS)
        return refine_on_model(
            state.policy,
            dynamics,
            steep,
            rollout,
            imagined,
            radius,
            state.refinement,
            settings,
            key=key,
            noise_share=noise_share,
        )

    if imagined is None or not settings.refines:
        return improve()
    share = jnp.where(state.refinement.active, settings.refinement.min_radius_share, 1.0)
    enough = share * settings.trust_region.max_radius
    trusted = due & (radius >= enough) & jnp.isfinite(state.expected_cost)
    return jax.lax.cond(trusted, refine, improve)


def is_refinement_due(cost: Float[Array, ""], largest: Float[Array, ""], settings: Settings) -> Bool[Array, ""]:
    """Whether the policy is good enough to be refined, by its cost now and the largest so far."""
    return (cost <= settings.refinement.max_cost) | (cost <= settings.refinement.progress * largest)


def refinement_cost(cost: CostFunction, settings: Settings) -> LeastSquaresCost:
    """The cost that refinement minimises: that of the task, with steeper joint limits."""
    return cast(LeastSquaresCost, cost).with_steeper_limits(settings.refinement.limit_power)


def adapt_radius(state: LearnerState, cost: Float[Array, ""], settings: Settings) -> Float[Array, ""]:
    """The trust-region radius for this episode: wider when the last prediction came true, narrower when it did not."""
    region = settings.trust_region
    surprise = cost / state.expected_cost
    shrink_or_stay = jnp.where(surprise > region.shrink_surprise, region.shrink, 1.0)
    factor = jnp.where(surprise < region.growth_surprise, region.growth, shrink_or_stay)
    factor = jnp.where(jnp.isfinite(surprise), factor, 1.0)
    return jnp.clip(state.radius * factor, region.min_share * region.radius, region.max_radius)
