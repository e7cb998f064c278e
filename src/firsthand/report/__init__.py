"""Figures and the HTML report of a run."""

from pathlib import Path

from matplotlib.figure import Figure

from ..runs import atomic
from . import figures
from .data import PathAxes
from .gather import RunReport, gather
from .page import render
from .style import save


def write_report(path: Path) -> Path:
    """Write RUN/report/index.html, one file with everything in it, and each figure as PNG and SVG beside it.

    The run may still be going on. Returns where the page is.
    """
    report = gather(Path(path))
    saved = {name: save(figure) for name, figure in figures_of(report).items()}
    folder = report.restored.folder.report_dir
    atomic.make_folder(folder)
    for name, (png, svg) in saved.items():
        atomic.write_bytes(folder / f"{name}.png", png)
        atomic.write_bytes(folder / f"{name}.svg", svg)
    page = folder / "index.html"
    atomic.write_text(page, render(report, {name: svg for name, (_, svg) in saved.items()}))
    return page


def figures_of(report: RunReport) -> dict[str, Figure]:
    """The figures of a run by the names of their files."""
    task, axes = report.restored.task, PathAxes.of(report.restored.task.spec)
    oracle = None if report.oracle is None else report.oracle["random_error_m"]
    return {
        "learning": figures.learning_curves([report.history], oracle_error_m=oracle),
        "shapes": figures.path_grid(report.shapes, axes),
        "episodes": figures.path_grid([report.episodes], axes, shared=False),
        "time": figures.time_series(report.series),
        "health": figures.health(
            report.history,
            step_bound=report.step_bound,
            steps_per_episode=task.trajectories * task.steps,
            trust_region=report.trust_region,
            cg_tolerance=report.restored.config.hyper.cg_tolerance,
        ),
    }
