"""A linear model with exogenous inputs (ARX) of the rates: the baseline that a network must beat."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec

from ..logs import Series
from ..plants.learned.plant import coordinate_entries

RATES, COMMANDS_S = 3, 0.7
"""How many rates it looks at, and how far back at commands."""
RIDGE = 1e-6


class LinearModel(NamedTuple):
    """w_{k+1} is linear in w_k, w_{k-1}, w_{k-2}, the last commands and 1."""

    weights: Float[np.ndarray, "inputs coordinates"]
    entries: tuple[int, ...]
    """Coordinates in the measurement."""
    commands: int
    """How many commands it sees, the present one included."""
    period_s: float

    @property
    def history(self) -> int:
        """Rows before the present one that it needs."""
        return max(RATES, self.commands - 1)

    def predict(
        self, measured: Float[np.ndarray, "rows measured"], commands: Float[np.ndarray, "rows u"], starts, steps: int
    ) -> tuple[Float[np.ndarray, "windows coordinates"], Float[np.ndarray, "windows coordinates"]]:
        """Coordinates and their rates `steps` after each start."""
        places = measured[:, self.entries].astype(float)
        rates = [(places[starts - i] - places[starts - i - 1]) / self.period_s for i in range(RATES)]
        at = places[starts]
        for step in range(steps):
            recent = [commands[starts + step - i] for i in range(self.commands)]
            new = np.concatenate([*rates, *recent, np.ones((len(at), 1))], axis=1) @ self.weights
            rates = [new, *rates[:-1]]
            at = at + self.period_s * new
        return at, rates[0]


def fit_linear(spec: ControlSpec, series: Sequence[Series]) -> LinearModel:
    """Least squares on one period ahead."""
    entries = coordinate_entries(spec)
    count = max(round(COMMANDS_S / spec.period_s), 1)
    first, size = max(RATES, count - 1), RATES * len(entries) + count * spec.layout.num_commands + 1
    square, cross = RIDGE * np.eye(size), np.zeros((size, len(entries)))
    for one in series:
        rates = np.diff(one.measured[:, entries].astype(float), axis=0) / spec.period_s  # rates[i] ends at row i + 1
        rows = np.arange(first, len(one.commands))
        if not rows.size:
            continue
        parts = [rates[rows - 1 - i] for i in range(RATES)] + [one.commands[rows - i] for i in range(count)]
        inputs = np.concatenate([*parts, np.ones((len(rows), 1))], axis=1)
        square += inputs.T @ inputs
        cross += inputs.T @ rates[rows]
    return LinearModel(np.linalg.solve(square, cross), entries, count, spec.period_s)
