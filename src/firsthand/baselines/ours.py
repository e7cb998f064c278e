"""Our own learner beside the peers, and the same without the measured trajectory (`imagination`)."""

import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand_onboard.policy import NumpyPolicy

from ..evaluation import tracking_metrics
from ..experiments.base import Report
from ..learner import Hyperparameters, Imagined, LearnerState, Rollout, append, update_model, update_policy
from ..learner.buffer import Buffer
from ..learner.rollout import imagine
from ..models import Policy
from ..robots import EpisodeRecord
from ..robots.simulated import SimulatedRobot
from ..tasks import Task
from ..training import Trainer, TrainingConfig
from ..training.data import as_rollout, imagined_starts, smooth_excitation, visited_rows
from .ledger import Ledger
from .setup import plant_and_task
from .view import Controller, Stepper, decision_ms

TINY = {"model_steps": 10, "policy_steps": 2, "imagined": 3}


class Timed(SimulatedRobot):
    """A simulated robot that counts its own processor time, which is no computing of the learner's."""

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


def size(tree: Any) -> int:
    """Numbers in a pytree."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))


def acting_s(policy: Policy, task: Task) -> float:
    """The time of an episode's decisions: the simulated robot makes them within its own compiled step."""
    return task.trajectories * task.steps * decision_ms(PolicyController(policy), task.spec) / 1e3


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """The fast preset, or another; short enough to begin anew when it was interrupted."""
    plant, task = plant_and_task(parameters["robot"], tiny=parameters["setting"] == "tiny")
    preset = parameters.get("preset", "fast")
    config = TrainingConfig.of(
        parameters["robot"], preset, episodes=parameters["episodes"], seed=parameters["seed"], **_changes(parameters)
    )
    ledger = Ledger(folder, Stepper(plant, task), parameters["marks"], report)
    robot = Timed(plant, task, seed=config.seed)
    trainer = Trainer(robot, config)
    acting, updates = acting_s(trainer.state.policy, task), 0
    while trainer.episode < config.episodes:
        began = time.process_time() - robot.simulation_s
        episode = trainer.run_episode()
        computing = acting + time.process_time() - robot.simulation_s - began
        updates += episode.metrics["policy_steps"] + config.hyper.model_steps
        error = tracking_metrics(task.spec, (episode.record,)).mean_error_m  # every step counts, as for the peers
        ledger.episode(trainer.episode, error, computing, updates)
        ledger.test(trainer.episode, PolicyController(trainer.state.policy))
    ledger.describe(
        parameters=size((trainer.state.policy.layers, trainer.state.dynamics)),
        setting=f"the {preset} preset; the newest policy is tested, not the kept one",
    )


def _changes(parameters: dict[str, Any]) -> dict[str, Any]:
    return dict(TINY) if parameters["setting"] == "tiny" else {}


def run_imagination(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """The Dyna idea: the same model, policy, steps and excitation, but the policy learns on imagined rollouts only.

    Measured data teach the model and say where rollouts may start. What is missing: measured states along the
    trajectory and the model's measured errors that are added back. The trust region follows from how well the model
    agrees with its own predictions, not with the robot.
    """
    plant, task = plant_and_task(parameters["robot"], tiny=parameters["setting"] == "tiny")
    seed = parameters["seed"]
    config = TrainingConfig.of(
        parameters["robot"], "fast", episodes=parameters["episodes"], seed=seed, **_changes(parameters)
    )
    hyper = config.hyper
    ledger = Ledger(folder, Stepper(plant, task), parameters["marks"], report)
    robot = SimulatedRobot(plant, task, seed=seed)
    state = LearnerState.random(task.spec, hyper, seed=seed)
    layout = task.spec.layout
    capacity = config.episodes * task.trajectories * task.steps
    buffer = Buffer.empty(capacity, layout.size, layout.num_commands, layout.num_measured)
    acting, updates = acting_s(state.policy, task), 0
    for episode in range(1, config.episodes + 1):
        rng = np.random.Generator(np.random.Philox(key=[seed, episode - 1]))
        goals = task.sample_goals(rng, robot.measured(), task.trajectories)
        excited = hyper.excitation > 0 and episode <= hyper.excited_episodes
        record = robot.run_episode(
            state.policy, goals, smooth_excitation(task, hyper.excitation, rng) if excited else None
        )
        began = time.process_time()
        rollout = as_rollout(task.spec, record)
        buffer = append(buffer, rollout)
        state, model = update_model(state, buffer, rollout, hyper)
        count = task.trajectories + hyper.imagined
        visited = np.asarray(buffer.states[visited_rows(int(buffer.size), count, rng)])
        imagined = imagined_starts(task, record, count, rng, visited)
        assert imagined is not None
        state, improvement = _improved(state, task, imagined, model, hyper)
        jax.block_until_ready(state)
        computing = acting + time.process_time() - began
        updates += int(improvement.steps_taken) + hyper.model_steps
        ledger.episode(episode, tracking_metrics(task.spec, (record,)).mean_error_m, computing, updates)
        ledger.test(episode, PolicyController(state.policy))
    ledger.describe(
        parameters=size((state.policy.layers, state.dynamics)),
        setting="the fast preset without the measured trajectories in the policy's update",
    )


def _improved(state: LearnerState, task: Task, imagined: Imagined, model: Any, hyper: Hyperparameters) -> Any:
    """A policy update in which imagined trajectories stand where the measured ones belong."""
    own = task.trajectories
    dreamed = _dreamed(state, imagined.starts[:own], imagined.previews[:own])
    rest = Imagined(imagined.starts[own:], imagined.previews[own:])
    return update_policy(state, task.cost, dreamed, rest, model, hyper)


@eqx.filter_jit
def _dreamed(state: LearnerState, starts: Any, previews: Any) -> Rollout:
    exact = jnp.zeros((*previews.shape[:2], starts.shape[-1]))
    states, commands = jax.vmap(imagine, in_axes=(None, None, 0, 0, 0))(
        state.policy, state.dynamics, starts, previews, exact
    )
    everywhere = jnp.ones(commands.shape, bool)
    return Rollout(states, commands, previews, everywhere, everywhere[..., 0])
