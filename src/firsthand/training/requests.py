"""What a person may ask of a training run between two episodes, as the loop sees it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from ..agent import LearnerState


class Outcome(NamedTuple):
    """What came of a request."""

    answer: str
    """For the person."""
    learner: LearnerState | None = None
    """The learner to go on with; None where it stays as it is."""


class AbstractRequest(ABC):
    """One request that waits for the loop."""

    @abstractmethod
    def carry_out(self, learner: LearnerState, episode: int) -> Outcome:
        """Do what was asked for, after this episode; `UserError` where it cannot be done."""

    @abstractmethod
    def accept(self, outcome: Outcome) -> None:
        """It is done."""

    @abstractmethod
    def refuse(self, why: str) -> None:
        """It cannot be done."""


class AbstractControl(ABC):
    """Where requests come from."""

    @abstractmethod
    def next_request(self) -> AbstractRequest | None:
        """The oldest request that is neither accepted nor refused; None when there is none."""

    @abstractmethod
    def wait_while_paused(self, meanwhile: Callable[[], None]) -> None:
        """Return when nobody wants a pause, and call `meanwhile` until then; `EpisodeAbandoned` when told to stop."""


class NoControl(AbstractControl):
    """Nobody asks for anything."""

    def next_request(self) -> AbstractRequest | None:
        """Never any."""
        return None

    def wait_while_paused(self, meanwhile: Callable[[], None]) -> None:
        """Never paused."""
