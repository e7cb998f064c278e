"""Robots by name: the ones that come with firsthand, and the ways in for everybody else's."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..errors import UserError, suggest
from ..plants.base import AbstractPlant
from ..tasks import Task, excavator_task, soft_arm_task
from .address import is_address
from .base import AbstractRobot
from .simulated import SimulatedRobot
from .user_file import is_robot_file, load_source, simulator_file


@runtime_checkable
class RobotSource(Protocol):
    """Where a robot comes from: what `firsthand train ROBOT` names."""

    @abstractmethod
    def make_task(self) -> Task:
        """What is known about the robot."""

    @abstractmethod
    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> AbstractRobot:
        """The robot, ready to run; `seed` is for what is random in a simulated one."""


@dataclass(frozen=True)
class BuiltIn(RobotSource):
    """A simulated robot that comes with firsthand."""

    task: Callable[[], Task]
    plant: Callable[[float], AbstractPlant]
    """From the payload in kg to the plant."""

    def make_task(self) -> Task:
        """What is known about the robot."""
        return self.task()

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> SimulatedRobot:
        """The plant, standing at home."""
        return SimulatedRobot(self.plant(payload_kg), task, seed=seed, loaded=self.plant)


def _excavator(payload_kg: float) -> AbstractPlant:
    from ..plants.excavator import ExcavatorFlow

    return ExcavatorFlow().with_payload(payload_kg)


def _excavator_pressure(payload_kg: float) -> AbstractPlant:
    from ..plants.excavator import ExcavatorPressure

    return ExcavatorPressure().with_payload(payload_kg)


def _soft_arm(payload_kg: float) -> AbstractPlant:
    from ..plants.soft_arm import SoftArm
    from ..plants.soft_arm.parameters import MAX_PAYLOAD_KG

    if payload_kg > MAX_PAYLOAD_KG:
        raise UserError(
            f"payload is {payload_kg:g} kg, but the soft arm carries at most {MAX_PAYLOAD_KG:g} kg: it would buckle."
        )
    return SoftArm().with_payload(payload_kg)


ROBOTS: dict[str, BuiltIn] = {
    "excavator": BuiltIn(excavator_task, _excavator),
    "excavator-pressure": BuiltIn(excavator_task, _excavator_pressure),
    "soft-arm": BuiltIn(soft_arm_task, _soft_arm),
}


def find_robot(name: str) -> RobotSource:
    """The source that a name on the command line means; an unknown one is answered with the near one."""
    if name in ROBOTS:
        return ROBOTS[name]
    if is_address(name):
        from .remote import RemoteSource

        return RemoteSource.parse(name)
    if simulator_file(name):
        from ..simulators import StoredSimulator

        return StoredSimulator.open(name)
    if is_robot_file(name):
        return load_source(name)
    raise UserError(f"There is no robot {name!r}{suggest(name, tuple(ROBOTS))}; known are {', '.join(ROBOTS)}.")


def make_task(name: str) -> Task:
    """The task of a robot by name."""
    return find_robot(name).make_task()


def make_robot(name: str, task: Task, *, payload_kg: float = 0.0, seed: int = 0) -> AbstractRobot:
    """A robot by name, standing at home."""
    return find_robot(name).make_robot(task, payload_kg=payload_kg, seed=seed)
