"""Whether the times of rows are those of a control loop."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .settings import PeriodSettings

DEFAULT = PeriodSettings()


def compare_period(
    steps: np.ndarray, period_s: float, settings: PeriodSettings = DEFAULT
) -> Literal["faster", "same", "slower"]:
    """How often rows that are `steps` seconds apart come, compared with the control period; at least one step."""
    usual = float(np.median(steps))
    if usual > (1 + settings.tolerance) * period_s:
        return "slower"
    return "same" if usual >= (1 - settings.tolerance) * period_s else "faster"


def find_joined_rows(steps: np.ndarray, period_s: float, settings: PeriodSettings = DEFAULT) -> np.ndarray:
    """Which rows follow the one before without a gap, from the seconds between them.

    In a log faster than the control period a single row may be missing.
    """
    if compare_period(steps, period_s, settings) == "same":
        return np.asarray(np.abs(steps - period_s) <= settings.jitter * period_s)
    usual = float(np.median(steps))
    return np.asarray(steps <= min((1 + settings.jitter) * 2 * usual, (1 + settings.jitter) * period_s))
