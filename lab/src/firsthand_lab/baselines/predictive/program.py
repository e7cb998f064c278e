"""The quadratic program of one control step, solved by OSQP: the limits of predictive control.

    minimise   ½ vᵀ H v + qᵀ v + ρ |s|²
    subject to low ≤ v_j ≤ high,   |v_j − v_{j-1}| ≤ rate,   y_low − s ≤ y_j(v) ≤ y_high + s,   s ≥ 0

Commands and their changes never leave their limits; positions are kept inside theirs as far as commands can.
"""

# OSQP is the extra `mpc`, which need not be installed.
# pyright: reportMissingImports=false

from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float

from firsthand.errors import UserError

POSITION_EVERY = 3
"""Every how many steps of the horizon positions are held inside their limits."""
ACCURACY = 1e-4
MAX_ITERATIONS = 400
SLACK_WEIGHT = 1e3
"""ρ, in units of the largest weight on an output."""


def require() -> None:
    """Raise `UserError` where the solver is missing."""
    try:
        import osqp  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"deepc and koopman need the solver OSQP ({error.name} is missing): run `make peers`, or "
            "pip install -c constraints.txt -e 'lab[mpc]'."
        ) from error


class CommandProgram:
    """The program of one robot: its matrices stay, what is known now enters as vectors, and solutions start warm."""

    def __init__(
        self,
        hessian: Float[np.ndarray, "v v"],
        gain: Float[np.ndarray, "r v"],
        *,
        low: Float[np.ndarray, " commands"],
        high: Float[np.ndarray, " commands"],
        rate: Float[np.ndarray, " commands"],
        output_low: Float[np.ndarray, " outputs"],
        output_high: Float[np.ndarray, " outputs"],
        weight: float,
    ) -> None:
        import osqp

        self.commands, size, outputs = len(low), len(hessian), len(output_low)
        horizon = size // self.commands
        self.low, self.high = np.tile(low, horizon), np.tile(high, horizon)
        self.rate = np.tile(rate, horizon)
        # Outputs without limits need no rows.
        limited = np.flatnonzero(np.isfinite(output_low) | np.isfinite(output_high))
        steps = np.arange(POSITION_EVERY - 1, horizon, POSITION_EVERY)
        self.rows = (steps[:, None] * outputs + limited).ravel()
        self.output_low = np.tile(output_low[limited], len(steps))
        self.output_high = np.tile(output_high[limited], len(steps))
        slacks = len(limited)
        difference = np.eye(size) - np.eye(size, k=-self.commands)
        slack = np.tile(np.eye(slacks), (len(steps), 1))
        none = np.zeros((size, slacks))
        matrix = np.block(
            [
                [np.eye(size), none],
                [difference, none],
                [gain[self.rows], slack],
                [gain[self.rows], -slack],
                [none.T, np.eye(slacks)],
            ]
        )
        # Scaled so that a typical entry of H is one: OSQP's accuracy is absolute.
        self.scale = 1.0 / max(float(np.mean(np.diag(hessian))), 1e-300)
        cost = scipy.linalg.block_diag(self.scale * hessian, 2 * self.scale * SLACK_WEIGHT * weight * np.eye(slacks))
        self.size = size
        self._free = np.full(len(self.rows), np.inf)
        self._slacks = slacks
        self._held: np.ndarray = np.zeros(size)
        self._solver: Any = osqp.OSQP()
        lower, upper = self._bounds(np.zeros(self.commands), np.zeros(len(gain)))
        self._solver.setup(
            scipy.sparse.csc_matrix(np.triu(cost)),
            np.zeros(len(cost)),
            scipy.sparse.csc_matrix(matrix),
            lower,
            upper,
            verbose=False,
            eps_abs=ACCURACY,
            eps_rel=ACCURACY,
            max_iter=MAX_ITERATIONS,
            polishing=False,
            adaptive_rho=True,
            warm_starting=True,
        )

    def _bounds(self, last: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        before = np.zeros(self.size)
        before[: self.commands] = last
        there = free[self.rows]
        lower = np.concatenate(
            [self.low, before - self.rate, self.output_low - there, -self._free, np.zeros(self._slacks)]
        )
        upper = np.concatenate(
            [self.high, before + self.rate, self._free, self.output_high - there, np.full(self._slacks, np.inf)]
        )
        return lower, upper

    def solve(
        self, linear: Float[np.ndarray, " v"], last: Float[np.ndarray, " commands"], free: Float[np.ndarray, " r"]
    ) -> Float[np.ndarray, " v"]:
        """The best commands; `last` is the command before, `free` the outputs with commands of zero.

        Where the solver finds no answer, the plan of the step before goes on. The result is inside the limits of
        commands and changes whatever the solver's accuracy.
        """
        last = np.clip(last, self.low[: self.commands], self.high[: self.commands])
        lower, upper = self._bounds(last, free)
        q = np.concatenate([self.scale * linear, np.zeros(self._slacks)])
        if not np.isfinite(q).all() or not np.isfinite(last).all():
            return self._go_on()
        self._solver.update(q=q, l=lower, u=upper)
        found = self._solver.solve(raise_error=False)
        if found.x is None or not np.isfinite(found.x).all():
            return self._go_on()
        plan = found.x[: self.size]
        first = np.clip(plan[: self.commands], last - self.rate[: self.commands], last + self.rate[: self.commands])
        plan[: self.commands] = first
        self._held = np.clip(plan, self.low, self.high)
        return self._held

    def _go_on(self) -> np.ndarray:
        """The plan of the step before, moved on by one step; its end is held."""
        self._held = np.concatenate([self._held[self.commands :], self._held[-self.commands :]])
        return self._held
