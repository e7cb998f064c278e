"""`check_plant`: what every simulated plant must pass, whoever wrote it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from firsthand.plants.base import AbstractPlant


class PlantCheckError(AssertionError):
    """A plant breaks the contract of `AbstractPlant`; the message is one sentence that says how."""


@dataclass(frozen=True)
class PlantReport:
    """The numbers behind a passed check."""

    rest_drift: float
    """The largest change of the measured configuration within one second of neutral commands after `reset`."""
    measured_low: tuple[float, ...]
    """The least value of each measured quantity under random commands."""
    measured_high: tuple[float, ...]
    """The greatest value of each measured quantity under random commands."""
    derivative_dtype: str
    """`float64`, or `float32` for a plant that does not stay in float64."""
    derivative_error: float
    """The largest relative difference between JVP and finite differences, over the directions that passed."""
    kink_fraction: float
    """The fraction of directions in which JVP and finite differences disagree, in the worst of the four groups:
    (state, command) × (one step, several steps)."""
    reverse_error: float
    """The largest relative difference between ⟨v, J w⟩ and ⟨Jᵀ v, w⟩."""
    vmap_error: float
    """The largest difference between a vmapped scan and a loop over samples and steps, relative to the range."""


class _Precision(NamedTuple):
    """How derivatives are compared in one floating-point width."""

    increments: tuple[float, ...]
    """Finite-difference increments as fractions of each quantity's range. A direction passes if it agrees with one
    of them: the long one has less rounding error, the short one less often straddles a kink."""
    tolerance: float
    """Relative, on JVPs against finite differences."""
    reverse_tolerance: float
    """Relative, on reverse against forward mode."""


_ROUNDING_SLACK = 30.0
"""Rounding errors of a simulated measurement, in units of its last place. Differences below that say nothing."""


def check_plant(
    plant: AbstractPlant,
    *,
    positions: Float[ArrayLike, "count positions"] | None = None,
    key: PRNGKeyArray,
    steps: int = 200,
    rest_tolerance: float = 1e-3,
    configuration: slice = slice(None),
    noise_free: bool = True,
    allowed_kink_fraction: float = 0.05,
    derivative_tolerance: float = 1e-3,
    float32_tolerance: float = 5e-2,
    num_points: int = 16,
    num_directions: int = 4,
    several_steps: int = 10,
) -> PlantReport:
    """Hold a plant to the contract of `AbstractPlant`; raise `PlantCheckError` on the first violation.

    In this order:

    1. `period_s`, `num_commands` and `num_measured` are what they should be.
    2. `measure` returns `num_measured` floats; `step` keeps the state's structure, shapes and dtypes; both trace.
    3. States and measurements stay finite for `steps` steps of zero, smooth random and bang-bang random commands in
       [-1, 1].
    4. `reset` is at rest: under zero commands `measured[configuration]` moves by at most `rest_tolerance` in 1 s.
    5. The same key gives the same bits; when `noise_free`, so does any other key.
    6. Every command channel has an effect. A vmapped scan equals a loop over samples and jitted steps.
    7. Reverse mode equals forward mode, ⟨v, J w⟩ = ⟨Jᵀ v, w⟩, and both are finite; also at rest, where norms and square
       roots like to divide by zero, and also in the plant's own dtype.
    8. The JVP of (state, commands) → measurement, over one step and over `several_steps`, equals central finite
       differences in `num_directions` random directions at each of `num_points` states visited under random commands.
       State and command directions are judged apart, and quantity by quantity.

    Derivatives are compared in float64 if the plant, cast to it, stays in it, and else in float32 with looser bounds.
    Going to float64 and back empties JAX's caches: what was compiled before will be compiled again.

    Args:
        plant: with its noise off, unless `noise_free` is False.
        positions: the configurations to start from. By default one, all zeros, of the shortest length that `reset`
            accepts. Pass several, spread over the workspace, where there is one.
        key: for the random commands, points and directions.
        steps: the length of the random runs.
        rest_tolerance: in units of what is measured.
        configuration: which part of the measurement must not move at rest. Leave out what is not in these units.
        noise_free: the result may not depend on the key given to `step` and `measure`.
        allowed_kink_fraction: up to this fraction of the directions of each group may disagree with finite
            differences, for plants with stops, friction or dead bands.
        derivative_tolerance: relative tolerance in float64.
        float32_tolerance: relative tolerance in float32.
        num_points: how many states to linearise at.
        num_directions: how many directions per state and group.
        several_steps: the longer span of the derivative checks; more than the dead time.
    """
    rng = np.random.default_rng(np.asarray(_key_data(key)))
    _check_declared(plant)
    positions = _positions(plant, positions)
    _check_shapes(plant, positions[0])
    runs = _Runs.make(plant, positions, rng, key, steps)
    _check_finite(runs)
    drift = _check_rest(runs, rest_tolerance, configuration)
    _check_keys(runs, noise_free)
    _check_channels(runs)
    vmap_error = _check_vmap(runs, several_steps)

    points = _sample_points(runs, rng, num_points, num_directions, several_steps)
    narrow = _Precision((1e-1, 1e-2), float32_tolerance, 1e-2)
    wide = _Precision((1e-4, 1e-6), derivative_tolerance, 1e-6)
    reverse_error, pushed = _check_reverse(plant, points, narrow)
    with _float64():
        wide_plant, wide_points = _cast(plant, np.float64), _cast(points, np.float64)
        has_float64 = _stays_in_float64(wide_plant, positions[0])
        if has_float64:
            reverse_error, pushed = _check_reverse(wide_plant, wide_points, wide)
            forward = _check_forward(wide_plant, wide_points, pushed, wide, allowed_kink_fraction)
    if not has_float64:
        forward = _check_forward(plant, points, pushed, narrow, allowed_kink_fraction)
    measured = runs.measured
    return PlantReport(
        rest_drift=drift,
        measured_low=tuple(measured.min(axis=(0, 1)).tolist()),
        measured_high=tuple(measured.max(axis=(0, 1)).tolist()),
        derivative_dtype="float64" if has_float64 else "float32",
        derivative_error=forward[0],
        kink_fraction=forward[1],
        reverse_error=reverse_error,
        vmap_error=vmap_error,
    )


def _key_data(key: PRNGKeyArray) -> Array:
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


@contextmanager
def _float64() -> Iterator[None]:
    """JAX in float64. What it has traced is forgotten on the way in and out.

    JAX 0.10 keeps the dtype of a numpy constant inside a `scan` from one mode to the other, and then fails on mixed
    dtypes. Plants are full of such constants.
    """
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        yield
        return
    jax.clear_caches()
    try:
        with jax.enable_x64(True):
            yield
    finally:
        jax.clear_caches()


def _cast(tree: Any, dtype: type) -> Any:
    """The same pytree with every floating-point array in this dtype."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


# What is declared, and shapes -----------------------------------------------------------------------------------------


def _check_declared(plant: AbstractPlant) -> None:
    period = plant.period_s
    if not isinstance(period, float | int) or not (math.isfinite(period) and period > 0.0):
        raise PlantCheckError(f"period_s must be a positive number of seconds, not {period!r}.")
    for name in ("num_commands", "num_measured"):
        count = getattr(plant, name)
        if not isinstance(count, int) or count < 1:
            raise PlantCheckError(f"{name} must be a whole number of at least 1, not {count!r}.")


def _positions(plant: AbstractPlant, positions: ArrayLike | None) -> Float[Array, "count positions"]:
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


def _check_shapes(plant: AbstractPlant, position: Array) -> None:
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
    return _attempt(f"{name} cannot be traced", jax.eval_shape, function, *arguments)


def _attempt(failure: str, function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`; whatever it raises becomes a `PlantCheckError` that begins with `failure`."""
    try:
        return function(*arguments)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise PlantCheckError(f"{failure}: {type(error).__name__}: {reason}") from error


# Rest, random runs, keys, batches -------------------------------------------------------------------------------------


def _rollout(plant: AbstractPlant, state: Any, commands: Float[Array, "steps commands"], keys: Array) -> Any:
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
        later = _rollout(plant, state, commands, keys)
        return jax.tree.map(lambda one, more: jnp.concatenate([jnp.asarray(one)[None], more]), first, later)

    return jax.vmap(run)(positions, commands)


class _Runs(NamedTuple):
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
        steps = max(steps, math.ceil(1.0 / plant.period_s))
        shape = (len(positions), steps, plant.num_commands)
        commands = np.concatenate([np.zeros(shape), _smooth(rng, shape), _bang_bang(rng, shape)])
        commands = jnp.asarray(commands, positions.dtype)
        positions = jnp.concatenate([positions] * 3)
        keys = jax.random.split(key, (steps, 2))
        failure = "The plant cannot be run under jit, vmap and scan"
        states, measured = _attempt(failure, _run_batch, plant, positions, commands, keys)
        return _Runs(plant, positions, commands, key, keys, jax.tree.map(np.asarray, states), np.asarray(measured))

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


def _check_rest(runs: _Runs, tolerance: float, configuration: slice) -> float:
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


def _check_finite(runs: _Runs) -> None:
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


def _check_keys(runs: _Runs, noise_free: bool) -> None:
    def differs(keys):
        again = _run_batch(runs.plant, runs.positions, runs.commands, keys)
        pairs = zip(jax.tree.leaves(again), jax.tree.leaves((runs.states, runs.measured)), strict=True)
        return not all(np.array_equal(new, old) for new, old in pairs)

    if differs(runs.keys):
        raise PlantCheckError("The same state, commands and key must give the same result, but two runs differ.")
    if noise_free and differs(jax.random.split(jax.random.fold_in(runs.key, 1), runs.keys.shape[:2])):
        raise PlantCheckError("Without noise the result must not depend on the key, but two keys give two results.")


def _check_channels(runs: _Runs) -> None:
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


def _check_vmap(runs: _Runs, steps: int) -> float:
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


# Derivatives ----------------------------------------------------------------------------------------------------------


class _Points(NamedTuple):
    """Where to linearise, in which directions, and the sizes of things. Numpy arrays, so that they can change width."""

    states: Any
    """Leaves (points, …): visited states, then those after `reset`."""
    commands: np.ndarray
    """(points, steps, commands): random in the visited states, zero at rest."""
    state_directions: Any
    """Leaves (points, 2 · directions, …) for the floats of the state, None for its other leaves. The first half moves
    every element by up to the range that it visits, the second half is zero."""
    command_directions: np.ndarray
    """(points, 2 · directions, steps, commands): the first half is zero, the second half is in [-1, 1]."""
    cotangents: np.ndarray
    """(points, steps, measured)."""
    measured_scale: np.ndarray
    """(measured,): the range each measurement visits."""
    keys: Array
    """(steps, 2)."""
    visited: int
    """How many of the points are visited ones; JVPs are compared with finite differences at these only, because at
    rest a plant with friction or dead bands stands on a kink."""


def _sample_points(runs: _Runs, rng: np.random.Generator, visited: int, directions: int, steps: int) -> _Points:
    """States at random times of the runs with random commands."""
    picked = rng.integers(runs.count, len(runs.positions), visited), rng.integers(1, runs.measured.shape[1], visited)
    count = visited + runs.count
    dtype = runs.measured.dtype

    def choose(leaf):
        return np.concatenate([leaf[picked], leaf[: runs.count, 0]])

    def half(scale, first):
        """Random directions in one half of the second axis and zeros in the other."""
        drawn = scale * rng.uniform(-1.0, 1.0, (count, directions, *scale.shape))
        both = (drawn, np.zeros_like(drawn)) if first else (np.zeros_like(drawn), drawn)
        return np.concatenate(both, axis=1)

    def state_directions(leaf):
        # An element that never changes, such as a payload kept in the state, is moved by a thousandth of itself.
        scale = np.maximum(np.ptp(leaf, axis=(0, 1)), 1e-3 * np.max(np.abs(leaf), axis=(0, 1)))
        return half(scale, first=True).astype(leaf.dtype)

    # Short of ±1, where a plant that clips has a kink.
    commands = rng.uniform(-0.9, 0.9, (count, steps, runs.plant.num_commands))
    commands[visited:] = 0.0
    span = np.ptp(runs.measured, axis=(0, 1))
    measured_scale = np.where(span > 0.0, span, 1.0).astype(dtype)
    return _Points(
        states=jax.tree.map(choose, runs.states),
        commands=commands.astype(dtype),
        state_directions=jax.tree.map(state_directions, eqx.filter(runs.states, eqx.is_inexact_array)),
        command_directions=half(np.ones(commands.shape[1:]), first=False).astype(dtype),
        cotangents=(rng.uniform(-1.0, 1.0, (count, steps, len(span))) / measured_scale).astype(dtype),
        measured_scale=measured_scale,
        keys=jax.random.split(runs.key, (steps, 2)),
        visited=visited,
    )


@eqx.filter_jit
def _measurements(plant: AbstractPlant, states: Any, commands: Array, keys: Array) -> Float[Array, "batch steps meas"]:
    return jax.vmap(lambda state, u: _rollout(plant, state, u, keys)[1])(states, commands)


@eqx.filter_jit
def _linearise(plant: AbstractPlant, points: _Points) -> tuple[Array, Any]:
    """J w for every direction w, (points, 2 · directions, steps, measured), and Jᵀ v for every cotangent v."""
    floats, fixed = eqx.partition(points.states, eqx.is_inexact_array)

    def at_point(floats, fixed, commands, directions, cotangent):
        def measured(floats, commands):
            return _rollout(plant, eqx.combine(floats, fixed), commands, points.keys)[1]

        def push(direction):
            return jax.jvp(measured, (floats, commands), direction)[1]

        return jax.vmap(push)(directions), jax.vjp(measured, floats, commands)[1](cotangent)

    directions = (points.state_directions, points.command_directions)
    return jax.vmap(at_point)(floats, fixed, points.commands, directions, points.cotangents)


def _check_reverse(plant: AbstractPlant, points: _Points, precision: _Precision) -> tuple[float, np.ndarray]:
    """⟨v, J w⟩ against ⟨Jᵀ v, w⟩ at all points and directions, each difference relative to the sum of all sizes.

    Returns the largest difference, and J w for every direction.
    """
    result = _attempt("The plant cannot be differentiated in both modes", _linearise, plant, points)
    pushed, pulled = jax.tree.map(np.asarray, result)
    name = f"over {points.commands.shape[1]} steps in {points.commands.dtype}"
    for mode, results in (("Forward", [pushed]), ("Reverse", jax.tree.leaves(pulled))):
        finite = np.array([[np.all(np.isfinite(point)) for point in result] for result in results])
        if not np.all(finite):
            at_rest = np.all(finite[:, : points.visited])
            place = "at rest with zero commands" if at_rest else "in states visited under random commands"
            raise PlantCheckError(f"{mode}-mode derivatives {name} are not finite {place}.")

    def terms(cotangents, directions):
        """Products of a cotangent (points, …) with each direction (points, directions, …), flattened."""
        product = cotangents[:, None] * directions
        return product.reshape(*product.shape[:2], math.prod(product.shape[2:]))

    forward = terms(points.cotangents, pushed)
    directions = (points.state_directions, points.command_directions)
    pairs = zip(jax.tree.leaves(pulled), jax.tree.leaves(directions), strict=True)
    backward = np.concatenate([terms(cotangent, direction) for cotangent, direction in pairs], axis=-1)
    difference = np.abs(forward.sum(axis=-1) - backward.sum(axis=-1))
    size = np.abs(forward).sum(axis=-1) + np.abs(backward).sum(axis=-1)
    worst = float(np.max(difference / np.where(size > 0.0, size, 1.0)))
    if worst > precision.reverse_tolerance:
        raise PlantCheckError(
            f"Reverse-mode derivatives {name} differ from forward mode by {worst:.2g} of themselves (allowed: "
            f"{precision.reverse_tolerance:.2g})."
        )
    return worst, pushed


def _forward_errors(plant: AbstractPlant, points: _Points, pushed: np.ndarray, increment: float) -> np.ndarray:
    """Relative errors of the JVPs at the visited points: (points, 2 · directions, steps)."""
    visited = points.visited
    floats, fixed = eqx.partition(jax.tree.map(lambda leaf: leaf[:visited], points.states), eqx.is_inexact_array)
    directions = points.command_directions.shape[1]

    def moved(sign):
        """Measurements with every direction added to its point, in one flat batch."""

        def move(value, direction):
            value = value[:visited, None] + (sign * increment) * direction[:visited]
            return value.reshape(visited * directions, *value.shape[2:])

        states = eqx.combine(
            jax.tree.map(move, floats, points.state_directions),
            jax.tree.map(lambda leaf: np.repeat(leaf, directions, axis=0), fixed),
        )
        measured = np.asarray(
            _measurements(plant, states, move(points.commands, points.command_directions), points.keys)
        )
        return measured.reshape(visited, directions, *measured.shape[1:])

    plus, minus = moved(1.0), moved(-1.0)
    difference = (plus - minus) / (2.0 * increment)
    derivative = pushed[:visited]
    # Judge each measurement by its own derivative, but not one that hardly responds by its rounding errors.
    size = np.maximum(np.abs(difference), np.abs(derivative))
    size = size + 1e-3 * points.measured_scale * np.max(size / points.measured_scale, axis=-1, keepdims=True)
    rounding = _ROUNDING_SLACK * np.finfo(plus.dtype).eps * np.maximum(np.abs(plus), np.abs(minus)) / increment
    excess = np.abs(difference - derivative) - rounding
    return np.max(np.where(excess <= 0.0, 0.0, excess / np.where(size > 0.0, size, 1.0)), axis=-1)


def _check_forward(
    plant: AbstractPlant, points: _Points, pushed: np.ndarray, precision: _Precision, allowed_kinks: float
) -> tuple[float, float]:
    """JVPs against finite differences. Returns the largest error that passed and the largest fraction that did not."""
    errors = np.min([_forward_errors(plant, points, pushed, increment) for increment in precision.increments], axis=0)
    largest = worst_fraction = 0.0
    state, command = np.split(errors, 2, axis=1)
    for span in sorted({1, errors.shape[-1]}):
        for name, group in (("state", state[..., span - 1]), ("command", command[..., span - 1])):
            passed = group <= precision.tolerance
            fraction = float(np.mean(~passed))
            if fraction > allowed_kinks:
                raise PlantCheckError(
                    f"The JVP with respect to the {name} over {span} step(s) disagrees with finite differences in "
                    f"{fraction:.0%} of {passed.size} random directions (allowed: {allowed_kinks:.0%}), by "
                    f"{np.median(group[~passed]):.2g} of itself in their median (allowed: {precision.tolerance:.2g})."
                )
            worst_fraction = max(worst_fraction, fraction)
            largest = max(largest, float(np.max(group, initial=0.0, where=passed)))
    return largest, worst_fraction


def _stays_in_float64(plant: AbstractPlant, position: Array) -> bool:
    """Whether all floats of the state and the measurement, before and after a step, are float64."""
    key = jax.random.key(0)

    def both(position, command):
        state = plant.reset(position)
        after = plant.step(state, command, key=key)
        return state, after, plant.measure(state, key=key), plant.measure(after, key=key)

    shapes = [jax.ShapeDtypeStruct(shape, np.float64) for shape in (position.shape, (plant.num_commands,))]
    try:
        result = jax.eval_shape(both, *shapes)
    except Exception:  # A plant that cannot be traced in float64 is checked in float32.
        return False
    return all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(result) if jnp.issubdtype(leaf.dtype, jnp.inexact))
