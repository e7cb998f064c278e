"""The settings of an inspection."""

import math
from dataclasses import dataclass

from ..errors import UserError


@dataclass(frozen=True)
class InspectionSettings:
    """How long and how hard the robot is pushed."""

    minutes: float = 5.0
    """Robot time, about."""
    amplitude: float = 0.5
    """The largest push, as a share of half the command range."""
    seed: int = 0
    """Of the order and the signs of the pushes."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise UserError(f"minutes is {self.minutes:g}, but must be a positive number.")
        if not 0 < self.amplitude <= 1:
            raise UserError(
                f"amplitude is {self.amplitude:g}, but must be above 0 and at most 1, the whole half of the range."
            )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")
