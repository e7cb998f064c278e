"""Everything that the report of a run tells, read and computed once."""

import dataclasses
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..agent.settings import option_words
from ..errors import UserError
from ..evaluation import Evaluation, evaluate
from ..models import Policy
from ..robots import AbstractRobot
from ..robots.address import is_address
from ..training.presets import PRESETS
from ..training.restore import RestoredRun
from ..units import Unit, unit_of
from .data import History, PathPanel, Poses, TimeSeries


@dataclass(frozen=True)
class RunReport:
    """What the report of one run shows."""

    restored: RestoredRun
    """The run."""
    history: History
    """Its metrics."""
    evaluation: Evaluation | None
    """The kept policy on the references that the learner never saw; None for a machine, which a report never moves."""
    shapes: tuple[tuple[PathPanel, ...], ...]
    """A row per evaluation reference: followed by an early, a middle and the kept policy; empty for a machine."""
    episodes: tuple[PathPanel, ...]
    """The trajectories of the first, a middle and the last episode."""
    series: TimeSeries
    """The kept policy on the first evaluation reference; for a machine, its last trajectory."""
    poses: Poses | None
    """The robot along that path, where its parts are known."""
    oracle: dict[str, Any] | None
    """What the oracle reaches, where it is known."""

    @property
    def unit(self) -> Unit:
        """Of the tracked output."""
        return unit_of(self.restored.task.unit)

    @property
    def step_bound(self) -> float:
        """η/(2√ε), which no policy step exceeds."""
        settings = self.restored.config.settings
        return settings.policy_step.eta / (2 * math.sqrt(settings.policy_step.epsilon))

    @property
    def trust_region(self) -> bool:
        """Whether several policy steps per episode are taken, inside a trust region."""
        settings = self.restored.config.settings
        return settings.policy_step.steps > 1 or settings.imagination.trajectories > 0

    @property
    def shape_names(self) -> str:
        """circle, square and line."""
        names = [] if self.evaluation is None else [reference.name for reference in self.evaluation.references]
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def gather(path: Path) -> RunReport:
    """Read a run, finished or still being written, and evaluate three of its policies.

    The report of a machine is made of what is in the run's folder alone: nothing is asked of it, and it does not move.
    """
    restored = RestoredRun.open(path)
    rows = restored.metrics()
    # The writer stores the episode first and its metrics second; the newest may be half there.
    known = {row["episode"] for row in rows}
    stored = [episode for episode in restored.episodes() if episode in known]
    if not stored:
        raise UserError(f"{path} has no finished episode yet, so there is nothing to report.")
    chosen = first_middle_last(stored)
    spec = restored.task.spec
    history = History.of(restored.config.robot, rows)
    episodes = tuple(PathPanel.of(f"episode {k}", spec, restored.record(k)) for k in chosen)
    robot = restored.robot()
    if is_machine(restored, robot):
        record = restored.record(stored[-1])
        moved = np.flatnonzero(record.valid.any(axis=1))
        last = int(moved[-1]) if len(moved) else 0
        title = f"episode {stored[-1]}, trajectory {last + 1}"
        return RunReport(
            restored=restored,
            history=history,
            evaluation=None,
            shapes=(),
            episodes=episodes,
            series=TimeSeries.of(title, spec, record, last),
            poses=Poses.of(title, spec, record, last),
            oracle=None,
        )
    policies = [(f"episode {episode}", restored.policy(episode)) for episode in chosen[:2]]
    evaluations = [(name, evaluate(robot, policy)) for name, policy in [*policies, kept(restored, stored[-1])]]
    evaluation = evaluations[-1][1]
    shapes = tuple(
        tuple(PathPanel.of(f"{ref.name}, {name}", spec, result.records[i]) for name, result in evaluations)
        for i, ref in enumerate(evaluation.references)
    )
    return RunReport(
        restored=restored,
        history=history,
        evaluation=evaluation,
        shapes=shapes,
        episodes=episodes,
        series=TimeSeries.of(evaluation.references[0].name, spec, evaluation.records[0]),
        poses=Poses.of(f"{evaluation.references[0].name}, kept policy", spec, evaluation.records[0]),
        oracle=_oracle(restored),
    )


def is_machine(restored: RestoredRun, robot: AbstractRobot) -> bool:
    """Whether the run's robot is real, or may be: a report does not move it."""
    return is_address(restored.config.robot) or robot.hardware


def can_go_back(robot: AbstractRobot) -> bool:
    """Whether a policy that was bad can be run again without harm: not on a machine that is no simulation."""
    return not robot.hardware or robot.can_reset


def not_moved(path: Path) -> str:
    """What is said where an evaluation would move a machine."""
    return (
        "The machine is not moved for an evaluation unless that is asked for: "
        f"firsthand evaluate {shlex.quote(str(path))} follows the references on it."
    )


def first_middle_last(episodes: list[int]) -> list[int]:
    """At most three different ones."""
    return sorted({episodes[0], episodes[len(episodes) // 2], episodes[-1]})


def kept(restored: RestoredRun, last: int) -> tuple[str, Policy]:
    """The best policy that the robot has proven, or, when nothing was proven yet, what ran last."""
    best = restored.kept_episode()
    if best is not None:
        return f"kept, of episode {best}", restored.policy()
    return f"episode {last}", restored.policy(last)


def _oracle(restored: RestoredRun) -> dict[str, Any] | None:
    """From the cache only: a report must not train for minutes."""
    known = restored.oracle()
    return None if known is None else dataclasses.asdict(known)


def reproduction(restored: RestoredRun, episodes: int) -> str:
    """The command that makes the same run.

    A run that was resumed may have more `episodes` than it was started with.
    """
    config = restored.config
    words = ["firsthand", "train", config.robot, "--preset", config.preset]
    words += ["--episodes", str(max(episodes, config.episodes)), "--seed", str(config.seed)]
    if config.payload_kg:
        words += ["--payload", str(config.payload_kg)]
    if config.preset in PRESETS:
        words += option_words(config.settings, PRESETS[config.preset])
    if config.init_from is not None:
        words += ["--init-from", config.init_from.path, "--init", config.init_from.parts]
    if config.data:
        words += ["--data", *(log.path for log in config.data)]
    return shlex.join(words)
