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
    "excavator-grading": "excavator-grading",
    "soft-arm": "soft-arm",
    "soft-pcs": f"{HERE}.soft_pcs:task",
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
QUICK = tuple(name for name in ROBOTS if "excavator" not in name)
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
    grows = True
    partial = True

    def jobs(self, size: Size) -> list[Job]:
        """One per robot, way and seed."""
        names = size.pick(full=tuple(ROBOTS), quick=QUICK, tiny=SMALL)
        episodes = EPISODES[size.name]
        return [
            Job(
                f"{robot}-{way}-seed-{seed}",
                RUNNER,
                {
                    "robot": robot,
                    "way": way,
                    "seed": seed,
                    "episodes": episodes,
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
        """A line per robot, and three rules that can fail. Missing values are NaN and fail no rule."""
        lines = gather_lines(results, MARKS[size.name])
        last = MARKS[size.name][-1]
        ours, paper = f"fast {last}", f"paper {last}"
        learned = [line for line in lines if _is_known(line, ours, "still")]
        unlearned = [r["robot"] for r in learned if not (r[ours] <= LEARNED * r["still"] and r["followed"] >= FOLLOWED)]
        beside_paper = [line for line in lines if _is_known(line, ours, paper)]
        worse = [line["robot"] for line in beside_paper if not line[ours] <= NO_WORSE * line[paper]]
        beside_pid = [line for line in lines if _is_known(line, ours, "pid")]
        lost = [line["robot"] for line in beside_pid if not line[ours] < line["pid"]]
        rows = (
            _rule(f"robots learned, of {len(learned)}", len(learned) - len(unlearned), unlearned, not unlearned, size),
            _rule(
                f"robots, of {len(beside_paper)}, on which fast is worse than paper", len(worse), worse, not worse, size
            ),
            _rule(
                f"robots, of {len(beside_pid)}, on which the PID is better",
                len(lost),
                lost,
                len(lost) <= MAX_LOST_TO_PID,
                size,
            ),
        )
        is_whole = len(results) == len(self.jobs(size))
        verdict = Verdict.overall(rows) if is_whole else Verdict.NOT_COMPARABLE
        columns = list(lines[0])
        return Finding(
            verdict,
            ("" if is_whole else f"So far: {len(results)} of {len(self.jobs(size))} jobs. ")
            + f"The default preset, {size.seeds} seed{'s' * (size.seeds > 1)}, no setting touched, on {len(lines)} "
            "robots; medians over seeds of the error on held-out references, in each robot's own unit, of "
            "the true state where it is known. A step that a robot did not get to counts as if it stood where it "
            "ended. `pid` is identified and tuned on the robot with docs/peers.md's procedure. "
            f"Learned: at most {LEARNED:g} of the error of the neutral command, at least {FOLLOWED:.0%} of the steps "
            f"followed. Not worse: at most {NO_WORSE:g} times the error.",
            rows,
            figures={"suite": suite_figure(lines, MARKS[size.name])},
            tables={"suite": {column: [line[column] for line in lines] for column in columns}},
            summary=[_summary(lines, MARKS[size.name])],
        )


def _is_known(line: dict[str, Any], *columns: str) -> bool:
    return not any(math.isnan(line[column]) for column in columns)


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
        ours, theirs, pid = (books.get((robot, way), []) for way in WAYS)
        line: dict[str, Any] = {"robot": robot, "unit": next(iter([*ours, *theirs, *pid]))["unit"]}
        line["still"] = _median(book["still"] for book in pid)
        for way, of in (("fast", ours), ("paper", theirs)):
            for mark in marks:
                line[f"{way} {mark}"] = _median(_tested(book, mark) for book in of)
        line["pid"] = _median(_tested(book, None) for book in pid)
        line["followed"] = _median(book["tests"][-1]["valid"] if book["tests"] else 0.0 for book in ours)
        line["minutes until PID is beaten"] = (
            _median(minutes_until(book, line["pid"]) for book in ours) if pid else math.nan
        )
        line["worst after the tenth"] = _median(worst_after(book, SETTLED) for book in ours)
        line["outside"] = _median(max(row["outside"] for row in book["episodes"]) for book in ours)
        lines.append(line)
    return lines


def _tested(book: dict[str, Any], mark: int | None) -> float:
    """The error of the test at a mark, or of the last one; infinite if the robot could not be controlled."""
    tests = [test for test in book["tests"] if mark is None or test["episode"] == mark]
    return float(tests[-1]["error"]) if tests else math.inf


def minutes_until(book: dict[str, Any], error: float) -> float:
    """Robot time until a test, and the one after it, are below an error of such a test; infinite where none are."""
    rows = book["tests"]
    if not rows:
        return math.inf
    for row, following in zip(rows, [*rows[1:], rows[-1]], strict=True):
        if max(row["error"], following["error"]) < error:
            return float(row["robot_min"])
    return math.inf


def worst_after(book: dict[str, Any], episode: int) -> float:
    """The largest error of a later episode; NaN where there is none."""
    return max((float(row["error"]) for row in book["episodes"] if row["episode"] > episode), default=math.nan)


def _median(values: Any) -> float:
    """NaN where there is none yet."""
    found = list(values)
    return float(np.median(found)) if found else math.nan


def _summary(lines: list[dict[str, Any]], marks: tuple[int, ...]) -> dict[str, list[str]]:
    """The table as it shall be read: errors as shares of that of the neutral command, in per cent."""

    def share(line: dict[str, Any], name: str) -> str:
        value = 100 * line[name] / line["still"]
        return f"{value:.2g}" if math.isfinite(value) else "–"

    table: dict[str, list[str]] = {"robot": [line["robot"] for line in lines]}
    table["still"] = [f"{line['still']:.2g} {line['unit']}" for line in lines]
    for mark in marks:
        table[f"fast {mark} %"] = [share(line, f"fast {mark}") for line in lines]
    table[f"paper {marks[-1]} %"] = [share(line, f"paper {marks[-1]}") for line in lines]
    table["PID %"] = [share(line, "pid") for line in lines]
    minutes = [line["minutes until PID is beaten"] for line in lines]
    table["min to PID"] = [f"{m:.1f}" if math.isfinite(m) else "–" for m in minutes]
    return table


@styled
def suite_figure(lines: list[dict[str, Any]], marks: tuple[int, ...]) -> Figure:
    """Errors over that of the neutral command, a row per robot: ours as it learns, `paper`, the PID."""
    figure = Figure(figsize=(7.6, 1.2 + 0.38 * len(lines)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(lines))[::-1]

    def shares(column: str) -> np.ndarray:
        found = np.asarray([line[column] / line["still"] for line in lines])
        return np.where(np.isfinite(found), found, np.nan)

    learning = np.stack([shares(f"fast {mark}") for mark in marks])
    axes.plot(learning, np.tile(places, (len(marks), 1)), "-", color=PALETTE[0], linewidth=1.0, alpha=0.5)
    for mark, row in zip(marks[:-1], learning, strict=False):
        axes.plot(row, places, ".", color=PALETTE[0], markersize=3 + mark / 5, linestyle="none", alpha=0.5)
    axes.plot(
        learning[-1], places, "o", color=PALETTE[0], label=f"default preset, {marks[-1]} episodes", linestyle="none"
    )
    axes.plot(shares(f"paper {marks[-1]}"), places, "s", color=PALETTE[1], label="paper", linestyle="none", mfc="none")
    axes.plot(shares("pid"), places, "x", color=PALETTE[2], label="tuned PID", linestyle="none")
    axes.axvline(1.0, color="#B0B0B0")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(places, [line["robot"] for line in lines])
    earlier = ", ".join(map(str, marks[:-1]))
    axes.set_xlabel(f"error over that of the neutral command; small dots: after {earlier} episodes")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


# The job.


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """One way to control one robot; short enough to begin anew when it was interrupted."""
    from firsthand.errors import UserError
    from firsthand.training import TrainingConfig

    from ..baselines import direct

    way, seed, episodes = (parameters[name] for name in ("way", "seed", "episodes"))
    # After every episode: times until an error compare tests that are drawn with the same random numbers.
    tested = range(1, episodes + 1)
    robot = make_robot(parameters["robot"], seed=seed, tiny=parameters["tiny"])
    unit = robot.task.unit

    def on_episode(episode: int, error: float) -> None:
        report(min(episode, episodes) - (episode >= episodes), f"error {error:.3g} {unit}")

    facts: dict[str, Any] = {"unit": unit}
    if way == "pid":
        facts["still"] = direct.stand_still(robot)
        try:
            books = direct.tune(robot, episodes, tested, seed, on_episode)
        except UserError as error:  # what cannot be identified cannot be controlled, and that is a result
            books = direct.Books(notes=str(error))
    else:
        changes = {**TINY_SETTINGS, "policy_step.steps": 2, "refinement.steps": 1} if parameters["tiny"] else {}
        config = TrainingConfig.of(parameters["robot"], way, episodes=episodes, seed=seed, changes=changes)
        books = direct.learn(robot, config, tested, on_episode)
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
