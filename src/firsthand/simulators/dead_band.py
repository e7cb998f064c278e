"""Dead bands of a robot's commands, found in its log.

A valve opens only beyond a part of its command's range. What it lets through is then nearly linear in the opening,

    o(u) = max(u − d₊, 0) − max(−u − d₋, 0),

so the band (d₋, d₊) is where a joint's rate is best explained by a linear filter of its past openings. Networks that
see openings know beyond the commands of the log what a straight line knows; those that see commands alone level off.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import command_feature

from ..logs import Series
from ..plants.learned.plant import coordinate_entries, is_paired, valve_opening

CANDIDATES: tuple[float, ...] = tuple(0.025 * i for i in range(25))
"""Of each half of the command's range."""
LEAST_GAIN = 0.02
"""A dead band must reduce what is unexplained by this share; otherwise it is not used."""
MAX_ROWS = 20_000
RIDGE = 1e-6


def find_dead_bands(spec: ControlSpec, series: Sequence[Series], history: int) -> Float[np.ndarray, "2 commands"]:
    """(d₋, d₊) of every command, as shares of half its range; zero without one, or where it cannot be determined.

    Args:
        spec: what is measured and commanded.
        series: stretches of the log.
        history: how many commands back the filter looks.
    """
    bands = np.zeros((2, spec.layout.num_commands))
    usable = [s for s in series if len(s.commands) > history]
    if not is_paired(spec) or not usable:
        return bands
    entries = list(coordinate_entries(spec))
    rates = np.concatenate([np.diff(s.measured[:, entries].astype(float), axis=0)[history:] for s in usable])
    past = np.concatenate([_windows(command_feature(spec, s.commands.astype(float)), history) for s in usable])
    every = max(len(rates) // MAX_ROWS, 1)
    rates, past = rates[::every], past[::every]
    for joint in range(spec.layout.num_commands):
        bands[:, joint] = _band(rates[:, joint], past[:, :, joint])
    return bands


def _windows(commands: np.ndarray, history: int) -> Float[np.ndarray, "rows lags commands"]:
    """For every row from `history` on, its command and those before it."""
    rows = np.arange(history, len(commands))
    return np.stack([commands[rows - lag] for lag in range(history + 1)], axis=1)


def _band(rate: np.ndarray, past: np.ndarray) -> tuple[float, float]:
    def unexplained(low: float, high: float) -> float:
        inputs = np.concatenate([valve_opening(past, low, high), np.ones((len(past), 1))], axis=1)
        square = inputs.T @ inputs
        weights = np.linalg.solve(square + RIDGE * np.trace(square) * np.eye(len(square)), inputs.T @ rate)
        return float(np.mean((rate - inputs @ weights) ** 2))

    low = high = min(CANDIDATES, key=lambda d: unexplained(d, d))
    for _ in range(2):  # then each side by itself
        low = min(CANDIDATES, key=lambda d, other=high: unexplained(d, other))
        high = min(CANDIDATES, key=lambda d, other=low: unexplained(other, d))
    return (low, high) if unexplained(low, high) < (1 - LEAST_GAIN) * unexplained(0.0, 0.0) else (0.0, 0.0)
