"""Everything that the report of a run tells, read and computed once."""

import dataclasses
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..advice import Advice, advise
from ..agent.settings import option_words
from ..errors import UserError
from ..evaluation import Evaluation
from ..training.origin import IDENTIFICATION
from ..training.presets import PRESETS
from ..training.run import Run, StoredEvaluation
from ..units import Score, Unit, unit_of
from .data import History, PathPanel, Poses, TimeSeries


@dataclass(frozen=True)
class RunReport:
    """The content of one run's report."""

    run: Run
    """The run."""
    history: History
    """Its metrics."""
    advice: tuple[Advice, ...]
    """The advice that follows from them."""
    evaluation: Evaluation | None
    """The kept policy on the references that the learner never saw; None where that was not measured."""
    shapes: tuple[tuple[PathPanel, ...], ...]
    """A row per evaluation reference: followed by an early, a middle and the kept policy; empty without evaluation."""
    episodes: tuple[PathPanel, ...]
    """The trajectories of the first, a middle and the last episode."""
    series: TimeSeries
    """The kept policy on the first evaluation reference; without evaluation, the last trajectory."""
    poses: Poses | None
    """The robot along that path, where its parts are known."""
    oracle: dict[str, Any] | None
    """The oracle's error, where it is known."""

    @property
    def unit(self) -> Unit:
        """Unit of the tracked output."""
        return unit_of(self.run.description.unit)

    @property
    def score(self) -> Score:
        """The number that policies are judged by."""
        return self.run.description.score

    @property
    def step_bound(self) -> float:
        """η/(2√ε), which no policy step exceeds."""
        settings = self.run.config.settings
        return settings.policy_step.eta / (2 * math.sqrt(settings.policy_step.epsilon))

    @property
    def trust_region(self) -> bool:
        """Whether several policy steps per episode are taken, inside a trust region."""
        settings = self.run.config.settings
        return settings.policy_step.steps > 1 or settings.imagination.trajectories > 0

    @property
    def shape_names(self) -> str:
        """circle, square and line."""
        names = [] if self.evaluation is None else [reference.name for reference in self.evaluation.references]
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def gather(path: Path) -> RunReport:
    """Read a run, finished or still being written. Nothing is asked of its robot, and nothing of it is run or moved."""
    run = Run.open(path)
    rows = run.metrics()
    # The writer stores the episode first and its metrics second; the newest may be half there.
    known = {row["episode"] for row in rows}
    stored = [episode for episode in run.episodes() if episode in known]
    if not stored:
        raise UserError(f"{path} has no finished episode yet, so there is nothing to report.")
    spec = run.description.spec
    evaluated = evaluated_policies(run, stored)
    kept = evaluated[-1][1] if evaluated else None
    if kept is None:
        record = run.record(stored[-1])
        moved = np.flatnonzero(record.valid.any(axis=1))
        last = int(moved[-1]) if len(moved) else 0
        title = f"episode {stored[-1]}, trajectory {last + 1}"
        series, poses = TimeSeries.of(title, spec, record, last), Poses.of(title, spec, record, last)
    else:
        name, record = kept.evaluation.references[0].name, kept.evaluation.records[0]
        series, poses = TimeSeries.of(name, spec, record), Poses.of(f"{name}, kept policy", spec, record)
    return RunReport(
        run=run,
        history=History.of(run.config.robot, rows),
        advice=tuple(advise(rows)),
        evaluation=None if kept is None else kept.evaluation,
        shapes=_shapes(spec, [(name, stored.evaluation) for name, stored in evaluated]),
        episodes=tuple(PathPanel.of(f"episode {k}", spec, run.record(k)) for k in first_middle_last(stored)),
        series=series,
        poses=poses,
        oracle=None if kept is None or kept.oracle is None else dataclasses.asdict(kept.oracle),
    )


def evaluated_policies(run: Run, episodes: list[int]) -> list[tuple[str, StoredEvaluation]]:
    """The stored evaluations of an early, a middle and the kept policy, with their names; empty without the last."""
    name, last = kept_policy_name(run, episodes[-1])
    kept = run.evaluation(last)
    if kept is None:
        return []
    references = [reference.name for reference in kept.evaluation.references]
    before = [(f"episode {k}", run.evaluation(k)) for k in first_middle_last(episodes)[:2]]
    found = [(title, one) for title, one in before if one is not None]
    same = [(title, one) for title, one in found if [r.name for r in one.evaluation.references] == references]
    return [*same, (name, kept)]


def _shapes(spec: ControlSpec, evaluated: list[tuple[str, Evaluation]]) -> tuple[tuple[PathPanel, ...], ...]:
    """A row of panels per evaluation reference."""
    if not evaluated:
        return ()
    return tuple(
        tuple(PathPanel.of(f"{reference.name}, {name}", spec, result.records[i]) for name, result in evaluated)
        for i, reference in enumerate(evaluated[-1][1].references)
    )


def first_middle_last(episodes: list[int]) -> list[int]:
    """At most three different ones."""
    return sorted({episodes[0], episodes[len(episodes) // 2], episodes[-1]})


def kept_policy_name(run: Run, last: int) -> tuple[str, int]:
    """Name and episode of the best proven policy; of the last episode's policy where none is proven."""
    best = run.kept_episode()
    return (f"episode {last}", last) if best is None else (f"kept policy, episode {best}", best)


def reproduction(run: Run, episodes: int) -> str:
    """The command that makes the same run.

    A run that was resumed may have more `episodes` than it was started with.
    """
    config = run.config
    words = ["firsthand", "train", config.robot, "--preset", config.preset]
    words += ["--episodes", str(max(episodes, config.episodes)), "--seed", str(config.seed)]
    if config.sensors is not None:
        words += ["--sensors", config.sensors]
    if config.payload_kg:
        words += ["--payload", str(config.payload_kg)]
    if config.preset in PRESETS:
        words += option_words(config.settings, PRESETS[config.preset])
    if config.init_from is not None:
        words += ["--init-from", config.init_from.path, "--init", config.init_from.parts]
    if config.base is not None:
        words += ["--base", config.base.name, "--base-mode", config.base.mode]
    files = [log.path for log in config.data if log.path != IDENTIFICATION]
    words += ["--data", *files] if files else []
    return shlex.join(words)
