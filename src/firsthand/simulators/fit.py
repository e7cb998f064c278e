"""Fitting a network to a robot's log: first one control period ahead, then left to itself for about a second."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..logs import Series
from ..models.networks import initial_layers, predicted_entries
from ..plants.learned import LearnedPlant
from ..plants.learned.plant import input_size
from .accuracy import history, initial, roll_out
from .data import Windows

CHUNK = 100
"""Adam steps per compiled call, between which progress is shown."""


@dataclass(frozen=True)
class FitSettings:
    """How a simulator is fitted."""

    hidden: tuple[int, ...] = (128, 128)
    """Units per hidden layer."""
    history_s: float = 0.4
    """How far back the network looks at commands; at least the robot's own command memory."""
    measurement_history: int = 4
    """How many past measurements it looks at; at least the robot's own."""
    steps: int = 8000
    """Adam steps on the error one control period ahead."""
    batch: int = 512
    """Windows per step."""
    rate: float = 2e-3
    """Adam's step size at first; it falls to a hundredth along a cosine."""
    rollout_steps: int = 4000
    """Adam steps on the error of the simulator left to itself; 0 leaves this out."""
    rollout_s: float = 1.0
    """For how long."""
    rollout_batch: int = 64
    """Windows per step."""
    rollout_rate: float = 1e-3
    """Adam's step size at first, as above."""
    seed: int = 0
    """Of the weights and the batches."""

    def __post_init__(self) -> None:
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise UserError(f"hidden is {self.hidden}, but must list widths of at least 1.")
        for name in ("history_s", "rate", "rollout_s", "rollout_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}, but must be a positive number.")
        for name, least in (("steps", 1), ("batch", 1), ("rollout_batch", 1), ("rollout_steps", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, but must be at least {least}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")


def make_untrained_plant(spec: ControlSpec, series: Sequence[Series], settings: FitSettings) -> LearnedPlant:
    """Random weights, with scales and range from the log."""
    command_history = max(spec.layout.command_memory, math.ceil(settings.history_s / spec.period_s))
    measurement_history = max(spec.layout.measurement_memory, settings.measurement_history)
    measured = np.concatenate([s.measured for s in series]).astype(float)
    change = np.concatenate([np.diff(s.measured, axis=0) for s in series]).astype(float)
    predicted = list(predicted_entries(spec))
    least = 1e-3 * np.asarray(spec.scales.measured_scale)
    low, high = measured.min(axis=0), measured.max(axis=0)
    # A quantity that is bounded by no stop may go a little beyond what was seen.
    margin = np.where(np.isin(np.arange(len(low)), spec.layout.position), 0.0, 0.2) * (high - low)
    sizes = (input_size(spec, command_history, measurement_history), *settings.hidden, len(predicted))
    return LearnedPlant(
        layers=initial_layers(sizes, key=jax.random.key(settings.seed), last_gain=0.1),
        center=jnp.asarray(measured.mean(axis=0), jnp.float32),
        scale=jnp.asarray(np.maximum(measured.std(axis=0), least), jnp.float32),
        change_scale=jnp.asarray(np.maximum(change.std(axis=0), 0.1 * least)[predicted], jnp.float32),
        low=jnp.asarray(low - margin, jnp.float32),
        high=jnp.asarray(high + margin, jnp.float32),
        spec=spec,
        command_history=command_history,
        measurement_history=measurement_history,
    )


def fit(
    spec: ControlSpec,
    series: Sequence[Series],
    settings: FitSettings = FitSettings(),  # noqa: B008 (frozen)
    *,
    progress: Callable[[str, int, int, float], None] = lambda phase, done, total, loss: None,
) -> LearnedPlant:
    """The plant that explains these stretches best; `progress` gets phase, steps done, steps in all, loss."""
    if not series:
        raise UserError("the logs have no usable rows, but a simulator needs at least 100.")
    windows = Windows.of(series)
    plant = make_untrained_plant(spec, series, settings)
    before, ahead = history(plant), max(round(settings.rollout_s / spec.period_s), 1)
    starts = windows.starts(before, 1)
    if starts.size < 100:
        raise UserError(
            f"the logs have {starts.size} usable rows with {before} rows before them, but a simulator needs at least "
            "100, and some ten minutes to be of use."
        )
    data = (jnp.asarray(windows.measured), jnp.asarray(windows.commands))
    key = jax.random.key(settings.seed + 1)
    plant = _descend(
        plant, data, jnp.asarray(starts), 1, settings.steps, settings.batch, settings.rate, key,
        lambda done, loss: progress("one step", done, settings.steps, loss),
    )  # fmt: skip
    long = windows.starts(before, ahead)
    if settings.rollout_steps and long.size >= settings.rollout_batch:
        plant = _descend(
            plant, data, jnp.asarray(long), ahead, settings.rollout_steps, settings.rollout_batch,
            settings.rollout_rate, jax.random.fold_in(key, 1),
            lambda done, loss: progress("roll-outs", done, settings.rollout_steps, loss),
        )  # fmt: skip
    return plant


def _descend(
    plant: LearnedPlant,
    data: tuple[Any, Any],
    starts: Any,
    ahead: int,
    steps: int,
    batch: int,
    rate: float,
    key: Any,
    progress: Callable[[int, float], None],
) -> LearnedPlant:
    """Adam on the mean squared error over `ahead` steps, each quantity in units of how much it changes in that time."""
    measured, commands = data
    before = history(plant)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(rate, steps, alpha=0.01))
    )
    moved = np.asarray(measured)[np.asarray(starts) + ahead] - np.asarray(measured)[np.asarray(starts)]
    least = 1e-3 * np.asarray(plant.spec.scales.measured_scale)
    unit = jnp.asarray(np.maximum(np.sqrt(np.mean(moved.astype(float) ** 2, axis=0)), least), jnp.float32)
    fixed = plant

    def error(layers, k):
        trained = eqx.tree_at(lambda p: p.layers, fixed, layers)
        past_y = jax.lax.dynamic_slice_in_dim(measured, k - before, before + 1)
        past_u = jax.lax.dynamic_slice_in_dim(commands, k - before, before)
        given = jax.lax.dynamic_slice_in_dim(commands, k, ahead)
        truth = jax.lax.dynamic_slice_in_dim(measured, k + 1, ahead)
        state = initial(trained, past_y, past_u)
        return jnp.mean(((roll_out(trained, state, given) - truth) / unit) ** 2)

    def loss(layers, rows):
        return jnp.mean(jax.vmap(error, (None, 0))(layers, rows))

    @eqx.filter_jit
    def advance(layers, moments, key, count: int):
        def step(carry, step_key):
            layers, moments = carry
            rows = starts[jax.random.randint(step_key, (batch,), 0, starts.shape[0])]
            value, gradient = jax.value_and_grad(loss)(layers, rows)
            updates, moments = optimizer.update(gradient, moments)
            return (optax.apply_updates(layers, updates), moments), value

        (layers, moments), values = jax.lax.scan(step, (layers, moments), jax.random.split(key, count))
        return layers, moments, values.mean()

    layers, moments = plant.layers, optimizer.init(plant.layers)  # pyright: ignore[reportArgumentType] (a pytree)
    for done in range(0, steps, CHUNK):
        count = min(CHUNK, steps - done)
        layers, moments, value = advance(layers, moments, jax.random.fold_in(key, done), count)
        if not bool(jnp.isfinite(value)):
            raise UserError(f"fitting broke down after {done + count} steps: the loss is not finite; try a lower rate.")
        progress(done + count, float(value))
    return eqx.tree_at(lambda p: p.layers, plant, layers)
