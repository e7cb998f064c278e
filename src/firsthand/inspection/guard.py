"""Keeps pushes inside a robot's limits: what counts as motion, what leads towards a limit, and when to give up."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec

from .plan import CHUNK, Plan

MAX_TRAVEL = 0.25
"""A push is cut before a position is this share of its range away from where the push began."""
MARGIN = 0.05
"""Share of a position's range that is kept free at either limit."""
MAX_WANDER = 0.2
"""A position that moves over this share of its range under the neutral command cannot be guarded by pushing less."""
MAX_JUMP = 0.05
"""A position that is this share of its range from where it was measured last shows that the robot was restarted."""
ACCELERATING = 1.4
"""A position whose speed at the end of a push is this multiple of that in its middle is accelerated."""
CALM_DRIFT = 0.005
"""A position that would drift by less than this share of its range during a push has come to rest."""
LIMIT_SLACK = 0.02
"""A position that is this share of its range outside a limit ends the inspection."""

RUNAWAY_SLACK = 0.25
"""A position that cannot be guarded ends the inspection where it is this share of its range outside a limit."""

Positions = Float[np.ndarray, " positions"]


class InspectionStopped(Exception):
    """Ends the excitation; the message says why."""


class Guard:
    """The limits of a robot's positions, and the noise that was measured while it stood still."""

    def __init__(self, spec: ControlSpec, plan: Plan) -> None:
        self.index = np.asarray(spec.layout.position)
        """Where the positions are among the measured quantities."""
        self.names = [spec.layout.measured[i] for i in self.index]
        self.low, self.high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self.range = self.high - self.low
        self.push_steps = plan.push
        self.coast_steps = plan.push / 4
        """Control periods that a robot may go on moving after its command has changed."""
        zeros = np.zeros(len(self.index))
        self.guarded: Bool[np.ndarray, " positions"] = zeros.astype(bool)
        """Positions that can be guarded: none before `calibrate`."""
        self.noise_per_push, self.noise_per_chunk, self.jitter_per_chunk = zeros, zeros, zeros
        """Changes that noise and drift explain, during a push and during a chunk; the last without drift."""

    def calibrate(self, changes: Float[np.ndarray, "steps positions"], positions: Positions) -> None:
        """Learn the noise from the changes per period of a robot that stands still, at `positions` at the end."""
        path = np.concatenate([np.zeros((1, len(self.index))), np.cumsum(np.nan_to_num(changes), axis=0)])
        windows = path[self.push_steps :: CHUNK] - path[: -self.push_steps : CHUNK]
        rounding = 8 * np.finfo(np.float32).eps * np.abs(np.stack([self.low, self.high])).max(axis=0)
        self.noise_per_push = 6 * np.sqrt(np.mean(windows**2, axis=0)) + rounding
        chunks = path[CHUNK:] - path[:-CHUNK]
        self.noise_per_chunk = 3 * np.sqrt(np.mean(chunks**2, axis=0)) + rounding
        self.jitter_per_chunk = 3 * np.std(chunks, axis=0) + rounding
        inside = (positions > self.low) & (positions < self.high)
        self.guarded = inside & (np.ptp(path, axis=0) < MAX_WANDER * self.range)

    def check_limits(self, positions: Positions) -> None:
        """End the inspection when a position is clearly where it must not be: what was meant to prevent it failed."""
        slack = LIMIT_SLACK * self.range
        outside = self.guarded & ((positions < self.low - slack) | (positions > self.high + slack))
        if outside.any():
            i = int(np.argmax(outside))
            raise InspectionStopped(
                f"{self.names[i]} is {positions[i]:.3g}, outside its limits {self.low[i]:g} "
                f"and {self.high[i]:g}; the command is neutral, and a smaller --amplitude may help."
            )

    def check_runaway(self, positions: Positions, angles: Iterable[int] = ()) -> None:
        """End the inspection when a position that cannot be guarded has run far away: nothing brings it back.

        Entries that are `angles` may turn on. Robots that stop at their limits by themselves never get here.
        """
        free = np.isin(self.index, list(angles))
        slack = RUNAWAY_SLACK * self.range
        away = ~self.guarded & ~free & ((positions < self.low - slack) | (positions > self.high + slack))
        if away.any():
            i = int(np.argmax(away))
            raise InspectionStopped(
                f"{self.names[i]} is {positions[i]:.3g}, far outside its limits {self.low[i]:g} and {self.high[i]:g}, "
                "and moves by itself: what follows cannot be measured. Let limits end motions (stop_at_limits), give a "
                "neutral that holds it, or a base controller."
            )

    def is_continuous(self, before: np.ndarray, after: np.ndarray) -> bool:
        """Whether the robot is still where it was measured; an angle may be counted from another turn."""
        gap = (after - before)[self.index]
        turns = gap - 2 * np.pi * np.round(gap / (2 * np.pi))
        return bool((np.minimum(np.abs(gap), np.abs(turns)) < MAX_JUMP * self.range).all())

    def responds(self, motion: Positions) -> bool:
        """Whether a push moved a position further than noise would."""
        return bool((np.abs(motion) > self.noise_per_push).any())

    def may_go_too_far(self, motion: Positions) -> bool:
        """Whether a motion this large would be cut."""
        return bool((np.abs(motion) > MAX_TRAVEL * self.range)[self.guarded].any())

    def has_settled(self, motion: Positions, largest: Positions) -> bool:
        """Whether the motion during a chunk is noise, or little compared with the largest one of the push."""
        return bool((np.abs(motion) <= np.maximum(self.noise_per_chunk, 0.02 * largest)).all())

    def moving(self, speed: Positions) -> Bool[np.ndarray, " positions"]:
        """Which guarded positions move, beyond noise, so that they would go somewhere during a push."""
        calm = np.maximum(CALM_DRIFT * self.range / self.push_steps, self.noise_per_chunk / CHUNK)
        return self.guarded & (np.abs(speed) > calm)

    def leads_out(self, position: Positions, motions: list[np.ndarray], braked: Iterable[int]) -> bool:
        """Whether a position would come near a limit, or go too far, before the robot can be stopped.

        `motions` are those of the chunks so far. What gets ever faster needs as long to be stopped as it has been
        pushed; the positions in `braked`, known to stop only when braked, also get faster until that takes effect.
        What rests near a limit, apart from noise, leads nowhere.
        """
        step, moved = motions[-1], np.sum(motions, axis=0)
        faster = np.abs(step) > ACCELERATING * np.abs(motions[len(motions) // 2])
        pushed = len(motions) * CHUNK
        growth = np.ones(len(self.index))
        for i in braked:
            growth[i] = 1 + (CHUNK + self.coast_steps) / pushed
        periods = np.where(faster, growth * (self.coast_steps + CHUNK + pushed / 2), self.coast_steps)
        ahead = step / CHUNK * periods
        margin = MARGIN * self.range
        near = ((position + ahead > self.high - margin) & (step > self.jitter_per_chunk)) | (
            (position + ahead < self.low + margin) & (step < -self.jitter_per_chunk)
        )
        far = np.abs(moved + ahead) > MAX_TRAVEL * self.range
        return bool((self.guarded & (near | far)).any())
