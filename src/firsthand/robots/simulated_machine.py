"""A simulated plant as a machine: physics only, for a process of its own or for an executor in this one."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import numpy as np

from ..errors import UserError
from ..plants.base import AbstractPlant
from ..plants.excavator.machine import AbstractExcavator
from ..plants.excavator.parameters import vary_parameters
from ..plants.wrapped import AbstractWrapper
from ..tasks import Task
from .base import neutral
from .registry import NamedRobot, find_robot

DIRECTIONS: dict[str, tuple[tuple[int, int], ...]] = {"excavator": ((0, -1), (1, 1), (2, 1), (3, 1))}
"""Which joint a command moves, and which way, by the task's name. The boom's cylinder lowers its angle."""
STOPPING: dict[str, dict[str, float]] = {"excavator": {"lag_s": 0.25, "dead_time_s": 0.08}}
"""How the joints stop, by the task's name. From full speed they go on for 0.06 to 0.24 s at that speed, dead time
included."""


class MachinePlant:
    """The physics behind `firsthand_onboard.simulation.PlantServer`: reset, step, measure, in numpy outside."""

    def __init__(self, plant: AbstractPlant, task: Task, *, seed: int = 0) -> None:
        self.spec, self._plant = task.spec, plant
        self.directions = DIRECTIONS.get(task.name)
        self.stopping = STOPPING.get(task.name)
        self.homing = {"position": [float(p) for p in np.asarray(task.home)]} if self.directions else None
        self._key = jax.random.key(seed)
        values, rest = eqx.partition(plant, eqx.is_array)

        @jax.jit
        def reset(values, position, key):
            whole = eqx.combine(values, rest)
            state = whole.reset(position)
            key, sensor_key = jax.random.split(key)
            return state, whole.measure(state, key=sensor_key), key

        @jax.jit
        def step(values, state, command, key):
            whole = eqx.combine(values, rest)
            key, dynamics_key, sensor_key = jax.random.split(key, 3)
            state = whole.step(state, command, key=dynamics_key)
            return state, whole.measure(state, key=sensor_key), key

        self._reset, self._step = partial(reset, values), partial(step, values)
        self.reset(np.asarray(task.home))
        self.step(neutral(task.spec))  # compiled before the clock runs
        self.reset(np.asarray(task.home))

    def reset(self, position: np.ndarray) -> None:
        """At rest in a configuration."""
        position = np.asarray(position, np.float32)
        self._state, self._measured, self._key = self._reset(position, self._key)

    def step(self, command: np.ndarray) -> None:
        """One control period with a command held."""
        command = np.asarray(command, np.float32)
        self._state, self._measured, self._key = self._step(self._state, command, self._key)

    def measure(self) -> np.ndarray:
        """The measurement."""
        return np.asarray(self._measured)


class LockStepMachine:
    """A plant in this process, behind `Machine`: time passes when a command is written."""

    lock_step = True

    def __init__(self, plant: MachinePlant) -> None:
        self.plant, self.spec, self.directions, self.homing = plant, plant.spec, plant.directions, plant.homing
        self.stopping = plant.stopping

    def read(self) -> np.ndarray:
        """The measurement."""
        return self.plant.measure()

    def write(self, command: np.ndarray) -> None:
        """One period with this command."""
        self.plant.step(command)

    def neutral(self) -> None:
        """Time stands still until the next command."""

    def reset(self, position: np.ndarray) -> np.ndarray:
        """At rest in a configuration; what is measured there."""
        self.plant.reset(position)
        return self.read()


def make_plant(name: str, *, payload_kg: float = 0.0, seed: int = 0) -> MachinePlant:
    """The physics of a simulated robot by name."""
    return plant_of(find_robot(name), payload_kg=payload_kg, seed=seed)


def plant_of(found: NamedRobot, *, payload_kg: float = 0.0, seed: int = 0, vary: float = 0.0) -> MachinePlant:
    """The physics of a simulated robot; with `vary` of another one of its kind, whose numbers differ by this share."""
    robot = found.make(payload_kg=payload_kg, seed=seed)
    if robot.plant is None:
        raise UserError(f"{found.name!r} cannot play the machine: only a simulated plant can.")
    return MachinePlant(vary_plant(robot.plant, vary, seed) if vary else robot.plant, found.task, seed=seed)


def vary_plant(plant: AbstractPlant, share: float, seed: int) -> AbstractPlant:
    """Another machine of the same kind; `UserError` for a plant whose numbers are not known."""
    if isinstance(plant, AbstractWrapper):
        return replace(plant, plant=vary_plant(plant.plant, share, seed))
    if not isinstance(plant, AbstractExcavator):
        raise UserError(f"vary is {share:g}, but only the numbers of an excavator can differ.")
    return replace(plant, parameters=vary_parameters(plant.parameters, share, seed))


class Excavator(LockStepMachine):
    """The simulated excavator for `firsthand-onboard serve --machine firsthand.robots.simulated_machine:Excavator`."""

    def __init__(self, payload_kg: float | str = 0.0) -> None:
        super().__init__(make_plant("excavator", payload_kg=float(payload_kg)))
