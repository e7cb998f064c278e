"""A controller for a robot that can be run, identified on it: PI behind inverse kinematics and valves, or a PID."""

from collections.abc import Callable
from dataclasses import dataclass

from firsthand_onboard import PlanarChain

from ..errors import UserError
from ..robots.base import AbstractRobot
from ..tasks import Task
from . import pi, pid
from .by_hand import StepController


@dataclass(frozen=True)
class Design:
    """A controller up to its gains."""

    make: Callable[[float], StepController]
    """The controller with gains that are this multiple of the rule's."""
    factors: tuple[float, ...]
    """Multiples to try, for `GainSearch`."""
    parameters: int
    """Numbers that were identified."""
    robot_time_s: float
    """Robot time that identification took."""
    processor_time_s: float
    kind: str
    """A name for people."""


def design_controller(robot: AbstractRobot, task: Task, *, seed: int = 0) -> Design:
    """Identify the robot and design its controller. This moves it; `UserError` where nothing can be identified.

    A planar chain of joints that are driven at a speed gets the PI controller behind its inverse kinematics and valve
    maps. Any other robot, and such a chain whose joints are driven otherwise, gets the PID.
    """
    spec, before = task.spec, 0.0
    if isinstance(spec.kinematics, PlanarChain):
        try:
            found = pi.identify_axes(robot, task, seed=seed)
            return Design(
                lambda factor: pi.PIController(spec, found.axes, factor),
                pi.GAIN_FACTORS,
                3 * len(found.axes),
                found.robot_time_s,
                found.processor_time_s,
                "PI per joint with inverse kinematics and valve maps",
            )
        except UserError:
            before = pi.INSPECTION_OVERRUN * 60 * pid.usual_minutes(spec)
    model = pid.identify_outputs(robot, task, seed=seed)
    return Design(
        lambda factor: pid.PIDController(spec, model, factor),
        pid.FACTORS,
        model.coupling.size + 3 * len(model.entries),
        before + model.robot_time_s,
        model.processor_time_s,
        "PID with identified coupling and feed-forward",
    )
