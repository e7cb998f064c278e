"""What is shown after training and by `firsthand evaluate`."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..cache import cache_folder
from ..errors import UserError
from ..evaluation import Evaluation, evaluate
from ..evaluation.oracle import OracleBudget, store_oracle, train_oracle
from ..evaluation.published import published
from ..training.display import say
from ..training.prior import Prior
from ..training.restore import RestoredRun
from ..units import METRES, unit_of


def print_evaluation(restored: RestoredRun, result: Evaluation, oracle: dict[str, Any] | None) -> None:
    """The metrics of table 1, per reference and together, beside the paper's columns."""
    # No frame, so that it fits into 80 columns also while errors are metres.
    title = f"{escape(restored.config.robot)}: references the learner never saw"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    unit = unit_of(restored.task.unit)
    shown = escape(unit.shown)
    speeds, errors = (f"v avg\n{shown}/s", f"v max\n{shown}/s"), (f"error\nmean {shown}",)
    for heading in (*speeds, *errors, f"error\nmax {shown}", "ρ\ns", "|Δu|\n", "limit\nhits"):
        table.add_column(heading, justify="right", no_wrap=True)
    finer = 0 if unit == METRES else 2
    rows = [(escape(r.name), m) for r, m in zip(result.references, result.metrics, strict=True)]
    for name, m in [*rows, ("[bold]together[/bold]", result.overall)]:
        table.add_row(
            name,
            f"{unit.of(m.mean_speed):.{1 + finer}f}",
            f"{unit.of(m.max_speed):.{1 + finer}f}",
            f"{unit.of(m.mean_error):.{2 + finer}f}",
            f"{unit.of(m.max_error):.{1 + finer}f}",
            f"{m.rho_s:.3f}",
            f"{m.command_change:.4f}",
            str(m.limit_hits),
        )
    others = published(restored.config.robot)
    if others:
        table.add_section()
    for name, (v_avg, v_max, mean, largest, rho) in others.items():
        known = (f"{100 * v_avg:.1f}", f"{100 * v_max:.1f}", f"{100 * mean:.2f}", f"{100 * largest:.1f}", f"{rho:.2f}")
        table.add_row(f"[dim]{name}[/dim]", *(text.replace("nan", "") for text in known), "", "")
    console = Console()
    console.print(table)
    for note in result.notes():
        console.print(note, markup=False)
    if oracle is not None:
        console.print(
            "Oracle (this policy class, trained with the true gradients): "
            f"{unit.with_unit(oracle['shapes_error'])} on these references, "
            f"{unit.with_unit(oracle['random_error'])} on random ones."
        )
        if oracle["failed"]:
            console.print("The policy is better than the oracle, which is no lower bound: its budget is limited.")


def oracle_beside(result: Evaluation, oracle: dict[str, Any] | None) -> dict[str, Any] | None:
    """The oracle with `failed`: nothing can beat the best possible, so when a policy does, the oracle is not that."""
    if oracle is None:
        return None
    return {**oracle, "failed": bool(result.overall.mean_error < oracle["shapes_error"])}


def oracle_of(restored: RestoredRun, *, compute: bool, speed: float | None = None) -> dict[str, Any] | None:
    """The oracle for a run's robot, from the cache, or computed now; None when it is not known.

    An oracle is known for the task's own evaluation speed only.
    """
    if speed is not None and speed != restored.task.evaluation_speed:
        return None
    known = restored.oracle()
    robot = restored.robot()
    if known is None and compute:
        if robot.plant is None:
            raise UserError(f"--oracle needs a simulated robot with known gradients; {restored.config.robot} is none.")
        plant, budget = robot.plant, OracleBudget()
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

            _, known = train_oracle(plant, restored.task, budget, progress=show)
        store_oracle(known, plant, restored.task, cache_folder() / "oracles", budget)
    return None if known is None else asdict(known)


def print_prior(prior: Prior) -> None:
    """What a run starts from: what was taken of each log, what was refused and why."""
    console = Console(stderr=True)
    if prior.init is not None:
        what = {"both": "model and policy"}.get(prior.init.parts, prior.init.parts)
        say(f"Starting with the {what} of {prior.init.path} after episode {prior.init.episode}.")
    for note in prior.notes:
        say(note)
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
    say("The model learns from them before the first episode; that takes a minute or so.")


def finish(path: Path) -> None:
    """After training: evaluate the kept policy, print the table, write the report; a machine is not moved for that."""
    from ..report import write_report
    from ..report.gather import can_go_back, kept, not_moved

    restored = RestoredRun.open(path)
    with closing(restored.robot()) as robot:
        name, policy = kept(restored, restored.episodes()[-1])
        result = evaluate(robot, policy) if can_go_back(robot) else None
    if result is None:
        say(not_moved(path))
        print(f"Report: {write_report(path)}")
        return
    if restored.kept_episode() is None:
        say(f"No episode has proven a policy: in each, half of the steps or more do not count. This is {name}.")
    print_evaluation(restored, result, oracle_beside(result, oracle_of(restored, compute=False)))
    print(f"Report: {write_report(path)}")
