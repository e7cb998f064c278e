"""The output after training and of `firsthand evaluate`."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..advice import advise
from ..cache import cache_folder
from ..console import notify
from ..errors import UserError
from ..evaluation import Evaluation, can_go_back
from ..evaluation.oracle import OracleBudget, OracleResult, cached_oracle, store_oracle, train_oracle
from ..evaluation.published import published_results
from ..report.gather import first_middle_last, kept_policy_name
from ..report.page import metric_texts
from ..robots import AbstractRobot
from ..robots.registry import NamedRobot
from ..robots.user_file import name_for_titles
from ..training.prior import Prior
from ..training.run import Run
from ..units import MIXED, NO_UNIT, Unit, unit_of


def print_evaluation(robot: str, unit: Unit, result: Evaluation, oracle: OracleResult | None) -> None:
    """The metrics of table 1, per reference and together, beside the paper's columns."""
    # No frame, so that it fits into 80 columns also while errors are metres.
    title = f"{escape(name_for_titles(robot))}: references the learner never saw"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    shown = escape(unit.shown)
    speeds, errors = (f"v avg\n{shown}/s", f"v max\n{shown}/s"), (f"error\nmean {shown}",)
    costs = ("cost\nper step",) if result.costs else ()
    for heading in (*costs, *speeds, *errors, f"error\nmax {shown}", "ρ\ns", "|Δu|\n", "limit\nhits"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [(escape(r.name), m) for r, m in zip(result.references, result.metrics, strict=True)]
    prices = [*result.costs, result.cost] if result.costs else []
    for i, (name, m) in enumerate([*rows, ("[bold]together[/bold]", result.overall)]):
        table.add_row(
            name,
            *([NO_UNIT.text(prices[i])] if prices else []),
            *metric_texts(m, unit),
        )
    others = published_results(robot)
    if others:
        table.add_section()
    for name, (v_avg, v_max, mean, largest, rho) in others.items():
        known = (f"{100 * v_avg:.1f}", f"{100 * v_max:.1f}", f"{100 * mean:.2f}", f"{100 * largest:.1f}", f"{rho:.2f}")
        table.add_row(f"[dim]{name}[/dim]", *(text.replace("nan", "") for text in known), "", "")
    console = Console()
    console.print(table)
    legend = "ρ: largest error over highest speed. |Δu|: mean change of a command per step."
    console.print(legend, style="dim", markup=False, soft_wrap=True)
    if len(result.each_output) > 1 and not result.costs and unit.name != MIXED:
        errors = ", ".join(f"{name} {unit.text(error)}" for name, error in result.each_output.items())
        console.print(f"Mean absolute error of each output: {errors} {unit.shown}".rstrip(), markup=False)
    for note in result.notes():
        console.print(note, markup=False)
    if oracle is not None:
        console.print(
            "Oracle (this policy class, trained with the true gradients): "
            f"{unit.with_unit(oracle.shapes_error)} on these references, "
            f"{unit.with_unit(oracle.random_error)} on random ones."
        )
        if oracle_failed(result, oracle):
            console.print("The policy is better than the oracle, which is no lower bound: its budget is limited.")


def oracle_failed(result: Evaluation, oracle: OracleResult) -> bool:
    """Nothing can beat the best possible, so when a policy does, the oracle is not that."""
    return bool(result.overall.mean_error < oracle.shapes_error)


def find_oracle(robot: AbstractRobot, *, compute: bool, speed: float | None = None) -> OracleResult | None:
    """The oracle for a robot, from the cache, or computed now; None when it is not known.

    An oracle is known for the task's own evaluation speed only.
    """
    task, plant = robot.task, robot.plant
    if speed is not None and speed != task.evaluation_speed:
        return None
    if plant is None:
        if compute:
            raise UserError(f"--oracle needs a simulated robot with known gradients, which {task.name} is not.")
        return None
    folder, budget = cache_folder() / "oracles", OracleBudget()
    known = cached_oracle(plant, task, folder)
    if known is None and compute:
        columns = (
            TextColumn("training the oracle"),
            BarColumn(),
            TextColumn("{task.fields[cost]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bar = progress.add_task("oracle", total=budget.iterations, cost="compiling")

            def show(iteration: int, cost: float) -> None:
                progress.update(bar, completed=iteration, cost=f"cost {cost:.5f}")

            _, known = train_oracle(plant, task, budget, progress=show)
        store_oracle(known, plant, task, folder, budget)
    return known


def print_prior(prior: Prior) -> None:
    """The starting point of a run: the accepted part of each log, and the reasons for the rest."""
    console = Console(stderr=True)
    if prior.init is not None:
        what = {"both": "model and policy"}.get(prior.init.parts, prior.init.parts)
        notify(f"Starting with the {what} of {prior.init.path} after episode {prior.init.episode}.")
    for note in prior.notes:
        notify(note)
    if not prior.logs:
        return
    table = Table(title="Learning first from what is there", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("log", overflow="fold")
    for heading in ("rows\ntaken", "rows\nrefused"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why")
    for log in prior.logs:
        reasons = [f"{count}: {reason}" for reason, count in log.refused.items()]
        why = "\n".join([*reasons, *([log.note] if log.note else [])])
        table.add_row(escape(log.path), str(log.taken), str(sum(log.refused.values())), escape(why))
    console.print(table)
    notify("The model learns from them before the first episode; that takes a minute or so.")


def print_advice(lines: Sequence[Mapping[str, Any]]) -> None:
    """Advice that follows from the metrics of a run."""
    for advice in advise(lines):
        notify(f"Advice: {advice.text}" if advice.urgent else advice.text)


def evaluate_kept(run: Run, robot: AbstractRobot, oracle: OracleResult | None) -> tuple[str, Evaluation]:
    """Evaluate the kept policy, or the last where nothing is proven, and keep what came out; its name and result.

    Where the robot cannot come to harm, an early and a middle policy follow the references, too: the report shows what
    was learned.
    """
    episodes = run.episodes()
    name, last = kept_policy_name(run, episodes[-1])
    if can_go_back(robot):
        for episode in first_middle_last(episodes)[:2]:
            if episode != last and run.evaluation(episode) is None:
                run.evaluate(robot, episode)
    return name, run.evaluate(robot, last, oracle)


def finish(path: Path, found: NamedRobot) -> None:
    """After training: evaluate the kept policy, print the table, write the report; a machine is not moved for that."""
    from ..report import write_report

    run = Run.open(path)
    with closing(run.make_robot(found)) as robot:
        if can_go_back(robot):
            oracle = find_oracle(robot, compute=False)
            name, result = evaluate_kept(run, robot, oracle)
            if run.kept_episode() is None:
                notify(
                    f"No episode has proven a policy: in each, half of the steps or more do not count. This is {name}."
                )
            print_evaluation(run.config.robot, unit_of(run.description.unit), result, oracle)
        else:
            notify(
                "The machine is not moved for an evaluation unless that is asked for: "
                f"firsthand evaluate {shlex.quote(str(path))} follows the references on it."
            )
    print(f"Report: {write_report(path)}")
