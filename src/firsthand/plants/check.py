"""`check_plant`: the checks that every simulated plant must pass."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .base import AbstractPlant
from .check_derivatives import DerivativeSettings, check_derivatives
from .check_runs import PlantCheckError as PlantCheckError
from .check_runs import (
    Runs,
    check_channels,
    check_declared,
    check_finite,
    check_keys,
    check_rest,
    check_shapes,
    check_vmap,
    starting_positions,
)


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
    check_declared(plant)
    positions = starting_positions(plant, positions)
    check_shapes(plant, positions[0])
    runs = Runs.make(plant, positions, rng, key, steps)
    check_finite(runs)
    drift = check_rest(runs, rest_tolerance, configuration)
    check_keys(runs, noise_free)
    check_channels(runs)
    vmap_error = check_vmap(runs, several_steps)
    settings = DerivativeSettings(
        num_points, num_directions, several_steps, derivative_tolerance, float32_tolerance, allowed_kink_fraction
    )
    derivatives = check_derivatives(runs, rng, settings)
    measured = runs.measured
    return PlantReport(
        rest_drift=drift,
        measured_low=tuple(measured.min(axis=(0, 1)).tolist()),
        measured_high=tuple(measured.max(axis=(0, 1)).tolist()),
        derivative_dtype=derivatives.dtype,
        derivative_error=derivatives.error,
        kink_fraction=derivatives.kink_fraction,
        reverse_error=derivatives.reverse_error,
        vmap_error=vmap_error,
    )


def _key_data(key: PRNGKeyArray) -> Array:
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
