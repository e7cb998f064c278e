"""One episode's update: the model, then the policy. What is not finite never reaches the parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .buffer import Buffer
from .gradient import mean_cost
from .hyperparameters import Hyperparameters
from .improvement import Imagined, Improvement, improve_policy
from .model_learning import ModelReport, keep_if, learn_model
from .rollout import CostFunction, Rollout
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
    """Closed-loop gradient and preconditioned step(s); counts the episodes in which an update was refused."""
    measured = jnp.where(jnp.any(rollout.valid), mean_cost(cost, rollout), jnp.nan)  # nothing seen is no good episode
    radius = adapted_radius(state, measured, hyper)
    policy, report = improve_policy(state.policy, state.dynamics, cost, rollout, imagined, radius, hyper)
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
        refused=state.refused + refused,
        refused_in_a_row=(state.refused_in_a_row + 1) * refused,
    )
    return state, report


def adapted_radius(state: LearnerState, cost: Float[Array, ""], hyper: Hyperparameters) -> Float[Array, ""]:
    """The trust-region radius for this episode: wider when the last prediction came true, narrower when it did not."""
    surprise = cost / state.expected_cost
    factor = jnp.where(surprise < 1.5, 1.5, jnp.where(surprise > 3.0, 0.5, 1.0))
    factor = jnp.where(jnp.isfinite(surprise), factor, 1.0)
    return jnp.clip(state.radius * factor, 0.3 * hyper.radius, hyper.radius_most)
