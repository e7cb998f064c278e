"""Backpropagation through time: Adam on the mean cost of the model's own trajectories."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.agent import ImaginedStarts
from firsthand.agent.memory import loop_cost, loop_dynamics
from firsthand.models import Policy
from firsthand.optim.rollout import roll_out

RATE, LONGEST_GRADIENT = 1e-3, 1.0


def optimizer() -> optax.GradientTransformation:
    """Adam, with gradients cut to a length: roll-outs of a young model can be wild."""
    return optax.chain(optax.clip_by_global_norm(LONGEST_GRADIENT), optax.adam(RATE))


def model_cost(policy: Policy, dynamics: Any, cost: Any, imagined: ImaginedStarts) -> Float[Array, ""]:
    """The mean cost per step of trajectories of the model; with a base each begins a motion of its own."""
    starts = imagined.starts
    if policy.control is not None:
        starts = jax.vmap(lambda x: jnp.concat([x, policy.begin(x)]))(starts)
    rollout = roll_out(policy, loop_dynamics(policy, dynamics), starts, previews=imagined.previews)
    of_loop = jax.vmap(jax.vmap(loop_cost(policy, cost)))
    return jnp.mean(of_loop(rollout.states[:, :-1], rollout.commands, rollout.references))


@eqx.filter_jit
def improve_policy(
    policy: Policy,
    moments: Any,
    dynamics: Any,
    cost: Any,
    imagined: ImaginedStarts,
    *,
    steps: int,
    batch: int,
    key: PRNGKeyArray,
) -> tuple[Policy, Any, Float[Array, " steps"]]:
    """`steps` Adam steps on random batches of the imagined trajectories; besides, the cost before each."""

    def loss(layers, chosen):
        return model_cost(eqx.tree_at(lambda p: p.layers, policy, layers), dynamics, cost, chosen)

    def step(carry, step_key):
        layers, moments = carry
        rows = jax.random.choice(step_key, imagined.starts.shape[0], (batch,), replace=False)
        chosen = ImaginedStarts(imagined.starts[rows], imagined.previews[rows])
        value, gradient = jax.value_and_grad(loss)(layers, chosen)
        sound = jax.tree.reduce(lambda a, b: a & b, jax.tree.map(lambda g: jnp.isfinite(g).all(), gradient))
        gradient = jax.tree.map(lambda g: jnp.where(sound, g, 0.0), gradient)
        updates, moments = optimizer().update(gradient, moments, layers)
        return (optax.apply_updates(layers, updates), moments), value

    (layers, moments), costs = jax.lax.scan(step, (policy.layers, moments), jax.random.split(key, steps))
    return eqx.tree_at(lambda p: p.layers, policy, layers), moments, costs
