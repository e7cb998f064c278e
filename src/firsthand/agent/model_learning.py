"""Learning the dynamics model: Adam on the one-step loss (eq. 3) over mini-batches from the buffer."""

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ..models import Dynamics, predicted_entries
from ..optim.rollout import Rollout
from .buffer import Buffer, sample
from .settings import Settings
from .trees import all_finite, select_tree
from .windows import (
    draw_windows,
    error_scales,
    find_continuations,
    multi_step_loss,
    noise_share,
    one_step_errors,
    pseudo_huber,
)


class ModelReport(NamedTuple):
    """What an episode's model update did."""

    loss: Float[Array, ""]
    """Mean loss over the last tenth of the Adam steps, on the mini-batches."""
    accepted: Bool[Array, ""]
    """Whether everything stayed finite; otherwise the model and its optimiser came back unchanged."""


def one_step_loss(
    dynamics: Dynamics,
    states: Float[Array, "batch state"],
    commands: Float[Array, "batch commands"],
    following: Float[Array, "batch measured"],
) -> Float[Array, ""]:
    """ℓ(θ): the mean squared error of the predicted change, each entry in units of `change_scale`.

    The paper's ‖f_θ(x, u) − x⁺‖² on the entries that the network predicts; the others are known.
    """
    entries = jnp.asarray(predicted_entries(dynamics.spec))
    target = (following - states[:, : following.shape[1]])[:, entries]
    error = (jax.vmap(dynamics.change)(states, commands) - target) / dynamics.change_scale
    return jnp.mean(error**2)


def split_trainable(dynamics: Dynamics) -> tuple[Dynamics, Dynamics]:
    """The weights θ, and the rest (the change scale is set from data, not by gradients)."""
    spec = jax.tree.map(eqx.is_inexact_array, dynamics)
    spec = eqx.tree_at(lambda d: d.change_scale, spec, False)
    return eqx.partition(dynamics, spec)


def adam(settings: Settings) -> optax.GradientTransformation:
    """The model's optimiser."""
    return optax.adam(settings.model.rate)


def initial_optimizer(dynamics: Dynamics, settings: Settings) -> PyTree:
    """Adam's moments, all zero."""
    return adam(settings).init(split_trainable(dynamics)[0])  # pyright: ignore[reportArgumentType] (a pytree)


def rescale(dynamics: Dynamics, buffer: Buffer, settings: Settings) -> Dynamics:
    """The same function, with its change scale set to the size of the changes in the buffer."""
    entries = jnp.asarray(predicted_entries(dynamics.spec))
    mean_square = buffer.squares[entries] / jnp.maximum(buffer.size, 1)
    declared = jnp.asarray([dynamics.spec.scales.change_scale[i] for i in predicted_entries(dynamics.spec)])
    # A channel that has hardly moved yet keeps a sane scale: its noise must not be blown up to order one.
    return dynamics.with_change_scale(jnp.maximum(jnp.sqrt(mean_square), settings.model.min_change_scale * declared))


@eqx.filter_jit
def learn_model(
    dynamics: Dynamics, optimizer: PyTree, buffer: Buffer, settings: Settings, *, key: PRNGKeyArray
) -> tuple[Dynamics, PyTree, ModelReport]:
    """`settings.model.steps` Adam steps at a rate that falls along a cosine, so that the model comes to rest.

    With a horizon of one the loss is the paper's. With a longer one it is blended with the loss over windows, by the
    share of the changes that one-step predictions miss: see `agent.windows`.
    """
    if settings.model.steps == 0:
        return rescale(dynamics, buffer, settings), optimizer, ModelReport(jnp.asarray(jnp.nan), jnp.asarray(True))
    before = dynamics, optimizer
    dynamics = rescale(dynamics, buffer, settings)
    learn = learn_one_step if settings.model.horizon == 1 else learn_windows
    dynamics, optimizer, losses = learn(dynamics, optimizer, buffer, settings, key=key)
    accepted = jnp.all(jnp.isfinite(losses)) & all_finite((dynamics, optimizer))
    dynamics, optimizer = select_tree(accepted, (dynamics, optimizer), before)
    return dynamics, optimizer, ModelReport(losses[-max(settings.model.steps // 10, 1) :].mean(), accepted)


def rate_schedule(settings: Settings) -> Float[Array, " steps"]:
    """Adam's step size at each step, as a share of the first."""
    fall = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.linspace(0.0, 1.0, settings.model.steps)))
    return settings.model.rate_end + (1.0 - settings.model.rate_end) * fall


def learn_one_step(
    dynamics: Dynamics, optimizer: PyTree, buffer: Buffer, settings: Settings, *, key: PRNGKeyArray
) -> tuple[Dynamics, PyTree, Float[Array, " steps"]]:
    """Adam on the one-step loss; returns the losses besides.

    The batch grows with the buffer in equal blocks, without recompiling.
    """
    weights, fixed = split_trainable(dynamics)
    most = max(settings.model.max_batch // settings.model.batch, 1)
    wanted = settings.model.batch_share * buffer.size / settings.model.batch
    blocks = jnp.clip(wanted.astype(jnp.int32), 1, most)

    def loss(weights, batch):
        return one_step_loss(eqx.combine(weights, fixed), *batch)

    def adam_step(carry, inputs):
        weights, optimizer = carry
        step_key, share = inputs

        def accumulate(i, total):
            batch = sample(buffer, settings.model.batch, key=jax.random.fold_in(step_key, i))
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(weights, batch))

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))
        value, gradient = jax.tree.map(lambda x: x / blocks, jax.lax.fori_loop(0, blocks, accumulate, zero))
        updates, optimizer = adam(settings).update(gradient, optimizer, weights)
        updates = jax.tree.map(lambda update: share * update, updates)
        return (optax.apply_updates(weights, updates), optimizer), value

    keys = jax.random.split(key, settings.model.steps)
    (weights, optimizer), losses = jax.lax.scan(adam_step, (weights, optimizer), (keys, rate_schedule(settings)))
    return cast(Dynamics, eqx.combine(weights, fixed)), optimizer, losses


def learn_windows(
    dynamics: Dynamics, optimizer: PyTree, buffer: Buffer, settings: Settings, *, key: PRNGKeyArray
) -> tuple[Dynamics, PyTree, Float[Array, " steps"]]:
    """Adam on β ℓ_T + (1 − β) ℓ_1, both robust; returns the losses besides.

    β is the share of changes that one-step predictions miss, over `settings.model.noise_share`, and at most one. It and
    the scales of the errors are set anew `settings.model.rescalings` times, as the model gets better.
    """
    model = settings.model
    weights, fixed = split_trainable(dynamics)
    continuations = find_continuations(buffer)

    def set_scales(weights, key):
        current = eqx.combine(weights, fixed)
        scales = error_scales(one_step_errors(current, buffer, model.scale_samples, key=key), current, settings)
        return scales, jnp.minimum(noise_share(scales, current) / model.noise_share, 1.0)

    def adam_step(carry, inputs):
        weights, optimizer, scales, blend = carry
        step_key, share, renew = inputs
        scale_key, window_key, batch_key = jax.random.split(step_key, 3)
        scales, blend = jax.lax.cond(renew, lambda: set_scales(weights, scale_key), lambda: (scales, blend))

        def loss(weights):
            current = eqx.combine(weights, fixed)
            windows = draw_windows(buffer, continuations, model.windows, model.horizon, key=window_key)
            errors = one_step_errors(current, buffer, model.batch, key=batch_key) / scales
            return blend * multi_step_loss(current, windows, scales, model.huber) + (1.0 - blend) * jnp.mean(
                pseudo_huber(errors, model.huber)
            )

        value, gradient = jax.value_and_grad(loss)(weights)
        updates, optimizer = adam(settings).update(gradient, optimizer, weights)
        updates = jax.tree.map(lambda update: share * update, updates)
        return (optax.apply_updates(weights, updates), optimizer, scales, blend), value

    keys = jax.random.split(key, model.steps)
    every = -(-model.steps // model.rescalings)
    renew = jnp.arange(model.steps) % every == 0
    first = (weights, optimizer, jnp.ones(buffer.following.shape[1]), jnp.asarray(1.0))
    (weights, optimizer, _, _), losses = jax.lax.scan(adam_step, first, (keys, rate_schedule(settings), renew))
    return cast(Dynamics, eqx.combine(weights, fixed)), optimizer, losses


@eqx.filter_jit
def prediction_error(dynamics: Dynamics, rollout: Rollout) -> Float[Array, ""]:
    """ℓ(θ) on one episode: before the model has learned from it, this is how well the model predicted the new.

    NaN for an episode without a valid step: nothing was predicted.
    """
    measured = dynamics.spec.layout.num_measured
    states, commands = rollout.states[:, :-1], rollout.commands
    entries = jnp.asarray(predicted_entries(dynamics.spec))
    target = (rollout.states[:, 1:, :measured] - states[..., :measured])[..., entries]
    error = (jax.vmap(jax.vmap(dynamics.change))(states, commands) - target) / dynamics.change_scale
    squared = jnp.where(rollout.valid[..., None], error**2, 0.0)
    count = rollout.valid.sum() * entries.shape[0]
    return jnp.where(count > 0, squared.sum() / jnp.maximum(count, 1), jnp.nan)
