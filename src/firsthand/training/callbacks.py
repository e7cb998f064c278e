"""What may watch a training run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..robots import EpisodeRecord


@dataclass(frozen=True)
class EpisodeSummary:
    """One finished episode."""

    episode: int
    """Counts from 1."""
    metrics: Mapping[str, Any]
    """The line of metrics.jsonl."""
    record: EpisodeRecord
    """What the robot did."""


@runtime_checkable
class Callback(Protocol):
    """Methods that training calls; implement the ones you need by inheriting. None of them can change the training."""

    def before_episode(self, episode: int) -> None:
        """Before the robot moves; episodes count from 1."""

    def after_motion(self, episode: int) -> None:
        """After the robot's last trajectory, before the update."""

    def after_episode(self, summary: EpisodeSummary) -> None:
        """After the update and after everything is recorded."""

    def notify(self, text: str) -> None:
        """Something that the user should know, as a sentence."""


class CallbackList(Callback):
    """Several callbacks as one, called in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def before_episode(self, episode: int) -> None:
        """Before the robot moves."""
        for callback in self.callbacks:
            callback.before_episode(episode)

    def after_motion(self, episode: int) -> None:
        """After the robot's last trajectory, before the update."""
        for callback in self.callbacks:
            callback.after_motion(episode)

    def after_episode(self, summary: EpisodeSummary) -> None:
        """After the update and after everything is recorded."""
        for callback in self.callbacks:
            callback.after_episode(summary)

    def notify(self, text: str) -> None:
        """Something that the user should know."""
        for callback in self.callbacks:
            callback.notify(text)
