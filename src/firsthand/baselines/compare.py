"""Ours and the peers on the same robot, references, control rate and metrics: curves, paths and one table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..errors import UserError
from ..experiments.base import MOST_SEEDS, Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from ..experiments.fast import STEADY_FROM, WINDOW
from ..experiments.study import Study
from ..experiments.theory.curves import log_across
from ..report.data import PathAxes, PathPanel
from ..report.figures import path_grid
from ..report.style import PALETTE, log_scale, styled
from ..tasks import Task
from .ledger import CURVES, FACTS, MARKS, PATHS
from .registry import OURS, PEERS, Peer

LEVELS_M = (0.10, 0.05, 0.02)
"""Errors whose robot time is looked up."""
GOAL, GOAL_COMPUTING = 5.0, 50.0
"""The best peer shall have so many times our error, and the large ones so many times our computing."""
LATELY = 3
"""Episodes over which the error of an unfinished run is taken."""
DROP = 3.0
"""An episode after the tenth with so many times the median error of the ten before it is a sudden drop."""


@dataclass(frozen=True)
class Row:
    """One way to control the robot: medians over seeds."""

    peer: Peer
    seeds: int
    episodes: int
    """Those behind it, fewer than asked for in a run that is not finished."""
    tested: int
    """The episode of the last test; 0 for none."""
    random_m: float
    """Mean error of the controller in the last test on random references that nobody trains on."""
    shapes_m: float
    robot_min: tuple[float, ...]
    """Minutes of robot time until an episode's error was first below each of `LEVELS_M`; NaN for never."""
    computing_s: float
    """Computing per robot hour, in seconds."""
    act_ms: float
    memory_mb: float
    updates: float
    parameters: float
    drops: float
    """Sudden drops of performance per run."""
    setting: str


class PeerComparison(Experiment):
    """A comparison as an experiment: resumable jobs, then a conclusion."""

    shows = "ours and its peers after equal robot time"
    figure = "ours"
    cost = Cost(full_min=0, quick_s=0)
    seeds = Seeds(full=3, quick=1, tiny=1)
    grows = True

    def __init__(self, robot: str, task: Task, peers: Sequence[Peer], episodes: int) -> None:
        self.robot, self.task, self.peers, self.episodes = robot, task, tuple(peers), episodes
        self.name = f"compare-{robot.rpartition('/')[2]}"  # pyright: ignore

    def jobs(self, size: Size) -> list[Job]:
        """One per peer and seed."""
        return [self.job(peer, seed, size) for peer in self.peers for seed in range(min(size.seeds, peer.most_seeds))]

    def job(self, peer: Peer, seed: int, size: Size) -> Job:
        """The run of one peer with one seed."""
        parameters: dict[str, Any] = {
            "robot": self.robot,
            "seed": seed,
            "episodes": self.episodes,
            "marks": marks(self.episodes, few=peer.few_tests),
            "setting": "tiny" if size.name == "tiny" else peer.setting,
            **dict(peer.extra),
        }
        name = f"{peer.name.replace(':', '-')}-seed-{seed}"
        weight = peer.seconds * self.task.trajectories * self.task.steps / 1250
        return Job(name, peer.runner, parameters, steps=self.episodes, weight=weight)

    def command(self, size: Size) -> str:
        """What to type to get this finding."""
        return self._command(self.peers, size.seeds, size)

    def _command(self, peers: Sequence[Peer], seeds: int, size: Size) -> str:
        names = ",".join(peer.name for peer in peers if peer.name != OURS)
        tiny = " --tiny" if size.name == "tiny" else ""
        return f"firsthand compare {self.robot} --peers {names} --episodes {self.episodes} --seeds {seeds}{tiny}"

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Curves, paths, table."""
        runs = grouped(results)
        if not runs or runs[0][0].name != OURS:
            raise UserError("there is no episode of ours to compare with yet; run the same command without --so-far.")
        rows = [row_of(peer, found, self.task) for peer, found in runs]
        comparisons = self._goals(rows, runs, size)
        verdicts = [c.verdict for c in comparisons if c.verdict is not None]
        verdict = next((v for v in (Verdict.FAIL, Verdict.NOT_COMPARABLE) if v in verdicts), Verdict.PASS)
        return Finding(
            verdict if verdicts else Verdict.NOT_COMPARABLE,
            self._text(rows, runs),
            tuple(comparisons),
            figures={"curves": curves_figure(runs, self.task), "paths": self._paths(runs)},
            tables={"table": as_columns(rows), "curves": curve_columns(runs), "tests": test_columns(runs)},
            summary=as_text(rows),
            command=self._command([peer for peer, _ in runs], max(row.seeds for row in rows), size),
        )

    def _goals(self, rows: list[Row], runs: "Runs", size: Size) -> list[Comparison]:
        ours, others = rows[0], rows[1:]
        goals = []
        known = [row for row in others if row.tested == ours.tested]
        for what, among, paper, goal in (
            ("peer", known, f"≥ {GOAL:g} (goal)", GOAL),
            ("published learner", [r for r in known if r.peer.published], "TD-MPC2 × 3, DreamerV3 × 2", None),
        ):
            if among:
                best = min(among, key=lambda r: r.random_m)
                factor = best.random_m / ours.random_m
                goals.append(
                    Comparison(
                        f"error of the best {what} ({best.peer.title}) over ours, random references",
                        f"× {factor:.1f}",
                        paper,
                        None if goal is None else Verdict.of(factor >= goal, size),
                    )
                )
        for row, (_, found) in zip(others, runs[1:], strict=True):
            if row.episodes < self.episodes:
                theirs, own = lately(found, row.episodes), lately(runs[0][1], row.episodes)
                goals.append(
                    Comparison(
                        f"{row.peer.title}, {row.episodes} of {self.episodes} episodes: error while learning over ours",
                        f"× {theirs / own:.1f} ({100 * theirs:.3g} cm)",
                        "–",
                    )
                )
            if row.peer.setting == "default":
                factor = row.computing_s / ours.computing_s
                goals.append(
                    Comparison(
                        f"computing of {row.peer.title} over ours",
                        f"× {factor:.0f}",
                        f"≥ {GOAL_COMPUTING:g} (goal)",
                        Verdict.of(factor >= GOAL_COMPUTING, size),
                    )
                )
        return goals

    def _text(self, rows: list[Row], runs: "Runs") -> str:
        minutes = self.episodes * self.task.episode_s / 60
        parts = [
            f"Every controller had {minutes:.0f} minutes of robot time ({self.episodes} episodes, where the table does "
            f"not say fewer) on {self.robot}, "
            "with the same goals, control rate, observations and cost. Errors are of the controller at the end, "
            "without exploration, on references that nobody trains on; numbers are medians over seeds. Robot minutes "
            "are until an episode's own error, exploration included, was first below. Computing is acting and "
            "learning, compiling included. Drops are episodes after the tenth with more than "
            f"{DROP:g} times the median error of the ten before."
        ]
        for peer, found in runs:
            if peer.name == "ppo":
                parts.append(extrapolated(found, rows[0].random_m, self.task))
        parts += [f"{row.peer.title}: {row.setting}." for row in rows]
        return " ".join(parts)

    def _paths(self, runs: "Runs") -> Figure:
        panels = []
        for peer, found in runs:
            drawn = [r for r in found if (r.folder / PATHS).exists()]
            if not drawn:
                continue
            arrays = drawn[0].arrays(PATHS)
            names = sorted({name.rpartition(".")[0] for name in arrays})
            pairs = tuple((arrays[f"{n}.reference"], arrays[f"{n}.path"]) for n in names)
            errors = np.concatenate([np.linalg.norm(path - reference, axis=1) for reference, path in pairs])
            panels.append(PathPanel(peer.title, pairs, float(np.mean(errors))))
        width = 4
        grid = [panels[i : i + width] for i in range(0, len(panels), width)]
        return path_grid(grid, PathAxes.of(self.task.spec))


class PeerStudy(Study):
    """A comparison's folder. Its finding is of all that is in it: of peers that other commands ran, too, and of runs
    that are not finished where a peer has no finished one."""

    def __init__(self, path: Path, comparison: PeerComparison, size: Size) -> None:
        super().__init__(path, comparison, size)
        self.comparison = comparison

    def results(self) -> list[Result]:
        """Every run of this robot, length and size."""
        jobs = [self.comparison.job(peer, seed, self.size) for peer in PEERS.values() for seed in range(MOST_SEEDS)]
        return [Result(job, self.folder(job)) for job in jobs if (self.folder(job) / CURVES).exists()]


Runs = list[tuple[Peer, list[Result]]]
"""What there is of each peer, ours first."""


def grouped(results: list[Result]) -> Runs:
    """Results by peer: the finished ones, or those that have begun where none is finished."""
    named: dict[str, list[Result]] = {name.replace(":", "-"): [] for name in PEERS}
    for result in results:
        named[result.job.name.rpartition("-seed-")[0]].append(result)
    found = [(peer, named[name.replace(":", "-")]) for name, peer in PEERS.items()]
    return [(peer, [r for r in runs if r.finished] or runs) for peer, runs in found if runs]


def lately(found: list[Result], episode: int) -> float:
    """The error while learning in the last episodes up to this one: median over seeds."""
    curves = [r.csv(CURVES) for r in found]
    shown = [(c["episode"] <= episode) & (c["episode"] > episode - LATELY) for c in curves]
    return float(np.median([c["tracking_error_m"][s].mean() for c, s in zip(curves, shown, strict=True)]))


def marks(episodes: int, *, few: bool) -> list[int]:
    """Episodes after which a controller is tested."""
    if few:
        return sorted({max(episodes // 2, 1), episodes})
    return sorted({m for m in (5, 10, 20, 40, 80, 160) if m < episodes} | {episodes})


def row_of(peer: Peer, found: list[Result], task: Task) -> Row:
    """Medians over the seeds of a peer."""
    curves = [r.csv(CURVES) for r in found]
    tests = [r.csv(MARKS) if (r.folder / MARKS).exists() else {name: [math.nan] for name in TESTED} for r in found]
    unknown = {"memory_mb": math.nan, "parameters": math.nan, "setting": "has only begun"}
    facts = [r.json(FACTS) if (r.folder / FACTS).exists() else unknown for r in found]
    minutes = task.episode_s / 60

    def reached(level: float) -> float:
        firsts = [_first(c, level) * minutes for c in curves]
        # A median over seeds of which some never get there is "never" when most do not.
        return float(np.median([f if math.isfinite(f) else 1e12 for f in firsts]))

    times = tuple(t if t < 1e9 else math.nan for t in (reached(level) for level in LEVELS_M))
    hours = [c["episode"][-1] * task.episode_s / 3600 for c in curves]
    tested = min(float(t["episode"][-1]) for t in tests)
    return Row(
        peer=peer,
        seeds=len(found),
        episodes=int(min(c["episode"][-1] for c in curves)),
        tested=int(tested) if math.isfinite(tested) else 0,
        random_m=float(np.median([t["random_m"][-1] for t in tests])),
        shapes_m=float(np.median([t["shapes_m"][-1] for t in tests])),
        robot_min=times,
        computing_s=float(np.median([c["computing_s"].sum() / h for c, h in zip(curves, hours, strict=True)])),
        act_ms=float(np.median([t["act_ms"][-1] for t in tests])),
        memory_mb=float(np.median([f["memory_mb"] for f in facts])),
        updates=float(np.median([c["updates"][-1] for c in curves])),
        parameters=float(np.median([f["parameters"] for f in facts])),
        drops=float(np.mean([drops(c["tracking_error_m"]) for c in curves])),
        setting=str(facts[0]["setting"]),
    )


TESTED = ("episode", "random_m", "shapes_m", "act_ms")
"""What a row takes from the tests."""


def _first(curve: dict[str, np.ndarray], level: float) -> float:
    below = np.flatnonzero(curve["tracking_error_m"] <= level)
    return float(curve["episode"][below[0]]) if below.size else math.inf


def drops(errors: np.ndarray) -> int:
    """Sudden drops of performance."""
    return sum(
        bool(errors[i] > DROP * np.median(errors[max(i - WINDOW, 0) : i])) for i in range(STEADY_FROM, len(errors))
    )


def extrapolated(found: list[Result], target_m: float, task: Task) -> str:
    """Robot time until PPO would have our error, if its curve went on as a power law: a guess, and marked so."""
    hours = []
    for result in found:
        curve = result.csv(CURVES)
        half = len(curve["episode"]) // 2
        slope, level = np.polyfit(np.log(curve["episode"][half:]), np.log(curve["tracking_error_m"][half:]), 1)
        episodes = math.exp(min((math.log(target_m) - level) / slope, 700)) if slope < 0 else math.inf
        hours.append(episodes * task.episode_s / 3600)
    middle = float(np.median(hours))
    if not math.isfinite(middle) or middle > 1e9:
        return (
            "PPO's error does not fall fast enough over the second half of its run for an extrapolation to our error."
        )
    return (
        f"PPO would need about {middle:.2g} robot hours for our error "
        "(extrapolated as a power law; the paper: > 10 000)."
    )


def _number(value: float, form: str = ".0f") -> str:
    return f"{value:{form}}" if math.isfinite(value) else "–"


def _error(value_m: float, row: Row) -> str:
    """In centimetres, with the episode of the test where it is not the last one."""
    shown = _number(100 * value_m, ".3g")
    return shown if row.tested in (0, row.episodes) else f"{shown} (at {row.tested})"


def computing(seconds: float) -> str:
    """Computing per robot hour, for people."""
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.0f} min"
        if seconds >= 90
        else f"{seconds:.0f} s"
    )


def as_text(rows: list[Row]) -> dict[str, list[str]]:
    """The table as people read it."""
    levels = "/".join(f"{100 * level:.0f}" for level in LEVELS_M)
    return {
        "": [r.peer.title for r in rows],
        "seeds": [str(r.seeds) for r in rows],
        "episodes": [str(r.episodes) for r in rows],
        "random cm": [_error(r.random_m, r) for r in rows],
        "shapes cm": [_error(r.shapes_m, r) for r in rows],
        f"min to {levels} cm": ["/".join(_number(m) for m in r.robot_min) for r in rows],
        "computing/h": [computing(r.computing_s) for r in rows],
        "ms/act": [_number(r.act_ms, ".2g") for r in rows],
        "MB": [_number(r.memory_mb) for r in rows],
        "updates": [f"{r.updates:.0f}" for r in rows],
        "drops": [f"{r.drops:.1f}" for r in rows],
    }


def as_columns(rows: list[Row]) -> dict[str, list[Any]]:
    """The table, for a CSV file."""
    return {
        "controller": [r.peer.title for r in rows],
        "seeds": [r.seeds for r in rows],
        "episodes": [r.episodes for r in rows],
        "tested_after": [r.tested for r in rows],
        "random_m": [r.random_m for r in rows],
        "shapes_m": [r.shapes_m for r in rows],
        **{f"robot_min_to_{100 * level:.0f}_cm": [r.robot_min[i] for r in rows] for i, level in enumerate(LEVELS_M)},
        "computing_s_per_robot_hour": [r.computing_s for r in rows],
        "act_ms": [r.act_ms for r in rows],
        "memory_mb": [r.memory_mb for r in rows],
        "updates": [r.updates for r in rows],
        "parameters": [r.parameters for r in rows],
        "drops": [r.drops for r in rows],
    }


def curve_columns(runs: Runs) -> dict[str, list[Any]]:
    """Every episode of every run, for a CSV file."""
    return _together(runs, CURVES, ("episode", "tracking_error_m", "computing_s", "updates"))


def test_columns(runs: Runs) -> dict[str, list[Any]]:
    """Every test of every run, for a CSV file."""
    return _together(runs, MARKS, ("episode", "random_m", "shapes_m", "random_max_m", "shapes_max_m", "act_ms"))


def _together(runs: Runs, file: str, columns: Sequence[str]) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {name: [] for name in ("controller", "seed", *columns)}
    for peer, found in runs:
        for result in found:
            if not (result.folder / file).exists():
                continue
            part = result.csv(file)
            table["controller"] += [peer.title] * len(part["episode"])
            table["seed"] += [result.job.parameters["seed"]] * len(part["episode"])
            for name in columns:
                table[name] += list(part[name])
    return table


@styled
def curves_figure(runs: Runs, task: Task) -> Figure:
    """Figure 3's form: error over robot time on log axes, the mean of the seeds' logarithms, and every seed thinly."""
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    shown: list[np.ndarray | float] = []
    for i, (peer, found) in enumerate(runs):
        color = PALETTE[i % len(PALETTE)]
        curves = [r.csv(CURVES) for r in found]
        for curve in curves:
            errors = 100 * curve["tracking_error_m"]
            axes.plot(curve["episode"] * task.episode_s / 60, errors, color=color, alpha=0.25, linewidth=0.9)
            shown.append(errors)
        length = min(len(c["episode"]) for c in curves)
        mean = np.exp(np.mean([np.log(c["tracking_error_m"][:length]) for c in curves], axis=0))
        axes.plot(
            curves[0]["episode"][:length] * task.episode_s / 60,
            100 * mean,
            color=color,
            linewidth=2.4 if peer.name == OURS else 1.6,
            linestyle="-" if i < len(PALETTE) else "--",
            label=peer.title,
        )
    log_scale(axes, shown)
    log_across(axes)
    axes.set_xlabel("robot time (min)")
    axes.set_ylabel("mean error while learning (cm)")
    axes.legend(fontsize=8, ncols=2)
    return figure
