"""Our own learner beside the peers, and the same without the measured trajectory (`imagination`)."""

import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from firsthand import models
from firsthand.agent import Experience, LearnerState
from firsthand.evaluation import tracking_metrics
from firsthand.models import Policy
from firsthand.robots import EpisodeRecord
from firsthand.robots.simulated import SimulatedRobot
from firsthand.tasks import Task
from firsthand.training import Trainer, TrainingConfig
from firsthand.training.learning import Learner, prepare_experience
from firsthand_onboard import NumpyController
from firsthand_onboard.features import command_feature
from firsthand_onboard.policy import NumpyPolicy

from ..experiments.base import Report
from .ledger import Ledger
from .observed import goes_on, read_observation
from .setup import plant_and_task
from .view import Controller, Stepper, decision_ms

TINY = {
    "model.steps": 10,
    "policy_step.steps": 2,
    "imagination.trajectories": 3,
    "refinement.steps": 1,
    "refinement.batch": 2,
}


class Timed(SimulatedRobot):
    """A simulated robot that counts its own processor time, which is not computing of the learner's."""

    simulation_s = 0.0

    def run_episode(self, *arguments: Any, **more: Any) -> EpisodeRecord:
        """As ever."""
        began = time.process_time()
        record = super().run_episode(*arguments, **more)
        self.simulation_s += time.process_time() - began
        return record


class PolicyController(Controller):
    """Our policy as every peer is tested: from observations."""

    def __init__(self, policy: Policy) -> None:
        spec = policy.spec
        self.layers = NumpyPolicy(spec, [(np.asarray(w), np.asarray(b)) for w, b in policy.layers]).layers

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1]."""
        for weight, bias in self.layers:
            seen = np.tanh(seen @ weight.T + bias)
        return seen


class RobotController(Controller):
    """Our policy with its observer and its base, as a robot runs them; an estimate and a memory per robot."""

    def __init__(self, controller: models.Controller) -> None:
        self.controller, self.spec = controller, controller.spec
        self.robots: list[NumpyController] = []
        self.last: list[tuple[np.ndarray, np.ndarray] | None] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1]."""
        if len(self.robots) != len(seen):
            self.robots = [self.controller.for_robot() for _ in seen]
            self.last = [None] * len(seen)
        return np.stack([self._one(i, row, bool(first[i])) for i, row in enumerate(seen)])

    def _one(self, i: int, seen: np.ndarray, first: bool) -> np.ndarray:
        state, points = read_observation(self.spec, seen)
        (policy, observer), last, single = self.robots[i], self.last[i], state.astype(np.float32)
        motion = last is None or (first and not goes_on(self.spec, *last, state))
        if observer is not None:
            if last is None or motion:
                observer.start_motion(single)
            else:
                observer.observe(last[1].astype(np.float32), single[: self.spec.layout.num_measured])
        estimate = single if observer is None else observer.state
        if first or motion:
            policy.begin(estimate, motion=motion)
        command = np.array(policy(estimate, points.astype(np.float32)), float)
        self.last[i] = state, command
        return np.asarray(command_feature(self.spec, command), np.float32)


def test_controller(controller: models.Controller) -> Controller:
    """What is tested of ours: the newest policy, behind its observer where one is in use."""
    plain = controller.observer is None and controller.policy.control is None
    return PolicyController(controller.policy) if plain else RobotController(controller)


def size(tree: Any) -> int:
    """Numbers in a pytree."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))


def acting_s(controller: models.Controller, task: Task) -> float:
    """The time of an episode's decisions: the simulated robot makes them within its own compiled step."""
    return task.trajectories * task.steps * decision_ms(test_controller(controller), task.spec) / 1e3


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """The fast preset, or another; short enough to begin anew when it was interrupted."""
    preset = parameters.get("preset", "fast")
    says = f"the {preset} preset; the newest policy is tested, not the kept one"
    _run(Learner, preset, says, parameters, folder, report)


def run_imagination(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """The Dyna idea: the fast preset, but the policy learns on imagined rollouts only."""
    says = "the fast preset without the measured trajectories in the policy's update"
    _run(Imagining, "fast", says, parameters, folder, report)


def _run(
    learner: type[Learner], preset: str, says: str, parameters: dict[str, Any], folder: Path, report: Report
) -> None:
    tiny = parameters["setting"] == "tiny"
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    changes = dict(TINY) if tiny else {}
    config = TrainingConfig.of(
        parameters["robot"], preset, episodes=parameters["episodes"], seed=parameters["seed"], changes=changes
    )
    ledger = Ledger(folder, Stepper(plant, task), parameters["marks"], report)
    robot = Timed(plant, task, seed=config.seed)
    trainer = Trainer(robot, config, learner=learner, keep_going=True)
    updates = 0
    while trainer.episode < config.episodes:
        began = time.process_time() - robot.simulation_s
        episode = trainer.run_episode()
        computing = acting_s(trainer.state.controller, task) + time.process_time() - robot.simulation_s - began
        updates += episode.metrics["steps_taken"] + config.settings.model.steps
        error = tracking_metrics(task.spec, (episode.record,)).mean_error  # every step counts, as for the peers
        ledger.episode(trainer.episode, error, computing, updates)
        ledger.test(trainer.episode, test_controller(trainer.state.controller))
    ledger.describe(parameters=size((trainer.state.policy.layers, trainer.state.dynamics)), setting=says)


class Imagining(Learner):
    """Our learner, in whose policy update imagined trajectories stand where the measured ones belong.

    Measured data teach the model and say where rollouts may start. What is missing: measured states along the
    trajectory and the model's measured errors that are added back. The trust region, and with it when refinement
    begins, follows from how well the model agrees with its own predictions, not with the robot.
    """

    def prepare(self, state: LearnerState, record: EpisodeRecord, rng: np.random.Generator) -> Experience:
        """With starts of trajectories of the model, on which the policy learns."""
        count = self.task.trajectories
        return prepare_experience(self.task, self.settings, self.buffer, record, rng, practice=count)
