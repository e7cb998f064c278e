"""The part of `check_plant` that runs a plant: what it declares, shapes, rest, random commands, keys and batches."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .base import AbstractPlant


class PlantCheckError(AssertionError):
    """A plant breaks the contract of `AbstractPlant`; the message is one sentence that says how."""


# What is declared, and shapes -----------------------------------------------------------------------------------------


def check_declared(plant: AbstractPlant) -> None:
    """The period and the two counts."""
    period = plant.period_s
    if not isinstance(period, float | int) or not (math.isfinite(period) and period > 0.0):
        raise PlantCheckError(f"period_s must be a positive number of seconds, not {period!r}.")
    for name in ("num_commands", "num_measured"):
        count = getattr(plant, name)
        if not isinstance(count, int) or count < 1:
            raise PlantCheckError(f"{name} must be a whole number of at least 1, not {count!r}.")


def starting_positions(plant: AbstractPlant, positions: ArrayLike | None) -> Float[Array, "count positions"]:
    """The given positions as a matrix, or one row of zeros of the first length that fits `num_measured`."""
    if positions is not None:
        positions = jnp.asarray(positions, dtype=float)
        if positions.ndim != 2 or positions.size == 0:
            raise ValueError(f"positions must be a matrix with one configuration per row, not {positions.shape}.")
        return positions
    for length in range(1, 2 * plant.num_measured + 1):
        try:
            measured = jax.eval_shape(_first_measurement, plant, jnp.zeros(length), jax.random.key(0))
        except Exception:  # A wrong length can fail in any way; what is right is found by what does not.
            continue
        if measured.shape == (plant.num_measured,):
            return jnp.zeros((1, length))
    raise PlantCheckError(
        f"No position of 1 to {2 * plant.num_measured} zeros makes measure(reset(position)) return num_measured = "
        f"{plant.num_measured} numbers: correct num_measured, or pass positions."
    )


def _first_measurement(plant: AbstractPlant, position: Array, key: PRNGKeyArray) -> Array:
    return plant.measure(plant.reset(position), key=key)


def check_shapes(plant: AbstractPlant, position: Array) -> None:
    """What `reset`, `step` and `measure` return, traced and not run."""
    key = jax.random.key(0)
    state = _trace("reset", plant.reset, position)
    measured = _trace("measure", lambda s: plant.measure(s, key=key), state)
    if getattr(measured, "shape", None) != (plant.num_measured,):
        shape = getattr(measured, "shape", type(measured).__name__)
        raise PlantCheckError(f"measure must return shape ({plant.num_measured},) = (num_measured,), not {shape}.")
    if not jnp.issubdtype(measured.dtype, jnp.floating):
        raise PlantCheckError(f"measure must return floating-point numbers, not {measured.dtype}.")

    command = jnp.zeros(plant.num_commands, measured.dtype)
    after = _trace("step", lambda s, u: plant.step(s, u, key=key), state, command)
    if jax.tree.structure(after) != jax.tree.structure(state):
        raise PlantCheckError(
            f"step must keep the state's structure {jax.tree.structure(state)}, not return {jax.tree.structure(after)}."
        )
    for (path, old), new in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(after), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise PlantCheckError(
                f"step must keep shapes and dtypes, but state{jax.tree_util.keystr(path)} was {old.dtype}{old.shape} "
                f"and becomes {new.dtype}{new.shape}."
            )
    measured_after = _trace("measure", lambda s: plant.measure(s, key=key), after)
    if (measured_after.shape, measured_after.dtype) != (measured.shape, measured.dtype):
        raise PlantCheckError(
            f"measure must keep its shape and dtype, but {measured.dtype}{measured.shape} after reset becomes "
            f"{measured_after.dtype}{measured_after.shape} after step."
        )


def _trace(name: str, function: Callable, *arguments: Any) -> Any:
    """The shapes `function` returns."""
    return attempt(f"{name} cannot be traced", jax.eval_shape, function, *arguments)


def attempt(failure: str, function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`; whatever it raises becomes a `PlantCheckError` that begins with `failure`."""
    try:
        return function(*arguments)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise PlantCheckError(f"{failure}: {type(error).__name__}: {reason}") from error


# Rest, random runs, keys, batches -------------------------------------------------------------------------------------


def rollout(plant: AbstractPlant, state: Any, commands: Float[Array, "steps commands"], keys: Array) -> Any:
    """The states and measurements after each command; `keys[k]` are the two keys of step k."""

    def body(state, inputs):
        command, step_keys = inputs
        state = plant.step(state, command, key=step_keys[0])
        return state, (state, plant.measure(state, key=step_keys[1]))

    return jax.lax.scan(body, state, (commands, keys))[1]


@eqx.filter_jit
def _run_batch(plant: AbstractPlant, positions: Array, commands: Array, keys: Array) -> Any:
    """Runs from every position with the same keys: states and measurements, those after `reset` first."""

    def run(position, commands):
        state = plant.reset(position)
        first = (state, plant.measure(state, key=keys[0, 1]))
        later = rollout(plant, state, commands, keys)
        return jax.tree.map(lambda one, more: jnp.concatenate([jnp.asarray(one)[None], more]), first, later)

    return jax.vmap(run)(positions, commands)


class Runs(NamedTuple):
    """Three runs from every position: with zero, smooth and bang-bang commands."""

    plant: AbstractPlant
    positions: Array
    """(3 · count, positions): first those with zero commands, then smooth, then bang-bang."""
    commands: Array
    """(3 · count, steps, commands)."""
    key: PRNGKeyArray
    keys: Array
    """(steps, 2): one key to move and one to sense, the same for all runs."""
    states: Any
    """Leaves of shape (3 · count, steps + 1, …); the first is after `reset`."""
    measured: np.ndarray
    """(3 · count, steps + 1, measured)."""

    @staticmethod
    def make(plant: AbstractPlant, positions: Array, rng: np.random.Generator, key: PRNGKeyArray, steps: int):
        """At least one second of each."""
        steps = max(steps, math.ceil(1.0 / plant.period_s))
        shape = (len(positions), steps, plant.num_commands)
        commands = np.concatenate([np.zeros(shape), _smooth(rng, shape), _bang_bang(rng, shape)])
        commands = jnp.asarray(commands, positions.dtype)
        positions = jnp.concatenate([positions] * 3)
        keys = jax.random.split(key, (steps, 2))
        failure = "The plant cannot be run under jit, vmap and scan"
        states, measured = attempt(failure, _run_batch, plant, positions, commands, keys)
        return Runs(plant, positions, commands, key, keys, jax.tree.map(np.asarray, states), np.asarray(measured))

    @property
    def count(self) -> int:
        """The number of positions."""
        return len(self.positions) // 3


def _smooth(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Sums of four sines with periods of 20 to 200 steps, clipped to [-1, 1]."""
    count, steps, channels = shape
    phase = rng.uniform(0.0, 2.0 * np.pi, (4, count, 1, channels))
    rate = rng.uniform(0.005, 0.05, (4, count, 1, channels))
    angle = 2.0 * np.pi * rate * np.arange(steps)[:, None] + phase
    return np.clip(0.6 * np.sum(np.sin(angle), axis=0), -1.0, 1.0)


def _bang_bang(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """-1 or 1, switched in every fifth step on average."""
    flips = np.cumsum(rng.random(shape) < 0.2, axis=1) + rng.integers(0, 2, (shape[0], 1, shape[2]))
    return np.where(flips % 2 == 0, 1.0, -1.0)


def check_rest(runs: Runs, tolerance: float, configuration: slice) -> float:
    """How far the configuration drifts in one second of zero commands."""
    second = math.ceil(1.0 / runs.plant.period_s)
    resting = runs.measured[: runs.count, : second + 1, configuration]
    drift = np.max(np.abs(resting - resting[:, :1]), axis=(1, 2))
    worst = int(np.argmax(drift))
    if drift[worst] > tolerance:
        raise PlantCheckError(
            f"reset must be at rest, but from position {np.asarray(runs.positions[worst]).tolist()} the measured "
            f"configuration moves by {drift[worst]:.3g} in 1 s of zero commands (allowed: {tolerance:.3g})."
        )
    return float(drift[worst])


def check_finite(runs: Runs) -> None:
    """Names the quantity that is the first to be infinite or NaN: it is nearest to the cause."""
    found = []
    for path, leaf in jax.tree.leaves_with_path({"measured": runs.measured, "state": runs.states}):
        bad = np.argwhere(~np.isfinite(leaf.astype(float)))
        if len(bad):
            run, step = bad[np.argmin(bad[:, 1])][:2]
            found.append((step, run, path[0].key + jax.tree_util.keystr(path[1:])))
    if found:
        step, run, name = min(found)
        kind = ("zero", "smooth", "bang-bang")[run // runs.count]
        raise PlantCheckError(f"{name} is not finite after {step} steps of {kind} commands.")


def check_keys(runs: Runs, noise_free: bool) -> None:
    """The same key gives the same bits; without noise any other key does, too."""

    def differs(keys):
        again = _run_batch(runs.plant, runs.positions, runs.commands, keys)
        pairs = zip(jax.tree.leaves(again), jax.tree.leaves((runs.states, runs.measured)), strict=True)
        return not all(np.array_equal(new, old) for new, old in pairs)

    if differs(runs.keys):
        raise PlantCheckError("The same state, commands and key must give the same result, but two runs differ.")
    if noise_free and differs(jax.random.split(jax.random.fold_in(runs.key, 1), runs.keys.shape[:2])):
        raise PlantCheckError("Without noise the result must not depend on the key, but two keys give two results.")


def check_channels(runs: Runs) -> None:
    """Every command does something."""
    for channel in range(runs.plant.num_commands):
        without = runs.commands.at[..., channel].set(0.0)
        _, measured = _run_batch(runs.plant, runs.positions, without, runs.keys)
        if np.array_equal(measured, runs.measured):
            raise PlantCheckError(
                f"Command channel {channel} has no effect on what is measured within {without.shape[1]} steps: "
                f"correct num_commands = {runs.plant.num_commands}, or the plant."
            )


@eqx.filter_jit
def _single_step(plant: AbstractPlant, state: Any, command: Array, keys: Array) -> Any:
    state = plant.step(state, command, key=keys[0])
    return state, plant.measure(state, key=keys[1])


def check_vmap(runs: Runs, steps: int) -> float:
    """The vmapped scan of `_run_batch` against a loop of jitted single steps, for one run of each kind."""
    worst = 0.0
    low, high = runs.measured.min(axis=(0, 1)), runs.measured.max(axis=(0, 1))
    scale = np.maximum(np.maximum(high - low, np.abs(low)), np.abs(high))
    for run in range(0, len(runs.positions), runs.count):
        state = runs.plant.reset(runs.positions[run])
        for k in range(min(steps, len(runs.keys))):
            state, measured = _single_step(runs.plant, state, runs.commands[run, k], runs.keys[k])
            difference = np.abs(runs.measured[run, k + 1] - np.asarray(measured))
            worst = max(worst, float(np.max(difference / np.where(scale > 0.0, scale, 1.0))))
    if not worst <= 1e-3:
        raise PlantCheckError(
            f"A vmapped scan and a loop of single steps must agree, but differ by {worst:.3g} of the range."
        )
    return worst
