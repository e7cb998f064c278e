"""A learned simulator on disk, and as a robot: simulator.json describes it, simulator.safetensors has its weights."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..plants.learned import LearnedPlant
from ..runs import atomic, packed
from ..tasks import Task
from .description import RobotDescription, spec_difference
from .simulated import SimulatedRobot
from .source import RobotSource

FORMAT = 1
DESCRIPTION, WEIGHTS = "simulator.json", "simulator.safetensors"
ARRAYS = ("center", "scale", "change_scale", "low", "high")
"""The arrays of a `LearnedPlant` beside its layers."""


@dataclass(frozen=True)
class StoredSimulator:
    """A learned simulator in its folder."""

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
            scales = {name: jnp.asarray(arrays[name]) for name in ARRAYS}
        except (KeyError, TypeError) as error:
            raise UserError(f"{file} does not fit its {DESCRIPTION}: {error} is missing.") from None
        return LearnedPlant(
            layers=layers,
            **scales,
            spec=self.spec,
            command_history=self.content["command_history"],
            measurement_history=self.content["measurement_history"],
        )


@dataclass(frozen=True)
class SimulatorSource(RobotSource):
    """A learned simulator as a robot: `firsthand train SIM`."""

    stored: StoredSimulator
    find_source: Callable[[str], RobotSource]
    """Where the robot that was logged comes from, by name: the task is its."""

    def make_task(self) -> Task:
        """The task of the robot that was logged: goals, cost and evaluation come from there."""
        stored = self.stored
        try:
            task = self.find_source(stored.robot).make_task()
        except UserError as error:
            raise UserError(
                f"{stored.path} imitates {stored.robot!r}, whose task is needed and cannot be had: {error}"
            ) from None
        if difference := spec_difference(stored.spec, task.spec):
            raise UserError(
                f"{stored.path} imitates {stored.robot!r}, whose control specification has changed since: "
                f"{difference}; fit the simulator again."
            )
        return task

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> SimulatedRobot:
        """The simulator, standing at home. It can carry nothing that was not in its log."""
        if payload_kg:
            raise UserError(
                f"payload is {payload_kg} kg, but the learned simulator {self.stored.path} cannot carry any."
            )
        robot = SimulatedRobot(self.stored.plant(), task, seed=seed)
        robot.is_learned, robot.angles = True, self.stored.described.angles
        return robot
