"""The learner's settings, checked where they are made."""

import math
from dataclasses import dataclass

from ..errors import UserError


@dataclass(frozen=True)
class Hyperparameters:
    """Everything that Algorithm 1 leaves open. The defaults are the paper's."""

    eta: float = 0.5
    """η: step size of the preconditioned policy step."""
    alpha: float = 0.01
    """α: weighs the change of commands in the preconditioner."""
    epsilon: float = 0.05
    """ε: weighs the change of parameters in the preconditioner."""
    discount: float = 1.0
    """γ: multiplies A + BK in the gradient; below 1 it damps a loop that is not yet stable."""
    policy_steps: int = 1
    """Policy steps per episode. After the first, the trajectories are the model's, corrected by what it missed."""
    imagined: int = 0
    """Imagined trajectories with fresh references that join the measured ones in each policy step."""
    cg_iterations: int = 30
    """Most iterations of conjugate gradients per policy step."""
    cg_tolerance: float = 1e-2
    """Relative residual at which conjugate gradients stop."""
    model_steps: int = 300
    """Adam steps on the one-step model loss per episode."""
    model_rate: float = 1e-3
    """Adam's step size."""
    model_batch: int = 256
    """Transitions per Adam step at first; the batch grows with the buffer in whole multiples of this."""
    model_batch_share: float = 0.02
    """The batch grows to this share of the buffer …"""
    model_batch_most: int = 1024
    """… but not beyond this."""
    model_hidden: tuple[int, ...] = (128, 128)
    """Units per hidden layer of the dynamics model."""

    def __post_init__(self) -> None:
        for name in ("eta", "epsilon", "model_rate", "cg_tolerance"):
            self._check(name, lambda v: v > 0, "a positive number")
        self._check("alpha", lambda v: v >= 0, "zero or a positive number")
        self._check("discount", lambda v: 0 < v <= 1, "above 0 and at most 1")
        self._check("model_batch_share", lambda v: 0 <= v <= 1, "between 0 and 1")
        for name in ("policy_steps", "cg_iterations", "model_batch", "model_batch_most"):
            self._check(name, lambda v: v >= 1, "a whole number of at least 1")
        for name in ("imagined", "model_steps"):
            self._check(name, lambda v: v >= 0, "a whole number of at least 0")
        if not self.model_hidden or any(width < 1 for width in self.model_hidden):
            raise UserError(f"model_hidden is {self.model_hidden}, but must list widths of at least 1.")

    def _check(self, name: str, test, wanted: str) -> None:
        value = getattr(self, name)
        if not (math.isfinite(value) and test(value)):
            raise UserError(f"{name} is {value}, but must be {wanted}.")
