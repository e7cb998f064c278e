"""`network`: figures 3 and 4 once more, on a network fitted to a log, which is what the paper's own simulation is."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.logs import read_log
from firsthand.report.style import styled
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.registry import find_robot
from firsthand.robots.stored_simulator import DESCRIPTION
from firsthand.runs import RunFolder, provenance
from firsthand.simulators import FitSettings, fit, fit_linear, open_loop, record
from firsthand.simulators.data import split
from firsthand.simulators.folder import save

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict
from .baseline import small
from .convergence import interval, judge_exponent
from .curves import Curves, gather, slope_between
from .drawing import two_losses
from .evaluation import PAPER_AT_200_M
from .learning import SHAPES, Setup
from .learning import run as learn

RUNNER = f"{__name__}:run"
MACHINE = {"full": "excavator-realistic", "quick": "excavator-realistic", "tiny": "excavator"}
"""Whose log it is."""
FIT: dict[str, dict[str, Any]] = {
    "full": {"minutes": 100.0, "fit": {"members": 1, "rollout_steps": 3000}},
    "quick": {"minutes": 20.0, "fit": {"members": 1, "steps": 300, "rollout_steps": 200}},
    "tiny": {"minutes": 2.0, "fit": {"members": 1, "steps": 2, "rollout_steps": 0}},
}
"""Minutes of the log, and how the network is fitted to it."""
EPISODES = {"full": 200, "quick": 30, "tiny": 3}
MARKS = {"full": (1, 50, 100, 201), "quick": (1, 31), "tiny": (1, 4)}
"""Before these episodes the shapes are run."""
SEGMENT = (10, 200)
FITTED = "simulator"
TIP = "tracked output"
"""What the simulator's description calls the tip's error."""


class Network(Experiment):
    """The paper's algorithm on a network fitted to a hundred minutes of the realistic excavator."""

    name = "network"
    shows = "convergence and evaluation on a network fitted to a log"
    figure = "figures 3, 4"
    cost = Cost(full_min=23, quick_s=90)
    seeds = Seeds(full=3, quick=1, tiny=1)  # the fewest that have an interval

    def jobs(self, size: Size) -> list[Job]:
        """One job: it records, fits and learns."""
        changed = {**small(size), "task": size.pick(full={}, quick={}, tiny={"trajectories": 2})}
        setup = Setup(episodes=EPISODES[size.name], seeds=tuple(range(size.seeds)), marks=MARKS[size.name], **changed)
        job = setup.job("network")
        parameters = {"setup": job.parameters, "machine": MACHINE[size.name], **FIT[size.name]}
        return [dataclasses.replace(job, runner=RUNNER, parameters=parameters)]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """The law of the loss, and the shapes."""
        (result,) = results
        accuracy = result.json(f"{FITTED}/{DESCRIPTION}")["accuracy"]["held out"]
        loss, model = gather(results, "controller_loss"), gather(results, "prediction_error")
        law = slope_between(loss, *SEGMENT)
        shapes = result.csv(SHAPES)
        rows = [judge_exponent(law, size)]
        last = MARKS[size.name][-1]
        for mark in MARKS[size.name]:
            errors = shapes["mean_error"][(shapes["episode"] == mark) & (shapes["reference"] == "together")]
            verdict = Verdict.of(float(np.mean(errors)) <= PAPER_AT_200_M, size) if mark == last else None
            each = ", ".join(f"{100 * error:.1f}" for error in errors)
            rows.append(
                Comparison(
                    f"mean error on the shapes after {mark - 1} episodes (cm; in brackets the seeds)",
                    f"{100 * np.mean(errors):.1f} ({each})",
                    "5.5" if mark == last and size.name == "full" else "–",
                    verdict,
                )
            )
        rows += [
            Comparison(
                f"the network's tip error {ahead['seconds']:g} s ahead, held-out (cm; in brackets standing still)",
                f"{100 * ahead['simulator'][TIP]:.2f} ({100 * ahead['standing_still'][TIP]:.2f})",
                "–",
            )
            for ahead in accuracy
            if ahead["seconds"] > 0
        ]
        text = (
            f"A network was fitted to {result.job.parameters['minutes']:g} minutes of random motion of "
            f"{result.job.parameters['machine']}. The paper's algorithm learned on it, {loss.values.shape[0]} "
            f"seed{'s' * (loss.values.shape[0] > 1)}, {EPISODES[size.name]} episodes. Between episodes {SEGMENT[0]} "
            f"and {SEGMENT[1]} the loss falls like t^−k with k = {interval(law)}."
        )
        if size.name != "full":
            text += " With so few episodes this is a look, not a measurement."
        return Finding(
            Verdict.overall(rows),
            text,
            tuple(rows),
            figures={"network": _figure(loss, model)},
            tables={"shapes": shapes},
            numbers={"exponent_10_to_200": [law.exponent, law.low, law.high]},
        )


@styled
def _figure(loss: Curves, model: Curves) -> Figure:
    figure, _ = two_losses(
        [("controller loss (m²)", [("mean of seeds", loss)]), ("model error, newest episode", [("", model)])],
        log_time=True,
    )
    return figure


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Record and fit, unless that is done, and learn on the network."""
    simulator, log = folder / FITTED, folder / files.CHECKPOINT / "log"
    if not (simulator / DESCRIPTION).exists():
        for leftover in (simulator, log):
            shutil.rmtree(leftover, ignore_errors=True)
        fit_network(parameters, log, simulator)
    report(0, "the network is fitted")
    learn({**parameters["setup"], "robot": str(simulator)}, folder, report)


def fit_network(parameters: dict[str, Any], log: Path, simulator: Path) -> None:
    """Minutes of random motion of the machine, and a network that has learned from seven eighths of them."""
    found, settings = find_robot(parameters["machine"]), FitSettings(**parameters["fit"])
    robot = found.make(seed=0)
    description = robot.description()
    config = {"robot": found.name, ROBOT_DESCRIPTION: description.as_dict()}
    with RunFolder.create(log, config, provenance=provenance.collect()) as stored:
        for number, episode in enumerate(record(robot, parameters["minutes"], seed=0), start=1):
            stored.save_episode(number, episode.arrays(), {"episode": number})
    spec = description.spec
    read = read_log(log, spec)
    learned, held = split(list(read.series), spec.period_s)
    plant = fit(spec, learned, settings)
    save(
        simulator,
        plant,
        robot=found.name,
        description=description,
        data=[{"path": str(log), "sha256": read.sha256, "rows": read.usable}],
        settings=settings,
        accuracy={"held out": open_loop(plant, held, fit_linear(spec, learned))},
    )
