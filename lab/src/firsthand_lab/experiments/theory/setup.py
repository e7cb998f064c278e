"""Groups of seeds for these experiments: made from a job's parameters, and kept so that a killed job goes on."""

from pathlib import Path
from typing import Any

import numpy as np

from firsthand.agent import Settings
from firsthand.plants.base import AbstractPlant
from firsthand.robots.registry import make_robot
from firsthand.runs.pytrees import from_arrays, to_arrays
from firsthand.tasks import Task, excavator_task
from firsthand.training import preset

from .. import files
from ..base import Size
from ..baseline import TINY_SETTINGS, TINY_TASK
from ..learning import records_as_arrays, records_from_arrays, tuples
from ..together import Together


def settings(size: Size, name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The learner's settings and the task's, as plain values for a job's parameters.

    All settings are in there, so that a job is another one when a preset has changed.
    """
    plain = preset(name).with_changes(changes or {}).flat()
    plain["model.hidden"] = list(plain["model.hidden"])
    small = size.name == "tiny"
    if small:
        limited = ("policy_step.steps", "imagination.trajectories", "refinement.steps")
        plain |= TINY_SETTINGS | {name: min(plain[name], 2) for name in limited}
    return {"preset": name, "settings": plain, "task": TINY_TASK if small else {}}


def settings_of(parameters: dict[str, Any]) -> Settings:
    """The learner's settings of a job."""
    return Settings().with_changes(parameters["settings"])


def task_of(parameters: dict[str, Any]) -> Task:
    """The task of a job."""
    return excavator_task(**tuples(parameters["task"]))


def plant_of(robot: str) -> AbstractPlant:
    """The plant of a simulated robot by name."""
    made = make_robot(robot, excavator_task())
    assert made.plant is not None
    return made.plant


def make_group(parameters: dict[str, Any], plant: AbstractPlant | None = None) -> Together:
    """The seeds of a job, before their first episode."""
    plant = plant_of(parameters["robot"]) if plant is None else plant
    return Together(
        plant, task_of(parameters), settings_of(parameters), parameters["seeds"], episodes=parameters["episodes"]
    )


class GroupProgress:
    """A group's progress in a job's folder: its state now and then, and columns with an entry per episode."""

    def __init__(self, folder: Path, group: Together, every: int = 10) -> None:
        self.folder, self.group, self.every = folder / files.CHECKPOINT, group, every
        self.columns: dict[str, list[np.ndarray]] = {}
        self.safe = 0
        """Episodes that need not be done again."""
        self._records: list[dict[str, np.ndarray]] = []
        if self._state.exists():
            self._load()

    def add(self, values: dict[str, Any]) -> None:
        """What an episode gave; now and then everything is written."""
        for name, value in values.items():
            self.columns.setdefault(name, []).append(np.asarray(value))
        self._records.append(records_as_arrays(self.group.records))
        if self.group.episode % self.every == 0:
            self.save()

    def stack_columns(self) -> dict[str, np.ndarray]:
        """Every column with a leading axis of episodes."""
        return {name: np.stack(values) for name, values in self.columns.items()}

    @property
    def _state(self) -> Path:
        return self.folder / "group.safetensors"

    def _episode(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def save(self) -> None:
        """What the next episode depends on; the buffer is rebuilt from the episodes."""
        for number, arrays in enumerate(self._records, start=self.safe + 1):
            files.write_arrays(self._episode(number), arrays)
        snapshot = self.group.snapshot()
        del snapshot["buffer"]
        columns = {f"column.{name}": array for name, array in self.stack_columns().items()}
        files.write_arrays(self._state, {**to_arrays({"group": snapshot}), **columns})
        self.safe, self._records = self.group.episode, []

    def _load(self) -> None:
        arrays, _ = files.read_arrays(self._state)
        columns = {name: arrays.pop(name) for name in list(arrays) if name.startswith("column.")}
        self.columns = {name.removeprefix("column."): list(array) for name, array in columns.items()}
        snapshot = self.group.snapshot()
        buffer = snapshot.pop("buffer")
        restored = from_arrays({"group": snapshot}, arrays)["group"]
        self.group.restore({**restored, "buffer": buffer})
        for number in range(1, self.group.episode + 1):
            stored, _ = files.read_arrays(self._episode(number))
            self.group.records = records_from_arrays(stored, len(self.group.seeds))
            self.group.remember(self.group.records)
        self.safe = self.group.episode
