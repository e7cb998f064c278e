"""One episode's update: the model, then the policy. What is not finite never reaches the parameters."""

from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models import Policy
from ..optim.gradient import mean_cost
from ..optim.rollout import CostFunction, Rollout, SquaresCost
from .buffer import Buffer
from .ground import Imagined
from .hyperparameters import Hyperparameters
from .improvement import Improvement, improve_policy
from .model_learning import ModelReport, keep_if, learn_model
from .refinement import Refinement, felt_cost, refine_on_model
from .state import LearnerState


@eqx.filter_jit
def update_model(
    state: LearnerState, buffer: Buffer, rollout: Rollout, hyper: Hyperparameters
) -> tuple[LearnerState, ModelReport]:
    """Adam steps on the one-step loss. A model that is not finite is refused: the old one stays.

    An episode without a single valid step (a robot that measures nothing) teaches nothing and is refused too.
    """
    key, batch_key = jax.random.split(state.key)
    dynamics, optimizer, report = learn_model(state.dynamics, state.optimizer, buffer, hyper, key=batch_key)
    accepted = report.accepted & jnp.any(rollout.valid)
    dynamics, optimizer = keep_if(accepted, (dynamics, optimizer), (state.dynamics, state.optimizer))
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
    hyper: Hyperparameters,
) -> tuple[LearnerState, Improvement]:
    """Closed-loop gradient and preconditioned step(s), or refinement; counts the episodes with a refused update.

    `imagined` holds `hyper.imagined_in_all` trajectories, or is None.
    """
    measured = mean_cost(cost, rollout)
    felt = measured
    if hyper.refines:
        felt = jnp.where(state.refinement.active, felt_cost(steepened(cost, hyper), rollout, hyper.outlier), measured)
    felt = jnp.where(jnp.any(rollout.valid), felt, jnp.nan)  # an episode of which nothing was seen is no good one
    radius = adapted_radius(state, felt, hyper)
    policy, refinement, report = _improved(state, cost, rollout, imagined, radius, hyper)
    report = report._replace(cost=measured, surprise=felt / state.expected_cost)
    accepted = model.accepted & report.step.accepted & jnp.isfinite(report.cost)
    report = report._replace(step=report.step._replace(accepted=accepted))
    refused = jnp.where(accepted, 0, 1).astype(jnp.int32)
    state = LearnerState(
        policy=keep_if(accepted, policy, state.policy),
        dynamics=state.dynamics,
        optimizer=state.optimizer,
        key=state.key,
        radius=radius,
        expected_cost=jnp.where(accepted, report.predicted_cost, jnp.nan).astype(jnp.float32),
        refinement=keep_if(accepted, refinement, Refinement.none(state.policy, hyper)),
        refused=state.refused + refused,
        refused_in_a_row=(state.refused_in_a_row + 1) * refused,
    )
    return state, report


STILL_TRUSTED = 0.4
"""Refinement goes on down to this share of the widest radius: after one halving, not after two."""


def _improved(
    state: LearnerState,
    cost: CostFunction,
    rollout: Rollout,
    imagined: Imagined | None,
    radius: Float[Array, ""],
    hyper: Hyperparameters,
) -> tuple[Policy, Refinement, Improvement]:
    """Preconditioned steps while the trust region grows; once it is as wide as it gets, refinement in their place.

    One surprise does not end refinement; a second one before the radius is wide again does. It neither begins nor goes
    on where nothing was predicted for the policy that ran: after an operator's or the guard's change, for example.
    """
    few = None if imagined is None else jax.tree.map(lambda a: a[: hyper.imagined], imagined)

    def preconditioned() -> tuple[Policy, Refinement, Improvement]:
        policy, report = improve_policy(state.policy, state.dynamics, cost, rollout, few, radius, hyper)
        return policy, Refinement.none(policy, hyper), report

    def refined() -> tuple[Policy, Refinement, Improvement]:
        assert imagined is not None
        fine = steepened(cost, hyper)
        return refine_on_model(state.policy, state.dynamics, fine, rollout, imagined, radius, state.refinement, hyper)

    if imagined is None or not hyper.refines:
        return preconditioned()
    enough = jnp.where(state.refinement.active, STILL_TRUSTED, 1.0) * hyper.radius_most
    trusted = (radius >= enough) & jnp.isfinite(state.expected_cost)
    return jax.lax.cond(trusted, refined, preconditioned)


def steepened(cost: CostFunction, hyper: Hyperparameters) -> SquaresCost:
    """The cost that refinement minimises."""
    return cast(SquaresCost, cost).steepened(hyper.refinement_limit_power)


def adapted_radius(state: LearnerState, cost: Float[Array, ""], hyper: Hyperparameters) -> Float[Array, ""]:
    """The trust-region radius for this episode: wider when the last prediction came true, narrower when it did not."""
    surprise = cost / state.expected_cost
    factor = jnp.where(surprise < 1.5, 1.5, jnp.where(surprise > 3.0, 0.5, 1.0))
    factor = jnp.where(jnp.isfinite(surprise), factor, 1.0)
    return jnp.clip(state.radius * factor, 0.3 * hyper.radius, hyper.radius_most)
