"""Planning: model predictive path integral control in the latent space, guided by the policy prior."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .config import Config
from .networks import Network, WorldModel, draw_action, draw_pairs, values_of_pair
from .regression import expected_value


class PlanNoise(NamedTuple):
    """The random numbers of one action. They are drawn outside of what is compiled: that is faster in both ways."""

    proposals: Float[Array, "horizon policy_samples action"]
    """For the policy's own sequences."""
    samples: Float[Array, "rounds horizon free action"]
    """For the sampled sequences."""
    ends: Float[Array, "rounds samples action"]
    """For the policy's actions at the ends of all sequences."""
    pairs: Int[Array, "rounds 2"]
    """Which two Q functions rate the ends."""
    choice: Float[Array, " elites"]
    """Gumbel noise that chooses among the best sequences by their weights."""
    exploration: Float[Array, " action"]
    """For the noise on the chosen action."""


def draw_plan_noise(config: Config, action_size: int, rng: np.random.Generator) -> PlanNoise:
    """Fresh random numbers for one action."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((*shape, action_size), np.float32)

    numbers: Any = {
        "proposals": normal(config.horizon, config.policy_samples),
        "samples": normal(config.rounds, config.horizon, config.samples - config.policy_samples),
        "ends": normal(config.rounds, config.samples),
        "pairs": draw_pairs(config.rounds, config.members, rng),
        "choice": rng.gumbel(size=config.elites).astype(np.float32),
        "exploration": normal(),
    }
    return PlanNoise(**numbers)


class Plan(NamedTuple):
    """The result of planning."""

    action: Float[Array, " action"]
    """The action to apply, in [−1, 1]."""
    mean: Float[Array, "horizon action"]
    """Mean of the last sampling distribution, from which the next step's planning starts, shifted by one."""


def unroll(
    model: WorldModel,
    z: Float[Array, " latent"],
    actions: Float[Array, "horizon samples action"],
    discount: float,
    config: Config,
) -> tuple[Float[Array, " samples"], Float[Array, "samples latent"]]:
    """Discounted sum of predicted rewards along action sequences from one z, and the last z of each."""

    def step(z, action):
        return model.next(z, action, config), expected_value(model.reward(z, action), config)

    # In the first step all sequences have the same z, which makes it cheaper.
    z, first = step(z, actions[0])
    z, others = jax.lax.scan(step, z, actions[1:])
    return first + discount ** jnp.arange(1, config.horizon) @ others, z


def propose(
    model: WorldModel,
    policy: Network,
    z: Float[Array, " latent"],
    noise: Float[Array, "horizon policy_samples action"],
    config: Config,
) -> Float[Array, "horizon policy_samples action"]:
    """Action sequences drawn from the policy prior along the model."""

    def step(z, step_noise):
        action = draw_action(policy, z, step_noise, config).action
        return model.next(z, action, config), action

    return jax.lax.scan(step, jnp.broadcast_to(z, (config.policy_samples, config.latent)), noise)[1]


def plan(
    model: WorldModel,
    policy: Network,
    observation: Float[Array, " observation"],
    previous_mean: Float[Array, "horizon action"],
    first: Bool[Array, ""],
    explore: Bool[Array, ""],
    noise: PlanNoise,
    discount: float,
    config: Config,
) -> Plan:
    """The action for an observation.

    Each round samples action sequences, rates them by predicted rewards and the value at the end (mean of two Q
    functions, for an action of the policy), and fits the mean and the standard deviation to the best ones. The
    policy's own sequences take part in every round. At the end one of the best sequences is drawn by its weight; when
    exploring, noise of the last standard deviation is added to its first action.
    """
    z = model.encode(observation, config)
    proposed = propose(model, policy, z, noise.proposals, config)
    shifted = jnp.concat([previous_mean[1:], jnp.zeros_like(previous_mean[:1])])
    mean = jnp.where(first, 0.0, shifted)

    def one_round(carry, drawn):
        mean, std, *_ = carry
        samples, ends, pair = drawn
        sampled = jnp.clip(mean[:, None] + std[:, None] * samples, -1.0, 1.0)
        actions = jnp.concat([proposed, sampled], axis=1)
        total, end = unroll(model, z, actions, discount, config)
        end_action = draw_action(policy, end, ends, config).action
        end_value = values_of_pair(model.value, pair, end, end_action, config).mean(axis=0)
        value = total + discount**config.horizon * end_value
        best, index = jax.lax.top_k(jnp.nan_to_num(value), config.elites)
        elites = actions[:, index]
        weight = jax.nn.softmax(config.temperature * best)
        mean = jnp.einsum("e,hea->ha", weight, elites)
        std = jnp.sqrt(jnp.einsum("e,hea->ha", weight, (elites - mean[:, None]) ** 2))
        std = jnp.clip(std, config.std_low, config.std_high)
        return (mean, std, weight, elites[0]), None

    start = (
        mean,
        jnp.full_like(mean, config.std_high),
        jnp.zeros(config.elites),
        jnp.zeros((config.elites, mean.shape[-1])),
    )
    rounds = (noise.samples, noise.ends, noise.pairs)
    (mean, std, weight, firsts), _ = jax.lax.scan(one_round, start, rounds)
    action = firsts[jnp.argmax(jnp.log(weight) + noise.choice)]
    action = action + jnp.where(explore, std[0] * noise.exploration, 0.0)
    return Plan(jnp.clip(action, -1.0, 1.0), mean)
