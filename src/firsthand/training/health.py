"""What tells whether the model and the loop that it is used in are sound."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..agent import Rollout
from ..optim.rollout import DynamicsFunction, PolicyFunction


@eqx.filter_jit
def closed_loop_growth(policy: PolicyFunction, dynamics: DynamicsFunction, rollout: Rollout) -> Float[Array, ""]:
    """By which factor a small deviation grows per step along the measured trajectories, as the model sees it.

    A deviation v is carried along by A + BK, v ← (A + BK) v, and scaled back to length one after each step; the result
    is the geometric mean of what it was scaled by. Above one the model believes that the closed loop is unstable.
    """
    first = jax.random.normal(jax.random.key(0), rollout.states.shape[-1:], rollout.states.dtype)
    tiny = jnp.finfo(rollout.states.dtype).tiny

    def one(states, previews, valid):
        def step(deviation, inputs):
            state, preview, counts = inputs
            _, moved = jax.jvp(lambda x: dynamics(x, policy(x, preview)), (state,), (deviation,))
            size = jnp.linalg.norm(moved)
            # Where nothing is left of a deviation, any other one says more.
            following = jnp.where(size > tiny, moved / jnp.maximum(size, tiny), first / jnp.linalg.norm(first))
            return jnp.where(counts, following, deviation), jnp.where(counts, jnp.log(jnp.maximum(size, tiny)), 0.0)

        return jax.lax.scan(step, first / jnp.linalg.norm(first), (states[:-1], previews, valid))[1]

    logarithms = jax.vmap(one)(rollout.states, rollout.previews, rollout.valid)
    return jnp.exp(logarithms.sum() / jnp.maximum(rollout.valid.sum(), 1))
