"""The paper's bounds as functions of measured quantities. Symbols as in the paper; see docs/theory.md.

Its constants exist by assumption. Measured along a run they are the most favourable values that the run allows (the
largest gradient norm seen is at most L_g), so a bound drawn from them is at most the paper's own.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class PolicyConstants:
    """The constants of the policy's regret bound."""

    least: float
    """m: smallest eigenvalue of Λ, at least ε."""
    most: float
    """M: largest eigenvalue of Λ."""
    lipschitz: float
    """L_g: largest ‖∇g‖."""
    smooth: float
    """β_g: largest ‖∇g(φ′) − ∇g(φ)‖ / ‖φ′ − φ‖."""
    pl: float
    """μ: smallest ‖∇g‖² / (2 (g − g*))."""

    def factor(self, eta: float) -> float:
        """1 − 2μη/M: what a step leaves of the regret, apart from the error terms."""
        return max(1.0 - 2.0 * self.pl * eta / self.most, 0.0)


def one_step_bound(
    constants: PolicyConstants,
    eta: float,
    gradients: Float[np.ndarray, " episodes"],
    errors: Float[np.ndarray, " episodes"],
) -> Float[np.ndarray, " episodes"]:
    """The most by which the cost can change in each update (`eq:policy_loss_recursion_0`).

    −(η/M) ‖∇g‖² + (η L_g/m) ‖δ‖ + β_g η² L_g² / (2 m²), with `gradients` ‖∇g‖ and `errors` ‖δ‖.
    """
    c = constants
    noise = eta * c.lipschitz / c.least * errors
    curvature = c.smooth * (eta * c.lipschitz / c.least) ** 2 / 2
    return -eta / c.most * gradients**2 + noise + curvature


class RegretBound(NamedTuple):
    """The three terms of the bound on E[R_T], for T = 1, 2, …."""

    start: Float[np.ndarray, " episodes"]
    """(A): what remains of the first gap."""
    errors: Float[np.ndarray, " episodes"]
    """(B): what the gradient errors add."""
    curvature: Float[np.ndarray, " episodes"]
    """(C): what the steps' own size adds."""

    @property
    def total(self) -> Float[np.ndarray, " episodes"]:
        """The bound."""
        return self.start + self.errors + self.curvature


def regret_bound(
    constants: PolicyConstants, eta: float, gap: float, errors: Float[np.ndarray, " episodes"]
) -> RegretBound:
    """The sum over t = 1 … T of the recursion `eq:policy_loss_recursion_2`, with `gap` D and `errors` ‖δ_0‖, ‖δ_1‖, ….

    The recursion itself is summed, not the paper's unrolled form: there (1 − 2μη/M)^(t−τ) should be …^(t−τ−1).
    """
    c, q = constants, constants.factor(eta)
    per_error = eta * c.lipschitz / c.least
    per_step = c.smooth * (eta * c.lipschitz / c.least) ** 2 / 2
    terms = []
    start, noise, curvature = gap, 0.0, 0.0
    for error in errors:
        start, noise, curvature = q * start, q * noise + per_error * error, q * curvature + per_step
        terms.append((start, noise, curvature))
    return RegretBound(*np.cumsum(np.asarray(terms).reshape(-1, 3), axis=0).T)


def regret_bound_closed(
    constants: PolicyConstants, eta: float, gap: float, errors: Float[np.ndarray, " episodes"]
) -> Float[np.ndarray, " episodes"]:
    """`eq:policy_regret_final_bound_model_residual`: D M/(2μη) + (L_g M/(2μm)) √(T Σ‖δ‖²) + β_g η L_g² M T / (4 m² μ).

    The paper's constant C of the middle term has one η too many; it is left out here.
    """
    c = constants
    horizon = np.arange(1, len(errors) + 1)
    scale = c.most / (2.0 * c.pl)
    middle = c.lipschitz / c.least * scale * np.sqrt(horizon * np.cumsum(np.asarray(errors) ** 2))
    return gap * scale / eta + middle + c.smooth * eta * (c.lipschitz / c.least) ** 2 / 2 * scale * horizon


def buffer_drift(shifts: Float[np.ndarray, " episodes"]) -> Float[np.ndarray, " episodes"]:
    """The most by which the buffer's distribution μ_t can differ from μ_{t−1}: Σ_{i=2}^t (i−1) Δ_i / (t (t−1)).

    `shifts` are Δ_1 = 0, Δ_2, …; the sum of these is at most the sum of the Δ.
    """
    t = np.arange(1, len(shifts) + 1)
    return np.cumsum((t - 1) * shifts) / np.maximum(t * (t - 1), 1)


def newest_episode_gap(shifts: Float[np.ndarray, " episodes"], largest: float) -> Float[np.ndarray, " episodes"]:
    """4K Σ_{t=1}^T (1/t) Σ_{i=2}^t (i−1) Δ_i for T = 1, 2, …: the model regret that using the whole buffer may cost.

    The first term of `eq:model_learning_regret_bound_with_delta`, with `largest` K the largest loss of a transition. It
    is the one term without the step size of plain gradient descent, which Adam does not have.
    """
    t = np.arange(1, len(shifts) + 1)
    return 4.0 * largest * np.cumsum(np.cumsum((t - 1) * shifts) / t)
