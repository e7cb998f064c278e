"""Fitting an ensemble of networks to a robot's log, by what the simulator does when it is left to itself.

Each window of the log begins with a stretch that the observer sees. Then the simulator is left to itself, with the
commands that were given, and compared with what was measured:

    ℓ = mean ρ((q̂_k − q_k) / (a √(k/K))) + 0.3 · mean ρ((v̂_k − v_k) / b),

with ρ the pseudo-Huber function, a a twentieth of how far each coordinate moves in K steps and b a fifth of the size of
its velocity. First K is 4, then about a second. The networks get a random constant error in each window, so that the
observer learns to find and carry on what the networks do not know.
"""

import dataclasses
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

from ..agent.windows import pseudo_huber
from ..errors import UserError
from ..logs import Series
from ..models.networks import initial_layers
from ..plants.learned import LearnedPlant, Networks, Observation
from ..plants.learned.plant import coordinate_entries, input_size
from .data import Windows
from .dead_band import find_dead_bands

CHUNK = 100
"""Adam steps per compiled call, between which progress is shown."""
HUBER = 3.0
"""δ of the pseudo-Huber function."""
SHORT = 4
"""Steps ahead in the first phase."""
VELOCITY_WEIGHT = 0.3
MIN_ROWS = 100
"""Fewer usable rows are refused."""


@dataclass(frozen=True)
class FitSettings:
    """How a simulator is fitted."""

    members: int = 4
    """Networks in the ensemble."""
    hidden: tuple[int, ...] = (48, 48)
    """Units per hidden layer of each coordinate's network."""
    history_s: float = 0.7
    """How far back the networks look at commands; at least the robot's own command memory."""
    rate_history: int = 4
    """How many past rates they look at."""
    observed_steps: int = 12
    """Steps of a log through which the observer runs before the simulator is left to itself."""
    steps: int = 1000
    """Adam steps on windows of four control periods."""
    batch: int = 192
    """Windows per step."""
    rate: float = 3e-3
    """Adam's step size at first; it falls to a fiftieth along a cosine."""
    rollout_steps: int = 6000
    """Adam steps on long windows; 0 leaves this out."""
    rollout_s: float = 1.0
    """How long they are."""
    rollout_batch: int = 96
    """Windows per step."""
    rollout_rate: float = 2e-3
    """Adam's step size at first, as above."""
    model_error: float = 0.2
    """Size of the random constant error of the networks in a window, in change scales."""
    weight_decay: float = 0.01
    """Of the networks' weights, per unit of step size."""
    free: tuple[int, ...] = ()
    """Entries of the measurement that make no difference to the motion, such as a swing angle."""
    seed: int = 0
    """Of the weights and the batches."""

    def __post_init__(self) -> None:
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise UserError(f"hidden is {self.hidden}, but must list widths of at least 1.")
        for name in ("history_s", "rate", "rollout_s", "rollout_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}, but must be a positive number.")
        for name in ("model_error", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"{name} is {value}, but must be zero or a positive number.")
        limits = {"members": 1, "steps": 1, "batch": 1, "rollout_batch": 1, "rollout_steps": 0}
        for name, least in {**limits, "rate_history": 2, "observed_steps": 1}.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, but must be at least {least}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")


def make_untrained_plant(spec: ControlSpec, series: Sequence[Series], settings: FitSettings) -> LearnedPlant:
    """One member with random weights, and scales from the log."""
    command_history = max(spec.layout.command_memory, math.ceil(settings.history_s / spec.period_s)) - 1
    entries = list(coordinate_entries(spec))
    count, history = len(entries), settings.rate_history
    measured = np.concatenate([s.measured for s in series]).astype(float)
    rates = [np.diff(s.measured[:, entries].astype(float), axis=0) / spec.period_s for s in series]
    least = 1e-3 * np.asarray(spec.scales.measured_scale)[entries]
    # A single period's change of rate is mostly noise; what a rate changes by in four is motion.
    moved = [(r[4:] - r[:-4]) / 4 for r in rates if len(r) > 4]
    change = np.concatenate(moved).std(axis=0) if moved else np.zeros(count)
    bands = find_dead_bands(spec, series, command_history)
    inputs = input_size(spec, command_history, history, settings.free, openings=bool(bands.any()))
    sizes = (inputs, *settings.hidden, 1)
    keys = jax.random.split(jax.random.key(settings.seed), count)
    layers = jax.vmap(lambda key: initial_layers(sizes, key=key, last_gain=0.1))(keys)
    fade = np.maximum(1.0 - np.arange(history) / 3.0, 0.0)[:, None] * np.ones(count)
    return LearnedPlant(
        networks=jax.tree.map(lambda leaf: leaf[None], Networks(layers, jnp.zeros((count, inputs)))),
        observation=Observation(
            position_gain=jnp.asarray(0.5 * fade, jnp.float32),
            velocity_gain=jnp.asarray(0.3 * fade, jnp.float32),
            disturbance_gain=jnp.full((2, count), 0.03),
            memory=jnp.full(count, 3.0),
            taps=jnp.asarray(fade / fade.sum(axis=0), jnp.float32),
        ),
        center=jnp.asarray(measured.mean(axis=0)[entries], jnp.float32),
        scale=jnp.asarray(np.maximum(measured.std(axis=0)[entries], least), jnp.float32),
        rate_scale=jnp.asarray(np.maximum(np.concatenate(rates).std(axis=0), least), jnp.float32),
        change_scale=jnp.asarray(np.maximum(2.0 * change, 0.1 * least), jnp.float32),
        usual_doubt=jnp.ones(()),
        spec=spec,
        command_history=command_history,
        free=settings.free,
        observed_steps=settings.observed_steps,
        dead_band=jnp.asarray(bands, jnp.float32) if bands.any() else None,
    )


def fit(
    spec: ControlSpec,
    series: Sequence[Series],
    settings: FitSettings = FitSettings(),  # noqa: B008 (frozen)
    *,
    progress: Callable[[str, int, int, float], None] = lambda phase, done, total, loss: None,
    finished: Sequence[LearnedPlant] = (),
    keep: Callable[[LearnedPlant], None] = lambda member: None,
) -> LearnedPlant:
    """The plant that explains these stretches best; `progress` gets phase, steps done, steps in all, loss.

    The first member learns the observer too; the others learn with it as it is. `keep` gets each member when it is
    done; with the first of them as `finished` the fit goes on after those, and ends as if it had not been interrupted.
    """
    if not series:
        raise UserError("the logs have no usable rows, but a simulator needs at least 100.")
    windows = Windows.of(series)
    plants = list(finished)
    trainers: dict[tuple[int, bool], _Trainer] = {}
    for number in range(len(plants), settings.members):
        own = dataclasses.replace(settings, seed=(settings.seed + 7919 * number) % 2**32)
        plant = make_untrained_plant(spec, series, own)
        if plants:
            plant = eqx.tree_at(lambda p: p.observation, plant, plants[0].observation)
        starts = windows.starts(plant.history, 1)
        if starts.size < MIN_ROWS:
            raise UserError(
                f"the logs have {starts.size} usable rows with {plant.history} rows before them, but a simulator needs "
                f"at least {MIN_ROWS}, and some ten minutes to be of use."
            )
        ahead = max(round(settings.rollout_s / spec.period_s), 1)
        phases = [("short", SHORT, settings.steps, settings.batch, settings.rate)]
        if settings.rollout_steps and windows.starts(plant.history, ahead).size >= settings.rollout_batch:
            phases.append(("roll-outs", ahead, settings.rollout_steps, settings.rollout_batch, settings.rollout_rate))
        for name, steps_ahead, steps, batch, rate in phases:
            first = not plants
            if (steps_ahead, first) not in trainers:
                trainers[steps_ahead, first] = _Trainer(
                    plant, windows, steps_ahead, steps, batch, rate, settings, with_observer=first
                )
            key = jax.random.fold_in(jax.random.key(own.seed), steps_ahead)
            label = f"{name}, network {number + 1} of {settings.members}"

            def show(done: int, loss: float, label: str = label, total: int = steps) -> None:
                progress(label, done, total, loss)

            plant = trainers[steps_ahead, first].train(plant, key, show)
        plants.append(plant)
        keep(plant)
    together = jax.tree.map(lambda *leaves: jnp.concat(leaves), *(one.networks for one in plants))
    plant = eqx.tree_at(lambda p: p.networks, plants[0], together)
    return eqx.tree_at(lambda p: p.usual_doubt, plant, jnp.asarray(find_usual_doubt(plant, windows), jnp.float32))


def find_usual_doubt(plant: LearnedPlant, windows: Windows) -> float:
    """The disagreement that 99 % of the log stays below."""
    starts = windows.starts(plant.history, 1)
    rows = jnp.asarray(starts[:: max(starts.size // 2000, 1)])
    doubts = np.asarray(_doubt_at(plant, jnp.asarray(windows.measured), jnp.asarray(windows.commands), rows))
    return max(float(np.quantile(doubts, 0.99)) * float(plant.usual_doubt), 1e-3)


@eqx.filter_jit
def _doubt_at(plant: LearnedPlant, measured, commands, rows):
    def one(k):
        state = plant.start(*cut(measured, commands, k, plant.history))
        return plant.step(state, commands[k], key=jax.random.key(0)).doubt

    return jax.vmap(one)(rows)


def cut(measured: Any, commands: Any, row: Any, history: int) -> tuple[Any, Any]:
    """The rows up to `row`, and the commands before it."""
    past = jax.lax.dynamic_slice_in_dim(measured, row - history, history + 1)
    return past, jax.lax.dynamic_slice_in_dim(commands, row - history, history)


def roll_out(plant: LearnedPlant, state: Any, commands: Any) -> Any:
    """The measurements after each of these commands, as the simulator predicts them on its own."""
    key = jax.random.key(0)

    def step(state, command):
        state = plant.step(state, command, key=key)
        return state, plant.measure(state, key=key)

    return jax.lax.scan(step, state, commands)[1]


class _Trainer:
    """Adam on windows of one length; compiled once for all members."""

    def __init__(
        self,
        plant: LearnedPlant,
        windows: Windows,
        ahead: int,
        steps: int,
        batch: int,
        rate: float,
        settings: FitSettings,
        *,
        with_observer: bool,
    ) -> None:
        self.steps = steps
        measured, commands = jnp.asarray(windows.measured), jnp.asarray(windows.commands)
        rows = windows.starts(plant.history, ahead)
        starts = jnp.asarray(rows)
        spec, entries = plant.spec, np.asarray(coordinate_entries(plant.spec))
        moved = (windows.measured[rows + ahead] - windows.measured[rows])[:, entries].astype(float)
        least = 1e-3 * np.asarray(spec.scales.measured_scale)
        position = np.maximum(np.sqrt(np.mean(moved**2, axis=0)), least[entries])
        velocity = list(spec.layout.velocity)
        speed = np.maximum(windows.measured[:, velocity].astype(float).std(axis=0), least[velocity])
        # Between each its own unit and one unit for all: what moves far counts more, but not as its square.
        unit = jnp.asarray(0.05 * np.sqrt(position * position.mean()), jnp.float32)
        speed_unit = jnp.asarray(0.2 * np.sqrt(speed * speed.mean()) if velocity else speed, jnp.float32)
        growth = jnp.sqrt(jnp.arange(1, ahead + 1) / ahead)[:, None]
        size = settings.model_error

        def error(plant, k, key):
            *hidden, (weight, bias) = plant.networks.layers
            wrong = size * jax.random.normal(key, bias.shape)
            wrong = eqx.tree_at(lambda p: p.networks.layers, plant, (*hidden, (weight, bias + wrong)))
            state = wrong.start(*cut(measured, commands, k, plant.history))
            found = roll_out(wrong, state, jax.lax.dynamic_slice_in_dim(commands, k, ahead))
            away = found - jax.lax.dynamic_slice_in_dim(measured, k + 1, ahead)
            value = jnp.mean(pseudo_huber(away[:, entries] / (unit * growth), HUBER))
            if velocity:
                late = away[:, jnp.asarray(velocity)] / speed_unit
                value = value + VELOCITY_WEIGHT * jnp.mean(pseudo_huber(late, HUBER))
            return value

        def loss(weights, fixed, rows, key):
            plant = eqx.combine(weights, fixed)
            return jnp.mean(jax.vmap(error, (None, 0, 0))(plant, rows, jax.random.split(key, batch)))

        schedule = optax.cosine_decay_schedule(rate, steps, alpha=0.02)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(schedule, weight_decay=settings.weight_decay, mask=_decay_mask),
        )
        self.trained = lambda plant: eqx.partition(plant, _trainable_leaves(plant, with_observer))

        @eqx.filter_jit
        def advance(weights, fixed, moments, key, count: int):
            def step(carry, step_key):
                weights, moments = carry
                row_key, error_key = jax.random.split(step_key)
                rows = starts[jax.random.randint(row_key, (batch,), 0, starts.shape[0])]
                value, gradient = jax.value_and_grad(loss)(weights, fixed, rows, error_key)
                updates, moments = self.optimizer.update(gradient, moments, weights)
                return (optax.apply_updates(weights, updates), moments), value

            (weights, moments), values = jax.lax.scan(step, (weights, moments), jax.random.split(key, count))
            return weights, moments, values.mean()

        self.advance = advance

    def train(self, plant: LearnedPlant, key: Any, progress: Callable[[int, float], None]) -> LearnedPlant:
        """The plant after all steps."""
        weights, fixed = self.trained(plant)
        moments = self.optimizer.init(weights)
        for done in range(0, self.steps, CHUNK):
            count = min(CHUNK, self.steps - done)
            weights, moments, value = self.advance(weights, fixed, moments, jax.random.fold_in(key, done), count)
            if not bool(jnp.isfinite(value)):
                raise UserError(
                    f"fitting broke down after {done + count} steps: the loss is not finite; try a lower rate."
                )
            progress(done + count, float(value))
        return eqx.combine(weights, fixed)


def _trainable_leaves(plant: LearnedPlant, with_observer: bool) -> Any:
    """Which leaves are trained: the networks, and the observer's gains where wanted."""
    nothing = jax.tree.map(lambda _: False, plant)
    chosen = jax.tree.map(lambda _: True, plant.networks)
    chosen = eqx.tree_at(lambda p: p.networks, nothing, chosen)
    if with_observer:
        gains = jax.tree.map(lambda _: True, plant.observation)
        chosen = eqx.tree_at(lambda p: p.observation, chosen, gains)
    return chosen


def _decay_mask(weights: LearnedPlant) -> Any:
    """Weight decay is for the weights of the networks only."""
    nothing = jax.tree.map(lambda _: False, weights)
    chosen = tuple((True, False) for _ in weights.networks.layers)
    return eqx.tree_at(lambda p: p.networks.layers, nothing, chosen)
