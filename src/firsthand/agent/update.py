"""One episode's update: the model, then the policy. What is not finite never reaches the parameters."""

from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models import Policy
from ..optim.gradient import mean_cost
from ..optim.rollout import CostFunction, Rollout
from .buffer import Buffer
from .ground import Imagined
from .improvement import Improvement, improve_policy
from .model_learning import ModelReport, learn_model
from .refinement import Refinement, SquaresCost, felt_cost, refine_on_model
from .settings import Settings
from .state import LearnerState
from .trees import select_tree


@eqx.filter_jit
def update_model(
    state: LearnerState, buffer: Buffer, rollout: Rollout, settings: Settings
) -> tuple[LearnerState, ModelReport]:
    """Adam steps on the one-step loss. A model that is not finite is refused: the old one stays.

    An episode without a single valid step (a robot that measures nothing) teaches nothing and is refused too.
    """
    key, batch_key = jax.random.split(state.key)
    dynamics, optimizer, report = learn_model(state.dynamics, state.optimizer, buffer, settings, key=batch_key)
    accepted = report.accepted & jnp.any(rollout.valid)
    dynamics, optimizer = select_tree(accepted, (dynamics, optimizer), (state.dynamics, state.optimizer))
    report = report._replace(accepted=accepted)
    state = eqx.tree_at(lambda s: (s.dynamics, s.optimizer, s.key), state, (dynamics, optimizer, key))
    return state, report


@eqx.filter_jit
def update_policy(
    state: LearnerState,
    cost: CostFunction,
    rollout: Rollout,
    imagined: Imagined | None,
    model: ModelReport,
    settings: Settings,
) -> tuple[LearnerState, Improvement]:
    """Closed-loop gradient and preconditioned step(s), or refinement; counts the episodes with a refused update.

    `imagined` holds `settings.imagined_trajectories` trajectories, or is None.
    """
    measured = mean_cost(cost, rollout)
    felt = measured
    if settings.refines:
        felt = jnp.where(state.refinement.active, felt_cost(steepened(cost, settings), rollout, settings), measured)
    felt = jnp.where(jnp.any(rollout.valid), felt, jnp.nan)  # an episode of which nothing was seen is no good one
    radius = adapted_radius(state, felt, settings)
    policy, refinement, report = _improved(state, cost, rollout, imagined, radius, settings)
    report = report._replace(cost=measured, surprise=felt / state.expected_cost)
    accepted = model.accepted & report.step.accepted & jnp.isfinite(report.cost)
    report = report._replace(step=report.step._replace(accepted=accepted))
    refused = jnp.where(accepted, 0, 1).astype(jnp.int32)
    state = LearnerState(
        policy=select_tree(accepted, policy, state.policy),
        dynamics=state.dynamics,
        optimizer=state.optimizer,
        key=state.key,
        radius=radius,
        expected_cost=jnp.where(accepted, report.predicted_cost, jnp.nan).astype(jnp.float32),
        refinement=select_tree(accepted, refinement, Refinement.none(state.policy, settings)),
        refused=state.refused + refused,
        refused_in_a_row=(state.refused_in_a_row + 1) * refused,
    )
    return state, report


def _improved(
    state: LearnerState,
    cost: CostFunction,
    rollout: Rollout,
    imagined: Imagined | None,
    radius: Float[Array, ""],
    settings: Settings,
) -> tuple[Policy, Refinement, Improvement]:
    """Preconditioned steps while the trust region grows; once it is as wide as it gets, refinement in their place.

    One surprise does not end refinement; a second one before the radius is wide again does. It neither begins nor goes
    on where nothing was predicted for the policy that ran: after an operator's or the guard's change, for example.
    """
    few = None if imagined is None else jax.tree.map(lambda a: a[: settings.imagination.trajectories], imagined)

    def preconditioned() -> tuple[Policy, Refinement, Improvement]:
        policy, report = improve_policy(state.policy, state.dynamics, cost, rollout, few, radius, settings)
        return policy, Refinement.none(policy, settings), report

    def refined() -> tuple[Policy, Refinement, Improvement]:
        assert imagined is not None
        fine = steepened(cost, settings)
        return refine_on_model(
            state.policy, state.dynamics, fine, rollout, imagined, radius, state.refinement, settings
        )

    if imagined is None or not settings.refines:
        return preconditioned()
    share = jnp.where(state.refinement.active, settings.refinement.min_radius_share, 1.0)
    enough = share * settings.trust_region.max_radius
    trusted = (radius >= enough) & jnp.isfinite(state.expected_cost)
    return jax.lax.cond(trusted, refined, preconditioned)


def steepened(cost: CostFunction, settings: Settings) -> SquaresCost:
    """The cost that refinement minimises."""
    return cast(SquaresCost, cost).steepened(settings.refinement.limit_power)


def adapted_radius(state: LearnerState, cost: Float[Array, ""], settings: Settings) -> Float[Array, ""]:
    """The trust-region radius for this episode: wider when the last prediction came true, narrower when it did not."""
    region = settings.trust_region
    surprise = cost / state.expected_cost
    shrink_or_stay = jnp.where(surprise > region.shrink_surprise, region.shrink, 1.0)
    factor = jnp.where(surprise < region.growth_surprise, region.growth, shrink_or_stay)
    factor = jnp.where(jnp.isfinite(surprise), factor, 1.0)
    return jnp.clip(state.radius * factor, region.min_share * region.radius, region.max_radius)
