"""Our learner and a tuned PID on a robot itself, whatever it is: nothing but `AbstractRobot` is needed.

Each leaves a row per episode of robot time and a row per test. A test is an episode of held-out goals, by
the kept policy or by the best gains so far. An error counts every step that was asked for (`whole_error`): a robot that
falls stands where it fell. It is that of the true state where that is known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firsthand.controllers import GainSearch, design_controller, run_by_hand
from firsthand.evaluation.metrics import outside_share, whole_error
from firsthand.robots import AbstractRobot
from firsthand.robots.base import EpisodeRecord, neutral
from firsthand.training import MemoryRecorder, Trainer, TrainingConfig

from .episodic import EpisodicLearner

TEST_SEED = 999
OnEpisode = Callable[[int, float], None]
"""Called after each episode with its number and its error."""


@dataclass
class Books:
    """A row per episode and a row per test of one way to control a robot."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    """`episode`, `error`, `valid` (share of the steps that happened), `outside` (share of them at which a position was
    outside its limits) and `robot_min`, robot time so far."""
    tests: list[dict[str, Any]] = field(default_factory=list)
    """The same of tests. Their own time does not count into `robot_min`."""
    notes: str = ""
    robot_min: float = 0.0

    def add(self, episode: int, robot: AbstractRobot, record: EpisodeRecord) -> float:
        """An episode of robot time is over; its error."""
        self.robot_min += float(record.valid.sum()) * robot.task.spec.period_s / 60
        self.episodes.append(self._row(episode, robot, record))
        return self.episodes[-1]["error"]

    def test(self, episode: int, robot: AbstractRobot, record: EpisodeRecord) -> None:
        """The result of a test, whose time does not count."""
        self.tests.append(self._row(episode, robot, record))

    def _row(self, episode: int, robot: AbstractRobot, record: EpisodeRecord) -> dict[str, Any]:
        spec = robot.task.spec
        return {
            "episode": episode,
            "error": whole_error(spec, record),
            "valid": float(record.valid.mean()),
            "outside": outside_share(spec, record),
            "robot_min": self.robot_min,
        }


def test_goals(robot: AbstractRobot) -> np.ndarray:
    """Goals of a test: the same random numbers every time.

    The goals themselves differ a little, because they are drawn to lie far enough from where the robot is, and so do
    the references, which begin there.
    """
    return robot.task.sample_goals(np.random.default_rng(TEST_SEED), robot.measured(), robot.task.trajectories)


def learn(robot: AbstractRobot, config: TrainingConfig, marks: Sequence[int], on_episode: OnEpisode) -> Books:
    """Train with a preset; the kept policy is tested at the marks."""
    books, recorder = Books(), MemoryRecorder()
    trainer = Trainer(robot, config, recorder, keep_going=True)
    while trainer.episode < config.episodes:
        summary = trainer.run_episode()
        on_episode(summary.episode, books.add(summary.episode, robot, summary.record))
        if summary.episode in marks:
            kept = recorder.kept
            robot.horizon = None
            policy = trainer.state.controller if kept is None else kept.policy
            books.test(summary.episode, robot, robot.run_episode(policy, test_goals(robot)))
    books.notes = f"preset {config.preset}"
    return books


def tune(robot: AbstractRobot, episodes: int, marks: Sequence[int], seed: int, on_episode: OnEpisode) -> Books:
    """Identify, then an episode per try; the best gains so far are tested at the marks. Identification takes time."""
    books, task = Books(), robot.task
    found = design_controller(robot, task, seed=seed)
    books.robot_min = found.robot_time_s / 60
    spent, search = math.ceil(found.robot_time_s / task.episode_s), GainSearch(found.factors)
    for episode in range(spent + 1, max(episodes, spent + len(found.factors)) + 1):
        rng = np.random.Generator(np.random.Philox(key=[seed, episode]))
        factor = search.next_factor()
        goals = task.sample_goals(rng, robot.measured(), task.trajectories)
        error = books.add(episode, robot, run_by_hand(robot, found.make(factor), goals))
        search.record(factor, error)
        on_episode(min(episode, episodes), error)
        if episode in marks or episode == max(episodes, spent + len(found.factors)):
            books.test(episode, robot, run_by_hand(robot, found.make(search.best), test_goals(robot)))
    books.notes = f"{found.kind}; {found.robot_time_s / 60:.1f} min of inspection; {search.best:g} × the rule's gains"
    return books


def learn_episodes(
    robot: AbstractRobot,
    learner: EpisodicLearner,
    episodes: int,
    marks: Sequence[int],
    seed: int,
    on_episode: OnEpisode,
) -> Books:
    """Excite the robot, then an episode per controller that the learner makes; its best is tested at the marks."""
    books, task = Books(), robot.task
    learner.excite(robot)
    books.robot_min = learner.robot_time_s / 60
    spent = math.ceil(learner.robot_time_s / task.episode_s)
    last = max(episodes, spent + 1)
    for episode in range(spent + 1, last + 1):
        rng = np.random.Generator(np.random.Philox(key=[seed, episode]))
        goals = task.sample_goals(rng, robot.measured(), task.trajectories)
        record = run_by_hand(robot, learner.make(), goals)
        error = books.add(episode, robot, record)
        learner.learn([record], error)
        on_episode(min(episode, episodes), error)
        if episode in marks or episode == last:
            books.test(episode, robot, run_by_hand(robot, learner.make_best(), test_goals(robot)))
    books.notes = learner.setting
    return books


def stay_neutral(robot: AbstractRobot, marks: Sequence[int]) -> Books:
    """The neutral command on the goals of a test, what everybody has to beat. It is run once: it learns nothing."""
    spec, books = robot.task.spec, Books()
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    action = ((neutral(spec) - (low + high) / 2) / ((high - low) / 2)).astype(np.float32)
    record = run_by_hand(robot, lambda seen, first: action[None], test_goals(robot))
    for mark in marks:
        books.test(mark, robot, record)
    return books


def stand_still(robot: AbstractRobot) -> float:
    """The error of the neutral command on the goals of a test."""
    return stay_neutral(robot, (0,)).tests[0]["error"]
