"""One update: the model's losses, the policy's loss, and the two optimisers."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, UInt16

from .config import Config
from .networks import Network, WorldModel, draw_action, draw_pairs, dropout_mask, values_of_pair
from .regression import cross_entropy, two_hot


class Batch(NamedTuple):
    """Slices of episodes. `actions[t]` and `rewards[t]` belong to the step from `observations[t]` to `[t + 1]`."""

    observations: Float[Array, "horizon+1 batch observation"]
    """The measurements."""
    actions: Float[Array, "horizon batch action"]
    """The applied commands."""
    rewards: Float[Array, "horizon batch"]
    """The rewards."""


class State(eqx.Module):
    """Everything that an update changes."""

    model: WorldModel
    """Encoder, dynamics, reward and Q functions."""
    target: Network
    """Q functions that follow `model.value` slowly."""
    policy: Network
    """π: the policy prior."""
    scale: Float[Array, ""]
    """Running range of values, from the 5th to the 95th percentile, at least 1."""
    model_optimizer: optax.OptState
    """Adam's moments of `model`, all numbers in one row."""
    policy_optimizer: optax.OptState
    """Adam's moments of `policy`, all numbers in one row."""

    @staticmethod
    def random(config: Config, observation: int, action: int, *, rng: np.random.Generator) -> "State":
        """Random weights."""
        model = WorldModel.random(config, observation, action, rng=rng)
        policy = Network.random((config.latent, config.width, config.width, 2 * action), rng=rng)
        return State(
            model,
            jax.tree.map(jnp.array, model.value),
            policy,
            jnp.ones(()),
            _model_adam(config).init(jnp.zeros(numbers_in(model))),
            _policy_adam(config).init(jnp.zeros(numbers_in(policy))),
        )


class UpdateNoise(NamedTuple):
    """The random numbers of one update, drawn outside of what is compiled."""

    target_action: Float[Array, "rows action"]
    """For the policy's actions in the targets."""
    target_pair: Int[Array, " 2"]
    """Which two target Q functions."""
    dropout: UInt16[Array, "members rows units"]
    """For dropout in the Q functions."""
    policy_action: Float[Array, "all_rows action"]
    """For the policy's actions in its loss."""
    policy_pair: Int[Array, " 2"]
    """Which two Q functions rate the policy."""
    policy_dropout: UInt16[Array, "2 all_rows units"]
    """For dropout in them."""


def draw_update_noise(config: Config, action_size: int, rng: np.random.Generator) -> UpdateNoise:
    """Fresh random numbers for one update."""
    rows, all_rows = config.horizon * config.batch, (config.horizon + 1) * config.batch

    def bits(*shape: int) -> np.ndarray:
        return rng.integers(2**16, size=(*shape, config.width), dtype=np.uint16)

    pairs = draw_pairs(2, config.members, rng)
    numbers: Any = {
        "target_action": rng.standard_normal((rows, action_size), np.float32),
        "target_pair": pairs[0],
        "dropout": bits(config.members, rows),
        "policy_action": rng.standard_normal((all_rows, action_size), np.float32),
        "policy_pair": pairs[1],
        "policy_dropout": bits(2, all_rows),
    }
    return UpdateNoise(**numbers)


class Losses(NamedTuple):
    """The report of an update."""

    consistency: Float[Array, ""]
    """Joint-embedding loss, before its weight."""
    reward: Float[Array, ""]
    """Cross entropy of the reward."""
    value: Float[Array, ""]
    """Cross entropy of the Q functions, mean over members."""
    policy: Float[Array, ""]
    """Policy loss."""
    gradient_norm: Float[Array, ""]
    """Norm of the model's gradient, before it is limited."""
    entropy: Float[Array, ""]
    """Entropy of the policy prior."""
    scale: Float[Array, ""]
    """Running range of values."""
    target: Float[Array, ""]
    """Mean of the values learned towards."""


def numbers_in(tree: Any) -> int:
    """How many numbers a tree holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


# The optimisers work on all numbers in one row: a few long loops instead of a few for every array.
def _model_adam(config: Config) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.gradient_limit), optax.scale_by_adam())


def _policy_adam(config: Config) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.gradient_limit), optax.scale_by_adam(eps=1e-5))


def td_targets(
    state: State,
    following: Float[Array, "rows latent"],
    rewards: Float[Array, " rows"],
    noise: UpdateNoise,
    discount: float,
    config: Config,
) -> Float[Array, " rows"]:
    """r + γ · min of two target Q functions at the next z, with an action of the policy.

    An episode ends by its time limit, so that there is always a next step to count on.
    """
    action = draw_action(state.policy, following, noise.target_action, config).action
    values = values_of_pair(state.target, noise.target_pair, following, action, config)
    return rewards + discount * jnp.min(values, axis=0)


def _member_loss(q: Network, z, action, wanted, weight, bits, dropout: float) -> Float[Array, ""]:
    return weight @ cross_entropy(q(z, action, kept=dropout_mask(bits, dropout)), wanted)


def value_loss(
    value: Network,
    z: Float[Array, "rows latent"],
    action: Float[Array, "rows action"],
    wanted: Float[Array, "rows bins"],
    weight: Float[Array, " rows"],
    bits: UInt16[Array, "members rows units"],
    dropout: float,
) -> Float[Array, ""]:
    """Weighted cross entropy of the Q functions, mean over members; `bits` are for each member's dropout.

    Each member's gradient is taken as soon as its loss is known, before the next member's turn: what one member needs
    fits into a processor's cache, what all need does not. Differentiable by `value` and `z` only.
    """
    members = bits.shape[0]

    def forward(value, z):
        def one(carry, own):
            loss, z_slope = carry
            q, own_bits = own
            slopes = jax.value_and_grad(_member_loss, (0, 1))
            more, (q_slope, slope) = slopes(q, z, action, wanted, weight, own_bits, dropout)
            return (loss + more, z_slope + slope), q_slope

        (loss, z_slope), value_slope = jax.lax.scan(one, (jnp.zeros(()), jnp.zeros_like(z)), (value, bits))
        return loss / members, (value_slope, z_slope)

    def backward(slopes, loss_slope):
        return jax.tree.map(lambda slope: loss_slope / members * slope, slopes)

    differentiable = jax.custom_vjp(lambda value, z: forward(value, z)[0])
    differentiable.defvjp(forward, backward)
    return jnp.asarray(differentiable(value, z))


def model_loss(
    model: WorldModel,
    batch: Batch,
    following: Float[Array, "horizon batch latent"],
    targets: Float[Array, " rows"],
    bits: UInt16[Array, "members rows units"],
    config: Config,
) -> tuple[Float[Array, ""], tuple[Float[Array, "horizon+1 batch latent"], dict[str, Float[Array, ""]]]]:
    """The weighted sum of the three losses; also the unrolled z and each loss by name.

    The first z is encoded, the others are the dynamics' own. `following` are the encoded later observations and
    `targets` the values to learn towards (step by step, `rows` = horizon · batch); no gradient flows into either. A
    step weighs ρ^t.
    """

    def step(z, action):
        z = model.next(z, action, config)
        return z, z

    start = model.encode(batch.observations[0], config)
    unrolled = jnp.concat([start[None], jax.lax.scan(step, start, batch.actions)[1]])
    weight = config.rho ** jnp.arange(config.horizon) / config.horizon
    consistency = weight @ jnp.mean((unrolled[1:] - following) ** 2, axis=(1, 2))
    # All steps in one axis of rows: one large matrix product each.
    rows = targets.shape[0]
    before, actions = unrolled[:-1].reshape(rows, -1), batch.actions.reshape(rows, -1)
    row_weight = jnp.repeat(weight, rows // config.horizon) * config.horizon / rows
    reward_wanted = two_hot(batch.rewards.reshape(rows), config)
    reward = row_weight @ cross_entropy(model.reward(before, actions), reward_wanted)
    value_wanted = two_hot(targets, config)
    value = value_loss(model.value, before, actions, value_wanted, row_weight, bits, config.dropout)
    total = config.consistency_weight * consistency + config.reward_weight * reward + config.value_weight * value
    return total, (unrolled, {"consistency": consistency, "reward": reward, "value": value})


def policy_loss(
    policy: Network,
    value: Network,
    scale: Float[Array, ""],
    zs: Float[Array, "horizon+1 batch latent"],
    noise: UpdateNoise,
    config: Config,
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """−(mean of two Q functions / scale + entropy · entries of the action) along the unrolled z, weighted ρ^t.

    Also the new running scale, taken from the values at t = 0, and the entropy. The gradient is the policy's only.
    """
    steps, size = zs.shape[:2]
    z = zs.reshape(steps * size, -1)
    action, entropy = draw_action(policy, z, noise.policy_action, config)
    values = values_of_pair(value, noise.policy_pair, z, action, config, bits=noise.policy_dropout)
    q = values.mean(axis=0)
    low, high = jnp.percentile(jax.lax.stop_gradient(q[:size]), jnp.asarray([5.0, 95.0]))
    scale = scale + config.target_rate * (jnp.maximum(high - low, 1.0) - scale)
    weight = jnp.repeat(config.rho ** jnp.arange(steps) / steps, size) / size
    loss = -weight @ (q / scale + config.entropy_weight * action.shape[-1] * entropy)
    return loss, (scale, jnp.mean(entropy))


def update(state: State, batch: Batch, noise: UpdateNoise, discount: float, config: Config) -> tuple[State, Losses]:
    """One update of the model, then of the policy on the same unrolled z, then of the target Q functions."""
    following = state.model.encode(batch.observations[1:], config)
    rows = following.reshape(-1, config.latent)
    targets = td_targets(state, rows, batch.rewards.reshape(-1), noise, discount, config)

    model_slopes = jax.value_and_grad(model_loss, has_aux=True)
    (_, (zs, parts)), gradient = model_slopes(state.model, batch, following, targets, noise.dropout, config)
    gradient = ravel_pytree(gradient)[0]
    step, model_optimizer = _model_adam(config).update(gradient, state.model_optimizer)
    # The encoder's numbers come first.
    encoder = jnp.arange(gradient.size) < numbers_in(state.model.encoder)
    rate = config.rate * jnp.where(encoder, config.encoder_rate_share, 1.0)
    numbers, to_model = ravel_pytree(state.model)
    model: WorldModel = to_model(numbers - rate * jnp.asarray(step))

    policy_slopes = jax.value_and_grad(policy_loss, has_aux=True)
    (loss, (scale, entropy)), slope = policy_slopes(state.policy, model.value, state.scale, zs, noise, config)
    step, policy_optimizer = _policy_adam(config).update(ravel_pytree(slope)[0], state.policy_optimizer)
    numbers, to_policy = ravel_pytree(state.policy)
    policy: Network = to_policy(numbers - config.rate * jnp.asarray(step))

    target = jax.tree.map(lambda slow, new: slow + config.target_rate * (new - slow), state.target, model.value)
    return State(model, target, policy, scale, model_optimizer, policy_optimizer), Losses(
        **parts,
        policy=loss,
        gradient_norm=jnp.linalg.norm(gradient),
        entropy=entropy,
        scale=scale,
        target=jnp.mean(targets),
    )
