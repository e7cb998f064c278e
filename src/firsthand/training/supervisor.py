"""Which policy may run next, and with which authority: decided between two episodes, told to the loop as a value."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from ..models import Dynamics, Policy
from ..robots import AbstractRobot
from .callbacks import EpisodeSummary
from .recorder import AbstractRecorder

Meanwhile = Callable[[], None]
"""Whoever waits for a person calls this now and then, so that the loop can do what else was asked for."""


class Candidate(NamedTuple):
    """What could run next."""

    policy: Policy
    """The learner's newest policy, or what an operator has put in its place."""
    dynamics: Dynamics
    """The learner's model."""
    chosen_by_operator: bool
    """Whether a person has put the policy in place: then it needs no approval."""


class Decision(NamedTuple):
    """What runs next."""

    policy: Policy
    """The policy."""
    prediction_holds: bool = True
    """Whether it is the candidate, so that what the model predicted for it still holds."""
    authority: float | None = None
    """Share of the command range; None leaves the robot's as it is."""
    reason: str = ""
    """Why it is not the candidate, for the user; empty where there is nothing to explain."""


class AbstractSupervisor(ABC):
    """Stands between a new policy and the robot."""

    @abstractmethod
    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """The policy that runs next; may wait for a person's approval. `EpisodeAbandoned` where he stops instead."""

    @abstractmethod
    def judge(self, summary: EpisodeSummary, policy: Policy) -> None:
        """Learn what came of the episode that this policy has run."""

    @abstractmethod
    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """Remember what was known after an episode of the run; `name` is the robot's. Returns notes for the user."""


class NoSupervisor(AbstractSupervisor):
    """Every new policy runs: for simulations, where nothing can break."""

    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """The candidate."""
        return Decision(candidate.policy)

    def judge(self, summary: EpisodeSummary, policy: Policy) -> None:
        """Nothing is remembered."""

    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """Nothing is remembered."""
        return []
