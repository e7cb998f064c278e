"""Peers that excite a robot, then propose a controller per episode and learn from what came of it.

`deepc`, `koopman`, `neural-mpc` and `residual` differ in what they learn. How they are run, tested and charged for
robot time is written here, for a simulated robot one control step at a time (`run`); `direct.learn_episodes` is the
same for any robot.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from firsthand.controllers.by_hand import StepController
from firsthand.controllers.pi import INSPECTION_OVERRUN
from firsthand.errors import UserError
from firsthand.inspection.plan import usual_minutes
from firsthand.robots.base import AbstractRobot, EpisodeRecord
from firsthand.robots.simulated import SimulatedRobot
from firsthand.tasks import Task
from firsthand.training import TrainingConfig

from ..experiments.base import Report
from .ledger import Ledger, Stopwatch
from .pid import follow_episode
from .setup import plant_and_task
from .view import RobotView

TINY = {"model.steps": 10}
WITH_OUR_MODEL = ("neural-mpc", "residual")


class EpisodicLearner(Protocol):
    """A peer of this kind."""

    robot_time_s: float
    """Of the excitation."""
    processor_time_s: float
    """Of what was made of it."""
    updates: int
    """Gradient steps so far."""

    @abstractmethod
    def excite(self, robot: AbstractRobot) -> None:
        """Move the robot about, and learn from that."""

    @abstractmethod
    def make(self) -> StepController:
        """The controller of the next episode."""
        ...

    @abstractmethod
    def make_best(self) -> StepController:
        """The best so far, for a test."""
        ...

    @abstractmethod
    def learn(self, records: Sequence[EpisodeRecord], error: float) -> None:
        """An episode with `make()` is over: its trajectories, and its mean error."""

    @property
    def parameters(self) -> int:
        """Numbers that were learned."""
        ...

    @property
    def setting(self) -> str:
        """A summary of actions and choices, for people."""
        ...


def make_learner(name: str, robot: str, task: Task, *, seed: int, episodes: int, tiny: bool = False) -> EpisodicLearner:
    """The learner of a peer by its name."""
    if name in WITH_OUR_MODEL:
        changes = dict(TINY) if tiny else {}
        settings = TrainingConfig.of(robot, "fast", episodes=episodes, seed=seed, changes=changes).settings
        capacity = episodes * task.trajectories * task.steps
        if name == "residual":
            from .residual import ResidualLearner

            small = {"steps": 2, "batch": 2} if tiny else {}
            return ResidualLearner(task, settings, seed=seed, capacity=capacity, **small)
        from .neural_mpc import NeuralLearner

        return NeuralLearner(task, settings, seed=seed, capacity=capacity)
    from .predictive import PredictiveLearner

    return PredictiveLearner(name, task, seed=seed)


def episodes_of_excitation(name: str, task: Task) -> int:
    """Whole episodes of robot time that a peer is excited for."""
    if name == "neural-mpc":
        from .neural_mpc.learner import EXCITED

        return EXCITED
    if name == "residual":
        return math.ceil(INSPECTION_OVERRUN * 60 * usual_minutes(task.spec) / task.episode_s)
    from .predictive.recording import episodes_needed

    return episodes_needed(task)


def require(name: str, task: Task, episodes: int) -> None:
    """Raise `UserError` where a solver is missing, or there is less robot time than excitation takes."""
    if name not in WITH_OUR_MODEL:
        from .predictive import require as require_solver

        require_solver()
    needed = episodes_of_excitation(name, task) + 1
    if episodes < needed:
        raise UserError(
            f"episodes is {episodes}, but {name} needs at least {needed}, for excitation and what comes after it: give "
            f"more --episodes, or leave {name} out of --peers."
        )


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Excite, then control and learn; an interrupted job begins anew, which costs minutes."""
    tiny = parameters["setting"] == "tiny"
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    episodes, seed, name = parameters["episodes"], parameters["seed"], parameters["learner"]
    view = RobotView(plant, task, seed=seed)
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    learner = make_learner(name, parameters["robot"], task, seed=seed, episodes=episodes, tiny=tiny)
    # A tiny task's episodes are too short to learn from.
    whole = task if name == "neural-mpc" else plant_and_task(parameters["robot"])[1]
    learner.excite(SimulatedRobot(plant, whole, seed=seed))
    spent = 0 if tiny else math.ceil(learner.robot_time_s / task.episode_s)
    report(min(spent, episodes), f"excited for {learner.robot_time_s / 60:.1f} min of robot time")
    watch = Stopwatch(view)
    evaluating = learner.processor_time_s
    for episode in range(spent + 1, episodes + 1):
        follow_episode(view, learner.make())
        learner.learn(view.records, view.errors[-1])
        ledger.episode(episode, view.errors[-1], watch.take() + evaluating, learner.updates)
        evaluating = 0.0
        ledger.test(episode, learner.make_best())
        watch.restart()
    ledger.describe(parameters=learner.parameters, setting=learner.setting)
