"""The model's regret on the newest episode: ℓ(θ_t) there, and the best that any model of this kind reaches there."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.agent.model_learning import split_trainable
from firsthand.models import Dynamics, predicted_entries
from firsthand.optim.rollout import Rollout


def fixed_scale(dynamics: Dynamics) -> Float[Array, " predicted"]:
    """The declared size of a change per period. The model's own scale follows the data, and a regret needs one loss."""
    return jnp.asarray([dynamics.spec.scales.change_scale[i] for i in predicted_entries(dynamics.spec)])


def transition_losses(dynamics: Dynamics, rollout: Rollout) -> Float[Array, "trajectories steps"]:
    """ℓ(θ; z) of every transition, in units of the declared change scales; zero for steps that did not happen."""
    measured = dynamics.spec.layout.num_measured
    states = rollout.states[..., :measured]
    target = jnp.diff(states, axis=1)[..., jnp.asarray(predicted_entries(dynamics.spec))]
    error = (jax.vmap(jax.vmap(dynamics.change))(rollout.states[:, :-1], rollout.commands) - target) / fixed_scale(
        dynamics
    )
    return jnp.where(rollout.valid, jnp.mean(error**2, axis=-1), 0.0)


def episode_loss(dynamics: Dynamics, rollout: Rollout) -> Float[Array, ""]:
    """E_{z ∼ ν_t} ℓ(θ; z): the mean over the episode's transitions."""
    return transition_losses(dynamics, rollout).sum() / jnp.maximum(rollout.valid.sum(), 1)


@eqx.filter_jit
def fitted_loss(
    dynamics: Dynamics, rollout: Rollout, *, key: PRNGKeyArray, steps: int = 200, batch: int = 256, rate: float = 1e-3
) -> Float[Array, ""]:
    """What a model reaches that goes on from this one and learns from this episode alone: at least min_θ E_{ν_t} ℓ.

    Adam with a rate that falls along a cosine; never worse than the model itself.
    """
    weights, fixed = split_trainable(dynamics)
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))
    count = rollout.valid.size
    flat = jax.tree.map(lambda leaf: leaf.reshape(count, 1, *leaf.shape[2:]), _pairs(rollout))

    def advance(carry, step_key):
        weights, moments = carry
        rows = jax.random.randint(step_key, (batch,), 0, count)
        part = jax.tree.map(lambda leaf: leaf[rows], flat)
        gradient = jax.grad(lambda w: episode_loss(eqx.combine(w, fixed), _rollout(part)))(weights)
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(weights, updates), moments), None

    start = (weights, optimizer.init(weights))  # pyright: ignore[reportArgumentType] (a pytree)
    (weights, _), _ = jax.lax.scan(advance, start, jax.random.split(key, steps))
    refit: Dynamics = eqx.combine(weights, fixed)  # pyright: ignore[reportAssignmentType] (a pytree)
    return jnp.minimum(episode_loss(refit, rollout), episode_loss(dynamics, rollout))


def _pairs(rollout: Rollout) -> tuple[Array, ...]:
    """Each transition as a trajectory of one step."""
    both = jnp.stack([rollout.states[:, :-1], rollout.states[:, 1:]], axis=2)
    return both, rollout.commands, rollout.previews, rollout.free, rollout.valid


def _rollout(parts: tuple[Array, ...]) -> Rollout:
    both, *rest = parts
    return Rollout(both[:, 0], *rest)
