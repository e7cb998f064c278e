"""Data-enabled predictive control (Coulson, Lygeros, Dörfler 2019), regularised, LQ-reduced.

Columns of a matrix of windows are trajectories that the robot has shown; a combination g of them is one that it can
show. With U_p, Y_p the past and U_f, Y_f the future of commands and measurements, a step's problem is

    minimise   Σ w (Y_f g − r)²  +  λ_g |(I − Π) g|²     over g and u
    subject to U_p g = u_ini,   Y_p g ≈ y_ini,   U_f g = u,   1ᵀ g = 1,   and the limits of `program`.

The last equation lets the robot be affine. Π projects onto the rows of everything but Y_f, so that λ_g holds back what
the recording shows only as noise (Dörfler, Coulson, Markovsky 2023); with λ_g → ∞ it is subspace predictive control.
An LQ factorisation of all windows, D = L Q with γ = Q g, leaves a few hundred numbers in place of thousands of columns
(Breschi, Chiuso, Formentin 2023): γ₁ belongs to the equations and γ₂ = (I − Π) g to what is left,

    Y_f g = L_21 γ₁ + L_22 γ₂,        y_ini is met by a ridge: γ₁ = argmin ρ |γ₁|² + |Y_p γ₁ − y_ini|².

For given u and r both are linear in them. They are eliminated once, and the program that is left has u as its only
unknowns. L_22 L_22ᵀ is the covariance of what predictions miss: λ_g says how little the outputs count that cannot be
predicted well. This is exact but where a position limit is active: there γ₂ is not chosen anew.

ρ and the length of the past are chosen by the held-out prediction error. λ_g is chosen by the cost of its commands on
held-out windows, with the outputs that were reached there as the reference, as a predictor judges it that was fitted to
the held-out windows alone: the largest one, which is the least optimistic, within a tenth of the best.
"""

import copy
from typing import ClassVar

import numpy as np
import scipy.linalg
from jaxtyping import Float

from .prediction import AbstractPredictor, Plan, repeat_weights
from .recording import Windows

RIDGES = (1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""ρ, for windows of order one."""
LAMBDAS = (1e-3, 1e-2, 1e-1, 1.0, 1e2, 1e4)
"""λ_g, in units of the cost of a step."""
AS_GOOD = 1.1
"""The largest λ_g is taken whose cost is at most this many times the least."""
JUDGED = 200
"""Held-out windows that λ_g is chosen on."""


class DeePC(AbstractPredictor):
    """Windows, reduced, with their regularisation."""

    name: ClassVar[str] = "deepc"

    def __init__(self, windows: Windows, *, past: int, horizon: int, ridge: float, lambda_g: float = 1.0) -> None:
        self.past, self.horizon, self.columns = past, horizon, len(windows)
        ones = np.ones((len(windows), 1))
        parts = (ones, windows.past_commands, windows.future_commands, windows.past_measured, windows.future_outputs)
        data = np.concatenate(parts, axis=1) / np.sqrt(len(windows))
        lower = np.asarray(np.linalg.qr(data, mode="r")).T
        ends = np.cumsum([part.shape[1] for part in parts])
        _, self._u_ini, self._u, self._y_ini, future = (slice(a, b) for a, b in zip((0, *ends[:-1]), ends, strict=True))
        known = ends[3]
        self._equal, self._past = lower[: ends[2], :known], lower[self._y_ini, :known]
        """Rows that are met exactly: one, past and future commands. Rows that are met by a ridge."""
        self._future, self._noise = lower[future, :known], lower[future, known:]
        self._regularise(ridge, lambda_g)

    def regularised(self, ridge: float, lambda_g: float) -> "DeePC":
        """The same windows with another regularisation."""
        other = copy.copy(self)
        other._regularise(ridge, lambda_g)
        return other

    def _regularise(self, ridge: float, lambda_g: float) -> None:
        """The prediction, as a matrix: of (1, past commands, future commands, past measurements)."""
        self.ridge, self.lambda_g = ridge, lambda_g
        matrix = ridge * np.eye(self._past.shape[1]) + self._past.T @ self._past
        factor = scipy.linalg.cho_factor(matrix)
        across, pulled = (scipy.linalg.cho_solve(factor, m) for m in (self._equal.T, self._past.T))
        held = self._equal @ across
        share = scipy.linalg.solve(held, np.concatenate([np.eye(len(held)), -self._equal @ pulled], axis=1))
        best = across @ share
        best[:, len(held) :] += pulled
        self._predicted = self._future @ best

    def features(
        self, commands: Float[np.ndarray, "windows past*commands"], measured: Float[np.ndarray, "windows past*seen"]
    ) -> Float[np.ndarray, "windows features"]:
        """One, past commands, past measurements."""
        return np.concatenate([np.ones((len(commands), 1)), commands, measured], axis=1)

    def predict(
        self, features: Float[np.ndarray, "windows features"], commands: Float[np.ndarray, "windows v"]
    ) -> Float[np.ndarray, "windows r"]:
        """What the recording says, without regard to a reference."""
        before = self._u_ini.stop
        known = np.concatenate([features[:, :before], commands, features[:, before:]], axis=1)
        return known @ self._predicted.T

    def plan(self, weights: Float[np.ndarray, " outputs"]) -> Plan:
        """The cost with γ eliminated: (ŷ − r)ᵀ (W⁻¹ + L_22 L_22ᵀ/λ_g)⁻¹ (ŷ − r), ŷ the prediction."""
        w = repeat_weights(weights, self.horizon)
        weight = np.linalg.inv(np.diag(1.0 / w) + self._noise @ self._noise.T / self.lambda_g)
        gain = self._predicted[:, self._u]
        free = np.delete(self._predicted, np.r_[self._u], axis=1)
        weighted = 2.0 * gain.T @ weight
        # The outputs themselves, with γ₂: r + W⁻¹ (…)⁻¹ (ŷ − r).
        share = weight / w[:, None]
        return Plan(weighted @ gain, weighted @ free, -weighted, share @ gain, share @ free, np.eye(len(w)) - share)

    @property
    def settings(self) -> str:
        """Lengths and regularisation."""
        return (
            f"{self.columns} windows reduced to {len(self._predicted) + self._past.shape[1]}, past {self.past}, "
            f"horizon {self.horizon}, λ_g {self.lambda_g:g}, ridge {self.ridge:g}"
        )

    @property
    def parameters(self) -> int:
        """Of the triangular factor."""
        size = len(self._predicted) + self._past.shape[1]
        return size * (size + 1) // 2


def judged_cost(
    predictor: DeePC,
    judge: DeePC,
    windows: Windows,
    weights: Float[np.ndarray, " outputs"],
    change_weight: Float[np.ndarray, " commands"],
) -> float:
    """The mean cost of a predictor's commands on windows, as another predictor judges it, without limits."""
    chosen = windows.part(slice(None, None, max(len(windows) // JUDGED, 1)))
    plan = predictor.plan(weights)
    features = predictor.features(chosen.past_commands, chosen.past_measured)
    change, before = change_cost(predictor.horizon, change_weight)
    last = chosen.past_commands[:, -len(change_weight) :]
    linear = features @ plan.from_past.T + chosen.future_outputs @ plan.from_reference.T + last @ before.T
    found = -np.linalg.solve(plan.hessian + change, linear.T).T
    missed = judge.predict(features, found) - chosen.future_outputs
    steps = np.diff(np.concatenate([last, found], axis=1).reshape(len(found), -1, len(change_weight)), axis=1)
    cost = float(np.mean(missed.reshape(-1, len(weights)) ** 2 @ weights) + np.mean(steps**2 @ change_weight))
    return cost if np.isfinite(cost) else float("inf")


def change_cost(horizon: int, weight: Float[np.ndarray, " commands"]) -> tuple[np.ndarray, np.ndarray]:
    """Σ weight · (v_j − v_{j-1})² as ½ vᵀ H v + (B v_{-1})ᵀ v: H and B."""
    count = len(weight)
    difference = np.eye(horizon * count) - np.eye(horizon * count, k=-count)
    scaled = difference * np.tile(weight, horizon)[:, None]
    first = np.zeros((horizon * count, count))
    first[:count] = -2.0 * np.diag(weight)
    return 2.0 * difference.T @ scaled, first
