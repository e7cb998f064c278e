"""The real-time iteration on robots: what is remembered of each, and the estimate that it starts from."""

import dataclasses
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand.models import Dynamics, Observer
from firsthand.robots.base import neutral
from firsthand.tasks import Task
from firsthand.tasks.cost import StepCost
from firsthand_onboard import NumpyObserver
from firsthand_onboard.features import command_feature

from ..observed import goes_on, read_observation
from .iteration import improve_plan

MIN_HORIZON, MAX_HORIZON = 10, 25
FIRST_ITERATIONS = 5
"""Of the first step of a motion, which has no plan to start from."""
DAMPING = 1e-4
"""μ, in units of the cost for commands in their own units."""


@eqx.filter_jit
def _improve(dynamics: Dynamics, cost: StepCost, states, references, plans, iterations):
    limits = dynamics.spec.limits
    low, high = jnp.asarray(limits.command_low), jnp.asarray(limits.command_high)

    def one(state, reference, plan):
        return jax.lax.fori_loop(
            0,
            iterations,
            lambda _, p: improve_plan(
                dynamics, cost.residuals, state, reference, p, low=low, high=high, damping=DAMPING
            ),
            plan,
        )

    return jax.vmap(one)(states, references, plans)


@dataclass
class _Robot:
    observer: NumpyObserver | None
    plan: np.ndarray
    state: np.ndarray
    """The state vector of the step before …"""
    sent: np.ndarray
    """… and the command that was sent then; empty before the first step."""


class NeuralController:
    """Commands for a batch of robots, from what a policy sees; it remembers each of them.

    Args:
        task: what the robot shall do; its cost must be a sum of squares.
        dynamics: the learned model in use.
        observer: whose estimate the model starts from; None for the plain register.
        factor: the weight on changes of command, as a multiple of the task's.
    """

    def __init__(self, task: Task, dynamics: Dynamics, observer: Observer | None, factor: float) -> None:
        self.task, self.spec, self.dynamics, self.observer = task, task.spec, dynamics, observer
        weight = task.cost.change_weight
        changed = tuple(factor * w for w in weight) if isinstance(weight, tuple) else factor * weight
        self.cost = dataclasses.replace(task.cost, change_weight=changed)
        self.horizon = int(np.clip(self.spec.preview[-1], MIN_HORIZON, MAX_HORIZON))
        self.knots = np.asarray([0, *self.spec.preview], float)
        self.ahead = np.minimum(np.arange(self.horizon + 1), self.knots[-1])
        self.robots: list[_Robot] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], a row per robot; `first` is true where a trajectory begins."""
        if len(self.robots) != len(seen):
            self.robots = [self._new() for _ in seen]
        states, references, begins = [], [], False
        for robot, row, new in zip(self.robots, seen, first, strict=True):
            state, points = read_observation(self.spec, row)
            begins |= self._observe(robot, state, bool(new))
            states.append(state if robot.observer is None else np.array(robot.observer.state))
            references.append(np.stack([np.interp(self.ahead, self.knots, column) for column in points.T], axis=1))
            robot.state = state
        plans = np.stack([robot.plan for robot in self.robots])
        x, r, start = (jnp.asarray(v, jnp.float32) for v in (np.stack(states), np.stack(references), plans))
        iterations = jnp.asarray(FIRST_ITERATIONS if begins else 1)
        best = np.asarray(_improve(self.dynamics, self.cost, x, r, start, iterations), float)
        for robot, plan in zip(self.robots, best, strict=True):
            robot.sent = plan[0]
            robot.plan = np.concatenate([plan[1:], plan[-1:]])
        return np.asarray(command_feature(self.spec, best[:, 0]), np.float32)

    def _new(self) -> _Robot:
        observer = None if self.observer is None else NumpyObserver.of(self.spec, self.observer)
        return _Robot(observer, np.tile(neutral(self.spec), (self.horizon, 1)), np.zeros(0), np.zeros(0))

    def _observe(self, robot: _Robot, state: np.ndarray, first: bool) -> bool:
        """Bring the estimate up to date; whether a motion begins."""
        begins = not len(robot.sent) or (first and not goes_on(self.spec, robot.state, robot.sent, state))
        if begins:
            robot.plan = np.tile(neutral(self.spec), (self.horizon, 1))
        if robot.observer is not None:
            single = state.astype(np.float32)
            if begins:
                robot.observer.start_motion(single)
            else:
                robot.observer.observe(robot.sent.astype(np.float32), single[: self.spec.layout.num_measured])
        return begins
