"""Which channel moves which position, and how to bring back what pushes have led away."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .guard import Guard, Positions
from .plan import CHUNK
from .recording import Push

STILL_MOVING = 0.5
"""A position whose speed at the end of a push is this share of its mean speed goes on moving under the command."""
COASTING = 0.2
"""One that has this share of its speed left after most of the opposite push has to be braked."""
HOMING_START, HOMING_END = 0.05, 0.02
"""Shares of its range: a position further away than the first is brought back to within the second."""


@dataclass(frozen=True)
class Drive:
    """A channel that can bring a position back."""

    position: int
    direction: float
    """Sign of the motion that a positive command leads to."""
    braking: float
    """How much slower it gets per period at the full command; ∞ when it stops by itself."""

    @property
    def must_brake(self) -> bool:
        """Whether the position stops only when it is braked."""
        return bool(np.isfinite(self.braking))


class Homing:
    """Learns from pushes what brings positions back to where they were at first."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.drives: dict[int, Drive] = {}
        """By channel."""
        self.home: Positions = np.zeros(len(guard.index))
        """Where the positions were at first."""
        # Per period: so slow that the time between two looks and a dead time do no harm.
        self.bandwidth = 0.25 / (CHUNK + guard.coast_steps)

    @property
    def braked_positions(self) -> list[int]:
        """Positions that stop only when they are braked."""
        return [drive.position for drive in self.drives.values() if drive.must_brake]

    def is_needed(self, positions: Positions, speed: Positions) -> bool:
        """Whether a position is too far away, or moves and does not stop by itself."""
        drives = self.drives.values()
        return any(
            abs(self._distance(drive, positions, speed)) > HOMING_START or self._needs_braking(drive, speed)
            for drive in drives
        )

    def command(
        self, positions: Positions, speed: Positions, limits: Float[np.ndarray, " commands"]
    ) -> Float[np.ndarray, " commands"]:
        """The command that leads home, as fractions of half the range within ±`limits`; zero when all are there."""
        fractions = np.zeros_like(limits)
        for channel, drive in self.drives.items():
            distance = self._distance(drive, positions, speed)
            if drive.must_brake:
                wanted = self.bandwidth**2 * distance * self.guard.range[drive.position] / drive.braking
            else:
                wanted = np.sign(distance)
            if abs(distance) > HOMING_END or self._needs_braking(drive, speed):
                limit = limits[channel]
                fractions[channel] = -drive.direction * np.clip(wanted, -limit, limit)
        return fractions

    def learn(self, push: Push, motions: np.ndarray, returns: np.ndarray, speed_before: Positions) -> None:
        """Learn which position a channel moves, in which direction, and whether it stops by itself.

        `motions` and `returns` are those of each chunk of the push and of its opposite. What only an opposite command
        stops still moves on when most of the push has been taken back.
        """
        moved = motions.sum(axis=0)
        if len(motions) < 4:
            return
        position = int(np.argmax(np.abs(moved) / self.guard.range))
        last = motions[-1, position]
        if np.abs(speed_before[position]) * CHUNK > 0.2 * np.abs(motions[:, position]).max():
            return  # it was still moving: what it did is not the push's doing alone
        known = self.drives.get(push.channel)
        must_brake = known is not None and known.must_brake
        if abs(last) * len(motions) < STILL_MOVING * abs(moved[position]) or not self.guard.guarded[position]:
            if not must_brake:
                self.drives.pop(push.channel, None)
            return
        late = 3 * len(motions) // 4 - 1
        left = np.sign(last) * returns[late, position] if late < len(returns) else -abs(last)
        if abs(left - COASTING * abs(last)) < self.guard.jitter_per_chunk[position]:
            return  # noise hides which it is
        coasted = left > COASTING * abs(last)
        if must_brake and not coasted:
            return  # what had to be braked once does not stop by itself
        direction = float(np.sign(moved[position]) * push.sign)
        braking = abs(last) / CHUNK / push.steps if coasted else np.inf
        self.drives[push.channel] = Drive(position, direction, braking / push.amplitude)

    def _needs_braking(self, drive: Drive, speed: Positions) -> bool:
        return bool(drive.must_brake and self.guard.moving(speed)[drive.position])

    def _distance(self, drive: Drive, positions: Positions, speed: Positions) -> float:
        """Where a position is heading, from where it was at first, as a share of its range.

        What stops by itself is taken as it will stand; what has to be braked as a critically damped controller sees it.
        """
        ahead = 2 / self.bandwidth if drive.must_brake else self.guard.coast_steps
        destination = positions[drive.position] + speed[drive.position] * ahead
        return float((destination - self.home[drive.position]) / self.guard.range[drive.position])
