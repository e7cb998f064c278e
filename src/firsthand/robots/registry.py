"""Robots by name."""

from collections.abc import Callable

from ..errors import UserError, suggest
from ..tasks import Task, excavator_task
from .simulated import SimulatedRobot


def _excavator(task: Task, payload_kg: float, seed: int) -> SimulatedRobot:
    from ..plants.excavator import ExcavatorFlow

    return SimulatedRobot(ExcavatorFlow().with_payload(payload_kg), task, seed=seed)


def _excavator_pressure(task: Task, payload_kg: float, seed: int) -> SimulatedRobot:
    from ..plants.excavator import ExcavatorPressure

    return SimulatedRobot(ExcavatorPressure().with_payload(payload_kg), task, seed=seed)


ROBOTS: dict[str, tuple[Callable[..., Task], Callable[[Task, float, int], SimulatedRobot]]] = {
    "excavator": (excavator_task, _excavator),
    "excavator-pressure": (excavator_task, _excavator_pressure),
}


def make_task(name: str, **options) -> Task:
    """The task of a robot by name."""
    return _known(name)[0](**options)


def make_robot(name: str, task: Task, *, payload_kg: float = 0.0, seed: int = 0) -> SimulatedRobot:
    """A robot by name, standing at home."""
    return _known(name)[1](task, payload_kg, seed)


def _known(name: str):
    if name not in ROBOTS:
        raise UserError(f"There is no robot {name!r}{suggest(name, tuple(ROBOTS))}; known are {', '.join(ROBOTS)}.")
    return ROBOTS[name]
