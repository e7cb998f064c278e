"""A static map per command, chosen on held-out data: a linear predictor knows no dead band.

    v = sign(x) · slope · max(|x| − d, 0)^κ,      x the command in half ranges from neutral

d differs by direction; slope is 1 upward and what fits downward (a cylinder has unequal areas); κ is the curvature of a
valve. A robot whose commands act linearly gets d = 0, slope = 1, κ = 1, and v = x.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from .recording import Series, Windows

DEAD_BANDS = (0.0, 0.03, 0.06, 0.09, 0.12, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
SLOPES = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5)
CURVATURES = (0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
SWEEPS = 2
"""Times that every number is looked at anew."""
GAIN = 0.01
"""A number is changed only where this share of the held-out error goes away: what is linear stays linear."""
CREEP = 0.02
"""Below this size of v the jump over the dead band is made gradually: less chatter."""
PAST, AHEAD, EVERY = 6, 12, 2
"""Of the regression that maps are compared by: steps back, steps ahead, and every how many windows."""
RIDGE = 1e-6
LEAST = 4 * (PAST + AHEAD)
"""Windows without which nothing can be held out."""


@dataclass(frozen=True)
class InputMap:
    """One per robot; arrays have an entry per command."""

    neutral: Float[np.ndarray, " commands"]
    up: Float[np.ndarray, " commands"]
    """Dead band above neutral, in half ranges."""
    down: Float[np.ndarray, " commands"]
    slope: Float[np.ndarray, " commands"]
    """Below neutral; above it is 1."""
    curvature: Float[np.ndarray, " commands"]

    @staticmethod
    def identity(neutral: Float[np.ndarray, " commands"]) -> "InputMap":
        """Nothing but the shift to neutral."""
        zero, one = np.zeros(len(neutral)), np.ones(len(neutral))
        return InputMap(np.asarray(neutral, float), zero, zero, one, one)

    def forward(self, action: Float[np.ndarray, "*rows commands"]) -> Float[np.ndarray, "*rows commands"]:
        """v of commands in half ranges from the middle."""
        x = np.asarray(action, float) - self.neutral
        dead, slope = np.where(x > 0, self.up, self.down), np.where(x > 0, 1.0, self.slope)
        return np.sign(x) * slope * np.maximum(np.abs(x) - dead, 0.0) ** self.curvature

    def backward(self, v: Float[np.ndarray, "*rows commands"]) -> Float[np.ndarray, "*rows commands"]:
        """The command for v; near zero the dead band is crossed gradually."""
        v = np.asarray(v, float)
        dead, slope = np.where(v > 0, self.up, self.down), np.where(v > 0, 1.0, self.slope)
        jump = dead * np.minimum(np.abs(v) / CREEP, 1.0)
        return self.neutral + np.sign(v) * (jump + (np.abs(v) / slope) ** (1.0 / self.curvature))

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest v of commands in their range."""
        one = np.ones(len(self.neutral))
        return self.forward(-one), self.forward(one)


def choose_map(series: Series, neutral: Float[np.ndarray, " commands"], outputs: int) -> InputMap:
    """Number after number, the value with the smallest held-out error of a linear prediction some steps ahead."""
    best = InputMap.identity(neutral)
    # Every reading of the past and the target stays the same, whatever the map.
    raw = Windows.of(series, series.commands, outputs, past=PAST, horizon=AHEAD)
    count = len(best.neutral)

    def error(candidate: InputMap) -> float:
        v = candidate.forward(np.concatenate([raw.past_commands, raw.future_commands], axis=1).reshape(-1, count))
        inputs = np.concatenate([np.ones((len(raw), 1)), raw.past_measured, v.reshape(len(raw), -1)], axis=1)
        target = raw.future_outputs[:, -outputs:] - raw.past_measured[:, -series.measured.shape[1] :][:, :outputs]
        cut = round(0.75 * len(raw))
        learn, test = slice(0, max(cut - PAST - AHEAD, 1), EVERY), slice(cut, None, EVERY)
        gram = inputs[learn].T @ inputs[learn]
        gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
        solution = np.linalg.solve(gram, inputs[learn].T @ target[learn])
        missed = target[test] - inputs[test] @ solution
        # Every output counts by the share of its own motion that is missed.
        return float(np.mean(np.mean(missed**2, axis=0) / np.maximum(np.var(target[test], axis=0), 1e-12)))

    least = error(best)
    for _ in range(SWEEPS):
        before = least
        for name, values in (("up", DEAD_BANDS), ("down", DEAD_BANDS), ("slope", SLOPES), ("curvature", CURVATURES)):
            for i in range(count):
                best, least = _improve(best, least, name, i, values, error)
        if least > (1 - GAIN) * before:
            break
    return best


def _improve(best: InputMap, least: float, name: str, i: int, values: tuple[float, ...], error) -> tuple:
    """The best of the neighbouring values, again and again, until none is better by `GAIN`."""
    while True:
        now = int(np.argmin(np.abs(np.asarray(values) - getattr(best, name)[i])))
        near = [n for n in (now - 1, now + 1, now + 2) if 0 <= n < len(values)]
        tried = []
        for n in near:
            changed = getattr(best, name).copy()
            changed[i] = values[n]
            candidate = replace(best, **{name: changed})
            tried.append((error(candidate), n, candidate))
        found, _, candidate = min(tried, key=lambda t: t[:2])
        if not found < (1 - GAIN / 4) * least:
            return best, least
        best, least = candidate, found
