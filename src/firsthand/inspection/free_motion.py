"""The robot's own motion, which has to be separated from the effect of a command."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .recording import Recording

FEATURES = 80
NEUTRAL_FOR = 5
"""Periods of neutral command after which motion counts as free."""
ENOUGH = 60
"""Periods of free motion below which nothing is fitted."""
BLOCK = 20
"""Every second block of this many periods is left out of the fit and chooses among the fits."""
RIDGE = 1e-6


@dataclass(frozen=True)
class FreeMotion:
    """What is left of each period's change after what the robot does by itself."""

    surprise: Float[np.ndarray, "steps measured"]
    """Change minus predicted change; NaN where nothing was measured. It contains what commands do, and noise."""
    spread: Float[np.ndarray, " measured"]
    """Its standard deviation in free motion that was not fitted to."""


def neutral_steps(recording: Recording) -> Bool[np.ndarray, " steps"]:
    """Periods with a neutral command that had been neutral for a while."""
    neutral = (recording.commands == recording.commands[0]).all(axis=1)
    free = neutral.copy()
    for lag in range(1, NEUTRAL_FOR + 1):
        free[lag:] &= neutral[:-lag] & recording.joined[lag:]
    return free & recording.joined & np.isfinite(recording.change).all(axis=1)


def free_motion(recording: Recording, *, rates_measured: bool, seed: int = 0) -> FreeMotion:
    """Predict each period's change from the measurement, and from the change before unless rates are measured.

    For each quantity the best of three: no change, a linear prediction, and one with random Fourier features, judged
    on free motion left out of the fit. For dead time it needs not be right: it only makes commands easier to see.
    """
    change = recording.change
    before = np.concatenate([np.zeros_like(change[:1]), change[:-1]])
    usable = np.isfinite(change).all(axis=1) & recording.joined
    before = np.where(usable[:, None], np.nan_to_num(before), 0.0)
    free = np.flatnonzero(neutral_steps(recording))
    if len(free) < ENOUGH:
        spread = np.sqrt(np.mean(change[free] ** 2, axis=0)) if len(free) else np.zeros(change.shape[1])
        return FreeMotion(change, spread)
    inputs = recording.before if rates_measured else np.concatenate([recording.before, before], axis=1)
    center, scale = inputs[free].mean(axis=0), inputs[free].std(axis=0)
    scaled = np.clip((inputs - center) / np.where(scale > 0, scale, 1.0), -5.0, 5.0)
    rng = np.random.Generator(np.random.Philox(key=seed))
    linear = np.concatenate([np.ones((len(scaled), 1)), scaled], axis=1)
    waves = np.cos(scaled @ rng.normal(size=(scaled.shape[1], FEATURES)) * 0.7 + rng.uniform(0, 2 * np.pi, FEATURES))
    candidates = [np.zeros((len(scaled), 1)), linear]
    if len(free) > 4 * FEATURES:
        candidates.append(np.concatenate([linear, waves], axis=1))
    held = (free // BLOCK) % 2 == 1
    if held.all() or not held.any():
        held = np.arange(len(free)) % 2 == 1
    errors, predictions = [], []
    for basis in candidates:
        missed = change[free[held]] - basis[free[held]] @ _fit(basis[free[~held]], change[free[~held]])
        errors.append(np.mean(missed**2, axis=0))
        predictions.append(basis @ _fit(basis[free], change[free]))
    # A more complicated prediction must be clearly better.
    best = np.argmin(np.stack(errors) * np.asarray([1.0, 1.2, 1.5])[: len(errors), None], axis=0)
    columns = np.arange(change.shape[1])
    predicted = np.stack(predictions)[best, :, columns].T
    return FreeMotion(change - predicted, np.sqrt(np.stack(errors)[best, columns]))


def _fit(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    gram = basis.T @ basis
    return np.linalg.solve(gram + RIDGE * len(basis) * np.eye(len(gram)), basis.T @ target)
