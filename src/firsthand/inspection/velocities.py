"""Whether each measured velocity is that of its position."""

import numpy as np

from firsthand_onboard import ControlSpec

from .recording import Recording

DELAYS = range(5)
"""Delays of a velocity sensor that are tried, in control periods."""
OWN, OTHER = 0.5, 0.7
"""A velocity that is less like its own position's difference quotient than the first, and like another's by the second
or more (correlations), is that one's."""
MIN_SAMPLES = 30


def swapped_velocities(recording: Recording, spec: ControlSpec) -> tuple[tuple[int, int, int], ...]:
    """Entries of the measurement: a velocity, the position that it follows, and the one that is declared for it."""
    layout = spec.layout
    if len(layout.velocity) < 2:
        return ()
    part = np.cumsum(~recording.joined)
    quotient = recording.after[1:, list(layout.position)] - recording.before[:-1, list(layout.position)]
    velocity = recording.before[1:, list(layout.velocity)]
    alike = np.zeros((len(layout.velocity), len(layout.position)))
    for delay in DELAYS:
        moved, shown = quotient[: len(quotient) - delay], velocity[delay:]
        known = np.isfinite(moved).all(axis=1) & np.isfinite(shown).all(axis=1)
        known &= part[: len(moved)] == part[1 + delay :]
        if known.sum() < MIN_SAMPLES:
            return ()
        moved, shown = (values[known] - values[known].mean(axis=0) for values in (moved, shown))
        power = np.sqrt(np.outer(np.sum(shown**2, axis=0), np.sum(moved**2, axis=0)))
        alike = np.maximum(alike, np.divide(shown.T @ moved, power, out=np.zeros_like(power), where=power > 0))
    return tuple(
        (entry, layout.position[int(np.argmax(mine))], layout.position[i])
        for i, (entry, mine) in enumerate(zip(layout.velocity, alike, strict=True))
        if mine[i] < OWN and mine.max() >= OTHER
    )
