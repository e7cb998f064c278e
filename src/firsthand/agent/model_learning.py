"""Learning the dynamics model: Adam on the one-step loss (eq. 3) over mini-batches from the buffer, or on roll-outs."""

import math
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..models import Dynamics, predicted_entries
from ..optim.rollout import Rollout
from .buffer import Buffer, sample
from .settings import Settings
from .trees import all_finite, select_tree
from .windows import (
    Windows,
    draw_windows,
    error_scales,
    find_continuations,
    find_sound,
    multi_step_loss,
    newest_windows,
    noise_blend,
    noise_share,
    one_step_errors,
)


class ModelReport(NamedTuple):
    """The report of an episode's model update."""

    loss: Float[Array, ""]
    """Mean loss on the mini-batches over the last Adam steps: a tenth of them, or a round on roll-outs."""
    accepted: Bool[Array, ""]
    """Whether everything stayed finite; otherwise the model and its optimiser came back unchanged."""
    held_out: Float[Array, ""] | float = math.nan
    """The same loss on the newest episode before the model learned from it; only where it is trained on roll-outs."""


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
    mean_square = buffer.squares[entries] / jnp.maximum(buffer.num_sound, 1)
    declared = jnp.asarray([dynamics.spec.scales.change_scale[i] for i in predicted_entries(dynamics.spec)])
    # A channel that has hardly moved yet keeps a sane scale: its noise must not be blown up to order one.
    return dynamics.with_change_scale(jnp.maximum(jnp.sqrt(mean_square), settings.model.min_change_scale * declared))


@eqx.filter_jit
def learn_model(
    dynamics: Dynamics,
    optimizer: PyTree,
    buffer: Buffer,
    settings: Settings,
    steps: Int[Array, ""] | None = None,
    newest: Rollout | None = None,
    *,
    key: PRNGKeyArray,
) -> tuple[Dynamics, PyTree, ModelReport]:
    """`settings.model.steps` Adam steps at a rate that falls along a cosine, so that the model comes to rest.

    With a horizon of one the loss is the paper's. With a longer one it is blended with the loss over windows, by the
    share of the changes that one-step predictions miss: see `agent.windows`. `steps`, if given, is another number of
    steps, not part of the compiled program; only roll-outs have it. `newest` is the episode that is in the buffer since
    the last time.
    """
    held_out = jnp.asarray(jnp.nan)
    if settings.model.steps == 0:
        return rescale(dynamics, buffer, settings), optimizer, ModelReport(jnp.asarray(jnp.nan), jnp.asarray(True))
    before = dynamics, optimizer
    dynamics = rescale(dynamics, buffer, settings)
    if settings.model.horizon == 1:
        dynamics, optimizer, losses = learn_one_step(dynamics, optimizer, buffer, settings, key=key)
        loss = losses[-max(settings.model.steps // 10, 1) :].mean()
    else:
        count = jnp.asarray(settings.model.steps) if steps is None else steps
        dynamics, optimizer, loss, held_out = learn_windows(
            dynamics, optimizer, buffer, count, settings, newest, key=key
        )
    accepted = (jnp.isfinite(loss) | (steps is not None)) & all_finite((dynamics, optimizer))
    dynamics, optimizer = select_tree(accepted, (dynamics, optimizer), before)
    return dynamics, optimizer, ModelReport(loss, accepted, held_out)


def rate_share(done: Float[Array, "*shape"], settings: Settings) -> Float[Array, "*shape"]:
    """Adam's step size as a share of the first, where `done` goes from 0 to 1."""
    fall = 0.5 * (1.0 + jnp.cos(jnp.pi * done))
    return settings.model.rate_end + (1.0 - settings.model.rate_end) * fall


def split_rounds(steps: Int[Array, ""], settings: Settings) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """How many rounds `steps` Adam steps have, and the steps of each; sizes of errors are estimated once per round.

    `settings.model.rescalings` rounds, or as many as there are steps where these are fewer.
    """
    rounds = jnp.minimum(steps, settings.model.rescalings)
    return rounds, steps // jnp.maximum(rounds, 1)


def count_blocks(buffer: Buffer, settings: Settings) -> Int[Array, ""]:
    """How many times `model.batch` transitions make a batch: it grows with the buffer, without recompiling."""
    most = max(settings.model.max_batch // settings.model.batch, 1)
    wanted = settings.model.batch_share * buffer.num_sound / settings.model.batch
    return jnp.clip(wanted.astype(jnp.int32), 1, most)


def learn_one_step(
    dynamics: Dynamics, optimizer: PyTree, buffer: Buffer, settings: Settings, *, key: PRNGKeyArray
) -> tuple[Dynamics, PyTree, Float[Array, " steps"]]:
    """Adam on the one-step loss; returns the losses besides.

    The batch grows with the buffer in equal blocks, without recompiling.
    """
    weights, fixed = split_trainable(dynamics)
    blocks = count_blocks(buffer, settings)

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
    shares = rate_share(jnp.linspace(0.0, 1.0, settings.model.steps), settings)
    (weights, optimizer), losses = jax.lax.scan(adam_step, (weights, optimizer), (keys, shares))
    return cast(Dynamics, eqx.combine(weights, fixed)), optimizer, losses


def learn_windows(
    dynamics: Dynamics,
    optimizer: PyTree,
    buffer: Buffer,
    steps: Int[Array, ""],
    settings: Settings,
    newest: Rollout | None = None,
    *,
    key: PRNGKeyArray,
) -> tuple[Dynamics, PyTree, Float[Array, ""], Float[Array, ""]]:
    """Adam on β ℓ_T + (1 − β) ℓ/(2σ²); returns the mean loss of the last round, and the first loss on `newest` besides.

    ℓ_T is robust, ℓ the paper's loss, and σ² the share of the changes' variance that one-step predictions miss, which
    gives both the same size. β rises from 0 to 1 as σ² goes from a third of `settings.model.noise_share` to all of it,
    and is at least `settings.model.rollout_share`. A state that remembers measurements and commands holds the same
    thing more than once; how a model weighs the copies does not show in one-step predictions, but in a roll-out its own
    errors may grow from step to step. β and the scales of the errors are set anew `settings.model.rescalings` times, as
    the model gets better.
    """
    model = settings.model
    weights, fixed = split_trainable(dynamics)
    continuations, sound = find_continuations(buffer), find_sound(buffer)
    rounds, per_round = split_rounds(steps, settings)
    blocks = count_blocks(buffer, settings)

    judged = None
    if newest is not None:
        judged = newest_windows(buffer, buffer.states, continuations, sound, newest, model.horizon)

    def one_round(number, carry):
        weights, optimizer, _, held_out = carry
        round_key, scale_key = jax.random.split(jax.random.fold_in(key, number))
        current = eqx.combine(weights, fixed)
        scales = error_scales(one_step_errors(current, buffer, model.scale_samples, key=scale_key), current, settings)
        missed = noise_share(scales, current)
        blend = jnp.maximum(noise_blend(missed, settings), model.rollout_share)

        def rolled_out(weights, key):
            windows = draw_windows(buffer, continuations, sound, model.windows, model.horizon, key=key)
            return blend * multi_step_loss(eqx.combine(weights, fixed), windows, scales, model.huber)

        def one_step(weights, key):
            loss = one_step_loss(eqx.combine(weights, fixed), *sample(buffer, model.batch, key=key))
            return (1.0 - blend) / (2.0 * missed) * loss

        def adam_step(i, carry):
            weights, optimizer, total = carry
            window_key, batch_key = jax.random.split(jax.random.fold_in(round_key, i))
            zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))

            def accumulate(block, so_far):
                there = jax.value_and_grad(one_step)(weights, jax.random.fold_in(batch_key, block))
                return jax.tree.map(lambda a, b: a + b / blocks, so_far, there)

            far = jax.lax.cond(blend > 0, lambda: jax.value_and_grad(rolled_out)(weights, window_key), lambda: zero)
            near = jax.lax.fori_loop(0, jnp.where(blend < 1, blocks, 0), accumulate, zero)
            value, gradient = jax.tree.map(jnp.add, far, near)
            updates, optimizer = adam(settings).update(gradient, optimizer, weights)
            done = (number * per_round + i) / jnp.maximum(steps - 1, 1)
            updates = jax.tree.map(lambda update: rate_share(done, settings) * update, updates)
            return optax.apply_updates(weights, updates), optimizer, total + value

        def judge() -> Float[Array, ""]:
            assert judged is not None
            near = (1.0 - blend) / (2.0 * missed) * first_steps_loss(current, judged)
            return blend * multi_step_loss(current, judged, scales, model.huber) + near

        if judged is not None:
            held_out = jax.lax.cond(number == 0, judge, lambda: held_out)
        start = (weights, optimizer, jnp.zeros(()))
        weights, optimizer, total = jax.lax.fori_loop(0, per_round, adam_step, start)
        return weights, optimizer, total / jnp.maximum(per_round, 1), held_out

    unknown = jnp.asarray(jnp.nan)
    weights, optimizer, loss, held_out = jax.lax.fori_loop(0, rounds, one_round, (weights, optimizer, unknown, unknown))
    if judged is not None:
        held_out = jnp.where(jnp.any(judged.counts), held_out, jnp.nan)
    return cast(Dynamics, eqx.combine(weights, fixed)), optimizer, loss, held_out


def first_steps_loss(dynamics: Dynamics, windows: Windows) -> Float[Array, ""]:
    """ℓ(θ) on the first rows of windows, as far as they count."""
    entries = jnp.asarray(predicted_entries(dynamics.spec))
    target = (windows.following[:, 0] - windows.starts[:, : windows.following.shape[2]])[:, entries]
    error = (jax.vmap(dynamics.change)(windows.starts, windows.commands[:, 0]) - target) / dynamics.change_scale
    counts = windows.counts[:, 0]
    return jnp.sum(jnp.where(counts, jnp.mean(error**2, axis=1), 0.0)) / jnp.maximum(counts.sum(), 1)


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
