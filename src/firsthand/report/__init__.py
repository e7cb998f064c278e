"""Figures and the HTML report of a run."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..runs import atomic
from . import figures
from .compare import compare
from .data import PathAxes
from .gather import RunReport, gather
from .page import render
from .style import save

PLANE = 2
"""Coordinates that a path's picture can show."""


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write RUN/report/index.html, one file with everything in it, and each figure as PNG and SVG beside it.

    The run may still be going on. Returns where the page is, which is `out` if that is given.
    """
    report = gather(Path(path))
    saved = {name: save(figure) for name, figure in figures_of(report).items()}
    folder = report.run.folder.report_dir
    atomic.make_own_folder(folder)
    for name, (png, svg) in saved.items():
        atomic.write_bytes(folder / f"{name}.png", png)
        atomic.write_bytes(folder / f"{name}.svg", svg)
    page = out or folder / "index.html"
    atomic.write_text(page, render(report, {name: svg for name, (_, svg) in saved.items()}))
    return page


def write_comparison(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page that compares several runs, with everything in it. Returns where it is."""
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=len(paths))
        page = compare(paths, lambda done: bar.update(task, completed=done))
    if out is None:
        folder = Path(paths[0]) / "report"
        atomic.make_own_folder(folder)
        out = folder / "comparison.html"
    atomic.write_text(out, page)
    return out


def figures_of(report: RunReport) -> dict[str, Figure]:
    """The figures of a run by the names of their files."""
    robot, unit = report.run.description, report.unit
    axes = PathAxes.of(robot.spec, unit)
    oracle = None if report.oracle is None else report.oracle["random_error"]
    made = {
        "learning": figures.learning_curves([report.history], oracle_error=oracle, unit=unit, score=report.score),
        "episodes": figures.path_grid([report.episodes], axes, limits_of="panel", unit=unit),
        "time": figures.time_series(report.series, unit),
    }
    if robot.spec.num_outputs > PLANE:
        made["coordinates"] = figures.coordinates(report.series, unit)
    if report.shapes:
        made["shapes"] = figures.path_grid(report.shapes, axes, unit=unit)
    if report.poses is not None:
        made["poses"] = figures.poses(report.poses, axes)
    return {
        **made,
        "health": figures.health(
            report.history,
            step_bound=report.step_bound,
            steps_per_episode=robot.trajectories * robot.steps,
            trust_region=report.trust_region,
            cg_tolerance=report.run.config.settings.policy_step.cg_tolerance,
        ),
    }
