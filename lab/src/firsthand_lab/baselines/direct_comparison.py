"""A comparison on a robot itself: a job per way to control it and seed, each kept in a folder."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.robots.environment import RobotFailed
from firsthand.robots.registry import NamedRobot, find_robot
from firsthand.robots.user_file import short_name
from firsthand.training import TrainingConfig

from ..experiments import files
from ..experiments.base import (
    MAX_SEEDS,
    Comparison,
    Cost,
    Experiment,
    Finding,
    Job,
    Report,
    Result,
    Seeds,
    Size,
    Verdict,
)
from ..experiments.finding_files import write_finding
from ..experiments.study import Study
from . import direct, episodic
from .registry import OURS, PEERS

NEUTRAL = "neutral"
"""Standing still: what everybody has to beat."""
EPISODIC = ("deepc", "koopman", "neural-mpc", "residual")
"""Those that propose a controller per episode."""
DIRECT = ("pid", "paper", *EPISODIC)
"""Peers that need nothing but a robot that can be run."""
WAYS = (OURS, *DIRECT, NEUTRAL)
"""In the order of the table."""
WORSE = 1.01
"""Beyond this many times the error of the neutral command, a controller is worse than standing still."""
BOOKS = "books.json"
RUNNER = f"{__name__}:run"


class DirectComparison(Experiment):
    """Ours, peers and the neutral command on one robot of any kind."""

    shows = "ours and its peers after equal robot time"
    figure = "ours"
    cost = Cost(full_min=0, quick_s=0)
    seeds = Seeds(full=3, quick=1, tiny=1)
    grows = True

    def __init__(self, found: NamedRobot, peers: Sequence[str], episodes: int) -> None:
        self.found, self.task, self.episodes = found, found.task, episodes
        self.ways = tuple(way for way in WAYS if way in (OURS, NEUTRAL, *peers))
        self.name = f"compare-{short_name(found.name)}"  # pyright: ignore
        # A file that has changed is another robot.
        self.file: dict[str, Any] = {} if found.file is None else {"robot_sha256": found.file.sha256}

    def jobs(self, size: Size) -> list[Job]:
        """One per way and seed."""
        return [self.job(way, seed) for way in self.ways for seed in range(size.seeds)]

    def job(self, way: str, seed: int) -> Job:
        """One way to control the robot, with one seed."""
        parameters = {"robot": self.found.name, "way": way, "seed": seed, "episodes": self.episodes, **self.file}
        seconds = PEERS["still" if way == NEUTRAL else way].seconds
        weight = seconds * self.task.trajectories * self.task.steps / 1250
        return Job(f"{way}-seed-{seed}", RUNNER, parameters, steps=self.episodes, weight=weight)

    def command(self, size: Size) -> str:
        """The command that gives this finding."""
        names = ",".join(way for way in self.ways if way in DIRECT)
        robot, episodes = self.found.name, self.episodes
        return f"firsthand compare {robot} --peers {names} --episodes {episodes} --seeds {size.seeds}"

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """A row per way, medians over seeds."""
        books: dict[str, list[dict[str, Any]]] = {}
        for way in WAYS:
            found = [result.json(BOOKS) for result in results if result.job.parameters["way"] == way]
            books |= {way: found} if found else {}
        errors = {way: _median(_last_error(book) for book in found) for way, found in books.items()}
        still, ours = errors.get(NEUTRAL, math.nan), errors.get(OURS, math.nan)
        worse = [way for way, error in errors.items() if error > WORSE * still]
        known = math.isfinite(ours) and math.isfinite(still)
        rows = [_over(OURS, "standing still", ours, still, Verdict.of(ours < still, size) if known else None)]
        rows += [_over(way, OURS, error, ours) for way, error in errors.items() if way in DIRECT]
        ids = {result.job.id for result in results}
        jobs = self.jobs(size)
        left = sum(job.id not in ids for job in jobs)
        text = (
            f"Each way had {self.episodes} episodes on {self.task.name}. Errors are medians over seeds on held-out "
            "goals; a step that the robot did not get to counts as if it stood where it ended."
        )
        if worse:
            text += f" Worse than standing still: {', '.join(worse)}."
        return Finding(
            Verdict.NOT_COMPARABLE if left else Verdict.overall(rows),
            f"So far: {len(jobs) - left} of {len(jobs)} jobs. {text}" if left else text,
            tuple(rows),
            tables={name: _columns(results, name) for name in ("tests", "episodes")},
            summary=[_summary(books, worse)],
        )


class DirectStudy(Study):
    """A comparison's folder. Its finding is of all finished runs in it, those of other commands too."""

    def __init__(self, path: Path, comparison: DirectComparison, size: Size) -> None:
        super().__init__(path, comparison, size)
        self.comparison = comparison

    def conclude(self, *, so_far: bool = False) -> Finding:
        """Draw the conclusion of all there is, and write it down."""
        results = self.results()
        if not results:
            raise UserError(
                f"no run of a comparison of {self.comparison.episodes} episodes is finished in {self.path}; run the "
                "same command without --so-far, or give the --episodes that it was run with."
            )
        finding = self.comparison.conclude(self.size, results)
        write_finding(self.path, self.comparison, self.size, results, finding)
        return finding

    def results(self) -> list[Result]:
        """Every finished run of this robot and length."""
        jobs = [self.comparison.job(way, seed) for way in WAYS for seed in range(MAX_SEEDS)]
        return [Result(job, self.folder(job)) for job in jobs if self.is_finished(job)]


def _last_error(book: dict[str, Any]) -> float:
    """The error of the last test; NaN where the robot could not be controlled this way."""
    return float(book["tests"][-1]["error"]) if book["tests"] else math.nan


def _median(values: Iterable[float]) -> float:
    """Of what is known; NaN where nothing is."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if known else math.nan


def _over(way: str, other: str, error: float, others: float, verdict: Verdict | None = None) -> Comparison:
    factor = error / others if others else math.nan
    return Comparison(f"error of {way} over {other}", f"× {factor:.2g}" if math.isfinite(factor) else "–", "–", verdict)


def _columns(results: list[Result], name: str) -> dict[str, list[Any]]:
    """The rows of all books, tests or episodes, as one table."""
    rows = [
        {"way": result.job.parameters["way"], "seed": result.job.parameters["seed"], **row}
        for result in results
        for row in result.json(BOOKS)[name]
    ]
    names = ("way", "seed", "episode", "error", "valid", "outside", "robot_min")
    return {name: [row[name] for row in rows] for name in names}


def _summary(books: dict[str, list[dict[str, Any]]], worse: Sequence[str]) -> dict[str, list[str]]:
    """Errors of tests after equal robot time, as they shall be read."""
    unit = next(iter(books.values()))[0]["unit"]
    marks = sorted({test["episode"] for found in books.values() for book in found for test in book["tests"]})
    table: dict[str, list[str]] = {f"error ({unit})": list(books)}
    for mark in marks:
        errors = [
            _median(test["error"] for book in found for test in book["tests"] if test["episode"] == mark)
            for found in books.values()
        ]
        table[f"episode {mark}"] = [f"{error:.3g}" if math.isfinite(error) else "–" for error in errors]
    minutes = [_median(book["robot_min"] for book in found) for found in books.values()]
    table["robot min"] = [f"{value:.1f}" for value in minutes]
    table["notes"] = [
        "; ".join(["worse than standing still"] * (way in worse) + _notes(found)) for way, found in books.items()
    ]
    return table


def _notes(found: list[dict[str, Any]]) -> list[str]:
    """Of the first seed; of one that failed, with how many did."""
    failed = [book for book in found if not book["tests"]]
    if not failed:
        return [note for note in (found[0]["notes"],) if note]
    return [f"{len(failed)} of {len(found)} seeds: {failed[0]['notes']}" if len(found) > 1 else failed[0]["notes"]]


# The job.


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """One way to control the robot; one that was interrupted begins anew.

    A robot that a peer cannot control, which is a result, has no tests, and the reason in its notes.
    """
    way, episodes = parameters["way"], parameters["episodes"]
    found = find_robot(parameters["robot"])
    unit = found.task.unit

    def on_episode(episode: int, error: float) -> None:
        report(min(episode, episodes) - (episode >= episodes), f"error {error:.3g} {unit}")

    robot = found.make(seed=parameters["seed"])
    try:
        books = control(way, found.name, robot, parameters["seed"], episodes, on_episode)
    except RobotFailed:  # that says nothing about the peer: it is tried again
        raise
    except UserError as error:
        if way == OURS:
            raise
        books = direct.Books(notes=str(error))
    finally:
        robot.close()
    facts = {"unit": unit, "notes": books.notes, "robot_min": books.robot_min}
    files.write_json(folder / BOOKS, {**facts, "episodes": books.episodes, "tests": books.tests})
    report(episodes, "done")


def control(way: str, name: str, robot: Any, seed: int, episodes: int, on_episode: direct.OnEpisode) -> direct.Books:
    """The books of one way; tests are after a quarter, half and all of the episodes."""
    marks = tuple(sorted({max(episodes // 4, 1), max(episodes // 2, 1), episodes}))
    if way == NEUTRAL:
        return direct.stay_neutral(robot, marks)
    if way == "pid":
        return direct.tune(robot, episodes, marks, seed, on_episode)
    if way in EPISODIC:
        learner = episodic.make_learner(way, name, robot.task, seed=seed, episodes=episodes)
        return direct.learn_episodes(robot, learner, episodes, marks, seed, on_episode)
    config = TrainingConfig.of(name, "fast" if way == OURS else way, episodes=episodes, seed=seed)
    return direct.learn(robot, config, marks, on_episode)
