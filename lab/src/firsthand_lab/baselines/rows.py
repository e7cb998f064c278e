"""The runs of a comparison in numbers: a row of the table for each way to control the robot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firsthand.tasks import Task

from ..experiments.base import Result
from ..experiments.fast import STEADY_FROM, WINDOW
from .ledger import CURVES, FACTS, MARKS
from .registry import PEERS, Peer

LEVELS_M = (0.10, 0.05, 0.02)
"""Errors whose robot time is looked up."""
LATELY = 5
"""Episodes at the end over which the error while learning is taken."""
MIN_TESTS = 3
"""Tests that an extrapolation needs."""
DROP = 3.0
"""After a run's tenth episode, an error of this many times the median of the ten before it is a sudden drop."""
Runs = list[tuple[Peer, list[Result]]]
"""What there is of each peer, ours first."""


def group_runs(results: list[Result]) -> Runs:
    """Results by peer: the finished ones, or those that have begun where none is finished."""
    named: dict[str, list[Result]] = {name.replace(":", "-"): [] for name in PEERS}
    for result in results:
        named[result.job.name.rpartition("-seed-")[0]].append(result)
    found = [(peer, named[name.replace(":", "-")]) for name, peer in PEERS.items()]
    return [(peer, [r for r in runs if r.finished] or runs) for peer, runs in found if runs]


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
    """Mean error of the controller in the last test on random held-out references."""
    shapes_m: float
    early: int
    """The last test before that one that is after half of the episodes or later; 0 for none."""
    early_random_m: float
    early_shapes_m: float
    learning_m: float
    """Mean error in the last episodes of training, exploration included."""
    robot_min: tuple[float, ...]
    """Minutes of robot time until an episode's error was first below each of `LEVELS_M`; NaN for never."""
    computing_s: float
    """Computing per robot hour, in seconds."""
    act_ms: float
    at_limit: float
    """Share of the last test's steps at which a joint was at a limit of its range."""
    memory_mb: float
    updates: float
    parameters: float
    drops: float
    """Sudden drops of performance per run."""
    setting: str
    versions: int
    """Of the code that its finished runs were made with."""

    def episode_of(self, early: bool) -> int:
        """The episode of the early test or of the last one; 0 for none."""
        return self.early if early else self.tested

    def random_at(self, early: bool) -> float:
        """The error on random references there; 0 for none."""
        return (self.early_random_m if early else self.random_m) if self.episode_of(early) else 0.0


def row_of(peer: Peer, found: list[Result], task: Task) -> Row:
    """Medians over the seeds of a peer, up to the last episode that all of them have behind them."""
    curves = [r.csv(CURVES) for r in found]
    episodes = int(min(c["episode"][-1] for c in curves))
    tests = [r.csv(MARKS) for r in found if (r.folder / MARKS).exists()]
    common = set.intersection(*({int(e) for e in t["episode"] if e <= episodes} for t in tests)) if tests else set()
    tested = max(common, default=0)
    early = max((e for e in common if episodes / 2 <= e < tested), default=0)
    facts = [r.json(FACTS) for r in found if (r.folder / FACTS).exists()]
    minutes = task.episode_s / 60

    def in_test(name: str, episode: int = tested) -> float:
        return _median([t[name][t["episode"] == episode][0] for t in tests]) if episode else math.nan

    def minutes_to(level: float) -> float:
        # A median over seeds of which some never get there is "never" when most do not.
        middle = float(np.median([min(_first(c, level), 1e12) for c in curves]))
        return middle * minutes if middle < 1e9 else math.nan

    def spent(curve: dict[str, np.ndarray]) -> float:
        shown = curve["episode"] <= episodes
        return float(curve["computing_s"][shown].sum() / (episodes * task.episode_s / 3600))

    return Row(
        peer=peer,
        seeds=len(found),
        episodes=episodes,
        tested=tested,
        random_m=in_test("random_m"),
        shapes_m=in_test("shapes_m"),
        early=early,
        early_random_m=in_test("random_m", early),
        early_shapes_m=in_test("shapes_m", early),
        learning_m=lately(found, episodes),
        robot_min=tuple(minutes_to(level) for level in LEVELS_M),
        computing_s=_median([spent(c) for c in curves]),
        act_ms=in_test("act_ms"),
        at_limit=in_test("at_limit"),
        memory_mb=_median([f["memory_mb"] for f in facts]),
        updates=_median([c["updates"][c["episode"] == episodes][0] for c in curves]),
        parameters=_median([f["parameters"] for f in facts]),
        drops=float(np.mean([drops(c["tracking_error"]) for c in curves])),
        setting=str(facts[0]["setting"]) if facts else "has only begun",
        versions=len({str(r.done.get("code")) for r in found if r.finished}),
    )


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _first(curve: dict[str, np.ndarray], level: float) -> float:
    below = np.flatnonzero(curve["tracking_error"] <= level)
    return float(curve["episode"][below[0]]) if below.size else math.inf


def drops(errors: np.ndarray) -> int:
    """Sudden drops of performance."""
    return sum(
        bool(errors[i] > DROP * np.median(errors[max(i - WINDOW, 0) : i])) for i in range(STEADY_FROM, len(errors))
    )


def lately(found: list[Result], episode: int) -> float:
    """The error while learning in the last episodes up to this one: median over seeds; NaN where there is none."""
    curves = [r.csv(CURVES) for r in found]
    shown = [(c["episode"] <= episode) & (c["episode"] > episode - LATELY) for c in curves]
    return _median([float(c["tracking_error"][s].mean()) for c, s in zip(curves, shown, strict=True) if s.any()])


def extrapolate(found: list[Result], target_m: float, task: Task) -> str:
    """Robot time until PPO would have our error, if its tests went on as a power law: a guess, and marked so."""
    tests = [r.csv(MARKS) for r in found if (r.folder / MARKS).exists()]
    tests = [t for t in tests if len(t["episode"]) >= MIN_TESTS]
    if not tests or not math.isfinite(target_m):
        return ""
    hours = []
    for test in tests:
        slope, level = np.polyfit(np.log(test["episode"]), np.log(test["random_m"]), 1)
        episodes = math.exp(min((math.log(target_m) - level) / slope, 700)) if slope < 0 else math.inf
        hours.append(episodes * task.episode_s / 3600)
    middle = float(np.median(hours))
    if not math.isfinite(middle) or middle > 1e9:
        return "PPO's error does not fall fast enough from test to test for an extrapolation to our error."
    return (
        f"PPO would need about {middle:.2g} robot hours for our error "
        "(its tests extrapolated as a power law; the paper: > 10 000)."
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


def as_text(rows: list[Row]) -> tuple[dict[str, list[str]], ...]:
    """What each achieved, how soon, and what it took: tables as people read them."""
    levels = "/".join(f"{100 * level:.0f}" for level in LEVELS_M)
    names = [r.peer.title for r in rows]
    early = max((r.early for r in rows), default=0)
    at = [(100 * r.early_random_m, 100 * r.early_shapes_m) if r.early == early else (math.nan, math.nan) for r in rows]
    before = {
        f"errors in cm after {early} episodes": names,
        "random": [_number(random, ".3g") for random, _ in at],
        "shapes": [_number(shapes, ".3g") for _, shapes in at],
    }
    return (
        {
            "errors in cm": names,
            "seeds": [str(r.seeds) for r in rows],
            "episodes": [str(r.episodes) for r in rows],
            "random": [_error(r.random_m, r) for r in rows],
            "shapes": [_error(r.shapes_m, r) for r in rows],
            "while learning": [_number(100 * r.learning_m, ".3g") for r in rows],
        },
        *((before,) if early else ()),
        {
            "time": names,
            f"robot minutes to {levels} cm": [" / ".join(_number(m, ".2g") for m in r.robot_min) for r in rows],
            "sudden drops per run": [f"{r.drops:.1f}" for r in rows],
        },
        {
            "cost": names,
            "computing per robot hour": [computing(r.computing_s) for r in rows],
            "ms per action": [_number(r.act_ms, ".2g") for r in rows],
            "MB": [_number(r.memory_mb) for r in rows],
            "gradient updates": [_number(r.updates) for r in rows],
        },
        {
            "what it takes": names,
            "must be told": [r.peer.told for r in rows],
            "limits": [r.peer.limits for r in rows],
            "at a limit": [_number(100 * r.at_limit, ".2g") + " %" for r in rows],
        },
    )


def where_peers_win(runs: Runs, rows: list[Row]) -> str:
    """A sentence that says in what others are better than ours; empty where in nothing."""
    ours, others = rows[0], [row for row in rows[1:] if not row.peer.own]
    found = []
    tests = {peer.name: [r.csv(MARKS) for r in results if (r.folder / MARKS).exists()] for peer, results in runs}
    for episode in sorted({int(e) for t in tests.get(ours.peer.name, []) for e in t["episode"]}):
        errors = {}
        for name, tables in tests.items():
            at = [t["random_m"][t["episode"] == episode] for t in tables]
            if at and all(len(a) for a in at):
                errors[name] = float(np.median([a[0] for a in at]))
        own = errors.get(ours.peer.name, math.inf)
        better = [row.peer for row in others if errors.get(row.peer.name, math.inf) < own]
        if better:
            best = min(better, key=lambda peer: errors[peer.name])
            found.append(
                f"after {episode} episodes {best.title} has {100 * errors[best.name]:.3g} cm and ours {100 * own:.3g}"
            )
    least = min(others, key=lambda row: row.computing_s, default=None)
    if least is not None and least.computing_s < ours.computing_s:
        found.append(
            f"{least.peer.title} takes least computing, {computing(least.computing_s)} per robot hour "
            f"(ours {computing(ours.computing_s)})"
        )
    exact = [row.peer.title for row in others if "exactly" in row.peer.limits]
    if exact:
        found.append(f"{' and '.join(exact)} keep limits on changes of command, which ours does not know")
    return f"Where a peer wins: {'; '.join(found)}." if found else ""


def as_columns(rows: list[Row]) -> dict[str, list[Any]]:
    """The table, for a CSV file."""
    return {
        "controller": [r.peer.title for r in rows],
        "seeds": [r.seeds for r in rows],
        "episodes": [r.episodes for r in rows],
        "tested_after": [r.tested for r in rows],
        "random_m": [r.random_m for r in rows],
        "shapes_m": [r.shapes_m for r in rows],
        "early": [r.early for r in rows],
        "early_random_m": [r.early_random_m for r in rows],
        "early_shapes_m": [r.early_shapes_m for r in rows],
        "learning_m": [r.learning_m for r in rows],
        **{f"robot_min_to_{100 * level:.0f}_cm": [r.robot_min[i] for r in rows] for i, level in enumerate(LEVELS_M)},
        "computing_s_per_robot_hour": [r.computing_s for r in rows],
        "act_ms": [r.act_ms for r in rows],
        "at_limit": [r.at_limit for r in rows],
        "memory_mb": [r.memory_mb for r in rows],
        "updates": [r.updates for r in rows],
        "parameters": [r.parameters for r in rows],
        "drops": [r.drops for r in rows],
    }


def curve_columns(runs: Runs) -> dict[str, list[Any]]:
    """Every episode of every run, for a CSV file."""
    return _together(runs, CURVES, ("episode", "tracking_error", "computing_s", "updates"))


def test_columns(runs: Runs) -> dict[str, list[Any]]:
    """Every test of every run, for a CSV file."""
    return _together(
        runs, MARKS, ("episode", "random_m", "shapes_m", "random_max_m", "shapes_max_m", "act_ms", "at_limit")
    )


def run_columns(runs: Runs) -> dict[str, list[Any]]:
    """Where every run comes from, for a CSV file."""
    found = [(peer, result) for peer, results in runs for result in results]
    done = [result.done if result.finished else {} for _, result in found]
    return {
        "controller": [peer.title for peer, _ in found],
        "seed": [result.job.parameters["seed"] for _, result in found],
        "finished": [int(result.finished) for _, result in found],
        **{name: [d.get(name, "") for d in done] for name in ("commit", "code", "cores", "core_seconds")},
    }


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
