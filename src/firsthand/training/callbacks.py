"""What may watch a training run."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..robots import EpisodeRecord
from ..robots.base import EpisodeAbandoned as EpisodeAbandoned


@dataclass(frozen=True)
class EpisodeSummary:
    """One finished episode."""

    episode: int
    """Counts from 1."""
    metrics: dict[str, Any]
    """The line of metrics.jsonl."""
    record: EpisodeRecord
    """What the robot did."""


@runtime_checkable
class Callback(Protocol):
    """Methods that training calls; implement the ones you need by inheriting."""

    def before_episode(self, trainer: Any, episode: int) -> None:
        """Before the references are drawn; the place to change a payload."""

    def after_episode(self, trainer: Any, summary: EpisodeSummary) -> None:
        """After the update and after everything is on disk."""


@dataclass(frozen=True)
class PayloadSchedule(Callback):
    """Changes the payload of a robot that can carry one at given episodes."""

    at: dict[int, float]
    """Episode (from 1) to payload in kg; it stays until the next entry."""

    def before_episode(self, trainer: Any, episode: int) -> None:
        """Set what holds at this episode, so that it also holds after a resume."""
        held = [start for start in self.at if start <= episode]
        if held:
            trainer.robot.set_payload(self.at[max(held)])
