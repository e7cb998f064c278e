"""The robot of a job, from its parameters."""

import dataclasses
from typing import Any

from firsthand.errors import UserError
from firsthand.plants.base import AbstractPlant
from firsthand.robots.registry import find_robot, find_source
from firsthand.tasks import Task, excavator_task, soft_arm_task

from ..experiments.baseline import TINY_TASK
from ..experiments.learning import tuples

TINY_HURRY = 6.0
"""In the tests' size the evaluation shapes are travelled faster by this factor, to be over sooner."""


TINY: dict[str, Any] = {
    "excavator": excavator_task,
    "excavator-pressure": excavator_task,
    "excavator-realistic": excavator_task,
    "soft-arm": soft_arm_task,
}
"""Robots with a task that can be shortened for tests."""


def has_plant(robot: str) -> bool:
    """Whether a robot is a simulation of our own, which several learners can step side by side."""
    found = find_robot(robot, approve=True)
    return found.file is None or found.make(seed=0).plant is not None


def plant_and_task(robot: str, *, tiny: bool = False) -> tuple[AbstractPlant, Task]:
    """A simulated robot by name; `tiny` shortens its episodes for the tests."""
    source = find_source(robot)
    task = source.make_task()
    if tiny:
        if robot not in TINY:
            raise UserError(f"the smallest form is there for {', '.join(TINY)}, not for {robot!r}.")
        task = TINY[robot](**tuples(TINY_TASK))
        task = dataclasses.replace(task, evaluation_speed=TINY_HURRY * task.evaluation_speed)
    made = source.make_robot(task, payload_kg=0.0, seed=0)
    if made.plant is None:
        raise UserError(f"the robot {robot!r} is not simulated here; peers are compared on simulated robots.")
    return made.plant, task
