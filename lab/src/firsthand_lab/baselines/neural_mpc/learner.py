"""The procedure of `neural-mpc` on a robot, episode by episode; all of it counts as robot time.

1. Two episodes of random excitation; the model of our fast preset learns from them.
2. Every episode is controlled with the newest model, which learns from it as ours does.
3. After eight of its own episodes the weight on changes of command is tuned, an episode each, as for `deepc`.
"""

import time
from collections.abc import Sequence

import jax
import numpy as np

from firsthand.agent import append
from firsthand.agent.buffer import Buffer
from firsthand.agent.settings import Settings
from firsthand.agent.state import LearnerState
from firsthand.agent.update import update_model
from firsthand.controllers import GainSearch
from firsthand.errors import UserError
from firsthand.robots.base import AbstractRobot, EpisodeRecord
from firsthand.simulators.record import record
from firsthand.tasks import Task
from firsthand.training.learning import read_record

from .controller import NeuralController

EXCITED = 2
"""Episodes of excitation."""
TUNED_AFTER = 8
FACTORS = (1.0, 0.3, 0.1, 0.03)
REPEATS = 3
"""Updates of the model on the excitation, so that the first episode has a model that has come to rest."""


class ModelLearner:
    """Learns the fast preset's model, and its observer, from episodes."""

    def __init__(self, task: Task, settings: Settings, *, seed: int, capacity: int) -> None:
        self.task, self.settings, self.seed = task, settings, seed
        layout = task.spec.layout
        self.state = LearnerState.random(task.spec, settings, seed=seed)
        self.buffer = Buffer.empty(capacity, layout.size, layout.num_commands, layout.num_measured)
        self.robot_time_s = self.processor_time_s = 0.0
        self.episodes = self.updates = 0

    def append(self, one: EpisodeRecord, *, repeats: int = 1) -> None:
        """Learn from an episode and all before it."""
        rollout, sound = read_record(self.task.spec, one)
        self.buffer = append(self.buffer, rollout, sound)
        for _ in range(repeats):
            self.state, _ = update_model(self.state, self.buffer, rollout, self.settings)
            self.updates += self.settings.model.steps
        jax.block_until_ready(self.state.dynamics.change_scale)

    @property
    def parameters(self) -> int:
        """Of the model."""
        return sum(w.size + b.size for w, b in self.state.dynamics.layers)


class NeuralLearner(ModelLearner):
    """Excites a robot, then proposes a controller per episode and learns its model from what came of it."""

    def __init__(self, task: Task, settings: Settings, *, seed: int, capacity: int) -> None:
        if not task.cost.is_least_squares:
            raise UserError("neural-mpc needs a cost that is a sum of squares: give the goal as residuals.")
        super().__init__(task, settings, seed=seed, capacity=capacity)
        self._search: GainSearch | None = None

    def excite(self, robot: AbstractRobot) -> None:
        """Move the robot about, with its whole command range."""
        task = self.task
        records = list(record(robot, EXCITED * task.episode_s / 60, seed=self.seed))[:EXCITED]
        self.robot_time_s = sum(r.valid.size for r in records) * task.spec.period_s
        began = time.process_time()
        for i, one in enumerate(records):
            self.append(one, repeats=REPEATS if i == len(records) - 1 else 1)
        self.processor_time_s = time.process_time() - began

    @property
    def factor(self) -> float:
        """On the weight of changes of command, in the next episode."""
        return FACTORS[0] if self._search is None else self._search.next_factor()

    def make(self) -> NeuralController:
        """The controller of the next episode."""
        return NeuralController(self.task, self.state.dynamics, self.state.observer, self.factor)

    def make_best(self) -> NeuralController:
        """The best so far, for a test."""
        return NeuralController(self.task, self.state.dynamics, self.state.observer, self.best_factor)

    @property
    def best_factor(self) -> float:
        """The best of those that were tried."""
        return self._search.best if self._search is not None and self._search.errors else FACTORS[0]

    def learn(self, records: Sequence[EpisodeRecord], error: float) -> None:
        """An episode with `make()` is over."""
        self.episodes += 1
        if self._search is not None:
            self._search.record(self.factor, error)
        self.append(join_records(records))
        if self.episodes == TUNED_AFTER:
            self._search = GainSearch(FACTORS)

    @property
    def setting(self) -> str:
        """A summary of actions and choices, for people."""
        horizon = self.make_best().horizon
        seen = "behind the learned observer" if self.state.observer is not None else "on the plain register"
        return (
            f"{self.robot_time_s / 60:.1f} min of excitation, then the model of the fast preset learns from every "
            f"episode; one Gauss–Newton step per period over {horizon} steps, {seen}; weight on changes "
            f"{self.best_factor:g} × the task's"
        )


def join_records(records: Sequence[EpisodeRecord]) -> EpisodeRecord:
    """One record per trajectory as one record of all, without the true states."""

    def rows(name: str) -> np.ndarray:
        return np.concatenate([getattr(r, name) for r in records])

    names = ("starts", "measured", "commands", "references", "free", "valid")
    return EpisodeRecord(**{name: rows(name) for name in names})
