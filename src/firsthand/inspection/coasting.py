"""Whether a position that was pushed comes to rest under the neutral command."""

import numpy as np

from .recording import Recording

WINDOW = 3
"""Control periods over which a speed is the mean."""
MIN_STRETCHES = 3
"""Fewer stretches of the neutral command say nothing."""
FAST = 0.4
"""Stretches that begin with less than this share of the highest speed are left to noise."""
CLEAR = 6.0
"""A speed is told from noise at this many standard deviations."""
KEPT = 0.5
"""A position that keeps less than this share of its speed comes to rest."""


def comes_to_rest(recording: Recording, channel: int, position: int, dead: int, noise: float) -> bool | None:
    """Whether entry `position` stops after a push of `channel`; None where no speed is left that could be lost.

    The speed that is kept is the slope of the speed at the end of a stretch of the neutral command over that at its
    beginning, dead time later: 1 for a mass without friction, 0 for a valve that has closed.
    """
    neutral = (recording.commands == recording.commands[0]).all(axis=1)
    change = recording.change[:, position]
    stays = neutral & np.isfinite(change)
    early, late = [], []
    for push in recording.alone(channel):
        start = push.start + push.steps
        while start < len(recording) and not neutral[start]:
            start += 1
        end = start
        while end < len(recording) and stays[end] and (end == start or recording.joined[end]):
            end += 1
        if end - start - dead >= 2 * WINDOW:
            early.append(change[start + dead : start + dead + WINDOW].mean())
            late.append(change[end - WINDOW : end].mean())
    first, last = np.asarray(early), np.asarray(late)
    of_noise = noise * np.sqrt(2) / WINDOW  # the noise of a difference of two measurements, so far apart
    fast = np.abs(first) > max(FAST * np.abs(first).max(initial=0.0), CLEAR * of_noise)
    if fast.sum() < MIN_STRETCHES:
        return None
    kept = first[fast] @ last[fast] / (first[fast] @ first[fast])
    return bool(abs(kept) < KEPT)
