"""The part of `check_plant` that differentiates a plant: both modes, and finite differences."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import AbstractPlant
from .check_runs import PlantCheckError, Runs, attempt, rollout


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


class DerivativeSettings(NamedTuple):
    """How derivatives are checked; see `check.check_plant`."""

    points: int
    directions: int
    steps: int
    tolerance: float
    """In float64."""
    float32_tolerance: float
    allowed_kinks: float


class Derivatives(NamedTuple):
    """Results of the check; the fields are those of `check.PlantReport`."""

    dtype: str
    error: float
    kink_fraction: float
    reverse_error: float


def check_derivatives(runs: Runs, rng: np.random.Generator, settings: DerivativeSettings) -> Derivatives:
    """Reverse mode against forward mode, and forward mode against finite differences, at states of the runs."""
    plant = runs.plant
    points = _sample_points(runs, rng, settings.points, settings.directions, settings.steps)
    narrow = _Precision((1e-1, 1e-2), settings.float32_tolerance, 1e-2)
    wide = _Precision((1e-4, 1e-6), settings.tolerance, 1e-6)
    reverse_error, pushed = _check_reverse(plant, points, narrow)
    with _float64():
        wide_plant, wide_points = _cast(plant, np.float64), _cast(points, np.float64)
        has_float64 = _stays_in_float64(wide_plant, runs.positions[0])
        if has_float64:
            reverse_error, pushed = _check_reverse(wide_plant, wide_points, wide)
            error, kinks = _check_forward(wide_plant, wide_points, pushed, wide, settings.allowed_kinks)
    if not has_float64:
        error, kinks = _check_forward(plant, points, pushed, narrow, settings.allowed_kinks)
    return Derivatives("float64" if has_float64 else "float32", error, kinks, reverse_error)


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


def _sample_points(runs: Runs, rng: np.random.Generator, visited: int, directions: int, steps: int) -> _Points:
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
    return jax.vmap(lambda state, u: rollout(plant, state, u, keys)[1])(states, commands)


@eqx.filter_jit
def _linearise(plant: AbstractPlant, points: _Points) -> tuple[Array, Any]:
    """J w for every direction w, (points, 2 · directions, steps, measured), and Jᵀ v for every cotangent v."""
    floats, fixed = eqx.partition(points.states, eqx.is_inexact_array)

    def at_point(floats, fixed, commands, directions, cotangent):
        def measured(floats, commands):
            return rollout(plant, eqx.combine(floats, fixed), commands, points.keys)[1]

        def push(direction):
            return jax.jvp(measured, (floats, commands), direction)[1]

        return jax.vmap(push)(directions), jax.vjp(measured, floats, commands)[1](cotangent)

    directions = (points.state_directions, points.command_directions)
    return jax.vmap(at_point)(floats, fixed, points.commands, directions, points.cotangents)


def _check_reverse(plant: AbstractPlant, points: _Points, precision: _Precision) -> tuple[float, np.ndarray]:
    """⟨v, J w⟩ against ⟨Jᵀ v, w⟩ at all points and directions, each difference relative to the sum of all sizes.

    Returns the largest difference, and J w for every direction.
    """
    result = attempt("The plant cannot be differentiated in both modes", _linearise, plant, points)
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
