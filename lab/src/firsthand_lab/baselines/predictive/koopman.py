"""Koopman predictive control (Korda, Mezić 2018): extended dynamic mode decomposition with delays, then linear MPC.

The lifted state is

    ψ = [1,  y_k … y_{k-past+1},  v_{k-1} … v_{k-past},  φ_1(x) … φ_n(x)],     x = [y_k, outputs' last change]

with thin-plate splines φ_i(x) = ρ² ln ρ, ρ = |x − c_i|, whose centres c_i are drawn from the recording, as its authors
do. ψ⁺ = A ψ + B v is fitted by least squares with a ridge. The registers of past commands and measurements only move
on, so their rows are known and not fitted. Over the horizon the outputs are linear in v.

Past, number of splines and ridge are chosen by the held-out prediction error over the whole horizon. Zero splines are a
choice: a linear robot gets a linear model with delays.
"""

import copy
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from .prediction import AbstractPredictor, Plan, repeat_weights
from .recording import Windows

SPLINES = (0, 40, 120)
RIDGES = (1e-8, 1e-6, 1e-4, 1e-3)
UNSTABLE = 1.02
"""A lifted model whose spectral radius is larger is not taken."""


class Koopman(AbstractPredictor):
    """The lifted linear model."""

    name: ClassVar[str] = "koopman"

    def __init__(
        self, windows: Windows, *, past: int, horizon: int, outputs: int, splines: int, ridge: float, seed: int = 0
    ) -> None:
        self.past, self.horizon, self.outputs, self.splines = past, horizon, outputs, splines
        self._commands = windows.past_commands.shape[1] // past
        self._seen = windows.past_measured.shape[1] // past
        rng = np.random.default_rng(seed)
        chosen = rng.choice(len(windows), min(splines, len(windows)), replace=False)
        self.center: np.ndarray = np.zeros(0)
        self.spread: np.ndarray = np.ones(1)
        if splines:
            where = self._where(windows.past_measured)
            self.spread = where.std(axis=0) + 1e-9
            self.center = where[chosen] / self.spread
        self._accumulate(windows)
        self._fit(ridge)

    def regularised(self, ridge: float) -> "Koopman":
        """The same lifting and windows with another ridge."""
        other = copy.copy(self)
        other._fit(ridge)
        return other

    def _where(self, measured: np.ndarray) -> np.ndarray:
        """x: the measurement now, and the last change of the outputs."""
        now = measured[:, -self._seen :]
        before = measured[:, -2 * self._seen : -self._seen] if self.past > 1 else now
        return np.concatenate([now, (now - before)[:, : self.outputs]], axis=1)

    def features(
        self, commands: Float[np.ndarray, "windows past*commands"], measured: Float[np.ndarray, "windows past*seen"]
    ) -> Float[np.ndarray, "windows features"]:
        """ψ, registers oldest first."""
        parts = [np.ones((len(commands), 1)), measured, commands]
        if self.splines:
            x = self._where(measured) / self.spread
            square = np.maximum(
                np.sum(x**2, axis=1)[:, None] - 2 * x @ self.center.T + np.sum(self.center**2, axis=1), 1e-12
            )
            parts.append(0.5 * square * np.log(square) / x.shape[1])
        return np.concatenate(parts, axis=1)

    def _accumulate(self, windows: Windows) -> None:
        """The normal equations of A and B, from consecutive windows: one is the lifted state of a step later."""
        m, s, past = self._commands, self._seen, self.past
        psi = self.features(windows.past_commands, windows.past_measured)
        v = windows.future_commands[:, :m]
        # One window later is one step later where the recording has no gap: there its past contains this one's.
        follows = np.all(windows.past_measured[1:, :-s] == windows.past_measured[:-1, s:], axis=1)
        follows &= np.all(windows.past_commands[1:, -m:] == v[:-1], axis=1)
        inputs = np.concatenate([psi, v], axis=1)[:-1][follows]
        self._learned = np.r_[1 + (past - 1) * s : 1 + past * s, 1 + past * (s + m) : psi.shape[1]]
        self._scale = np.sqrt(np.mean(inputs**2, axis=0)) + 1e-12
        design = inputs / self._scale
        self._gram = design.T @ design / len(inputs)
        self._target = design.T @ psi[1:, self._learned][follows] / len(inputs)

    def _fit(self, ridge: float) -> None:
        """A and B, and what follows from them."""
        self.ridge = ridge
        m, s, past = self._commands, self._seen, self.past
        solution = np.linalg.solve(self._gram + ridge * np.eye(len(self._gram)), self._target).T / self._scale
        size = len(self._gram) - m
        self.A, self.B = np.zeros((size, size)), np.zeros((size, m))
        self.A[0, 0] = 1.0
        self.A[1 : 1 + (past - 1) * s, 1 + s : 1 + past * s] = np.eye((past - 1) * s)
        first = 1 + past * s
        self.A[first : first + (past - 1) * m, first + m : first + past * m] = np.eye((past - 1) * m)
        self.B[first + (past - 1) * m : first + past * m] = np.eye(m)
        self.A[self._learned], self.B[self._learned] = solution[:, :size], solution[:, size:]
        self._condense()

    def _condense(self) -> None:
        """Outputs over the horizon as gain v + free ψ."""
        m, s, p, n = self._commands, self._seen, self.outputs, self.horizon
        pick = np.zeros((p, len(self.A)))
        pick[np.arange(p), 1 + (self.past - 1) * s + np.arange(p)] = 1.0
        rows, pulses = [], []
        for _ in range(n):
            pulses.append(pick @ self.B)  # C A^{j-1} B
            pick = pick @ self.A
            rows.append(pick)
        self.free = np.concatenate(rows)
        self.gain = np.zeros((n * p, n * m))
        for j in range(n):
            for i in range(j + 1):
                self.gain[j * p : (j + 1) * p, i * m : (i + 1) * m] = pulses[j - i]

    @property
    def radius(self) -> float:
        """The spectral radius of A."""
        return float(np.abs(np.linalg.eigvals(self.A)).max())

    def predict(
        self, features: Float[np.ndarray, "windows features"], commands: Float[np.ndarray, "windows v"]
    ) -> Float[np.ndarray, "windows r"]:
        """Linear in both."""
        return features @ self.free.T + commands @ self.gain.T

    def plan(self, weights: Float[np.ndarray, " outputs"]) -> Plan:
        """The cost of the condensed problem."""
        w = repeat_weights(weights, self.horizon)
        weighted = 2.0 * self.gain.T * w
        return Plan(weighted @ self.gain, weighted @ self.free, -weighted, self.gain, self.free, 0.0 * np.eye(len(w)))

    @property
    def settings(self) -> str:
        """Lifting and ridge."""
        return (
            f"lifted state of {len(self.A)}: past {self.past}, {self.splines} splines; horizon {self.horizon}, "
            f"ridge {self.ridge:g}, spectral radius {self.radius:.3f}"
        )

    @property
    def parameters(self) -> int:
        """Of the rows that were fitted."""
        return (self._seen + self.splines) * (len(self.A) + self._commands)
