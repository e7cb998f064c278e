"""`fast`: how much robot time the fast preset needs, beside the paper preset and the oracle, and how steady it is.

Every job is a training run as a user has it, kept policy included. At the marks the newest and the kept policy are
run on references that training never sees: fresh random ones, the same for every policy, and the evaluation shapes.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.errors import UserError
from firsthand.report.style import PALETTE, log_scale, styled

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict
from .baseline import TINY_SETTINGS, TINY_TASK
from .theory.curves import log_across

RUNNER = f"{__name__}:run"
SWITCHES = ((1, 0.0), (14, 600.0), (20, 0.0), (26, 900.0))
"""(episode, kg) of the run with payload changes."""
SPIKE_SHARE, SPIKE_SIGMA = 0.01, 10.0
"""One sample in a hundred has a value that is off by ten times what the channel usually changes by in a step."""
STUCK_EPISODE, STUCK_CHANNEL = 6, 1
"""In this episode the dipper's angle does not change."""
HELD_OUT = 5
"""Episodes of fresh random references per test."""
STEADY_FROM, WINDOW = 10, 10
"""Jumps count after the first, an episode, against the median of the episodes before: the second is how many."""


@dataclass(frozen=True)
class Condition:
    """One set-up of the experiment."""

    name: str
    robot: str = "excavator"
    preset: str = "fast"
    episodes: tuple[int, int, int] = (25, 6, 2)
    """Full, quick, tiny."""
    longer: tuple[int, int] = (0, 0)
    """In the full size, how many of the first seeds run longer, and for how many episodes."""
    marks: tuple[int, ...] = (8, 25)
    payloads: tuple[tuple[int, float], ...] = ()
    faulty: bool = False
    seeds: int = 5
    """Seeds, at most."""
    weight: float = 4.0
    """Core-seconds per episode."""


CONDITIONS = (
    Condition("fast", episodes=(25, 8, 2), longer=(3, 60), marks=(4, 8, 10, 15, 25, 40, 60)),
    Condition("paper", preset="paper", episodes=(200, 30, 2), marks=(50, 100, 200), seeds=3, weight=0.6),
    Condition("payloads", episodes=(31, 4, 2), marks=(), payloads=SWITCHES, seeds=3),
    Condition("pressure", robot="excavator-pressure", episodes=(12, 4, 2), marks=(8, 12), seeds=3, weight=5.0),
    Condition("soft-arm", robot="soft-arm", episodes=(5, 3, 2), marks=(3, 5), weight=5.0),
    Condition("faulty", episodes=(25, 6, 2), marks=(8, 25), faulty=True, seeds=3),
)


QUICK = ("fast", "paper")
"""Conditions of the quick size."""


class Fast(Experiment):
    """The figures of the fast preset."""

    name = "fast"
    shows = "the paper's accuracy in a tenth of the robot time, and how steady it is"
    figure = "ours"
    cost = Cost(full_min=45, quick_s=60)
    seeds = Seeds(full=5, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One per condition and seed."""
        jobs = []
        for condition in CONDITIONS:
            if size.name == "quick" and condition.name not in QUICK:
                continue
            full, quick, tiny = condition.episodes
            for seed in range(min(size.seeds, condition.seeds)):
                if size.name == "full" and seed < condition.longer[0]:
                    episodes = condition.longer[1]
                else:
                    episodes = size.pick(full=full, quick=quick, tiny=tiny)
                marks = sorted({m for m in condition.marks if m < episodes} | {episodes})
                parameters: dict[str, Any] = {
                    "robot": condition.robot,
                    "preset": condition.preset,
                    "seed": seed,
                    "episodes": episodes,
                    "marks": marks,
                    "payloads": [list(change) for change in condition.payloads],
                    "faulty": condition.faulty,
                    "settings": size.pick(full={}, quick={}, tiny=TINY_SETTINGS),
                    "task": size.pick(full={}, quick={}, tiny=TINY_TASK),
                }
                name = f"{condition.name}-seed-{seed}"
                jobs.append(Job(name, RUNNER, parameters, steps=episodes, weight=condition.weight))
        return jobs

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Every figure beside what it is measured against."""
        runs = {
            condition.name: [r for r in results if r.job.name.startswith(f"{condition.name}-seed-")]
            for condition in CONDITIONS
        }
        oracle = shipped_oracle()
        rows, numbers = judge_runs(runs, oracle, size)
        verdicts = [row.verdict for row in rows if row.verdict is not None]
        met = sum(v is Verdict.PASS for v in verdicts)
        text = (
            "Training runs of the fast preset from random weights, beside the paper preset, on the simulated robots. "
            "Errors are on references that training never sees; a figure is the median over seeds. The kept policy is "
            "the one that the run itself keeps as its best. "
            + (
                f"{met} of {len(verdicts)} figures are met."
                if size.name == "full"
                else "This form is too small to judge."
            )
        )
        return Finding(
            Verdict.overall(rows),
            text,
            tuple(rows),
            figures={"fast": curves_figure(runs, oracle)},
            tables={"fast": long_table(runs)},
            numbers=numbers,
        )


def shipped_oracle() -> tuple[float, float] | None:
    """Error of the excavator's oracle on random references and on the shapes, if it is known."""
    from firsthand.cache import cache_folder
    from firsthand.evaluation.oracle import cached_oracle
    from firsthand.plants.excavator import ExcavatorFlow
    from firsthand.tasks import excavator_task

    result = cached_oracle(ExcavatorFlow(), excavator_task(), cache_folder() / "oracles")
    return None if result is None else (result.random_error, result.shapes_error)


def at_mark(runs: list[Result], mark: int, column: str) -> np.ndarray:
    """A column of marks.csv at a mark, one entry per seed that got there; in small sizes at the end of the run."""
    values = []
    longest = length(runs)
    for result in runs:
        episodes = result.job.parameters["episodes"]
        if episodes < min(mark, longest):
            continue
        table, at = result.csv("marks.csv"), min(mark, episodes)
        rows = np.flatnonzero(table["episode"] == at)
        if not rows.size:
            raise UserError(
                f"{result.folder} has no test after episode {at}; remove the folder, and the job runs again."
            )
        values.append(float(table[column][rows[0]]))
    return np.asarray(values)


def length(runs: list[Result]) -> int:
    """Episodes of the longest run."""
    return max(result.job.parameters["episodes"] for result in runs)


def errors_of(result: Result) -> np.ndarray:
    """The error of every episode."""
    return result.csv("curves.csv")["tracking_error"]


def largest_jump(errors: np.ndarray) -> float:
    """The largest error after the tenth episode, over the median of the episodes before it."""
    jumps = [errors[i] / np.median(errors[max(i - WINDOW, 0) : i]) for i in range(STEADY_FROM, len(errors))]
    return float(max(jumps, default=np.nan))


def recoveries(result: Result) -> list[tuple[float, float]]:
    """Per payload switch after the first: factor of the first episode, and episodes until within 1.25 of before."""
    errors, found = errors_of(result), []
    switches = [int(episode) for episode, _ in result.job.parameters["payloads"]]
    for at, following in zip(switches[1:], [*switches[2:], len(errors) + 1], strict=True):
        if at > len(errors):
            continue
        before = float(np.median(errors[max(at - 6, 0) : at - 1]))
        good = np.flatnonzero(errors[at - 1 : following - 1] <= 1.25 * before)
        found.append((float(errors[at - 1] / before), float(good[0]) if good.size else np.inf))
    return found


def judge_runs(
    runs: dict[str, list[Result]], oracle: tuple[float, float] | None, size: Size
) -> tuple[list[Comparison], dict[str, Any]]:
    """The rows of the finding, and its numbers."""
    rows: list[Comparison] = []
    numbers: dict[str, Any] = {}

    def add(what: str, value: float, limit: float, unit: str = "", scale: float = 1.0) -> None:
        numbers[what] = value
        # The figures are about runs of full length; a small form shows only what it got to.
        verdict = Verdict.of_full(value <= limit, size)
        rows.append(Comparison(what, f"{scale * value:.2f}{unit}", f"≤ {scale * limit:.2f}{unit}", verdict))

    def centimetres(what: str, value: float, limit: float) -> None:
        add(what, value, limit, " cm", 100.0)

    fast, paper = runs["fast"], runs["paper"]
    for kind, label in (("random", "random references"), ("shapes", "shapes")):
        target = float(np.median(at_mark(paper, 200, f"newest_{kind}_m")))
        reached = float(np.median(at_mark(fast, 8, f"newest_{kind}_m")))
        ran, papers = (min(mark, length(runs)) for mark, runs in ((8, fast), (200, paper)))
        centimetres(f"{label}, newest policy after {ran} episodes (paper preset after {papers})", reached, target)
    if oracle is not None:
        for mark, factor in ((25, 1.5), (60, 1.2)):
            if mark > length(fast):
                continue
            for floor, kind, label in zip(oracle, ("random", "shapes"), ("random references", "shapes"), strict=True):
                value = float(np.median(at_mark(fast, mark, f"kept_{kind}_m")))
                centimetres(f"{label}, kept policy after {mark} episodes ({factor:g} × oracle)", value, factor * floor)
    for kind in ("random", "shapes") if length(fast) >= 25 else ():
        last = at_mark(fast, 25, f"kept_{kind}_m")
        add(f"worst seed over median, kept policy after 25 episodes, {kind}", float(last.max() / np.median(last)), 2.0)
    jumps = [largest_jump(errors_of(r)) for r in fast]
    if np.isfinite(jumps).any():
        add("largest episode after the tenth over the running median, all seeds", float(np.nanmax(jumps)), 3.0)
    switched = [pair for result in runs["payloads"] for pair in recoveries(result)]
    if switched:
        add("payload: episodes until within 1.25 × of before, median", float(np.median([n for _, n in switched])), 2.0)
        factor = f"{np.median([f for f, _ in switched]):.2f}"
        rows.append(Comparison("payload: factor of the first episode after a switch, median", factor, "–"))
    if runs["pressure"]:
        for kind in ("random", "shapes"):
            flow = float(np.median(at_mark(fast, 8, f"newest_{kind}_m")))
            value = float(np.median(at_mark(runs["pressure"], 12, f"newest_{kind}_m")))
            centimetres(f"pressure-model excavator, {kind}, after 12 (flow-source after 8)", value, flow)
    if runs["soft-arm"]:
        arm = float(np.median(at_mark(runs["soft-arm"], 5, "newest_shapes_m")))
        centimetres("soft arm, shapes, after 5 episodes", arm, 0.0295)
    for kind in ("random", "shapes") if runs["faulty"] else ():
        clean = float(np.median(at_mark(fast, 25, f"kept_{kind}_m")))
        value = float(np.median(at_mark(runs["faulty"], 25, f"kept_{kind}_m")))
        centimetres(f"spikes and a stuck sensor, {kind}, kept policy after 25 (1.25 × clean)", value, 1.25 * clean)
    share = float(np.median([np.median(r.csv("curves.csv")["update_share"][1:]) for r in fast]))
    add("computing over robot time, median", share, 0.1, " %", 100.0)
    return rows, numbers


def long_table(runs: dict[str, list[Result]]) -> dict[str, list[Any]]:
    """Every mark of every run."""
    table: dict[str, list[Any]] = {}
    for name, results in runs.items():
        for result in results:
            marks = result.csv("marks.csv")
            count = len(marks["episode"])
            for column, values in {"condition": [name] * count, **marks}.items():
                table.setdefault(column, []).extend(list(values))
    return table


@styled
def curves_figure(runs: dict[str, list[Result]], oracle: tuple[float, float] | None) -> Figure:
    """Error per episode over robot time, both presets, every seed."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    shown: list[np.ndarray | float] = []
    for colour, name in zip(PALETTE, ("fast", "paper"), strict=False):
        for i, result in enumerate(runs[name]):
            errors = 100 * errors_of(result)
            axes.plot(
                np.arange(1, len(errors) + 1),
                errors,
                color=colour,
                alpha=0.6,
                label=f"{name} preset" if i == 0 else None,
            )
            shown.append(errors)
    if oracle is not None:
        axes.axhline(100 * oracle[0], color="#808080", linestyle="--", linewidth=1.0, label="oracle")
        shown.append(100 * oracle[0])
    log_scale(axes, shown)
    log_across(axes)
    axes.set_xlabel("episode")
    axes.set_ylabel("mean error, random references (cm)")
    axes.legend()
    return figure


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """One training run. Leaves curves.csv (a row per episode) and marks.csv (a row per mark)."""
    from firsthand.robots.description import ROBOT_DESCRIPTION
    from firsthand.robots.simulated import SimulatedRobot
    from firsthand.runs import RunFolder, provenance
    from firsthand.training import FolderRecorder, Trainer

    from .learning import known_or_nan, write_rows

    config, task, plant_at = prepare(parameters)
    path = folder / files.CHECKPOINT / "run"
    kept = folder / files.CHECKPOINT / "marks.json"
    robot = SimulatedRobot(plant_at(1), task, seed=config.seed)
    if (path / "config.json").exists():
        run_folder = RunFolder.open(path, writer=True)
    else:
        described = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
        run_folder = RunFolder.create(path, described, provenance=provenance.collect())
    with run_folder:
        trainer = Trainer(robot, config, FolderRecorder(run_folder), keep_going=True)
        trainer.resume()
        marks = Marks(kept, trainer, plant_at(0), parameters["marks"])
        while trainer.episode < config.episodes:
            robot.plant = plant_at(trainer.episode + 1)
            metrics = trainer.run_episode().metrics
            marks.test()
            report(trainer.episode, f"error {100 * metrics['tracking_error']:.1f} cm")
        curves = [
            {
                "episode": row["episode"],
                **{name: known_or_nan(row[name]) for name in ("tracking_error", "model_loss", "prediction_error")},
                "update_share": row["update_time_s"] / task.episode_s,
            }
            for row in run_folder.read_metrics()
        ]
    write_rows(folder / "curves.csv", curves)
    write_rows(folder / "marks.csv", marks.rows)


def prepare(parameters: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Configuration, task, and the plant at an episode; episode 0 is the plant without faults and payload."""
    from firsthand.plants.sensors import Sensors, sense
    from firsthand.robots.registry import ROBOTS
    from firsthand.tasks import excavator_task, soft_arm_task
    from firsthand.training import TrainingConfig

    from .learning import tuples

    config = TrainingConfig.of(
        parameters["robot"], parameters["preset"], episodes=parameters["episodes"], seed=parameters["seed"]
    )
    config = dataclasses.replace(config, settings=config.settings.with_changes(parameters["settings"]))
    make = soft_arm_task if parameters["robot"] == "soft-arm" else excavator_task
    task = make(**tuples(parameters["task"]))
    source = ROBOTS[parameters["robot"]]

    def plant_at(episode: int) -> Any:
        held = [kg for first, kg in parameters["payloads"] if first <= episode]
        plant = source.sensed_plant(held[-1] if held else 0.0)
        if not parameters["faulty"] or episode == 0:
            return plant
        size = SPIKE_SIGMA * np.asarray(task.spec.scales.change_scale)
        share = SPIKE_SHARE / plant.num_measured  # of single values
        faulty = Sensors(outlier_share=share, outlier_size=size).for_entries(task.spec.layout.measured)
        return sense(plant, faulty.with_stuck(STUCK_CHANNEL) if episode == STUCK_EPISODE else faulty)

    return config, task, plant_at


class Marks:
    """The tests of a run: a row per mark, each kept as soon as it is there."""

    def __init__(self, path: Path, trainer: Any, plant: Any, marks: list[int]) -> None:
        self.path, self.trainer, self.plant, self.marks = path, trainer, plant, marks
        found: list[dict[str, Any]] = files.read_json(path) if path.exists() else []
        self.rows = [row for row in found if row["episode"] <= trainer.episode]
        for mark in marks:
            if mark < trainer.episode and not self._has(mark):
                raise UserError(
                    f"the run in {path.parent} is past episode {mark} but was not tested there; remove "
                    f"{path.parent.parent}, and the job runs again."
                )
        self.test()  # a kill may have come between the checkpoint and the test

    def _has(self, episode: int) -> bool:
        return any(row["episode"] == episode for row in self.rows)

    def test(self) -> None:
        """Test the policies now if this is a mark without a row."""
        if self.trainer.episode in self.marks and not self._has(self.trainer.episode):
            self.rows.append(measure_policies(self.trainer, self.plant))
            files.write_json(self.path, self.rows)


def measure_policies(trainer: Any, plant: Any) -> dict[str, Any]:
    """The newest and the kept policy on fresh random references and on the shapes."""
    from firsthand.evaluation import evaluate, tracking_metrics
    from firsthand.robots.simulated import SimulatedRobot

    task = trainer.task
    kept = trainer.recorder.kept
    policies = {"newest": trainer.state.policy, "kept": trainer.state.policy if kept is None else kept.policy}
    kept_episode = trainer.episode if kept is None else kept.episode
    row: dict[str, Any] = {"episode": trainer.episode, "seed": trainer.config.seed, "kept_episode": kept_episode}
    for name, policy in policies.items():
        robot, rng, records = SimulatedRobot(plant, task, seed=77), np.random.default_rng(999), []
        for _ in range(HELD_OUT):
            goals = task.sample_goals(rng, robot.measured(), task.trajectories)
            records.append(robot.run_episode(policy, goals))
        row[f"{name}_random_m"] = tracking_metrics(task.spec, tuple(records)).mean_error
        row[f"{name}_shapes_m"] = evaluate(robot, policy).overall.mean_error
    return row
