"""The job of `shift`: one machine at work for hours, with a base, with a fixed policy, and learning.

All three do the same work on machines with the same noise: the loads come at the same times, and goals are drawn from
the same numbers. What an update computes is in force one block later, as it would be in a background thread.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from firsthand.agent import LearnerState
from firsthand.controllers.bases import find_base
from firsthand.evaluation import tracking_metrics
from firsthand.models import Controller, Policy
from firsthand.plants.base import AbstractPlant
from firsthand.plants.excavator.machine import AbstractExcavator
from firsthand.plants.wrapped import AbstractWrapper
from firsthand.robots.registry import NamedRobot, find_robot
from firsthand.robots.simulated import SimulatedRobot
from firsthand.training import Trainer, TrainingConfig
from firsthand.training.work import WorkLearner, WorkSettings
from firsthand.training.work.learner import Update

from . import files
from .theory.setup import settings_of, task_of

Report = Callable[[int, str], None]
WORN = {"speed_plus": 0.85, "speed_minus": 0.85, "dead_band": 2.0}
"""Factors on the numbers of a worn boom valve: less flow, more overlap."""


def schedule(blocks: int, shortest: int, longest: int, loads: list[float], seed: int) -> np.ndarray:
    """The load of each block: random loads for a random time each, none twice in a row, all of them at first."""
    rng = np.random.default_rng([seed, 0x10AD])
    found: list[float] = []
    order = [loads[0], *rng.permutation(loads[1:])]
    now = -1.0
    while len(found) < blocks:
        now = float(order.pop(0)) if order else float(rng.choice([load for load in loads if load != now]))
        found += [now] * int(rng.integers(shortest, longest + 1))
    return np.asarray(found[:blocks])


def wear_valve(plant: AbstractPlant) -> AbstractPlant:
    """The same machine with a worn boom valve."""
    if isinstance(plant, AbstractWrapper):
        return dataclasses.replace(plant, plant=wear_valve(plant.plant))
    assert isinstance(plant, AbstractExcavator)
    boom = {name: getattr(plant.parameters, name) for name in WORN}
    changed = {name: (factor * boom[name][0], *boom[name][1:]) for name, factor in WORN.items()}
    return dataclasses.replace(plant, parameters=dataclasses.replace(plant.parameters, **changed))


class Shift:
    """The machine and its work."""

    def __init__(self, parameters: dict[str, Any], found: NamedRobot) -> None:
        self.parameters, self.found, self.seed = parameters, found, int(parameters["seed"])
        self.loads = schedule(
            parameters["blocks"], *parameters["load_blocks"], loads=parameters["loads"], seed=self.seed
        )
        self.trajectories = int(parameters["block_trajectories"])

    def machine(self) -> SimulatedRobot:
        """As it stands in the morning."""
        robot = self.found.make(seed=self.seed + 1000)
        assert isinstance(robot, SimulatedRobot)
        return robot

    def prepare(self, robot: SimulatedRobot, block: int) -> np.ndarray:
        """Load and wear of a block, and its goals."""
        load = float(self.loads[block])
        if block == 0 or load != self.loads[block - 1] or block == self.parameters["worn_after"]:
            robot.set_payload(load)
            if block >= self.parameters["worn_after"]:
                robot.plant = wear_valve(robot.plant)
        rng = np.random.Generator(np.random.Philox(key=[self.seed, block]))
        return robot.task.sample_goals(rng, robot.measured(), self.trajectories)

    def error(self, record: Any) -> float:
        """Mean error of a block, of the truth."""
        return tracking_metrics(self.found.task.spec, (record,)).mean_error

    def run_fixed(self, controller: Controller, report: Callable[[int], None]) -> list[float]:
        """The errors of a controller that stays as it is."""
        robot, errors = self.machine(), []
        for block in range(len(self.loads)):
            goals = self.prepare(robot, block)
            errors.append(self.error(robot.run_episode(controller, goals)))
            report(block)
        return errors

    def run_learning(self, state: LearnerState, report: Callable[[int], None]) -> dict[str, list[Any]]:
        """The errors of the learner, and what it thought of the conditions."""
        robot = self.machine()
        settings = settings_of(self.parameters)
        work = WorkSettings(**self.parameters["work"])
        learner = WorkLearner(robot.task, settings, state, work, block_trajectories=self.trajectories, seed=self.seed)
        rows: dict[str, list[Any]] = {name: [] for name in ("learning", "context", "choice", "missed", "update")}
        waiting: Update | None = None
        for block in range(len(self.loads)):
            goals = self.prepare(robot, block)
            record = robot.run_episode(learner.controller, goals)
            seen = learner.take(record)  # of the policy that ran it; what was computed meanwhile is next
            if waiting is not None:
                learner.adopt(waiting)
                waiting = None
            if seen.due:
                waiting = learner.begin_update()()
            new = (self.error(record), seen.context, seen.choice, seen.missed, float(seen.due))
            for values, value in zip(rows.values(), new, strict=True):
                values.append(value)
            report(block)
        return rows


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """The morning's training, then the day three times."""
    found = find_robot(parameters["robot"])
    task = task_of(parameters) if parameters["task"] else found.task
    found = dataclasses.replace(found, task=task)
    shift = Shift(parameters, found)
    config = TrainingConfig(
        parameters["robot"], "fast", settings_of(parameters), parameters["episodes"], int(parameters["seed"])
    )
    trainer = Trainer(found.make(seed=config.seed), config, keep_going=True)
    while trainer.episode < config.episodes:
        summary = trainer.run_episode()
        report(0, f"training, {100 * summary.metrics['tracking_error']:.1f} cm")
    kept = trainer.recorder.kept
    fixed = trainer.state.controller if kept is None else kept.policy
    state = dataclasses.replace(trainer.state, policy=fixed.policy)
    count = parameters["blocks"]

    def counting(done: int, name: str) -> Callable[[int], None]:
        return lambda block: report(done + block, name) if block % 4 == 0 else None

    control = find_base("pi", "add", found, seed=config.seed).control if parameters["identify"] else None
    alone = Controller(Policy.random(task.spec, key=jax.random.key(0), control=control))
    columns: dict[str, Any] = {
        "block": np.arange(count),
        "hour": (np.arange(count) + 1) * shift.trajectories * task.steps * task.spec.period_s / 3600,
        "load_kg": shift.loads,
        "worn": (np.arange(count) >= parameters["worn_after"]).astype(int),
        "base": shift.run_fixed(alone, counting(0, "base")),
        "fixed": shift.run_fixed(fixed, counting(count, "fixed policy")),
        **shift.run_learning(state, counting(2 * count, "learning")),
    }
    files.write_csv(folder / "shift.csv", columns)
    report(3 * count, "done")
