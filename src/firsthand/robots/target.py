"""A robot with its controller inside: what is commanded is the target that the controller follows.

For machines whose inner loop may not be touched. The policy's command is a target for the tracked output, and the base
`firsthand_onboard.base_control.ReferenceBase` makes it the reference at first. Simulated robots only: a machine that
follows targets by itself is such a robot already.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard import ControlSpec, SelectedOutput
from firsthand_onboard.kinematics import tracked_output

from ..errors import UserError
from ..plants.base import AbstractPlant
from ..plants.wrapped import AbstractWrapper
from ..tasks import Task
from .base import AbstractRobot, EpisodeRecord
from .simulated import SimulatedRobot
from .source import RobotSource

SAMPLES = 4096
"""Configurations that the range of a computed output is taken from."""
WIDER = 0.1
"""Targets may lie outside what the output can be by this share of its range: that is how one pushes."""


class InnerLoop(AbstractWrapper):
    """A plant with a controller inside, which measures with the plant's own sensors."""

    base: Any
    """The controller, as `firsthand_onboard.base_control` has it."""
    spec: ControlSpec = eqx.field(static=True)
    """Of the plant without it."""

    @property
    def num_commands(self) -> int:
        """One target per tracked output."""
        return self.spec.num_outputs

    def reset(self, position: Float[Array, " positions"]) -> Any:
        """The plant at rest; the controller begins."""
        state = self.plant.reset(position)
        measured = self.plant.truth(state)
        memory = jnp.asarray(self.base.initial_memory(self.spec), measured.dtype)
        return state, self.base.begin(self.spec, measured, memory)

    def inner_command(self, measured: Array, target: Array, memory: Array) -> tuple[Array, Array]:
        """The controller's command for a target, and its next memory."""
        preview = jnp.broadcast_to(target, (1 + len(self.spec.preview), self.spec.num_outputs))
        command, memory = self.base.step(self.spec, measured, preview, memory)
        low, high = jnp.asarray(self.spec.limits.command_low), jnp.asarray(self.spec.limits.command_high)
        return jnp.clip(command, low, high), memory

    def step(self, state: Any, command: Float[Array, " commands"], *, key: PRNGKeyArray) -> Any:
        """One control period later."""
        inner, memory = state
        sensor_key, plant_key = jax.random.split(key)
        applied, memory = self.inner_command(self.plant.measure(inner, key=sensor_key), command, memory)
        return self.plant.step(inner, applied, key=plant_key), memory

    def measure(self, state: Any, *, key: PRNGKeyArray) -> Float[Array, " measured"]:
        """The plant's measurement."""
        return self.plant.measure(state[0], key=key)

    def truth(self, state: Any) -> Float[Array, " measured"]:
        """The measurement of exact sensors."""
        return self.plant.truth(state[0])


def target_task(task: Task) -> Task:
    """The task of the same robot whose commands are targets of the tracked output."""
    spec = task.spec
    low, high = output_range(spec)
    wider = WIDER * (high - low)
    layout = dataclasses.replace(
        spec.layout, commands=tuple(f"target.{name}" for name in spec.output_names), command_units=spec.output_units
    )
    limits = dataclasses.replace(
        spec.limits,
        command_low=tuple((low - wider).tolist()),
        command_high=tuple((high + wider).tolist()),
        command_neutral=None,
    )
    inner = dataclasses.replace(spec, layout=layout, limits=limits)
    return dataclasses.replace(task, spec=inner, cost=dataclasses.replace(task.cost, spec=inner))


def output_range(spec: ControlSpec) -> tuple[np.ndarray, np.ndarray]:
    """Between what the tracked output lies inside the joint limits."""
    center, scale = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.measured_scale)
    low, high = center - scale, center + scale
    low[list(spec.layout.position)], high[list(spec.layout.position)] = (
        spec.limits.position_low,
        spec.limits.position_high,
    )
    if isinstance(spec.kinematics, SelectedOutput):
        chosen = list(spec.kinematics.indices)
        return low[chosen], high[chosen]
    drawn = np.random.default_rng(0).uniform(low, high, (SAMPLES, len(low)))
    outputs = np.asarray(tracked_output(spec, drawn))
    return outputs.min(axis=0), outputs.max(axis=0)


class TargetRobot(SimulatedRobot):
    """A simulated robot with its controller inside."""

    def __init__(self, robot: AbstractRobot, base: Any, task: Task, *, seed: int) -> None:
        assert robot.plant is not None
        plant = InnerLoop(robot.plant, base, robot.task.spec)
        super().__init__(plant, task, seed=seed, loaded=self._loaded_plant if robot.carries_payload else None)
        self.inner, self.is_learned = robot, robot.is_learned
        self.doubt: np.ndarray | None = None
        """Of a learned simulator: see `LearnedRobot.doubt`."""

    def _loaded_plant(self, kg: float) -> AbstractPlant:
        self.inner.set_payload(kg)
        return eqx.tree_at(lambda plant: plant.plant, self.plant, self.inner.plant)

    def run_episode(self, policy: Any, goals: Any, excitation: Any = None) -> EpisodeRecord:
        """As any simulation; a learned one also finds where its ensemble disagrees."""
        record = super().run_episode(policy, goals, excitation)
        if self.inner.is_learned:
            from .stored_simulator import LearnedRobot

            assert isinstance(self.inner, LearnedRobot)
            self.doubt = self.inner.find_doubt(record.best_known, inner_commands(self.plant, record))
        return record

    def notes(self) -> list[str]:
        """Notes of the robot inside."""
        return self.inner.notes()


def inner_commands(plant: Any, record: EpisodeRecord) -> np.ndarray:
    """What the controller inside has commanded, run again over what was measured."""
    return np.asarray(_inner_commands(plant, jnp.asarray(record.measured[:, :-1]), jnp.asarray(record.commands)))


@eqx.filter_jit
def _inner_commands(plant: InnerLoop, measured, targets):
    def step(memory, inputs):
        measured, target = inputs
        command, memory = plant.inner_command(measured, target, memory)
        return memory, command

    flat = [part.reshape(-1, part.shape[-1]) for part in (measured, targets)]
    memory = jnp.asarray(plant.base.initial_memory(plant.spec), measured.dtype)
    commands = jax.lax.scan(step, plant.base.begin(plant.spec, flat[0][0], memory), tuple(flat))[1]
    return commands.reshape(*targets.shape[:2], -1)


@dataclass(frozen=True)
class TargetSource(RobotSource):
    """Another source's robot with a controller inside."""

    source: RobotSource
    inner_task: Task
    base: Any

    def make_task(self) -> Task:
        """The same goals, followed with targets."""
        return target_task(self.inner_task)

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> TargetRobot:
        """The simulation with the controller inside."""
        robot = self.source.make_robot(self.inner_task, payload_kg=payload_kg, seed=seed)
        if robot.plant is None:
            raise UserError(
                f"--base-mode target simulates the loop inside {self.inner_task.name}, which is not a simulation; for "
                "a machine that follows targets by itself, give --base reference."
            )
        return TargetRobot(robot, self.base, task, seed=seed)
