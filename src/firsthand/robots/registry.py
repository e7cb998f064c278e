"""Robots by name: those that come with firsthand, and every way to name another one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import UserError, suggest
from ..plants.base import AbstractPlant
from ..plants.sensors import Sensors, sense
from ..tasks import Task, excavator_cabin_task, excavator_grading_task, excavator_task, soft_arm_task
from . import real_excavator
from .address import is_address, is_fleet
from .base import AbstractRobot
from .description import RobotFile
from .logged_robot import LoggedRobot, is_robot_description, read_logged_robot
from .real_excavator import real_excavator_sensors, real_excavator_task
from .simulated import SimulatedRobot
from .source import RobotSource
from .user_file import absolute_name, approve_robot, is_robot_file, load_source, robot_file, simulator_file


@dataclass(frozen=True)
class BuiltIn(RobotSource):
    """A simulated robot that comes with firsthand."""

    task: Callable[[], Task]
    plant: Callable[[float], AbstractPlant]
    """From the payload in kg to the plant."""
    sensors: Callable[[], Mapping[str, Sensors | None]] = lambda: {"exact": None}
    """The sensors that it can be seen through, by name; None is exact."""
    chosen: str = "exact"
    """Which of them."""
    variant: Callable[[str], Callable[[float], AbstractPlant]] | None = None
    """From what follows the name and a colon to another `plant`; None for a robot without variants."""
    fit_task: Callable[[Task, float], Task] | None = None
    """From a task and a payload in kg to the task with that payload, where it depends on it."""

    def make_task(self) -> Task:
        """Everything that is known about the robot."""
        return self.task()

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> SimulatedRobot:
        """The plant, standing at home."""
        fit = self.fit_task

        def fitted(kg: float) -> Task:
            return task if fit is None else fit(task, kg)

        plant = self.sensed_plant(payload_kg)
        return SimulatedRobot(plant, fitted(payload_kg), seed=seed, loaded=self.sensed_plant, fitted=fitted)

    def sensed_plant(self, payload_kg: float) -> AbstractPlant:
        """The plant with this payload, behind its sensors."""
        return sense(self.plant(payload_kg), self.sensors()[self.chosen])

    def with_sensors(self, name: str) -> "BuiltIn":
        """The same robot seen through other sensors; an unknown name is answered with the nearest one."""
        known = tuple(self.sensors())
        if not isinstance(name, str):
            raise UserError(
                f"sensors is an object of {type(name).__name__}, but a built-in robot is seen through one of "
                f"{', '.join(known)}, by name; sensors of your own belong to a GymnasiumTask or a SensedPlant."
            )
        if name not in known:
            raise UserError(f"sensors is {name!r}, but must be one of {', '.join(known)}{suggest(name, known)}.")
        return replace(self, chosen=name)


@dataclass(frozen=True)
class LearnedBuiltIn(BuiltIn):
    """A learned simulator that comes with firsthand."""

    logged: Callable[[], LoggedRobot] | None = None
    """The robot that was logged."""

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> SimulatedRobot:
        """The simulator, standing at home. It can carry nothing that was not in its log."""
        from ..plants.learned import LearnedPlant
        from .stored_simulator import LearnedRobot

        plant = self.plant(payload_kg)
        assert isinstance(plant, LearnedPlant)
        return LearnedRobot(plant, task, sensors=self.sensors()[self.chosen], seed=seed)


def _excavator(payload_kg: float) -> AbstractPlant:
    from ..plants.excavator import ExcavatorFlow

    return ExcavatorFlow().with_payload(payload_kg)


def _excavator_pressure(payload_kg: float) -> AbstractPlant:
    from ..plants.excavator import ExcavatorPressure

    return ExcavatorPressure().with_payload(payload_kg)


def _excavator_cabin(payload_kg: float) -> AbstractPlant:
    from ..plants.excavator import ExcavatorCabin

    return ExcavatorCabin().with_payload(payload_kg)


def _excavator_realistic(payload_kg: float) -> AbstractPlant:
    return _realistic_variant("")(payload_kg)


def _realistic_variant(effects: str) -> Callable[[float], AbstractPlant]:
    """The realistic excavator with these effects, all of them for an empty text."""
    from ..plants.excavator import Effects, ExcavatorRealistic

    machine = ExcavatorRealistic(effects=Effects.parse(effects) if effects else Effects())
    return machine.with_payload


def _excavator_grading(payload_kg: float) -> AbstractPlant:
    from ..plants.excavator import ExcavatorGrading

    return ExcavatorGrading().with_payload(payload_kg)


def _grading_variant(where: str) -> Callable[[float], AbstractPlant]:
    """`air` is the same machine without soil."""
    from ..plants.excavator import ExcavatorGrading

    if where != "air":
        raise UserError(f"the excavator that grades is {where!r}, but must be 'air' (no soil) or nothing (in soil).")
    return ExcavatorGrading().in_air().with_payload


def _within_lift(task: Task, payload_kg: float) -> Task:
    from ..plants.excavator.lifting import CanLift
    from ..tasks.excavator import within_lift

    if not payload_kg:
        return task
    fitted = within_lift(task, CanLift(payload_kg))
    if fitted is None:
        lighter = (kg for kg in range(int(payload_kg // 50) * 50, 0, -50) if within_lift(task, CanLift(float(kg))))
        raise UserError(
            f"payload is {payload_kg:g} kg, but the machine can lift at most {next(lighter, 0)} kg where its goals are."
        )
    return fitted


def _soft_arm(payload_kg: float) -> AbstractPlant:
    return _soft_arm_variant("")(payload_kg)


def _soft_arm_variant(effects: str) -> Callable[[float], AbstractPlant]:
    """The soft arm with these effects, all of them for an empty text."""
    from ..plants.soft_arm import ArmEffects, SoftArm
    from ..plants.soft_arm.parameters import MAX_PAYLOAD_KG

    arm = SoftArm(effects=ArmEffects.parse(effects) if effects else ArmEffects())

    def loaded(payload_kg: float) -> AbstractPlant:
        if payload_kg > MAX_PAYLOAD_KG:
            raise UserError(
                f"payload is {payload_kg:g} kg, but the soft arm carries at most {MAX_PAYLOAD_KG:g} kg: it would "
                "buckle."
            )
        return arm.with_payload(payload_kg)

    return loaded


def _real_excavator(payload_kg: float) -> AbstractPlant:
    from .stored_simulator import StoredSimulator

    if payload_kg:
        raise UserError(f"payload is {payload_kg:g} kg, but real-excavator is learned from a log without one.")
    return StoredSimulator.open(real_excavator.FOLDER).plant()


def excavator_sensors() -> dict[str, Sensors | None]:
    """As in the log of a real excavator (`real`), and as hard as experiment `noise` has them (`strong`)."""
    spec = excavator_task().spec
    names, outliers = spec.layout.measured, 8.0 * np.asarray(spec.scales.change_scale)
    degree = np.deg2rad(0.01)
    real = Sensors(
        noise=(2e-4, 2e-4, 1e-4, 2e-4, *(0.01,) * 4),
        resolution=(degree, degree, 1e-4, degree, *(0.0,) * 4),
        lag=(*(0.0,) * 4, *(0.5,) * 4),
    )
    strong = Sensors(noise=(*(5e-3,) * 4, *(0.05,) * 4), outlier_share=0.01, outlier_size=outliers)
    return {"exact": None, "real": real.for_entries(names), "strong": strong.for_entries(names)}


def soft_arm_sensors() -> dict[str, Sensors | None]:
    """Motion capture: with its noise, and with a period of delay as well (`real`)."""
    names = soft_arm_task().spec.layout.measured
    return {
        "exact": None,
        "noise": Sensors(noise=5e-4).for_entries(names),
        "real": Sensors(noise=5e-4, delay=1).for_entries(names),
    }


ROBOTS: dict[str, BuiltIn] = {
    "excavator": BuiltIn(excavator_task, _excavator, excavator_sensors, "exact"),
    "excavator-pressure": BuiltIn(excavator_task, _excavator_pressure, excavator_sensors, "exact"),
    "excavator-cabin": BuiltIn(excavator_cabin_task, _excavator_cabin),
    "excavator-realistic": BuiltIn(
        excavator_task, _excavator_realistic, excavator_sensors, "real", _realistic_variant, _within_lift
    ),
    "excavator-grading": BuiltIn(
        excavator_grading_task, _excavator_grading, excavator_sensors, "real", _grading_variant
    ),
    "soft-arm": BuiltIn(soft_arm_task, _soft_arm, soft_arm_sensors, "noise", _soft_arm_variant),
    "real-excavator": LearnedBuiltIn(
        real_excavator_task,
        _real_excavator,
        real_excavator_sensors,
        "real",
        logged=real_excavator.load_description,
    ),
}


@dataclass(frozen=True)
class NamedRobot:
    """A robot that was found by its name: where it comes from, and its task, built once."""

    name: str
    """As a run keeps it: it means the same robot in every working directory."""
    source: RobotSource
    """Makes the robot."""
    task: Task
    """Everything that is known about it."""
    file: RobotFile | None = None
    """The user's file that it comes from."""

    def make(self, *, payload_kg: float = 0.0, seed: int = 0) -> AbstractRobot:
        """The robot, ready to run."""
        robot = self.source.make_robot(self.task, payload_kg=payload_kg, seed=seed)
        robot.payload_kg, robot.file = payload_kg, self.file
        return robot


def find_robot(name: str, *, approve: bool = False, sensors: str | None = None) -> NamedRobot:
    """The robot that a name means, and its task.

    `approve` is for a name that the user has typed: it is permission to run the robot's file. Without it a file is run
    only if the user has allowed that before, because the name may come from a folder that somebody else has made.
    `sensors` names those that a built-in robot is seen through; by default its own.
    """
    if approve:
        approve_robot(name)
    name = absolute_name(name)
    source = find_source(name)
    if sensors is not None:
        built_in = find_built_in(name)
        if built_in is None:
            raise UserError(
                f"sensors is {sensors!r}, but only the built-in robots have sensors by name ({', '.join(ROBOTS)}); "
                "those of a GymnasiumTask are described by its field sensors."
            )
        source = built_in.with_sensors(sensors)
    return NamedRobot(name, source, source.make_task(), robot_file(name))


def find_built_in(name: str) -> BuiltIn | None:
    """The built-in robot with this name, or the variant `NAME:OPTIONS` of one; None for any other robot."""
    if name in ROBOTS:
        return ROBOTS[name]
    plain, colon, options = name.partition(":")
    if not colon or plain not in ROBOTS:
        return None
    variant = ROBOTS[plain].variant
    if variant is None:
        with_variants = ", ".join(known for known, robot in ROBOTS.items() if robot.variant is not None)
        raise UserError(f"ROBOT is {name!r}, but {plain} has no variants; these have: {with_variants}.")
    if not options:
        raise UserError(f"ROBOT is {name!r}, but nothing follows the colon; leave it out for the robot as it is.")
    return replace(ROBOTS[plain], plant=variant(options))


def find_source(name: str) -> RobotSource:
    """Where the robot with this name comes from; an unknown name is answered with the nearest one."""
    if name in ROBOTS:
        return ROBOTS[name]
    if built_in := find_built_in(name):
        return built_in
    if is_fleet(name):
        from .fleet import FleetAddress, FleetSource

        return FleetSource(FleetAddress.parse(name), find_source)
    if is_address(name):
        from .remote import RemoteAddress, RemoteSource

        return RemoteSource(RemoteAddress.parse(name), find_source)
    if simulator_file(name):
        from .stored_simulator import SimulatorSource, StoredSimulator

        return SimulatorSource(StoredSimulator.open(name), find_source)
    if is_robot_file(name):
        return load_source(name)
    if is_robot_description(name):
        return read_logged_robot(Path(name))
    stem, _, attribute = name.partition(":")
    meant = f" (did you mean '{stem}.py:{attribute or 'task'}'?)" if Path(f"{stem}.py").is_file() else ""
    raise UserError(
        f"There is no robot {name!r}{meant or suggest(name, tuple(ROBOTS))}; known are {', '.join(ROBOTS)}."
    )


def make_task(name: str) -> Task:
    """The task of a robot by name."""
    return find_robot(name).task


def make_robot(name: str, task: Task, *, payload_kg: float = 0.0, seed: int = 0) -> AbstractRobot:
    """A robot by name, standing at home, with a task of the caller's."""
    found = find_robot(name)
    return replace(found, task=task).make(payload_kg=payload_kg, seed=seed)
