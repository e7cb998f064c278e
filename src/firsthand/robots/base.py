"""What training needs of a robot: run an episode of given goals, and follow given references for evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec

from ..models import Policy
from ..tasks.base import EvaluationReference, Task


class EpisodeAbandoned(Exception):
    """The robot was stopped before its episode was over; nothing of it is kept."""


@dataclass(frozen=True)
class EpisodeRecord:
    """What a robot reports of N trajectories: raw, as numpy arrays, so that it can be kept and replayed."""

    starts: Float[np.ndarray, "trajectories state"]
    """The state vector at the start of each trajectory (it carries the command memory)."""
    measured: Float[np.ndarray, "trajectories steps_and_last measured"]
    """y_0 … y_H."""
    commands: Float[np.ndarray, "trajectories steps commands"]
    """u_0 … u_{H-1}, as applied."""
    references: Float[np.ndarray, "trajectories points outputs"]
    """The reference, `steps` points and the preview beyond."""
    free: Bool[np.ndarray, "trajectories steps commands"]
    """Where the applied command was the policy's own."""
    valid: Bool[np.ndarray, "trajectories steps"]
    """Steps that happened."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The record as named arrays, for a file."""
        return {name: np.asarray(getattr(self, name)) for name in self.__dataclass_fields__}

    @staticmethod
    def complete(starts: Any, measured: Any, commands: Any, references: Any) -> "EpisodeRecord":
        """A record in which every step happened and every command was the policy's own."""
        starts, measured, commands, references = (
            np.asarray(part, np.float32) for part in (starts, measured, commands, references)
        )
        everywhere = np.ones(commands.shape, bool)
        return EpisodeRecord(starts, measured, commands, references, everywhere, everywhere[..., 0].copy())

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "EpisodeRecord":
        """The record from named arrays; others are ignored."""
        return EpisodeRecord(**{name: arrays[name] for name in EpisodeRecord.__dataclass_fields__})


def preview_indices(spec: ControlSpec, steps: int) -> np.ndarray:
    """Which points of a reference the policy sees at each step, `(steps, 1 + preview)`."""
    return np.arange(steps)[:, None] + np.asarray((0, *spec.preview))


def neutral(spec: ControlSpec) -> Float[np.ndarray, " commands"]:
    """The middle of the command range, which a robot takes as neutral."""
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return ((low + high) / 2).astype(np.float32)


class AbstractRobot(ABC):
    """A robot as training sees it."""

    task: Task
    hardware: bool = False
    """Whether a Gymnasium environment moves something real: then no report and no end of training moves it."""

    def close(self) -> None:  # noqa: B027 (most robots have nothing to give back)
        """Give the robot back: its lease, its environment. It may be used again after that."""

    @abstractmethod
    def measured(self) -> Float[np.ndarray, " measured"]:
        """What the sensors say now."""

    @abstractmethod
    def run_episode(
        self,
        policy: Policy,
        goals: Float[np.ndarray, "trajectories goal"],
        excitation: Float[np.ndarray, "trajectories steps commands"] | None = None,
    ) -> EpisodeRecord:
        """Visit the goals one after the other under the policy; each trajectory starts where the last one ended.

        `excitation` is added to the policy's commands, inside their limits.
        """

    @abstractmethod
    def play(self, commands: Float[np.ndarray, "steps commands"]) -> Float[np.ndarray, "steps_and_last measured"]:
        """Apply these commands, one per control period, from where the robot is; what was measured before and after.

        Without a policy, to see how the robot responds. The caller keeps commands inside their limits.
        """

    def play_applied(
        self, commands: Float[np.ndarray, "steps commands"]
    ) -> tuple[Float[np.ndarray, "steps_and_last measured"], Float[np.ndarray, "steps commands"]]:
        """As `play`, and the commands that were really applied: a robot behind a safety gate may apply others."""
        return self.play(commands), np.asarray(commands, np.float32)

    @abstractmethod
    def follow(self, policy: Policy, references: tuple[EvaluationReference, ...]) -> tuple[EpisodeRecord, ...]:
        """Follow each reference from rest at its start. Leaves the robot as it was."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The robot's own state as a pytree, for a checkpoint; an empty one for a robot that cannot be rewound."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot."""
