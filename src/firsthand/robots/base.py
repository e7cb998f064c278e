"""What training needs of a robot: run an episode of given goals, and follow given references for evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from firsthand_onboard import ControlSpec, StateLayout
from firsthand_onboard.features import measured_part, next_state

from ..errors import UserError
from ..models import Controller, Policy
from ..plants.base import AbstractPlant
from ..tasks.base import EvaluationReference, Task
from .description import RobotDescription, RobotFile


class EpisodeAbandoned(Exception):
    """The robot was stopped before its episode was over; nothing of it is kept."""


@dataclass(frozen=True)
class EpisodeRecord:
    """What a robot reports of N trajectories: raw, as numpy arrays, so that it can be kept and replayed."""

    starts: Float[np.ndarray, "trajectories state"]
    """The state vector at the start of each trajectory (it carries the command memory); an observer's estimate of it
    where one ran."""
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
    truth: Float[np.ndarray, "trajectories steps_and_last measured"] | None = None
    """The measurement of exact sensors, where it is known: errors are counted on it, nothing learns from it."""
    restarts: Float[np.ndarray, "trajectories measured"] | None = None
    """How often the observer restarted each entry from its measurement; None where none ran."""
    memory: Float[np.ndarray, "trajectories memory"] | None = None
    """The memory of the policy's base at the start of each trajectory; None without a base."""
    machines: Int[np.ndarray, " trajectories"] | None = None
    """Which machine ran each trajectory, of several that learn together; None for one robot."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The record as named arrays, for a file."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: np.asarray(value) for name, value in values.items() if value is not None}

    @property
    def best_known(self) -> Float[np.ndarray, "trajectories steps_and_last measured"]:
        """The truth where it is known, otherwise what was measured."""
        return self.measured if self.truth is None else self.truth

    def early_ends(self, steps: int) -> float:
        """The share of trajectories that ended before this many steps.

        Trajectories that never began do not count; without any other the share is 1.
        """
        lengths = self.valid.sum(axis=1)
        lengths = lengths[lengths > 0]
        return float(np.mean(lengths < min(steps, self.valid.shape[1]))) if len(lengths) else 1.0

    def registers(self, layout: StateLayout) -> Float[np.ndarray, "trajectories state"]:
        """The plain state vector at the start of each trajectory: `starts`, but never an observer's estimate.

        Where an observer ran, a trajectory that begins with the measurement and the commands with which the one before
        ended continues it. Any other begins at rest.
        """
        if self.restarts is None:
            return self.starts
        registers: list[np.ndarray] = []
        end: np.ndarray | None = None
        for i, start in enumerate(self.starts):
            first, sent = self.measured[i, 0], start[layout.command_start :]
            is_next = end is not None and np.array_equal(first, self.measured[i - 1, -1], equal_nan=True)
            if end is None or not (is_next and np.array_equal(end[layout.command_start :], sent)):
                held = np.where(np.isfinite(first), first, measured_part(layout, start))
                end = np.concatenate([np.tile(held, 1 + layout.measurement_memory), sent])
            registers.append(end)
            end = self.state_after(layout, end, i) if self.valid[i].all() else None
        return np.stack(registers)

    def state_after(
        self, layout: StateLayout, register: Float[np.ndarray, " state"], trajectory: int
    ) -> Float[np.ndarray, " state"]:
        """The plain state vector after a trajectory that began with `register`; a missing value is the one before."""
        for command, measured in zip(self.commands[trajectory], self.measured[trajectory, 1:], strict=True):
            held = np.where(np.isfinite(measured), measured, measured_part(layout, register))
            register = next_state(layout, register, command, held)
        return register

    def check(self, spec: ControlSpec) -> None:
        """Raise `ValueError` where the arrays cannot be those of a robot with this specification."""
        layout, shape = spec.layout, np.shape(self.valid)
        if len(shape) != 2:
            raise ValueError(f"valid has the shape {shape}")
        count, steps = shape
        points = np.shape(self.references)[1] if np.ndim(self.references) > 1 else 0
        expected = {
            "starts": (count, layout.size),
            "measured": (count, steps + 1, layout.num_measured),
            "commands": (count, steps, layout.num_commands),
            "references": (count, max(steps, points), spec.num_outputs),
            "free": (count, steps, layout.num_commands),
            "truth": (count, steps + 1, layout.num_measured),
            "restarts": (count, layout.num_measured),
            "machines": (count,),
        }
        for name, array in self.arrays().items():
            wanted = expected.get(name, array.shape)
            if array.shape != wanted:
                raise ValueError(f"{name} has the shape {array.shape}, but must have {wanted}")
            if array.dtype.kind not in ("b" if name in ("free", "valid") else "fiub"):
                kind = "true and false" if name in ("free", "valid") else "real numbers"
                raise ValueError(f"{name} has the type {array.dtype}, but must hold {kind}")

    @staticmethod
    def complete(
        starts: Any,
        measured: Any,
        commands: Any,
        references: Any,
        truth: Any | None = None,
        restarts: Any | None = None,
        memory: Any | None = None,
    ) -> "EpisodeRecord":
        """A record in which every step happened and every command was the policy's own."""
        starts, measured, commands, references = (
            np.asarray(part, np.float32) for part in (starts, measured, commands, references)
        )
        free = np.ones(commands.shape, bool)
        more = (None if part is None else np.asarray(part, np.float32) for part in (truth, restarts, memory))
        return EpisodeRecord(starts, measured, commands, references, free, free[..., 0].copy(), *more)

    @staticmethod
    def join(records: "Sequence[EpisodeRecord]") -> "EpisodeRecord":
        """The trajectories of several records, one after the other; what not all of them have is left out."""
        arrays = [record.arrays() for record in records]
        names = [name for name in arrays[0] if all(name in part for part in arrays)]
        return EpisodeRecord.from_arrays({name: np.concatenate([part[name] for part in arrays]) for name in names})

    def part(self, trajectories: slice) -> "EpisodeRecord":
        """Some of the trajectories."""
        return EpisodeRecord.from_arrays({name: array[trajectories] for name, array in self.arrays().items()})

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "EpisodeRecord":
        """The record from named arrays; others are ignored."""
        optional = ("truth", "restarts", "memory", "machines")
        required = {name: arrays[name] for name in EpisodeRecord.__dataclass_fields__ if name not in optional}
        found: dict[str, Any] = {name: arrays.get(name) for name in optional}
        return EpisodeRecord(**required, **found)


def check_observed(robot: "AbstractRobot", happened: Bool[np.ndarray, "*steps"], motion: str) -> None:
    """Raise `UserError` where no step of a motion counts, because measurements after the first were not finite."""
    if happened.any() or not robot.missing:
        return
    names = ", ".join(robot.task.spec.layout.measured[i] for i in robot.missing)
    raise UserError(
        f"Every observation of {names} was NaN or infinite after step 1 of {motion}, but must be a finite number: look "
        "at what the robot returns from its first step."
    )


MIN_ROOM = 0.5
"""Commands go either way from neutral where this share of half the range is left on both sides."""


def preview_indices(spec: ControlSpec, steps: int) -> np.ndarray:
    """Which points of a reference the policy sees at each step, `(steps, 1 + preview)`."""
    return np.arange(steps)[:, None] + np.asarray((0, *spec.preview))


def neutral(spec: ControlSpec) -> Float[np.ndarray, " commands"]:
    """The command that leaves a robot alone: as its task declares it, or else the middle of the command range."""
    return np.asarray(spec.neutral).astype(np.float32)


def operating_point(spec: ControlSpec) -> Float[np.ndarray, " commands"]:
    """Where commands can go either way: neutral, or the middle of a channel whose neutral is near an end of its range.

    A pump that stands at 0 can only be pushed; how it responds is seen around the middle.
    """
    low, high, rest = (np.asarray(v) for v in (spec.limits.command_low, spec.limits.command_high, spec.neutral))
    room = np.minimum(rest - low, high - rest) / ((high - low) / 2)
    return np.where(room >= MIN_ROOM, rest, (low + high) / 2).astype(np.float32)


class AbstractRobot(ABC):
    """A robot as training sees it.

    What a robot can do besides running episodes is declared here, with defaults for a robot that cannot. No
    code asks a robot for its class.
    """

    task: Task
    stand_in: bool = False
    """Whether it takes the place of a robot that is not connected yet."""
    hardware: bool = False
    """Whether it moves something real, or may: then only training and `firsthand evaluate` move it."""
    can_reset: bool = False
    """Whether it can be put somewhere at once, as a simulation can."""
    has_authority: bool = False
    """Whether `authority` limits its commands."""
    authority: float = 1.0
    """Share of the command range around neutral that the next motions may use."""
    machine_id: str = ""
    """Identity of the machine, wherever it is; empty if it is not known, or if nothing is earned on it."""
    pauses_between_trajectories: bool = False
    """Whether it calls `before_trajectory`; a robot that does not can pause between two episodes only."""
    before_trajectory: Callable[[], bool] | None = None
    """Called before motion. Waits while paused, returns whether it did, and may end the episode by an exception."""
    stop_wanted: Callable[[], bool] | None = None
    """Returns whether somebody wants to stop: then interrupted motion is not asked for again."""
    goes_on: bool = False
    """Whether the next `run_episode` is a part of the same episode: without a pause, estimate and base go on."""
    horizon: int | None = None
    """Control steps after which a trajectory of an episode ends early; None for the whole one. Some ignore it."""
    neutral_between_motions: bool = False
    """Whether commands do not hold from one `play` to the next: the machine is neutral in between."""
    carries_payload: bool = False
    """Whether `set_payload` works."""
    payload_kg: float = 0.0
    """The load that it was made with."""
    own_period_s: float | None = None
    """The control period that the robot itself tells, in seconds; None where it tells none."""
    plant: AbstractPlant | None = None
    """The simulated plant, where there is one."""
    is_learned: bool = False
    """Whether this plant is a learned simulator."""
    missing: tuple[int, ...] = ()
    """Entries of the measurement that were not finite where a motion was last cut for that."""
    angles: tuple[int, ...] = ()
    """Entries of the measurement that are angles and counted on across ±π."""
    members: Sequence[Any] = ()
    """The machines of a fleet (`robots.fleet.Member`); empty for one robot."""
    file: RobotFile | None = None
    """The user's file that it came from, where it is in one."""

    def close(self) -> None:  # noqa: B027 (most robots have nothing to give back)
        """Give the robot back: its lease, its environment. It may be used again after that."""

    def finish_trajectory(self) -> None:  # noqa: B027 (most robots have nothing to finish)
        """Finish the running trajectory, and then hold. From any thread."""

    def stop_at_once(self) -> str:
        """Stop the motion that was asked for, from any thread.

        Returns a sentence about what the machine does then; an empty one where there is nothing to stop.
        """
        return ""

    def set_payload(self, kg: float) -> None:
        """Carry this load from the next motion on; `UserError` for a robot that cannot."""
        raise UserError(f"payload is {kg:g} kg, but {self.task.name} cannot carry one.")

    def notes(self) -> list[str]:
        """Notes for the user about the motion so far."""
        return []

    def description(self) -> RobotDescription:
        """What a run stores of the robot, so that it can be read without it."""
        kind = "environment" if self.plant is None else "learned simulator" if self.is_learned else "simulation"
        return RobotDescription.of(
            self.task,
            kind="machine" if self.hardware else kind,
            angles=self.angles,
            payload_kg=self.payload_kg,
            file=self.file,
        )

    def true_measurement(self) -> Float[np.ndarray, " measured"] | None:
        """The measurement of exact sensors now; None if it is not known."""
        return None

    def stand_at(self, position: Float[np.ndarray, " position"]) -> Float[np.ndarray, " measured"] | None:
        """Put it at rest in a configuration, at once; the exact measurement there. None where that is not possible."""
        return None

    @abstractmethod
    def measured(self) -> Float[np.ndarray, " measured"]:
        """The current measurement."""

    def shares(self, count: int) -> list[tuple[int, Float[np.ndarray, " measured"]]]:
        """Who runs the next `count` trajectories: how many each body takes, and what it measures now.

        One body for a robot; several for machines that collect at the same time, in the order of the trajectories.
        """
        return [(count, self.measured())]

    def run_alike(self) -> None:  # noqa: B027 (one body runs what it is given)
        """Every body of the robot runs the policy of the next episode, whatever was decided for one of them."""

    @abstractmethod
    def run_episode(
        self,
        policy: Policy | Controller,
        goals: Float[np.ndarray, "trajectories goal"],
        excitation: Float[np.ndarray, "trajectories steps commands"] | None = None,
    ) -> EpisodeRecord:
        """Visit the goals one after the other under the policy; each trajectory starts where the last one ended.

        With an observer the policy sees its estimate, which begins with the episode and after each pause; references
        are built from measurements all the same. `excitation` is added to the policy's commands, inside their limits.
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
    def follow(
        self, policy: Policy | Controller, references: tuple[EvaluationReference, ...]
    ) -> tuple[EpisodeRecord, ...]:
        """Follow each reference from rest at its start. Leaves the robot as it was."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The robot's own state as a pytree, for a checkpoint; an empty one for a robot that cannot be rewound."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot."""
