"""The true gradient: the cost of a policy on the simulated plant itself, differentiated through the plant.

Nothing here is available on a real robot. The learner's estimate ∇̂g is `optim.gradient.damped_gradient`; the paper's
gradient error is δ = ∇̂g − ∇g with ∇g from here.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from firsthand.optim.rollout import CostFunction
from firsthand.plants.base import AbstractPlant
from firsthand.robots.base import preview_indices
from firsthand_onboard import ControlSpec
from firsthand_onboard.features import next_state

KEY = 0
"""Seed of what a plant may need a key for. The plants of these experiments have neither noise nor drift."""


class Starts(eqx.Module):
    """Where the trajectories of an episode began. They count as given: no derivative passes through them."""

    plant: PyTree
    """The plant's own states, with a leading trajectory axis."""
    states: Float[Array, "trajectories state"]
    """The state vectors."""


def scale_gradient(tree: PyTree, discount: Float[Array, ""] | float) -> PyTree:
    """The same values; derivatives through them count `discount`."""
    return jax.tree.map(
        lambda v: discount * v + (1.0 - discount) * jax.lax.stop_gradient(v) if eqx.is_inexact_array(v) else v, tree
    )


def trajectory_costs(
    plant: AbstractPlant,
    policy: PyTree,
    spec: ControlSpec,
    cost: CostFunction,
    starts: Starts,
    references: Float[Array, "trajectories points outputs"],
    applied: Float[Array, "trajectories steps commands"] | None = None,
    discount: Float[Array, ""] | float = 1.0,
    replay: Bool[Array, ""] | bool = True,
) -> Float[Array, " trajectories"]:
    """The mean cost per step of each trajectory, differentiable with respect to the policy.

    With `applied` and `replay`, commands have these values and the policy's derivatives, as in the learner: for an
    episode in which random commands were added. A `discount` γ does what it does in the learner: it multiplies A + BK
    and nothing else. So with γ the derivative is what the learner would have computed with a perfect model, and with
    γ = 1 it is the true one.
    """
    steps = references.shape[1] - spec.preview[-1]
    indices = preview_indices(spec, steps)

    def one(plant_state, state, points, done):
        def act(state, preview, taken):
            command = policy(state, preview)
            if taken is None:
                return command
            return jnp.where(replay, taken - jax.lax.stop_gradient(command), 0.0) + command

        def step(carry, inputs):
            plant_state, state = carry
            preview, taken = inputs
            value = cost(state, act(state, preview, taken), preview[0])
            plant_state, state = scale_gradient((plant_state, state), discount)
            command = act(state, preview, taken)
            plant_state = plant.step(plant_state, command, key=jax.random.key(KEY))
            measured = plant.measure(plant_state, key=jax.random.key(KEY))
            return (plant_state, next_state(spec.layout, state, command, measured)), value

        _, values = jax.lax.scan(step, (plant_state, state), (points[indices], done))
        return values.mean()

    return jax.vmap(one)(starts.plant, starts.states, references, applied)


def plant_gradient(
    plant: AbstractPlant,
    policy: PyTree,
    spec: ControlSpec,
    cost: CostFunction,
    starts: Starts,
    references: Float[Array, "trajectories points outputs"],
    applied: Float[Array, "trajectories steps commands"] | None = None,
    discount: Float[Array, ""] | float = 1.0,
    replay: Bool[Array, ""] | bool = True,
) -> tuple[Float[Array, ""], PyTree]:
    """g(φ; x̃), the mean cost over steps and trajectories, and ∇g like `policy` (arrays only)."""

    def value(policy):
        return trajectory_costs(plant, policy, spec, cost, starts, references, applied, discount, replay).mean()

    return eqx.filter_value_and_grad(value)(policy)


@eqx.filter_jit
def trajectory_starts(
    plant: AbstractPlant,
    now: Any,
    commands: Float[Array, "trajectories steps commands"] | np.ndarray,
    states: Float[Array, "trajectories state"] | np.ndarray,
) -> Starts:
    """Where each trajectory of an episode began, by playing its commands again from the plant state before it.

    `states` are the state vectors that were recorded there.
    """

    def step(plant_state, command):
        return plant.step(plant_state, command, key=jax.random.key(KEY)), None

    def trajectory(plant_state, commands):
        end, _ = jax.lax.scan(step, plant_state, commands)
        return end, plant_state

    _, first = jax.lax.scan(trajectory, now, commands)
    return Starts(first, jnp.asarray(states))
