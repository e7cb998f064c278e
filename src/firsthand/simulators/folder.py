"""A learned simulator on disk: `simulator.json` says what it is, `simulator.safetensors` holds the weights."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..logs import spec_difference
from ..plants.learned import LearnedPlant
from ..robots.description import ROBOT_DESCRIPTION, RobotDescription
from ..robots.registry import RobotSource, find_source
from ..robots.simulated import SimulatedRobot
from ..robots.user_file import simulator_file
from ..runs import atomic, packed, provenance
from ..tasks import Task
from .accuracy import Accuracy
from .fit import FitSettings

FORMAT = 1
DESCRIPTION, WEIGHTS = "simulator.json", "simulator.safetensors"
_ARRAYS = ("center", "scale", "change_scale", "low", "high")


def check_free(path: Path) -> None:
    """Refuse a place where a new simulator would mix with something else."""
    leftover = (WEIGHTS,)  # of a process that was killed before it wrote the description
    with atomic.reading(path):
        if path.is_file():
            raise UserError(f"{path} is a file; give another --out.")
        if simulator_file(str(path)):
            raise UserError(f"{path} already holds a simulator; give another --out.")
        if path.is_dir() and any(e.name not in leftover and not atomic.is_temporary(e.name) for e in path.iterdir()):
            raise UserError(f"{path} is not empty and holds no simulator; give another --out.")
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write into {there}; give another --out.")


def save(
    path: Path,
    plant: LearnedPlant,
    *,
    robot: str,
    description: RobotDescription,
    data: Sequence[Mapping[str, Any]],
    settings: FitSettings,
    accuracy: Sequence[Accuracy],
) -> None:
    """Write a simulator to a new folder; the description last, because it is what makes the folder a simulator."""
    check_free(path)
    arrays = {name: getattr(plant, name) for name in _ARRAYS}
    for i, (weight, bias) in enumerate(plant.layers):
        arrays[f"network.{i}.weight"], arrays[f"network.{i}.bias"] = weight, bias
    weights = packed.pack(arrays, {})
    atomic.make_folder(path)
    atomic.remove_temporary_files(path)
    atomic.write_bytes(path / WEIGHTS, weights)
    content = {
        "format": FORMAT,
        "robot": robot,
        ROBOT_DESCRIPTION: description.as_dict(),
        "hidden": [len(bias) for _, bias in plant.layers[:-1]],
        "command_history": plant.command_history,
        "measurement_history": plant.measurement_history,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "settings": asdict(settings),
        "data": list(data),
        "accuracy": [one.as_dict() for one in accuracy],
        "provenance": provenance.collect(),
    }
    atomic.write_json(path / DESCRIPTION, content)


@dataclass(frozen=True)
class StoredSimulator(RobotSource):
    """A learned simulator as a robot: `firsthand train SIM`."""

    path: Path
    """Its folder."""
    robot: str
    """The robot that was logged, whose task this is."""
    described: RobotDescription
    """That robot as it was when the simulator was fitted."""
    content: Mapping[str, Any]
    """All of simulator.json."""

    @property
    def spec(self) -> ControlSpec:
        """The control specification of the robot that was logged."""
        return self.described.spec

    @staticmethod
    def open(path: str | Path) -> "StoredSimulator":
        """Read the description; `plant` reads the weights."""
        path = Path(path)
        file = path / DESCRIPTION
        try:
            content = json.loads(file.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
        except (ValueError, RecursionError):
            raise UserError(f"{file} is damaged: it is not JSON.") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f"{file} is damaged or has a format that this version of firsthand does not read.")
        try:
            described = RobotDescription.of_config(content, str(file))
            for name in ("command_history", "measurement_history"):
                if not isinstance(content[name], int) or content[name] < 0:
                    raise UserError(f"{file} is damaged: {name} is {content[name]!r}.")
            return StoredSimulator(path, str(content["robot"]), described, content)
        except KeyError as error:
            raise UserError(f"{file} is damaged: the field {error} is missing.") from None

    def plant(self) -> LearnedPlant:
        """The plant; one sentence when a file is damaged or the two do not belong together."""
        file = self.path / WEIGHTS
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self.content.get("weights_sha256"):
                raise UserError(f"{file} is damaged or belongs to another {DESCRIPTION}: its SHA-256 is another.")
            arrays, _ = packed.unpack(content)
        except OSError as error:
            raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
        except packed.DamagedFile as error:
            raise UserError(f"{file} is damaged: {error}.") from None
        try:
            layers = tuple(
                (jnp.asarray(arrays[f"network.{i}.weight"]), jnp.asarray(arrays[f"network.{i}.bias"]))
                for i in range(len(self.content["hidden"]) + 1)
            )
            scales = {name: jnp.asarray(arrays[name]) for name in _ARRAYS}
        except (KeyError, TypeError) as error:
            raise UserError(f"{file} does not fit its {DESCRIPTION}: {error} is missing.") from None
        return LearnedPlant(
            layers=layers,
            **scales,
            spec=self.spec,
            command_history=self.content["command_history"],
            measurement_history=self.content["measurement_history"],
        )

    def make_task(self) -> Task:
        """The task of the robot that was logged: goals, cost and evaluation come from there."""
        try:
            task = find_source(self.robot).make_task()
        except UserError as error:
            raise UserError(
                f"{self.path} imitates {self.robot!r}, whose task is needed and cannot be had: {error}"
            ) from None
        if difference := spec_difference(self.spec, task.spec):
            raise UserError(
                f"{self.path} imitates {self.robot!r}, whose control specification has changed since: {difference}; "
                "fit the simulator again."
            )
        return task

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> SimulatedRobot:
        """The simulator, standing at home. It can carry nothing that was not in its log."""
        if payload_kg:
            raise UserError(f"payload is {payload_kg} kg, but the learned simulator {self.path} cannot carry any.")
        robot = SimulatedRobot(self.plant(), task, seed=seed)
        robot.is_learned, robot.angles = True, self.described.angles
        return robot
