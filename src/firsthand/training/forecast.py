"""The model's prediction for a policy that has not run yet, on the last measured episode."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from firsthand_onboard.features import error_size, measured_part
from firsthand_onboard.kinematics import output_error, tracked_output

from ..agent import Rollout
from ..agent.corrected_model import command_deviation, make_rollout_inputs, predict_rollout
from ..agent.memory import loop_dynamics
from ..models import Controller, Dynamics, Policy, as_controller
from ..optim.rollout import CostFunction
from ..units import TRACKING, Score


@dataclass(frozen=True)
class Forecast:
    """The model's prediction for a policy on the last measured episode."""

    policy_change: float
    """Root mean square change of commands against the policy that ran, in half ranges."""
    error: float
    """Predicted mean tracking error; where nothing is followed, the cost per step."""
    measured_error: float
    """The measured value, with the policy that ran."""
    score: Score = TRACKING
    """The kind and unit of both numbers."""

    def __str__(self) -> str:
        return (
            f"commands change by {self.policy_change:.2f} of the half range, {self.score.short} "
            f"{self.score.unit.with_unit(self.error)} predicted after "
            f"{self.score.unit.with_unit(self.measured_error)} measured"
        )


def forecast(
    policy: Controller | Policy,
    ran: Controller | Policy,
    dynamics: Dynamics,
    rollout: Rollout,
    score: Score = TRACKING,
    seen_before: Rollout | None = None,
    cost: CostFunction | None = None,
) -> Forecast:
    """Predict what a policy does differently from the one that ran, on the last episode as the new one sees it.

    `seen_before` is the episode as the policy that ran sees it, where that is something else: another observer. Where
    nothing is followed `cost` takes the place of the tracking error.
    """
    new, old = as_controller(policy).policy, as_controller(ran).policy
    change, error, measured = (
        float(value) for value in _forecast(new, old, dynamics, rollout, seen_before or rollout, cost)
    )
    return Forecast(change, error, measured, score)


@eqx.filter_jit
def _forecast(
    policy: Policy,
    ran: Policy,
    dynamics: Dynamics,
    rollout: Rollout,
    before: Rollout,
    cost: CostFunction | None,
) -> tuple[Any, Any, Any]:
    model = loop_dynamics(policy, dynamics)
    inputs = make_rollout_inputs(model, rollout, None)
    states, count = rollout.states[:, :-1], inputs.valid.sum()
    new = jax.vmap(jax.vmap(policy))(states, rollout.previews)
    old = jax.vmap(jax.vmap(ran))(before.states[:, :-1], rollout.previews)

    def error(x):
        """NaN where nothing was measured: then nothing can be predicted either."""
        output = jax.vmap(jax.vmap(lambda s: tracked_output(policy.spec, measured_part(policy.spec.layout, s))))(x)
        distance = jnp.where(
            inputs.valid, error_size(policy.spec, output_error(policy.spec, output, rollout.references)), 0.0
        )
        return jnp.where(count > 0, distance.sum() / jnp.maximum(count, 1), jnp.nan)

    def price(states, commands):
        assert cost is not None
        costs = jax.vmap(jax.vmap(cost))(states, commands, rollout.references)
        return jnp.where(count > 0, jnp.where(inputs.valid, costs, 0.0).sum() / jnp.maximum(count, 1), jnp.nan)

    change = jnp.where(count > 0, command_deviation(policy, new, old, inputs), jnp.nan)
    predicted = predict_rollout(policy, model, inputs)
    if cost is not None:
        return change, price(predicted.states[:, :-1], predicted.commands), price(states, rollout.commands)
    return change, error(predicted.states[:, :-1]), error(states)


def interpolate(old: Controller, new: Controller, share: float) -> Controller:
    """Weights that have gone `share` of the way from the old policy to the new one, which keeps its observer."""
    mixed = jax.tree.map(lambda a, b: a + share * (b - a) if eqx.is_inexact_array(a) else a, old.policy, new.policy)
    return Controller(mixed, new.observer)
