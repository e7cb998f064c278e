"""Several runs on one page: their curves over each other, a table, and the same references followed by each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..errors import UserError
from ..evaluation import Evaluation
from ..training.run import Run
from ..units import UNKNOWN, Unit, duration, number, unit_of
from . import figures
from .data import History, PathAxes, PathPanel
from .html import Section, image, render_page

MAX_RUNS = 12
"""More runs cannot be told apart in one figure."""


LONGEST = 20
"""Characters of a run's name above a panel."""


@dataclass(frozen=True)
class Compared:
    """One of the runs."""

    name: str
    """The name of its folder, with as much of the path as tells it from the others."""
    run: Run
    """The run."""
    history: History
    """Its metrics."""
    evaluation: Evaluation | None
    """The kept policy on the references that the learner never saw; None where that was not measured."""


def compare(paths: Sequence[Path], progress: Callable[[int], Any] = lambda done: None) -> str:
    """The page that compares these runs, with everything in it. `progress` is told how many are read."""
    if len(paths) > MAX_RUNS:
        raise UserError(f"{len(paths)} runs are too many for one page; give at most {MAX_RUNS}.")
    runs = []
    for done, (path, name) in enumerate(zip(paths, names_of(paths), strict=True)):
        progress(done)
        runs.append(_read(Path(path), name))
    units = {one.run.description.unit for one in runs}
    if len(units) > 1:
        raise UserError(f"the runs track outputs in {' and '.join(sorted(units))}; compare runs with one unit.")
    unit = unit_of(units.pop())
    pictures = {name: _svg(figure) for name, figure in _figures(runs, unit).items()}
    return render_page(
        "comparison.html",
        f"Comparison of {len(runs)} runs",
        robots=", ".join(dict.fromkeys(one.run.config.robot for one in runs)),
        curves=_curves(pictures),
        head=_headings(unit),
        rows=[_cells(run, unit) for run in runs],
        notes=_notes(runs),
        shapes=_shapes(pictures) if "shapes" in pictures else None,
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """A short name per run: its folder's, longer where two would be the same."""
    parts = [Path(path).resolve().parts for path in paths]
    for length in range(1, max((len(part) for part in parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"{paths[0]} is given twice; give each run once.")


def _read(path: Path, name: str) -> Compared:
    run = Run.open(path)
    rows = run.metrics()
    if not rows:
        raise UserError(f"{path} has no finished episode yet, so there is nothing to compare.")
    kept = run.kept_episode()
    stored = None if kept is None else run.evaluation(kept)
    return Compared(name, run, History.of(name, rows), None if stored is None else stored.evaluation)


def _figures(runs: Sequence[Compared], unit: Unit) -> dict[str, Figure]:
    made = {"learning": figures.learning_curves([run.history for run in runs], unit=unit)}
    evaluated = [(run, run.evaluation) for run in runs if run.evaluation is not None]
    specs = {one.run.description.spec.digest() for one, _ in evaluated}
    if len(evaluated) > 1 and len(specs) == 1:
        spec = evaluated[0][0].run.description.spec
        rows = [
            [
                PathPanel.of(f"{_short(run.name)}: {reference.name}", spec, record)
                for reference, record in zip(result.references, result.records, strict=True)
            ]
            for run, result in evaluated
        ]
        made["shapes"] = figures.path_grid(rows, PathAxes.of(spec, unit), unit=unit)
    return made


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _svg(figure: Figure) -> bytes:
    from .style import save

    return save(figure)[1]


def _curves(pictures: dict[str, bytes]) -> Section:
    caption = "The colour tells the run. Faint lines are single episodes, strong ones the mean of ten."
    return Section("Learning", (image(pictures, "learning", "Learning curves of all runs.", caption),))


def _headings(unit: Unit) -> tuple[str, ...]:
    return (
        "run",
        "preset",
        "seed",
        "episodes",
        "robot time",
        f"last episodes ({unit.shown})",
        f"best episode ({unit.shown})",
        "at",
        f"references never seen ({unit.shown})",
        "refused updates",
    )


def _notes(runs: Sequence[Compared]) -> list[str]:
    """Which references a run's policy did not follow to the end: its error is that of the steps before."""
    return [f"{run.name}, {note}" for run in runs if run.evaluation is not None for note in run.evaluation.notes()]


def _cells(run: Compared, unit: Unit) -> tuple[str, ...]:
    history, config = run.history, run.run.config
    error = history.column("tracking_error")
    best = int(np.nanargmin(error)) if np.isfinite(error).any() else None
    time = history.last("robot_time_s")
    return (
        run.name,
        config.preset,
        str(config.seed),
        str(len(history)),
        duration(time).replace(" ", "\u00a0") if np.isfinite(time) else UNKNOWN,
        unit.text(history.recent_mean("tracking_error")),
        UNKNOWN if best is None else unit.text(float(error[best])),
        UNKNOWN if best is None else f"{history.column('episode')[best]:.0f}",
        UNKNOWN if run.evaluation is None else unit.text(run.evaluation.overall.mean_error),
        number(history.last("refused_updates"), 0),
    )


def _shapes(pictures: dict[str, bytes]) -> Section:
    caption = "Each run's kept policy, the best that its robot has proven, on references that no learner saw."
    picture = image(pictures, "shapes", "Paths of all runs and their references.", caption, scroll=True)
    return Section("References never seen", (picture,))
