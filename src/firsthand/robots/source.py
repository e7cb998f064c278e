"""The common result of every way to name a robot. Imports no JAX."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..tasks import Task
    from .base import AbstractRobot


@runtime_checkable
class RobotSource(Protocol):
    """Where a robot comes from: what `firsthand train ROBOT` names."""

    @abstractmethod
    def make_task(self) -> "Task":
        """Everything that is known about the robot."""

    @abstractmethod
    def make_robot(self, task: "Task", *, payload_kg: float, seed: int) -> "AbstractRobot":
        """The robot, ready to run; `seed` is for what is random in a simulated one."""
