"""The learner's settings, checked where they are made."""

import math
from dataclasses import dataclass

from ..errors import UserError


@dataclass(frozen=True)
class Hyperparameters:
    """Everything that Algorithm 1 leaves open. η, α and ε are the paper's; docs/algorithm.md says where we differ."""

    eta: float = 0.5
    """η: step size of the preconditioned policy step."""
    alpha: float = 0.01
    """α: weighs the change of commands in the preconditioner."""
    epsilon: float = 0.05
    """ε: weighs the change of parameters in the preconditioner."""
    discount: float = 0.97
    """γ: multiplies A + BK in the gradient; below 1 it damps a loop that is not yet stable."""
    gradient_limit: float = 20.0
    """A gradient whose norm exceeds this is taken again with a smaller γ, up to five times."""
    outlier: float = 0.0
    """A trajectory whose sensitivities (in refinement: whose cost) exceed the median's by this factor is scaled down to
    it; 0 is off."""
    initial_command: float = 0.1
    """Scale of the random policy's last layer: the first commands are about this large (of 1)."""
    policy_steps: int = 1
    """Policy steps per episode. After the first, the trajectories are the model's, corrected by what it missed."""
    imagined: int = 0
    """Imagined trajectories with fresh references that join the measured ones in each policy step."""
    pace_growth: float = 1.0
    """Factor on η after every further policy step of an episode that was kept; 1 is a constant η."""
    radius: float = 0.1
    """First trust-region radius of further policy steps: root mean square change of commands, in half ranges."""
    radius_most: float = 0.5
    """The radius grows to at most this while predictions come true."""
    refinement_steps: int = 0
    """Gauss–Newton steps per episode, in place of the others once the radius is at its most; 0 is never."""
    refinement_batch: int = 25
    """Imagined trajectories of each of these steps, with fresh references."""
    refinement_iterations: int = 10
    """Iterations of conjugate gradients per Gauss–Newton step."""
    refinement_damping: float = 1e-3
    """λ: the least damping of a Gauss–Newton step, in units of the preconditioner's own α and ε."""
    refinement_memory: float = 0.95
    """The share of the last solution with which the next solve begins."""
    refinement_limit_power: int = 16
    """The power of the joint-limit term that refinement feels."""
    excitation: float = 0.5
    """Amplitude of smooth random commands added to the policy's in the first episodes: the model must see motion."""
    excited_episodes: int = 1
    """In how many first episodes the excitation is added."""
    jacobian_stride: int = 1
    """The preconditioner looks at every so many-th step of a trajectory."""
    cg_iterations: int = 30
    """Most iterations of conjugate gradients per policy step."""
    cg_tolerance: float = 1e-2
    """Relative residual at which conjugate gradients stop."""
    model_steps: int = 300
    """Adam steps on the one-step model loss per episode."""
    model_rate: float = 1e-3
    """Adam's step size at the start of an episode's steps."""
    model_rate_end: float = 1.0
    """The share of it that is left at their end, after a fall along a cosine; 1 is a constant step size."""
    model_batch: int = 256
    """Transitions per Adam step at first; the batch grows with the buffer in whole multiples of this."""
    model_batch_share: float = 0.02
    """The batch grows to this share of the buffer …"""
    model_batch_most: int = 512
    """… but not beyond this."""
    model_hidden: tuple[int, ...] = (128, 128)
    """Units per hidden layer of the dynamics model."""

    def __post_init__(self) -> None:
        for name in (
            "eta",
            "epsilon",
            "model_rate",
            "cg_tolerance",
            "initial_command",
            "radius",
            "radius_most",
            "gradient_limit",
            "refinement_damping",
        ):
            self._check(name, lambda v: v > 0, "a positive number")
        for name in ("alpha", "excitation", "outlier"):
            self._check(name, lambda v: v >= 0, "zero or a positive number")
        self._check("discount", lambda v: 0 < v <= 1, "above 0 and at most 1")
        self._check("refinement_memory", lambda v: 0 <= v < 1, "at least 0 and below 1")
        self._check("model_rate_end", lambda v: 0 < v <= 1, "above 0 and at most 1")
        self._check("model_batch_share", lambda v: 0 <= v <= 1, "between 0 and 1")
        for name in (
            "policy_steps",
            "cg_iterations",
            "model_batch",
            "model_batch_most",
            "jacobian_stride",
            "refinement_batch",
            "refinement_iterations",
            "refinement_limit_power",
        ):
            self._check(name, lambda v: isinstance(v, int) and v >= 1, "a whole number of at least 1")
        for name in ("imagined", "model_steps", "excited_episodes", "refinement_steps"):
            self._check(name, lambda v: isinstance(v, int) and v >= 0, "a whole number of at least 0")
        self._check("pace_growth", lambda v: 1 <= v <= 10, "between 1 and 10")
        if self.radius_most < self.radius:
            raise UserError(f"radius_most is {self.radius_most}, but must be at least radius, which is {self.radius}.")
        if self.model_batch_most < self.model_batch:
            raise UserError(
                f"model_batch_most is {self.model_batch_most}, but must be at least model_batch, which is "
                f"{self.model_batch}."
            )
        if not self.model_hidden or not all(isinstance(width, int) and width >= 1 for width in self.model_hidden):
            raise UserError(f"model_hidden is {self.model_hidden}, but must list widths, whole numbers of at least 1.")

    @property
    def refines(self) -> bool:
        """Whether the policy is ever refined: not where nothing is to be imagined."""
        return self.refinement_steps > 0 and self.imagined > 0

    @property
    def imagined_in_all(self) -> int:
        """Imagined trajectories that an episode's update may need."""
        return max(self.imagined, self.refinement_steps * self.refinement_batch) if self.refines else self.imagined

    def _check(self, name: str, test, wanted: str) -> None:
        value = getattr(self, name)
        if not (math.isfinite(value) and test(value)):
            raise UserError(f"{name} is {value}, but must be {wanted}.")
