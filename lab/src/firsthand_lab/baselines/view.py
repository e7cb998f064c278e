"""A simulated robot one control step at a time: what peers learn from, and how every controller is tested.

    view = RobotView(plant, task, seed=0)
    while view.episode < 40:
        seen, first = view.begin(), True                # the next trajectory, from where the last one ended
        while not view.over:
            action = agent.act(seen)                    # in [-1, 1], one per command
            seen, reward = view.step(action)

An observation is what our policy sees, every entry of order one: measurements, their change, the command memory, the
error and the preview of the reference. The reward is the negative cost that our learner minimises, times `REWARD`.
Goals are those that our own training draws for the same seed and episode.
"""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand.evaluation import TrackingMetrics, tracking_metrics
from firsthand.plants.base import AbstractPlant
from firsthand.robots.base import EpisodeRecord
from firsthand.robots.simulated import at_rest
from firsthand.runs.pytrees import from_arrays, to_arrays
from firsthand.tasks import Task
from firsthand_onboard import ControlSpec
from firsthand_onboard.features import build_reference, measured_part, next_state, observation

REWARD = 10.0
"""Rewards are the negative cost times this: an error of 30 cm costs about 1 per step."""
TEST_SEED, TEST_ROBOTS = 999, 2
"""Random references of a test: their seed, and the robots that start at home and visit an episode's goals each."""


@runtime_checkable
class Controller(Protocol):
    """What is tested: observations of several robots in, actions out. It may remember, one thing per robot."""

    @abstractmethod
    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], `(robots, commands)`; `first` is true where a trajectory begins."""


@dataclass(frozen=True)
class Robots:
    """Where several robots are: a batch of plant states and state vectors."""

    plant_state: Any
    state: Any


class Stepper:
    """The compiled steps of robots side by side; one object per plant and task, compiled once per batch size.

    With `each`, the arrays of `plant` have a leading axis: every robot is a machine of its own.
    """

    def __init__(self, plant: AbstractPlant, task: Task, *, each: bool = False) -> None:
        spec, cost = task.spec, task.cost
        arrays, fixed = eqx.partition(plant, eqx.is_array)
        own = 0 if each else None
        low, high = jnp.asarray(spec.limits.command_low), jnp.asarray(spec.limits.command_high)
        offsets = jnp.asarray((0, *spec.preview))
        self.task = task

        def sees(state, points, k):
            return observation(spec, state, points[jnp.minimum(k + offsets, points.shape[0] - 1)])

        def one(arrays, plant_state, state, action, points, k, key):
            plant = eqx.combine(arrays, fixed)
            command = (low + high) / 2 + (high - low) / 2 * jnp.clip(action, -1.0, 1.0)
            price = cost(state, command, points[k])
            dynamics_key, sensor_key = jax.random.split(key)
            plant_state = plant.step(plant_state, command, key=dynamics_key)
            measured = plant.measure(plant_state, key=sensor_key)
            state = next_state(spec.layout, state, command, measured)
            return plant_state, state, command, measured, sees(state, points, k + 1), price, plant.truth(plant_state)

        def truth(arrays, plant_state):
            return eqx.combine(arrays, fixed).truth(plant_state)

        def start(arrays, position, key):
            return at_rest(eqx.combine(arrays, fixed), spec, position, key=key)

        def towards(state, goal):
            return build_reference(spec, measured_part(spec.layout, state), goal)

        self._step = partial(jax.jit(jax.vmap(one, in_axes=(own, 0, 0, 0, 0, None, 0))), arrays)
        self._start = partial(jax.jit(jax.vmap(start, in_axes=(own, 0, 0))), arrays)
        self._truth = partial(jax.jit(jax.vmap(truth, in_axes=(own, 0))), arrays)
        self._towards = jax.jit(jax.vmap(towards))
        self._sees = jax.jit(jax.vmap(sees, in_axes=(0, 0, None)))

    def at_rest(self, positions: np.ndarray, seed: int) -> Robots:
        """Robots that stand at these positions."""
        keys = jax.random.split(jax.random.key(seed), len(positions))
        return Robots(*self._start(jnp.asarray(positions, jnp.float32), keys))

    def truth(self, robots: Robots) -> np.ndarray:
        """The measurement of exact sensors of each robot: errors are counted on it."""
        return np.asarray(self._truth(robots.plant_state))

    def towards(self, robots: Robots, goals: np.ndarray) -> np.ndarray:
        """The reference of each robot from where it is to its goal."""
        return np.asarray(self._towards(robots.state, jnp.asarray(goals, jnp.float32)))

    def sees(self, robots: Robots, points: Any, step: int = 0) -> np.ndarray:
        """The input of each robot's controller at a step."""
        return np.asarray(self._sees(robots.state, points, step))

    def step(self, robots: Robots, action: np.ndarray, points: Any, step: int, keys: Any) -> tuple[Robots, tuple]:
        """One control period; the robots, and (command, measured, next observation, cost, truth) as numpy arrays."""
        plant_state, state, *rest = self._step(
            robots.plant_state, robots.state, jnp.asarray(action, jnp.float32), points, step, keys
        )
        return Robots(plant_state, state), tuple(np.asarray(part) for part in rest)


class RobotView:
    """The robot that a peer learns on. Episodes, goals and control rate are those of our own training."""

    def __init__(self, plant: AbstractPlant, task: Task, *, seed: int) -> None:
        self.task, self.seed = task, seed
        self.stepper = Stepper(plant, task)
        self.episode = 0
        """Whole episodes so far."""
        self.errors: list[float] = []
        """Mean tracking error of each of them, exploration included."""
        self.steps = 0
        """Control steps so far."""
        self.simulation_s = 0.0
        """Processor time of the simulated robot itself, which is not computing of the controller's."""
        self.over = True
        """Whether the trajectory has ended, and `begin` comes next."""
        self.records: tuple[EpisodeRecord, ...] = ()
        """The last whole episode, a record per trajectory."""
        self._robots = self.stepper.at_rest(np.asarray(task.home)[None], seed)
        self._done: list[EpisodeRecord] = []
        self._goals: np.ndarray = np.zeros((0, 0))
        spec = task.spec
        self.observation_size, self.action_size = spec.observation_size, spec.layout.num_commands

    @property
    def progress(self) -> float:
        """Episodes so far, the one under way in part."""
        return self.steps / (self.task.trajectories * self.task.steps)

    def begin(self) -> np.ndarray:
        """Start the next trajectory where the robot is; the first observation."""
        assert self.over
        began = time.process_time()
        number = len(self._done)
        if number == 0:
            rng = np.random.Generator(np.random.Philox(key=[self.seed, self.episode]))
            self._goals = self.task.sample_goals(rng, self._last_measurement(), self.task.trajectories)
        key = jax.random.fold_in(jax.random.key(self.seed), self.episode * self.task.trajectories + number)
        self._keys = jax.random.split(key, self.task.steps)[:, None]
        self._points = self.stepper.towards(self._robots, self._goals[number : number + 1])
        self._k, self.over = 0, False
        self._start, self._y, self._u = np.asarray(self._robots.state), [self._last_measurement()], []
        self._true = [self.stepper.truth(self._robots)[0]]
        seen = self.stepper.sees(self._robots, self._points)[0]
        self.simulation_s += time.process_time() - began
        return seen

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float]:
        """Apply an action for one control period; the next observation and the reward."""
        assert not self.over
        began = time.process_time()
        action = np.asarray(action, np.float32).reshape(1, self.action_size)
        self._robots, (command, measured, seen, price, true) = self.stepper.step(
            self._robots, action, self._points, self._k, self._keys[self._k]
        )
        self._u.append(command[0])
        self._y.append(measured[0])
        self._true.append(true[0])
        self._k += 1
        self.steps += 1
        if self._k == self.task.steps:
            self._end()
        self.simulation_s += time.process_time() - began
        return seen[0], -REWARD * float(price[0])

    def _end(self) -> None:
        self.over = True
        measured, commands, true = (np.stack(values)[None] for values in (self._y, self._u, self._true))
        self._done.append(EpisodeRecord.complete(self._start, measured, commands, self._points, true))
        if len(self._done) == self.task.trajectories:
            self.errors.append(tracking_metrics(self.task.spec, tuple(self._done)).mean_error)
            self.episode += 1
            self.records, self._done = tuple(self._done), []

    def _last_measurement(self) -> np.ndarray:
        return np.asarray(self._robots.state)[0, : self.task.spec.layout.num_measured]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Where the robot is and what it has done, as named arrays; only between trajectories."""
        assert self.over
        done = {f"{i}.{name}": array for i, record in enumerate(self._done) for name, array in record.arrays().items()}
        return {
            **{f"robot.{name}": array for name, array in to_arrays(self._robots_tree()).items()},
            **{f"done.{name}": array for name, array in done.items()},
            "goals": self._goals,
            "errors": np.asarray(self.errors, float),
            "counts": np.asarray([self.episode, self.steps, len(self._done)]),
            "simulation_s": np.asarray(self.simulation_s),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on where `snapshot` was taken, bit for bit."""
        self.over = True
        self._robots = Robots(**from_arrays(self._robots_tree(), below(arrays, "robot.")))
        self.episode, self.steps, done = (int(count) for count in arrays["counts"])
        self._done = [EpisodeRecord.from_arrays(below(arrays, f"done.{i}.")) for i in range(done)]
        self._goals, self.errors = arrays["goals"], arrays["errors"].tolist()
        self.simulation_s = float(arrays["simulation_s"])

    def _robots_tree(self) -> dict[str, Any]:
        return {"plant_state": self._robots.plant_state, "state": self._robots.state}


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, without that beginning."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Tested:
    """How a controller does on held-out references."""

    random: TrackingMetrics
    shapes: TrackingMetrics
    records: tuple[EpisodeRecord, ...]
    """Its trajectory on each shape."""
    act_ms: float
    """Median time of one decision for one robot, in milliseconds."""
    at_limit: float
    """Share of all steps at which a joint was at a limit of its range."""


def test(stepper: Stepper, controller: Controller) -> Tested:
    """Run a controller on fresh random references and on the evaluation shapes; the same ones every time."""
    task = stepper.task
    random, drawn = on_random(stepper, controller), on_shapes(stepper, controller, task.evaluation_speed)
    together = tracking_metrics(task.spec, (*random, *drawn))
    return Tested(
        tracking_metrics(task.spec, random),
        tracking_metrics(task.spec, drawn),
        drawn,
        decision_ms(controller, task.spec),
        together.limit_hits / sum(record.valid.size for record in (*random, *drawn)),
    )


def on_random(stepper: Stepper, controller: Controller) -> tuple[EpisodeRecord, ...]:
    """Robots that start at home and visit an episode's goals each."""
    task = stepper.task
    rng = np.random.default_rng(TEST_SEED)
    robots = stepper.at_rest(np.tile(np.asarray(task.home), (TEST_ROBOTS, 1)), TEST_SEED)
    rest = np.asarray(robots.state)[0, : task.spec.layout.num_measured]
    goals = np.stack([task.sample_goals(rng, rest, task.trajectories) for _ in range(TEST_ROBOTS)])
    records = []
    for j in range(task.trajectories):
        points = stepper.towards(robots, goals[:, j])
        robots, record = follow(stepper, controller, robots, points, [task.steps] * TEST_ROBOTS, seed=j)
        records += record
    return tuple(records)


def on_shapes(stepper: Stepper, controller: Controller, speed: float) -> tuple[EpisodeRecord, ...]:
    """The evaluation shapes, each from rest at its start."""
    task = stepper.task
    shapes = task.evaluation(speed)
    longest = max(len(s.points) for s in shapes)
    held = [np.concatenate([s.points, np.repeat(s.points[-1:], longest - len(s.points), axis=0)]) for s in shapes]
    ahead = [np.concatenate([h, np.repeat(h[-1:], task.spec.preview[-1], axis=0)]) for h in held]
    robots = stepper.at_rest(np.stack([s.start for s in shapes]), TEST_SEED)
    lengths = [len(s.points) for s in shapes]
    _, drawn = follow(stepper, controller, robots, np.stack(ahead).astype(np.float32), lengths, seed=0)
    return tuple(drawn)


def follow(
    stepper: Stepper, controller: Controller, robots: Robots, points: np.ndarray, lengths: Sequence[int], *, seed: int
) -> tuple[Robots, list[EpisodeRecord]]:
    """Each robot follows its reference; what happened, cut to the references' lengths."""
    task, count = stepper.task, len(points)
    steps = max(lengths)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(TEST_SEED), seed), (steps, count))
    start = np.asarray(robots.state)
    measured, commands, truth = [start[:, : task.spec.layout.num_measured]], [], [stepper.truth(robots)]
    seen = stepper.sees(robots, points)
    on_device = jnp.asarray(points)
    for k in range(steps):
        action = controller(seen, np.full(count, k == 0))
        robots, (command, y, seen, _, true) = stepper.step(robots, action, on_device, k, keys[k])
        measured.append(y)
        truth.append(true)
        commands.append(command)
    measured, commands, truth = (np.stack(values, axis=1) for values in (measured, commands, truth))
    beyond = task.spec.preview[-1]
    return robots, [
        EpisodeRecord.complete(
            start[i : i + 1],
            measured[i : i + 1, : length + 1],
            commands[i : i + 1, :length],
            points[i : i + 1, : length + beyond],
            truth[i : i + 1, : length + 1],
        )
        for i, length in enumerate(lengths)
    ]


def decision_ms(controller: Controller, spec: ControlSpec, times: int = 20) -> float:
    """The median time of one decision for one robot."""
    seen, taken = np.zeros((1, spec.observation_size), np.float32), []
    for k in range(times):
        began = time.perf_counter()
        controller(seen, np.asarray([k == 0]))
        taken.append(time.perf_counter() - began)
    return 1e3 * float(np.median(taken[1:]))
