"""One update: the model's losses, the policy's loss, and the two optimisers."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from .config import Config
from .networks import Network, WorldModel, draw_action, member, two_members
from .regression import cross_entropy, expected, two_hot


class Batch(NamedTuple):
    """Slices of episodes. `actions[t]` and `rewards[t]` belong to the step from `observations[t]` to `[t + 1]`."""

    observations: Float[Array, "horizon+1 batch observation"]
    """What was measured."""
    actions: Float[Array, "horizon batch action"]
    """What was applied."""
    rewards: Float[Array, "horizon batch"]
    """What came of it."""


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
    """Adam's moments of `model`."""
    policy_optimizer: optax.OptState
    """Adam's moments of `policy`."""

    @staticmethod
    def random(config: Config, observation: int, action: int, *, key: PRNGKeyArray) -> "State":
        """Random weights."""
        model_key, policy_key = jax.random.split(key)
        model = WorldModel.random(config, observation, action, key=model_key)
        policy = Network.random((config.latent, config.width, config.width, 2 * action), key=policy_key)
        return State(
            model,
            jax.tree.map(jnp.copy, model.value),
            policy,
            jnp.ones(()),
            _model_adam(config).init(model),  # pyright: ignore[reportArgumentType]
            _policy_adam(config).init(policy),  # pyright: ignore[reportArgumentType]
        )


class Losses(NamedTuple):
    """What an update reports."""

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


def _model_adam(config: Config) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.gradient_limit), optax.scale_by_adam())


def _policy_adam(config: Config) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.gradient_limit), optax.scale_by_adam(eps=1e-5))


def td_targets(
    state: State,
    following: Float[Array, "horizon batch latent"],
    rewards: Float[Array, "horizon batch"],
    discount: float,
    config: Config,
    *,
    key: PRNGKeyArray,
) -> Float[Array, "horizon batch"]:
    """r + γ · min of two target Q functions at the next z, with an action of the policy.

    An episode ends by its time limit, so that there is always a next step to count on.
    """
    action_key, member_key = jax.random.split(key)
    z = following.reshape(-1, following.shape[-1])
    action = draw_action(state.policy, z, config, key=action_key).action
    pair = two_members(state.target, config.members, key=member_key)
    values = [expected(member(pair, i)(z, action), config) for i in range(2)]
    return rewards + discount * jnp.minimum(*values).reshape(rewards.shape)


def _member_loss(q: Network, z, action, wanted, weight, key: PRNGKeyArray, dropout: float) -> Float[Array, ""]:
    return weight @ cross_entropy(q(z, action, dropout=dropout, key=key), wanted)


def value_loss(
    value: Network,
    z: Float[Array, "rows latent"],
    action: Float[Array, "rows action"],
    wanted: Float[Array, "rows bins"],
    weight: Float[Array, " rows"],
    dropout: float,
    *,
    keys: PRNGKeyArray,
) -> Float[Array, ""]:
    """Weighted cross entropy of the Q functions, mean over members; `keys` has one for each member's dropout.

    Each member's gradient is taken as soon as its loss is known, before the next member's turn: what one member needs
    fits into a processor's cache, what all need does not. Differentiable by `value` and `z` only.
    """

    def forward(value, z):
        def one(carry, q_and_key):
            loss, z_slope = carry
            q, key = q_and_key
            slopes = jax.value_and_grad(_member_loss, (0, 1))
            more, (q_slope, slope) = slopes(q, z, action, wanted, weight, key, dropout)
            return (loss + more, z_slope + slope), q_slope

        (loss, z_slope), value_slope = jax.lax.scan(one, (jnp.zeros(()), jnp.zeros_like(z)), (value, keys))
        return loss / len(keys), (value_slope, z_slope)

    def backward(slopes, loss_slope):
        return jax.tree.map(lambda slope: loss_slope / len(keys) * slope, slopes)

    differentiable = jax.custom_vjp(lambda value, z: forward(value, z)[0])
    differentiable.defvjp(forward, backward)
    return jnp.asarray(differentiable(value, z))


def model_loss(
    model: WorldModel,
    batch: Batch,
    following: Float[Array, "horizon batch latent"],
    targets: Float[Array, "horizon batch"],
    config: Config,
    *,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], tuple[Float[Array, "horizon+1 batch latent"], dict[str, Float[Array, ""]]]]:
    """The weighted sum of the three losses; also the unrolled z and each loss by name.

    The first z is encoded, the others are the dynamics' own. `following` are the encoded later observations and
    `targets` the values to learn towards; no gradient flows into either. A step weighs ρ^t.
    """
    z = model.encode(batch.observations[0], config)
    zs = [z]
    for t in range(config.horizon):
        z = model.next(z, batch.actions[t], config)
        zs.append(z)
    unrolled = jnp.stack(zs)
    weight = config.rho ** jnp.arange(config.horizon) / config.horizon
    consistency = weight @ jnp.mean((unrolled[1:] - following) ** 2, axis=(1, 2))
    # All steps in one axis of rows: one large matrix product each.
    rows = config.horizon * config.batch
    before, actions = unrolled[:-1].reshape(rows, -1), batch.actions.reshape(rows, -1)
    row_weight = jnp.repeat(weight, config.batch) / config.batch
    reward_logits = model.reward(before, actions)
    reward = row_weight @ cross_entropy(reward_logits, two_hot(batch.rewards.reshape(rows), config))
    wanted = two_hot(targets.reshape(rows), config)
    keys = jax.random.split(key, config.members)
    value = value_loss(model.value, before, actions, wanted, row_weight, config.dropout, keys=keys)
    total = config.consistency_weight * consistency + config.reward_weight * reward + config.value_weight * value
    return total, (unrolled, {"consistency": consistency, "reward": reward, "value": value})


def policy_loss(
    policy: Network,
    value: Network,
    scale: Float[Array, ""],
    zs: Float[Array, "horizon+1 batch latent"],
    config: Config,
    *,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """−(mean of two Q functions / scale + entropy) along the unrolled z, step t with weight ρ^t.

    Also the new running scale, taken from the values at t = 0, and the entropy. The gradient is the policy's only.
    """
    action_key, member_key, *dropout_keys = jax.random.split(key, 4)
    steps, count = zs.shape[:2]
    z = zs.reshape(steps * count, -1)
    action, entropy = draw_action(policy, z, config, key=action_key)
    pair = two_members(value, config.members, key=member_key)
    values = [
        expected(member(pair, i)(z, action, dropout=config.dropout, key=dropout_keys[i]), config) for i in range(2)
    ]
    q = (values[0] + values[1]) / 2
    low, high = jnp.percentile(jax.lax.stop_gradient(q[:count]), jnp.asarray([5.0, 95.0]))
    scale = scale + config.target_rate * (jnp.maximum(high - low, 1.0) - scale)
    weight = jnp.repeat(config.rho ** jnp.arange(steps) / steps, count) / count
    loss = -weight @ (q / scale + config.entropy_weight * entropy)
    return loss, (scale, jnp.mean(entropy))


def update(state: State, batch: Batch, discount: float, config: Config, *, key: PRNGKeyArray) -> tuple[State, Losses]:
    """One update of the model, then of the policy on the same unrolled z, then of the target Q functions."""
    target_key, model_key, policy_key = jax.random.split(key, 3)
    following = state.model.encode(batch.observations[1:], config)
    targets = td_targets(state, following, batch.rewards, discount, config, key=target_key)

    (_, (zs, parts)), gradient = jax.value_and_grad(model_loss, has_aux=True)(
        state.model, batch, following, targets, config, key=model_key
    )
    step, model_optimizer = _model_adam(config).update(gradient, state.model_optimizer)
    rates = WorldModel(config.rate * config.encoder_rate_share, config.rate, config.rate, config.rate)  # pyright: ignore
    model = jax.tree.map(
        lambda rate, part, change: jax.tree.map(lambda p, c: p - rate * c, part, change), rates, state.model, step
    )

    (loss, (scale, entropy)), policy_gradient = jax.value_and_grad(policy_loss, has_aux=True)(
        state.policy, model.value, state.scale, zs, config, key=policy_key
    )
    step, policy_optimizer = _policy_adam(config).update(policy_gradient, state.policy_optimizer)
    policy = jax.tree.map(lambda p, c: p - config.rate * c, state.policy, step)

    target = jax.tree.map(lambda slow, new: slow + config.target_rate * (new - slow), state.target, model.value)
    new = State(model, target, policy, scale, model_optimizer, policy_optimizer)
    norm = optax.global_norm(gradient)
    return new, Losses(**parts, policy=loss, gradient_norm=norm, entropy=entropy, scale=scale, target=jnp.mean(targets))
