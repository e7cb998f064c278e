"""A learned simulator on disk, and as a robot: simulator.json describes it, simulator.safetensors has its weights."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..models import Controller, Policy
from ..plants.learned import LearnedPlant, Networks, Observation
from ..plants.learned.plant import Beyond
from ..plants.sensors import Sensors, sense
from ..runs import atomic, packed
from ..tasks import Task
from .base import EpisodeRecord
from .description import RobotDescription, spec_difference
from .logged_robot import logged_robot_of
from .simulated import SimulatedRobot
from .source import RobotSource

FORMAT = 2
DESCRIPTION, WEIGHTS = "simulator.json", "simulator.safetensors"
SCALES = ("center", "scale", "rate_scale", "change_scale", "usual_doubt")
"""The arrays of a `LearnedPlant` beside its networks and its observer."""


def plant_arrays(plant: LearnedPlant) -> dict[str, np.ndarray]:
    """The arrays of a plant by name, for a file."""
    named = {name: getattr(plant, name) for name in SCALES}
    for i, (weight, bias) in enumerate(plant.networks.layers):
        named[f"network.{i}.weight"], named[f"network.{i}.bias"] = weight, bias
    named["network.linear"] = plant.networks.linear
    named |= {f"observation.{field.name}": getattr(plant.observation, field.name) for field in fields(Observation)}
    if plant.dead_band is not None:
        named["dead_band"] = plant.dead_band
    return {name: np.asarray(array) for name, array in named.items()}


MAX_BYTES = 1 << 24
"""A longer description is not read."""
MAX_STEPS = 10_000
"""Steps that a simulator may look back, and layers."""


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
            content = json.loads(atomic.read_bytes(file, MAX_BYTES))
        except OSError as error:
            raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
        except (ValueError, RecursionError):
            raise UserError(f"{file} is damaged: it is not JSON.") from None
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise UserError(f"{file} is damaged: it does not describe a simulator.")
        if content["format"] != FORMAT:
            raise UserError(
                f"{path} was fitted by {_writer(content)} and has format {content['format']}, but this version of "
                f"firsthand reads format {FORMAT}; fit the simulator again."
            )
        try:
            described = RobotDescription.of_config(content, str(file))
            for name in ("command_history", "observed_steps", "layers"):
                if not isinstance(content[name], int) or not 1 <= content[name] <= MAX_STEPS:
                    raise UserError(f"{file} is damaged: {name} is {str(content[name])[:40]!r}.")
            if content["beyond"] not in get_args(Beyond):
                raise UserError(f"{file} is damaged: beyond is {content['beyond']!r}.")
            entries = range(described.spec.layout.num_measured)
            if not isinstance(content["free"], list) or any(entry not in entries for entry in content["free"]):
                raise UserError(f"{file} is damaged: free is {content['free']!r}.")
            return StoredSimulator(path, str(content["robot"]), described, content)
        except KeyError as error:
            raise UserError(f"{file} is damaged: the field {error} is missing.") from None

    def plant(self) -> LearnedPlant:
        """The plant; one sentence when a file is damaged or the two do not belong together."""
        file = self.path / WEIGHTS
        try:
            content = atomic.read_bytes(file)
            if hashlib.sha256(content).hexdigest() != self.content.get("weights_sha256"):
                raise UserError(f"{file} is damaged or belongs to another {DESCRIPTION}: its SHA-256 is another.")
            arrays, _ = packed.unpack(content)
        except OSError as error:
            raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
        except packed.DamagedFile as error:
            raise UserError(f"{file} is damaged: {error}.") from None
        for name, array in arrays.items():
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise UserError(f"{file} is damaged: {name} does not hold finite numbers only.")
        try:
            plant = self._assemble(arrays)
            _check_shapes(plant)
        except KeyError as error:
            raise UserError(f"{file} does not fit its {DESCRIPTION}: {error} is missing.") from None
        except Exception as error:  # whatever tracing raises on arrays that do not fit together
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(f"{file} does not fit its {DESCRIPTION}: {why}.") from None
        return plant

    def _assemble(self, arrays: Mapping[str, np.ndarray]) -> LearnedPlant:
        layers = tuple(
            (jnp.asarray(arrays[f"network.{i}.weight"]), jnp.asarray(arrays[f"network.{i}.bias"]))
            for i in range(self.content["layers"])
        )
        gains = {field.name: jnp.asarray(arrays[f"observation.{field.name}"]) for field in fields(Observation)}
        return LearnedPlant(
            networks=Networks(layers, jnp.asarray(arrays["network.linear"])),
            observation=Observation(**gains),
            **{name: jnp.asarray(arrays[name]) for name in SCALES},
            spec=self.spec,
            command_history=self.content["command_history"],
            free=tuple(self.content["free"]),
            observed_steps=self.content["observed_steps"],
            beyond=self.content["beyond"],
            dead_band=jnp.asarray(arrays["dead_band"]) if "dead_band" in arrays else None,
        )


def _check_shapes(plant: LearnedPlant) -> None:
    """Trace one step without computing it: weights of other shapes would fail in the middle of a motion."""

    def motion() -> tuple[Any, Any]:
        key, layout = jax.random.key(0), plant.spec.layout
        before = plant.reset(jnp.zeros(len(layout.position), plant.center.dtype))
        after = plant.step(before, jnp.zeros(layout.num_commands, plant.center.dtype), key=key)
        return before, plant.correct(after, plant.measure(after, key=key))

    shapes = [[leaf.shape for leaf in jax.tree.leaves(state)] for state in jax.eval_shape(motion)]
    if shapes[0] != shapes[1]:
        raise ValueError("a step changes the shape of the state")


def _writer(content: Mapping[str, Any]) -> str:
    provenance = content.get("provenance")
    packages = provenance.get("packages") if isinstance(provenance, dict) else None
    version = packages.get("firsthand") if isinstance(packages, dict) else None
    return f"firsthand {version}" if isinstance(version, str) else "another version of firsthand"


@eqx.filter_jit
def _doubt_along(plant: LearnedPlant, measured, commands):
    """The ensemble's disagreement in every step of trajectories that begin at rest or nearly so."""

    def one(measured, commands):
        start = plant.reset(measured[0, jnp.asarray(plant.spec.layout.position)])
        return plant.observe(start, measured[1:], commands)[1]

    return jax.vmap(one)(measured, commands)


class LearnedRobot(SimulatedRobot):
    """A learned simulator as a robot, which knows where it is only guessing."""

    is_learned = True

    def __init__(
        self, plant: LearnedPlant, task: Task, *, sensors: Sensors | None = None, seed: int = 0, name: str = ""
    ) -> None:
        super().__init__(sense(plant, sensors), task, seed=seed)
        self.networks, self.name = plant, name
        self.doubt: np.ndarray | None = None
        """The ensemble's disagreement in every step of the last episode, over what is usual in the log."""

    def run_episode(self, policy: Policy | Controller, goals: Any, excitation: Any = None) -> EpisodeRecord:
        """As any simulation; also finds where the ensemble disagrees."""
        record = super().run_episode(policy, goals, excitation)
        self.find_doubt(record.best_known, record.commands)
        return record

    def find_doubt(self, measured: np.ndarray, commands: np.ndarray) -> np.ndarray:
        """The ensemble's disagreement in every step of these trajectories; the newest are remembered."""
        self.doubt = np.asarray(_doubt_along(self.networks, measured, commands))
        return self.doubt

    def notes(self) -> list[str]:
        """How much of the last episode lies where the log says little."""
        if self.doubt is None or (share := float(np.mean(self.doubt > 1.0))) < NOTED_SHARE:
            return []
        done = {"ignore": "", "slow": "; it moves slowly there", "stop": "; it stops there"}[self.networks.beyond]
        return [
            f"In {100 * share:.0f} % of the last episode's steps the simulator's networks disagree more than in 99 % "
            f"of its log, which says little about them{done}."
        ]


NOTED_SHARE = 0.05
"""Share of steps with unusual disagreement from which on the user is told."""


@dataclass(frozen=True)
class SimulatorSource(RobotSource):
    """A learned simulator as a robot: `firsthand train SIM`."""

    stored: StoredSimulator
    find_source: Callable[[str], RobotSource]
    """Where the robot that was logged comes from, by name: the task is its."""

    def make_task(self) -> Task:
        """The task of the robot that was logged: goals, cost and evaluation come from there."""
        stored = self.stored
        if (logged := stored.content.get("logged_robot")) is not None:
            return logged_robot_of(logged, str(stored.path / DESCRIPTION)).make_task()
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

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> LearnedRobot:
        """The simulator, standing at home. It can carry nothing that was not in its log."""
        if payload_kg:
            raise UserError(
                f"payload is {payload_kg} kg, but the learned simulator {self.stored.path} cannot carry any."
            )
        robot = LearnedRobot(self.stored.plant(), task, seed=seed, name=str(self.stored.path))
        robot.angles = self.stored.described.angles
        return robot
