"""Where a motion ends because a position is about to leave its limits."""

from collections.abc import Collection

import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec

LOOKAHEAD = 2.0
"""Control periods that a position is looked ahead, at its present speed."""
BEGIN_SLACK = 0.005
"""Share of a position's range by which it may be outside where a motion begins."""
LIMIT_SLACK = 0.01
"""Share of a position's range by which it may be outside: stops of a machine and noise of a sensor are not a fall."""
MAX_JUMP = 0.1
"""A change by more than this share of the range in one period may be a sensor's spike: the next measurement decides."""


class LimitWatch:
    """Tells when a position is about to leave its limits.

    A motion that begins outside, as after a push, may go on while it does not lead farther out. A position leaves where
    two more periods at its present speed would bring it outside: so what is measured stays inside, apart from what
    happens within them. A jump counts when the next measurement confirms it. Entries that are `angles` have no stops,
    and may turn on.
    """

    def __init__(
        self, spec: ControlSpec, measured: Float[np.ndarray, " measured"], angles: Collection[int] = ()
    ) -> None:
        self.index, low, high = limited_positions(spec, angles)
        slack = LIMIT_SLACK * (high - low)
        self.before = np.asarray(measured, float)[self.index]
        self.jump = MAX_JUMP * (high - low)
        self.doubted: Bool[np.ndarray, " positions"] = np.zeros(len(self.index), bool)
        """Which positions jumped in the last measurement, and count from the next on."""
        # What begins within the slack may not go beyond it: a robot that creeps would take it along, chunk by chunk.
        self.low = np.where(self.before < low - slack, self.before, low) - slack
        self.high = np.where(self.before > high + slack, self.before, high) + slack

    def leaves(self, measured: Float[np.ndarray, " measured"]) -> bool:
        """Whether the newest measurement, one period after the one before, leads out. NaN leads nowhere."""
        now = np.asarray(measured, float)[self.index]
        now = np.where(np.isfinite(now), now, self.before)
        self.doubted = (np.abs(now - self.before) > self.jump) & ~self.doubted
        now = np.where(self.doubted, self.before, now)
        step, self.before = now - self.before, now
        ahead = now + LOOKAHEAD * step
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
