"""Where a motion ends because a position is about to leave its limits."""

from collections.abc import Collection

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec

LOOKAHEAD = 2.0
"""Control periods that a position is looked ahead, at its present speed."""
BEGIN_SLACK = 0.005
"""Share of a position's range by which it may be outside where a motion begins."""
LIMIT_SLACK = 0.01
"""Share of a position's range by which it may be outside: stops of a machine and noise of a sensor are not a fall."""


class LimitWatch:
    """Tells when a position is about to leave its limits.

    A motion that begins outside, as after a push, may go on while it does not lead farther out. A position leaves where
    two more periods at its present speed would bring it outside: so what is measured stays inside, apart from what
    happens within them. Entries that are `angles` have no stops, and may turn on.
    """

    def __init__(
        self, spec: ControlSpec, measured: Float[np.ndarray, " measured"], angles: Collection[int] = ()
    ) -> None:
        self.index, low, high = limited_positions(spec, angles)
        slack = LIMIT_SLACK * (high - low)
        self.before = np.asarray(measured, float)[self.index]
        self.low, self.high = np.minimum(low, self.before) - slack, np.maximum(high, self.before) + slack

    def leaves(self, measured: Float[np.ndarray, " measured"]) -> bool:
        """Whether the newest measurement, one period after the one before, leads out. NaN leads nowhere."""
        now = np.asarray(measured, float)[self.index]
        step = now - self.before
        self.before = np.where(np.isfinite(now), now, self.before)
        ahead = now + LOOKAHEAD * np.nan_to_num(step)
        return bool(((ahead > self.high) & (step > 0) | (ahead < self.low) & (step < 0)).any())


def limited_positions(spec: ControlSpec, angles: Collection[int]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Entries of the measurement that are positions with stops, and their limits."""
    kept = [i for i, entry in enumerate(spec.layout.position) if entry not in angles]
    low, high = (np.asarray(side, float)[kept] for side in (spec.limits.position_low, spec.limits.position_high))
    return [spec.layout.position[i] for i in kept], low, high


def is_inside(
    spec: ControlSpec,
    measured: Float[np.ndarray, " measured"],
    slack: float = 0.0,
    angles: Collection[int] = (),
) -> bool:
    """Whether every position is inside its limits, or outside by at most this share of its range; not `angles`."""
    index, low, high = limited_positions(spec, angles)
    position = np.asarray(measured, float)[index]
    room = slack * (high - low)
    return bool(((position >= low - room) & (position <= high + room)).all())
