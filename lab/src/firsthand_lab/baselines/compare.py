"""Ours and the peers on the same robot, references, control rate and metrics: curves, paths and one table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.errors import UserError
from firsthand.report.data import PathAxes, PathPanel
from firsthand.report.figures import path_grid
from firsthand.report.style import PALETTE, log_scale, styled
from firsthand.robots.user_file import absolute_name, robot_file, short_name
from firsthand.tasks import Task

from ..experiments.base import MAX_SEEDS, Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from ..experiments.finding_files import write_finding
from ..experiments.study import Study
from ..experiments.theory.curves import log_across
from .ledger import CURVES, PATHS
from .registry import OURS, PEERS, Peer
from .rows import (
    DROP,
    LATELY,
    Row,
    Runs,
    as_columns,
    as_text,
    curve_columns,
    extrapolate,
    group_runs,
    lately,
    row_of,
    run_columns,
    test_columns,
    where_peers_win,
)

TESTED = (5, 10, 24, 40, 80, 160)
"""Episodes after which controllers are tested; 24 of the excavator's are 20 minutes of robot time."""
EARLY = 24
GOAL_EARLY, GOAL, GOAL_COMPUTING = 2.0, 3.0, 50.0
"""Goals: how many times our error the best peer has after `EARLY` episodes and at the end, and how many times our
computing the large ones need."""


class PeerComparison(Experiment):
    """A comparison as an experiment: resumable jobs, then a conclusion."""

    shows = "ours and its peers after equal robot time"
    figure = "ours"
    cost = Cost(full_min=0, quick_s=0)
    seeds = Seeds(full=3, quick=1, tiny=1)
    grows = True

    def __init__(self, robot: str, task: Task, peers: Sequence[Peer], episodes: int) -> None:
        self.robot, self.task, self.peers, self.episodes = absolute_name(robot), task, tuple(peers), episodes
        self.name = f"compare-{short_name(robot)}"  # pyright: ignore
        file = robot_file(robot)
        # A file that has changed is another robot.
        self.file: dict[str, Any] = {} if file is None else {"robot_sha256": file.sha256}

    def jobs(self, size: Size) -> list[Job]:
        """One per peer and seed."""
        return [self.job(peer, seed, size) for peer in self.peers for seed in range(min(size.seeds, peer.max_seeds))]

    def job(self, peer: Peer, seed: int, size: Size) -> Job:
        """The run of one peer with one seed."""
        parameters: dict[str, Any] = {
            "robot": self.robot,
            "seed": seed,
            "episodes": self.episodes,
            "marks": marks(self.episodes, few=peer.few_tests),
            "setting": "tiny" if size.name == "tiny" else peer.setting,
            **dict(peer.extra),
            **self.file,
        }
        name = f"{peer.name.replace(':', '-')}-seed-{seed}"
        weight = peer.seconds * self.task.trajectories * self.task.steps / 1250
        return Job(name, peer.runner, parameters, steps=self.episodes, weight=weight)

    def command(self, size: Size) -> str:
        """The command that gives this finding."""
        return self._command(self.peers, size.seeds, size)

    def _command(self, peers: Sequence[Peer], seeds: int, size: Size) -> str:
        names = ",".join(peer.name for peer in peers if peer.name != OURS)
        tiny = " --tiny" if size.name == "tiny" else ""
        return f"firsthand compare {self.robot} --peers {names} --episodes {self.episodes} --seeds {seeds}{tiny}"

    def _commands(self, rows: list[Row], size: Size) -> str:
        """One command for all that have as many seeds."""
        seeds = sorted({row.seeds for row in rows if row.peer.name != OURS}, reverse=True)
        groups = [(count, [row.peer for row in rows if row.seeds == count]) for count in seeds]
        return "; ".join(self._command(peers, count, size) for count, peers in groups)

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Curves, paths, table."""
        runs = group_runs(results)
        rows = [row_of(peer, found, self.task) for peer, found in runs]
        comparisons = self._goals(rows, runs, size)
        return Finding(
            Verdict.overall(comparisons),
            self._text(rows, runs),
            tuple(comparisons),
            figures={"curves": curves_figure(runs, self.task), **self._paths(runs)},
            tables={
                "table": as_columns(rows),
                "curves": curve_columns(runs),
                "tests": test_columns(runs),
                "runs": run_columns(runs),
            },
            summary=as_text(rows),
            command=self._commands(rows, size),
        )

    def _goals(self, rows: list[Row], runs: Runs, size: Size) -> list[Comparison]:
        ours, others = rows[0], rows[1:]
        known = [row for row in others if row.tested == ours.tested > 0]
        goals = []
        for early, goal in ((True, GOAL_EARLY), (False, GOAL)):
            rivals = [r for r in others if not r.peer.own and r.random_at(early) and ours.random_at(early)]
            rivals = [r for r in rivals if r.episode_of(early) == ours.episode_of(early)]
            if rivals:
                best = min(rivals, key=lambda r: r.random_at(early))
                factor = best.random_at(early) / ours.random_at(early)
                goals.append(
                    Comparison(
                        f"error of the best peer ({best.peer.title}) over ours, random references, after "
                        f"{ours.episode_of(early)} episodes",
                        f"× {factor:.1f}",
                        f"≥ {goal:g} (goal)",
                        Verdict.of(factor >= goal, size),
                    )
                )
        for row in known:
            what = f"error of {row.peer.title} over ours, random references"
            goals.append(Comparison(what, f"× {row.random_m / ours.random_m:.1f}", "–"))
        for row in others:
            own = lately(runs[0][1], row.episodes)
            if math.isfinite(own):
                short = f", {row.episodes} of {self.episodes} episodes" if row.episodes < self.episodes else ""
                what = f"error of {row.peer.title} over ours while learning{short}"
                factor = row.learning_m / own
                goals.append(Comparison(what, f"× {factor:.1f} ({100 * row.learning_m:.3g} cm)", row.peer.paper))
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

    def _text(self, rows: list[Row], runs: Runs) -> str:
        minutes = self.episodes * self.task.episode_s / 60
        parts = [
            where_peers_win(runs, rows),
            f"Every controller had {minutes:.0f} minutes of robot time ({self.episodes} episodes, where the table does "
            f"not say fewer) on {self.robot}, with the same observations, control rate and cost, and goals from the "
            "same random numbers; a reference begins where its controller has left the machine. Errors are of the "
            "controller at the end, without exploration (but DreamerV3 draws its actions, as in its authors' own "
            "evaluations), on held-out references; numbers are medians over seeds. Robot minutes are "
            "until an episode's own error, exploration included, was first below. "
            "Computing is the processor time of acting and learning, compiling included where nothing was cached. "
            f"Error while learning is that of the last {LATELY} episodes of training, exploration included. The "
            "paper's factors are of that kind, after 400 episodes, over its own algorithm. Paths are those of the seed "
            "in the middle. Drops, the mean over seeds, are episodes after a run's tenth with more than "
            f"{DROP:g} times the median error of the ten before. Ours and its imagined variant know the cost and the "
            "kinematics as functions, that positions are integrals of velocities, and how commands are remembered, and "
            "imagine motions from rest, as the tests begin; late in a run they steepen the joint-limit term of the "
            "cost. The table says what each of the others is told.",
            *(extrapolate(found, rows[0].random_m, self.task) for peer, found in runs if peer.name == "ppo"),
            *(f"{row.peer.title}: {row.setting}." for row in rows),
            *(
                f"The runs of {row.peer.title} are by {row.versions} versions of the code."
                for row in rows
                if row.versions > 1
            ),
        ]
        return " ".join(part for part in parts if part)

    def _paths(self, runs: Runs) -> dict[str, Figure]:
        """Figure 4's form; nothing before the first test."""
        panels = []
        for peer, found in runs:
            drawn = [_panel(peer, r) for r in found if (r.folder / PATHS).exists()]
            if drawn:
                panels.append(sorted(drawn, key=lambda panel: panel.error_m)[(len(drawn) - 1) // 2])
        width = 4
        grid = [panels[i : i + width] for i in range(0, len(panels), width)]
        return {"paths": path_grid(grid, PathAxes.of(self.task.spec), limits_of="all")} if grid else {}


class PeerStudy(Study):
    """A comparison's folder. Its finding is of all that is in it: of peers that other commands ran, too, and of runs
    that are not finished where a peer has no finished one."""

    def __init__(self, path: Path, comparison: PeerComparison, size: Size) -> None:
        super().__init__(path, comparison, size)
        self.comparison = comparison

    def conclude(self) -> Finding:
        """Draw the conclusion of all there is, and write it down."""
        results = self.results()
        if not any(result.job.name.startswith(f"{OURS}-seed-") for result in results):
            raise UserError(
                f"{self.path} has no episode of ours in a comparison of {self.comparison.episodes} episodes to compare "
                "with; run the same command without --so-far, or give the --episodes that it was run with."
            )
        size = Size(self.size.name, 1 + max(result.job.parameters["seed"] for result in results))
        finding = self.comparison.conclude(size, results)
        write_finding(self.path, self.comparison, size, results, finding)
        return finding

    def results(self) -> list[Result]:
        """Every run of this robot, length and size."""
        jobs = [self.comparison.job(peer, seed, self.size) for peer in PEERS.values() for seed in range(MAX_SEEDS)]
        return [Result(job, self.folder(job)) for job in jobs if (self.folder(job) / CURVES).exists()]


def marks(episodes: int, *, few: bool) -> list[int]:
    """Episodes after which a controller is tested."""
    if few:
        return sorted({EARLY if episodes > EARLY else max(episodes // 2, 1), episodes})
    return sorted({m for m in TESTED if m < episodes} | {episodes})


def _panel(peer: Peer, result: Result) -> PathPanel:
    """The shapes as a run drew them in its last test."""
    arrays = result.arrays(PATHS)
    names = sorted({name.rpartition(".")[0] for name in arrays})
    pairs = tuple((arrays[f"{n}.reference"], arrays[f"{n}.path"]) for n in names)
    errors = np.concatenate([np.linalg.norm(path - reference, axis=1) for reference, path in pairs])
    return PathPanel(peer.title, pairs, float(np.mean(errors)))


@styled
def curves_figure(runs: Runs, task: Task) -> Figure:
    """Figure 3's form: error over robot time on log axes, the mean of the seeds' logarithms, and every seed thinly."""
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    shown: list[np.ndarray | float] = []
    for i, (peer, found) in enumerate(runs):
        wrapped = i >= len(PALETTE)  # then the colours begin anew, but for ours, and lines are dashed
        color = PALETTE[1 + (i - 1) % (len(PALETTE) - 1)] if i else PALETTE[0]
        curves = [r.csv(CURVES) for r in found]
        for curve in curves:
            errors = 100 * curve["tracking_error"]
            axes.plot(curve["episode"] * task.episode_s / 60, errors, color=color, alpha=0.25, linewidth=0.9)
            shown.append(errors)
        common = sorted(set.intersection(*({*c["episode"]} for c in curves)))
        logs = [np.log(c["tracking_error"][np.isin(c["episode"], common)]) for c in curves]
        mean = np.exp(np.mean(logs, axis=0))
        axes.plot(
            np.asarray(common) * task.episode_s / 60,
            100 * mean,
            color=color,
            linewidth=2.4 if peer.name == OURS else 1.6,
            linestyle="--" if wrapped else "-",
            label=peer.title,
        )
    log_scale(axes, shown)
    log_across(axes)
    axes.set_xlabel("robot time (min)")
    axes.set_ylabel("mean error while learning (cm)")
    axes.legend(fontsize=8, ncols=2)
    return figure
