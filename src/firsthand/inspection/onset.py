"""Dead time: the first control period in which a command shows.

The signs of the pushes are drawn at random. Nothing that happens before a push takes effect can depend on its sign,
whatever the robot is and does by itself; so the mean of sign × measurement is zero up to the dead time, and is not
afterwards. This is the test of a randomised trial, taken period by period.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from .free_motion import FreeMotion
from .plan import CHUNK
from .recording import Push, Recording, paths

AGAINST_NOISE = 5.0
"""How many standard errors, by the noise at rest, the mean must be from zero."""
MISTAKE = 0.002
"""Probability of seeing a response before there is one, per measured quantity and look."""


@dataclass(frozen=True)
class Onset:
    """When a channel's command first shows."""

    steps: int
    """Whole control periods in which nothing shows: d, when u_k first shows in y_{k+1+d}."""
    measured: int
    """The quantity in which it shows first."""


def find_onset(
    recording: Recording,
    pushes: tuple[Push, ...],
    motion: FreeMotion,
    noise: Float[np.ndarray, " measured"] | None,
) -> Onset | None:
    """The dead time of the channel that `pushes` move, or None when no response can be told from noise.

    Looked at are: the displacement since before the push (where the robot can stand still and its `noise` is known),
    what each period adds beyond the robot's own motion, and, since a coin decides how long a push lasts, how those
    that end differ from those that go on. The latter sees no dead band and no slow opening. The earliest counts.
    """
    shows = [s for s in (_begins(recording, pushes, motion, noise), _ends(recording, pushes)) if s is not None]
    first = None
    for table in shows:
        lasting = table[:-1] & table[1:]
        if lasting.any():
            steps = int(np.argmax(lasting.any(axis=1)))
            if first is None or steps < first.steps:
                first = Onset(steps, int(np.argmax(lasting[steps])))
    return first


def _begins(
    recording: Recording, pushes: tuple[Push, ...], motion: FreeMotion, noise: Float[np.ndarray, " measured"] | None
) -> Bool[np.ndarray, "steps measured"] | None:
    """Where pushes of either sign differ, per period since they began."""
    if len(pushes) < 4:
        return None
    starts = np.asarray([p.start for p in pushes])
    signs = np.asarray([p.sign for p in pushes])
    steps = recording.push_steps
    over = np.arange(steps) >= np.asarray([p.steps for p in pushes])[:, None]
    rounding = _rounding(recording)
    rows = np.minimum(starts[:, None] + np.arange(steps), len(recording) - 1)
    earlier = motion.surprise[starts[:, None] - np.arange(1, CHUNK + 1)]
    known = np.isfinite(earlier)
    squares = np.where(known, earlier**2, 0.0).sum(axis=(0, 1))
    quiet = np.sqrt(squares / np.maximum(known.sum(axis=(0, 1)), 1))
    surprise = np.where(over[:, :, None], np.nan, motion.surprise[rows])
    shows = _shows(surprise, signs, quiet + rounding)
    if noise is not None:
        before = paths(recording, starts - CHUNK, CHUNK)
        # The mean of the measurements before the push, counted from the one at its start.
        level = before.mean(axis=1) - before[:, -1]
        moved = np.sqrt(np.nanmean((before - before[:, -1:]).reshape(-1, before.shape[-1]) ** 2, axis=0))
        quiet = np.maximum(noise, moved) * np.sqrt(1 + 1 / CHUNK)
        moved_on = np.where(over[:, :, None], np.nan, paths(recording, starts, steps) - level[:, None])
        shows |= _shows(moved_on, signs, quiet + rounding)
    return shows


def _ends(recording: Recording, pushes: tuple[Push, ...]) -> Bool[np.ndarray, "steps measured"] | None:
    """Where pushes that a coin has ended differ from those that go on, per period since then."""
    randomized = [p for p in pushes if p.randomized and not p.cut]
    if not randomized:
        return None
    early = min(p.steps for p in randomized)
    steps = min((p.steps for p in randomized if p.steps > early), default=early) - early
    ended = np.asarray([p.steps == early for p in randomized])
    signs = np.asarray([p.sign for p in randomized])
    cells = [(ended == e) & (signs == s) for e in (True, False) for s in (1.0, -1.0)]
    if steps < 2 or min(cell.sum() for cell in cells) < 2:
        return None
    starts = np.asarray([p.start for p in randomized]) + early
    # Counted from going on as in the period before: pushes that are a little faster than others do not matter.
    speed = paths(recording, starts - 1, 1)
    left = paths(recording, starts, steps) - speed * np.arange(1, steps + 1)[None, :, None]
    difference = np.zeros(left.shape[1:])
    squares = np.zeros(left.shape[1:])
    for sign, going, ending in ((1.0, cells[2], cells[0]), (-1.0, cells[3], cells[1])):
        difference += sign * (left[ending].mean(axis=0) - left[going].mean(axis=0)) / 2
        squares += sum(cell.sum() * left[cell].var(axis=0) for cell in (going, ending))
    freedom = len(randomized) - 4
    error = np.sqrt(squares / freedom * sum(1 / cell.sum() for cell in cells) / 4)
    rounding = _rounding(recording) * np.arange(1, steps + 1)[:, None]
    return np.abs(difference) > _threshold(freedom, left.shape[-1]) * error + rounding


def _threshold(freedom: int | np.ndarray, measured: int) -> np.ndarray:
    """Standard errors, estimated with `freedom` degrees of freedom, that chance hardly reaches."""
    return np.asarray(stats.t.isf(MISTAKE / (2 * measured), np.maximum(freedom, 1)))


def _rounding(recording: Recording) -> Float[np.ndarray, " measured"]:
    return 4 * np.finfo(np.float32).eps * np.nanmax(np.abs(recording.before), axis=0)


def _shows(
    values: Float[np.ndarray, "pushes steps measured"], signs: Float[np.ndarray, " pushes"], noise: np.ndarray
) -> Bool[np.ndarray, "steps measured"]:
    """Where the mean of sign × value is not zero."""
    product = signs[:, None, None] * values
    count = np.maximum(np.isfinite(product).sum(axis=0), 1)
    filled = np.where(np.isfinite(product), product, 0.0)
    mean = filled.sum(axis=0) / count
    spread = np.where(np.isfinite(product), (product - mean) ** 2, 0.0).sum(axis=0) / np.maximum(count - 1, 1)
    enough = count >= 4
    return (
        enough
        & (np.abs(mean) > AGAINST_NOISE * noise / np.sqrt(count))
        & (np.abs(mean) > _threshold(count - 1, values.shape[-1]) * np.sqrt(spread / count))
    )
