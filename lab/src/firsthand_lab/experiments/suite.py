"""One preset, no setting touched, on robots that differ in kind; beside it `paper` and a tuned PID."""

import dataclasses
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, styled

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict
from .baseline import TINY_SETTINGS

HERE = "firsthand_lab.suite_robots"
ROBOTS: dict[str, str] = {
    "excavator": "excavator",
    "excavator-realistic": "excavator-realistic",
    "real-excavator": "real-excavator",
    "excavator-pressure": "excavator-pressure",
    "soft-arm": "soft-arm",
    "axis": f"{HERE}.axis:task",
    "axis-drifting": f"{HERE}.axis:drifting",
    "tanks": f"{HERE}.tanks:task",
    "arm-servos": f"{HERE}.arm:servos",
    "arm-torques": f"{HERE}.arm:torques",
    "pole": f"{HERE}.pole:task",
    "pneumatic": f"{HERE}.joint:task",
    "reacher": f"{HERE}.reacher:task",
}
"""Built-in ones by name, the others as `module:attribute` of a file like a user's."""
SMALL = ("axis", "tanks")
"""Robots of the tests' size."""
QUICK = ("soft-arm", "axis", "axis-drifting", "tanks", "arm-servos", "arm-torques", "pole", "pneumatic", "reacher")
WAYS = ("fast", "paper", "pid")
EPISODES = {"full": 25, "quick": 10, "tiny": 2}
MARKS = {"full": (5, 10, 25), "quick": (5, 10), "tiny": (1, 2)}
LEARNED = 0.5
"""A robot has learned where its error is at most this share of that of the neutral command …"""
FOLLOWED = 0.9
"""… and at least this share of the steps was followed."""
NO_WORSE = 1.1
"""Not worse than another: at most this many times its error."""
MAX_LOST_TO_PID = 2
"""Robots on which the PID may be better."""
SETTLED = 10
"""Episodes after which the worst is looked for."""
BOOKS = "books.json"
RUNNER = f"{__name__}:run"


class Suite(Experiment):
    """The default preset as it comes on every kind of robot that we have."""

    name = "suite"
    shows = "one preset learns robots of many kinds, beside a tuned PID"
    figure = "ours"
    cost = Cost(full_min=150, quick_s=2400)
    seeds = Seeds(full=3, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One per robot, way and seed."""
        names = size.pick(full=tuple(ROBOTS), quick=QUICK, tiny=SMALL)
        episodes, marks = EPISODES[size.name], MARKS[size.name]
        return [
            Job(
                f"{robot}-{way}-seed-{seed}",
                RUNNER,
                {
                    "robot": robot,
                    "way": way,
                    "seed": seed,
                    "episodes": episodes,
                    "marks": list(marks),
                    "tiny": size.name == "tiny",
                },
                steps=episodes,
                weight={"fast": 6.0, "paper": 4.0, "pid": 2.0}[way],
            )
            for robot in names
            for way in WAYS
            for seed in range(size.seeds)
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """A line per robot, and three rules that can fail."""
        lines = gather_lines(results, MARKS[size.name])
        last = MARKS[size.name][-1]
        unlearned = [
            line["robot"]
            for line in lines
            if not (line[f"fast {last}"] <= LEARNED * line["still"] and line["followed"] >= FOLLOWED)
        ]
        worse = [line["robot"] for line in lines if not line[f"fast {last}"] <= NO_WORSE * line[f"paper {last}"]]
        lost = [line["robot"] for line in lines if not line[f"fast {last}"] < line["pid"]]
        rows = (
            _rule(f"robots learned, of {len(lines)}", len(lines) - len(unlearned), unlearned, not unlearned, size),
            _rule("robots on which fast is worse than paper", len(worse), worse, not worse, size),
            _rule("robots on which the PID is better", len(lost), lost, len(lost) <= MAX_LOST_TO_PID, size),
        )
        verdict = Verdict.overall(rows)
        columns = list(lines[0])
        return Finding(
            verdict,
            f"The default preset, {size.seeds} seed{'s' * (size.seeds > 1)}, no setting touched, on {len(lines)} "
            "robots; medians over seeds of the error on references that nobody trains on, in each robot's own unit. A "
            "step that a robot did not get to counts as if it stood where it ended. `pid` is identified and tuned on "
            "the robot with docs/peers.md's procedure. "
            f"Learned: at most {LEARNED:g} of the error of the neutral command, at least {FOLLOWED:.0%} of the steps "
            f"followed. Not worse: at most {NO_WORSE:g} times the error.",
            rows,
            figures={"suite": suite_figure(lines, last)},
            tables={"suite": {column: [line[column] for line in lines] for column in columns}},
            summary=[_summary(lines, MARKS[size.name])],
        )


def _rule(what: str, count: int, which: list[str], holds: bool, size: Size) -> Comparison:
    named = f" ({', '.join(which)})" if which else ""
    return Comparison(what, f"{count}{named}", "–", Verdict.of(holds, size))


def gather_lines(results: list[Result], marks: tuple[int, ...]) -> list[dict[str, Any]]:
    """A line per robot: medians over seeds."""
    books: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        parameters = result.job.parameters
        books.setdefault((parameters["robot"], parameters["way"]), []).append(result.json(BOOKS))
    lines = []
    for robot in dict.fromkeys(robot for robot, _ in books):
        line: dict[str, Any] = {"robot": robot, "unit": books[robot, "fast"][0]["unit"]}
        line["still"] = _median(book["still"] for book in books[robot, "pid"])
        for way in ("fast", "paper"):
            for mark in marks:
                line[f"{way} {mark}"] = _median(_tested(book, mark) for book in books[robot, way])
        line["pid"] = _median(_tested(book, None) for book in books[robot, "pid"])
        ours = books[robot, "fast"]
        line["followed"] = _median(book["tests"][-1]["valid"] if book["tests"] else 0.0 for book in ours)
        line["minutes until PID is beaten"] = _median(minutes_until(book, line["pid"]) for book in ours)
        line["worst after the tenth"] = _median(worst_after(book, SETTLED) for book in ours)
        lines.append(line)
    return lines


def _tested(book: dict[str, Any], mark: int | None) -> float:
    """The error of the test at a mark, or of the last one; infinite where there is none: it could not be controlled."""
    tests = [test for test in book["tests"] if mark is None or test["episode"] == mark]
    return float(tests[-1]["error"]) if tests else math.inf


def minutes_until(book: dict[str, Any], error: float) -> float:
    """Robot time until an episode, and the one after it, are below an error; infinite where none are."""
    rows = book["episodes"]
    for row, following in zip(rows, [*rows[1:], rows[-1]], strict=True):
        if max(row["error"], following["error"]) < error:
            return float(row["robot_min"])
    return math.inf


def worst_after(book: dict[str, Any], episode: int) -> float:
    """The largest error of a later episode; NaN where there is none."""
    return max((float(row["error"]) for row in book["episodes"] if row["episode"] > episode), default=math.nan)


def _median(values: Any) -> float:
    return float(np.median(list(values)))


def _summary(lines: list[dict[str, Any]], marks: tuple[int, ...]) -> dict[str, list[str]]:
    """The table as it shall be read: errors as shares of that of the neutral command, in per cent."""

    def share(line: dict[str, Any], name: str) -> str:
        value = 100 * line[name] / line["still"]
        return f"{value:.3g}" if math.isfinite(value) else "–"

    table: dict[str, list[str]] = {"robot": [line["robot"] for line in lines]}
    table["still"] = [f"{line['still']:.3g} {line['unit']}" for line in lines]
    for mark in marks:
        table[f"fast {mark} %"] = [share(line, f"fast {mark}") for line in lines]
    table[f"paper {marks[-1]} %"] = [share(line, f"paper {marks[-1]}") for line in lines]
    table["PID %"] = [share(line, "pid") for line in lines]
    minutes = [line["minutes until PID is beaten"] for line in lines]
    table["min to PID"] = [f"{m:.1f}" if math.isfinite(m) else "–" for m in minutes]
    return table


@styled
def suite_figure(lines: list[dict[str, Any]], last: int) -> Figure:
    """Errors at the end over that of the neutral command, a row per robot."""
    figure = Figure(figsize=(7.6, 1.2 + 0.42 * len(lines)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(lines))[::-1]
    series = ((f"fast {last}", "default preset", "o"), (f"paper {last}", "paper", "s"), ("pid", "tuned PID", "x"))
    for i, (column, label, marker) in enumerate(series):
        shares = np.asarray([line[column] / line["still"] for line in lines])
        axes.plot(shares, places, marker, color=PALETTE[i], label=label, linestyle="none")
    axes.axvline(1.0, color="#B0B0B0")
    axes.set_xscale("log")
    axes.set_yticks(places, [line["robot"] for line in lines])
    axes.set_xlabel(f"error after {last} episodes over that of the neutral command")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


# The job.


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """One way to control one robot; short enough to begin anew when it was interrupted."""
    from firsthand.errors import UserError
    from firsthand.training import TrainingConfig

    from ..baselines import direct

    way, seed, episodes, marks = (parameters[name] for name in ("way", "seed", "episodes", "marks"))
    robot = make_robot(parameters["robot"], seed=seed, tiny=parameters["tiny"])
    unit = robot.task.unit

    def on_episode(episode: int, error: float) -> None:
        report(min(episode, episodes) - (episode >= episodes), f"error {error:.3g} {unit}")

    facts: dict[str, Any] = {"unit": unit}
    if way == "pid":
        facts["still"] = direct.stand_still(robot)
        try:
            books = direct.tune(robot, episodes, marks, seed, on_episode)
        except UserError as error:  # what cannot be identified cannot be controlled, and that is a result
            books = direct.Books(notes=str(error))
    else:
        changes = {**TINY_SETTINGS, "policy_step.steps": 2, "refinement.steps": 1} if parameters["tiny"] else {}
        config = TrainingConfig.of(parameters["robot"], way, episodes=episodes, seed=seed, changes=changes)
        books = direct.learn(robot, config, marks, on_episode)
    facts |= {"notes": [books.notes, *robot.notes()], "episodes": books.episodes, "tests": books.tests}
    files.write_json(folder / BOOKS, facts)
    robot.close()
    report(episodes, "done")


def make_robot(name: str, *, seed: int, tiny: bool = False) -> Any:
    """A robot of the suite."""
    from firsthand.robots.registry import find_robot

    module, _, attribute = ROBOTS[name].partition(":")
    if not attribute:
        return find_robot(module).make(seed=seed)
    source = getattr(import_module(module), attribute)
    if tiny:
        source = dataclasses.replace(source, steps=20, trajectories=2, hidden=(8, 8))
    return source.make_robot(source.make_task(), payload_kg=0.0, seed=seed)
