"""Planning: model predictive path integral control in the latent space, guided by the policy prior."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .config import Config
from .networks import Network, WorldModel, draw_action, member, two_members
from .regression import expected


class Plan(NamedTuple):
    """What planning gives."""

    action: Float[Array, " action"]
    """The action to apply, in [−1, 1]."""
    mean: Float[Array, "horizon action"]
    """Mean of the last sampling distribution, from which the next step's planning starts, shifted by one."""
    value: Float[Array, ""]
    """Value of the best sequence of the last round."""


def unroll(
    model: WorldModel,
    z: Float[Array, " latent"],
    actions: Float[Array, "horizon samples action"],
    discount: float,
    config: Config,
) -> tuple[Float[Array, " samples"], Float[Array, "samples latent"]]:
    """Discounted sum of predicted rewards along action sequences from one z, and the last z of each."""
    total = jnp.zeros(actions.shape[1])
    for t in range(config.horizon):
        total = total + discount**t * expected(model.reward(z, actions[t]), config)
        z = model.next(z, actions[t], config)
    return total, z


def value_at(
    model: WorldModel, policy: Network, z: Float[Array, "samples latent"], config: Config, *, key: PRNGKeyArray
) -> Float[Array, " samples"]:
    """Mean of two randomly chosen Q functions at z, with an action of the policy prior."""
    action_key, member_key = jax.random.split(key)
    action = draw_action(policy, z, config, key=action_key).action
    pair = two_members(model.value, config.members, key=member_key)
    return sum(expected(member(pair, i)(z, action), config) for i in range(2)) / 2  # pyright: ignore[reportReturnType]


def propose(
    model: WorldModel, policy: Network, z: Float[Array, " latent"], config: Config, *, key: PRNGKeyArray
) -> Float[Array, "horizon policy_samples action"]:
    """Action sequences drawn from the policy prior along the model."""
    z = jnp.broadcast_to(z, (config.policy_samples, config.latent))
    actions = []
    for t, step_key in enumerate(jax.random.split(key, config.horizon)):
        actions.append(draw_action(policy, z, config, key=step_key).action)
        if t < config.horizon - 1:
            z = model.next(z, actions[-1], config)
    return jnp.stack(actions)


def plan(
    model: WorldModel,
    policy: Network,
    observation: Float[Array, " observation"],
    previous_mean: Float[Array, "horizon action"],
    first: Bool[Array, ""],
    explore: Bool[Array, ""],
    discount: float,
    config: Config,
    *,
    key: PRNGKeyArray,
) -> Plan:
    """The action for an observation.

    Each round samples action sequences, rates them by predicted rewards and the value at the end, and fits the mean
    and the standard deviation to the best ones. The policy's own sequences take part in every round. At the end one
    of the best sequences is drawn by its weight; when exploring, noise of the last standard deviation is added to its
    first action.
    """
    propose_key, rounds_key, choice_key, noise_key = jax.random.split(key, 4)
    z = model.encode(observation, config)
    size = previous_mean.shape[-1]
    proposed = propose(model, policy, z, config, key=propose_key)
    proposed_total, proposed_end = unroll(model, z, proposed, discount, config)
    free = config.samples - config.policy_samples
    shifted = jnp.concat([previous_mean[1:], jnp.zeros((1, size))])
    mean = jnp.where(first, 0.0, shifted)

    def one_round(carry, round_key):
        mean, std = carry[:2]
        sample_key, value_key = jax.random.split(round_key)
        noise = jax.random.normal(sample_key, (config.horizon, free, size))
        sampled = jnp.clip(mean[:, None] + std[:, None] * noise, -1.0, 1.0)
        total, end = unroll(model, z, sampled, discount, config)
        # The policy's sequences are the same in every round: only the value at their end is drawn anew.
        actions = jnp.concat([proposed, sampled], axis=1)
        end_value = value_at(model, policy, jnp.concat([proposed_end, end]), config, key=value_key)
        value = jnp.concat([proposed_total, total]) + discount**config.horizon * end_value
        best, index = jax.lax.top_k(jnp.nan_to_num(value), config.elites)
        elites = actions[:, index]
        weight = jax.nn.softmax(config.temperature * best)
        mean = jnp.einsum("e,hea->ha", weight, elites)
        std = jnp.sqrt(jnp.einsum("e,hea->ha", weight, (elites - mean[:, None]) ** 2))
        std = jnp.clip(std, config.std_low, config.std_high)
        return (mean, std, weight, elites[0], best[0]), None

    start = (
        mean,
        jnp.full_like(mean, config.std_high),
        jnp.zeros(config.elites),
        jnp.zeros((config.elites, size)),
        jnp.zeros(()),
    )
    (mean, std, weight, firsts, best), _ = jax.lax.scan(one_round, start, jax.random.split(rounds_key, config.rounds))
    action = firsts[jax.random.categorical(choice_key, jnp.log(weight))]
    noise = std[0] * jax.random.normal(noise_key, (size,))
    return Plan(jnp.clip(action + jnp.where(explore, noise, 0.0), -1.0, 1.0), mean, best)
