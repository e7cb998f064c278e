"""Which command moves which measured quantity, alone and when all channels move at once."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .recording import TOGETHER, Recording, paths

CLEAR = 4.0
"""Standard errors from which an effect counts."""


@dataclass(frozen=True)
class Coupling:
    """The change of every measured quantity `steps` periods after a push of each channel at its largest amplitude."""

    steps: int
    alone: Float[np.ndarray, "measured commands"]
    """One channel at a time; NaN where it was not tried."""
    together: Float[np.ndarray, "measured commands"]
    """All at once with random signs, by least squares; NaN where that was not done."""
    clear: Bool[np.ndarray, "measured commands"]
    """Where the effect alone can be told from noise."""


def coupling(recording: Recording, tops: np.ndarray, steps: int) -> Coupling:
    """Both matrices, `steps` periods after the command. `tops` is each channel's largest amplitude."""
    size, channels = recording.before.shape[1], recording.commands.shape[1]
    alone = np.full((size, channels), np.nan)
    clear = np.zeros((size, channels), bool)
    rounding = 16 * np.finfo(np.float32).eps * np.nanmax(np.abs(recording.before), axis=0)
    for c in range(channels):
        pushes = [p for p in recording.alone(c) if np.isclose(p.amplitude, tops[c]) and p.steps >= steps]
        if len(pushes) < 2:
            continue
        signs = np.asarray([p.sign for p in pushes])
        moved = paths(recording, np.asarray([p.start for p in pushes]), steps)[:, -1]
        effect, error = _effects(signs[:, None], moved)
        alone[:, c], clear[:, c] = effect[0], np.abs(effect[0]) > CLEAR * error[0] + rounding
    together = np.full((size, channels), np.nan)
    active = tops > 0
    pushes = [
        p
        for p in recording.pushes
        if p.channel == TOGETHER and p.steps >= steps and np.isclose(p.amplitude, tops.max())
    ]
    if len(pushes) > active.sum() + 2:
        signs = np.sign([p.fractions for p in pushes])[:, active]
        moved = paths(recording, np.asarray([p.start for p in pushes]), steps)[:, -1]
        together[:, active] = _effects(signs, moved)[0].T
    return Coupling(steps, alone, together, clear)


def _effects(signs: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares of what moved on the signs and a constant (drift): effects and their standard errors."""
    known = np.isfinite(moved).all(axis=1)
    signs, moved = signs[known], moved[known]
    if len(signs) <= signs.shape[1]:
        nothing = np.full((signs.shape[1], moved.shape[1]), np.nan)
        return nothing, nothing
    basis = np.concatenate([signs, np.ones((len(signs), 1))], axis=1)
    inverse = np.linalg.pinv(basis.T @ basis)
    effects = inverse @ basis.T @ moved
    left = moved - basis @ effects
    variance = np.sum(left**2, axis=0) / max(len(signs) - basis.shape[1], 1)
    errors = np.sqrt(np.diag(inverse)[:, None] * variance)
    return effects[:-1], errors[:-1]
