"""A robot's task: everything that is known about it, in one place."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..units import Score, score_of
from .cost import StepCost, try_cost


@dataclass(frozen=True)
class EvaluationReference:
    """A fixed reference that the learner never trains on."""

    name: str
    """Its name in tables."""
    points: np.ndarray
    """The tracked output's target at each step, `(steps, outputs)`."""
    start: np.ndarray
    """The configuration from which the robot starts, at rest."""


@runtime_checkable
class GoalSampler(Protocol):
    """Draws the goals of an episode."""

    @abstractmethod
    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """`count` goals, `(count, goal)`, to be visited one after the other from where the robot is now."""


@runtime_checkable
class EvaluationSet(Protocol):
    """Makes the fixed evaluation references."""

    @abstractmethod
    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """The references, travelled at about `speed` (units of the tracked output per second)."""


@dataclass(frozen=True)
class Task:
    """Everything that is known about a robot, and its goal."""

    spec: ControlSpec
    """The specification that the robot's computer shares."""
    cost: StepCost
    """The cost that is minimised."""
    sample_goals: GoalSampler
    """Where the references of an episode lead."""
    evaluation: EvaluationSet
    """References for evaluation only."""
    evaluation_speed: float
    """The speed at which the evaluation references are travelled unless another is asked for."""
    home: tuple[float, ...]
    """The configuration in which training starts, at rest."""
    trajectories: int = 10
    """N, trajectories per episode."""
    unit: str = "m"
    """Of the tracked output, for people: metres are printed as cm, anything else as it is."""
    stop_at_limits: bool = False
    """Whether a motion ends where a position is about to leave its limits; see `robots.limits`."""
    adaptive_horizon: bool = False
    """Whether trajectories of a robot that falls or runs away are shortened while it does; see `training.horizon`."""

    def __post_init__(self) -> None:
        if self.trajectories < 1:
            raise UserError(f"trajectories is {self.trajectories}, but must be at least 1.")
        if len(self.home) != len(self.spec.layout.position):
            raise UserError(
                f"home has {len(self.home)} entries, but must have {len(self.spec.layout.position)}, one per position."
            )
        if not self.cost.goal.is_ready_made:  # before anything moves
            references = self.evaluation(self.evaluation_speed)
            try_cost(self.cost, np.concatenate([reference.points for reference in references]))

    @property
    def score(self) -> Score:
        """The number that policies are judged by."""
        return score_of(self.cost.goal.tracks, self.unit)

    @property
    def name(self) -> str:
        """The robot's name."""
        return self.spec.robot

    @cached_property
    def steps(self) -> int:
        """H, steps per trajectory."""
        return self.spec.reference.steps

    @cached_property
    def episode_s(self) -> float:
        """Robot time of one episode in seconds."""
        return self.trajectories * self.steps * self.spec.period_s
