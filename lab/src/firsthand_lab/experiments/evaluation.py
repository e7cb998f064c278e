"""Figure 4: circle, square and line, which the learner never trains on, at four moments of learning."""

from itertools import pairwise

import numpy as np

from firsthand.report.data import PathAxes, PathPanel
from firsthand.report.figures import path_grid

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import MARKS, baseline
from .learning import SHAPES

PAPER_AT_200_M = 0.055


class ShapeEvaluation(Experiment):
    """The policies of the plain run on unseen references."""

    name = "evaluation"
    shows = "unseen circle, square and line are followed better and better"
    figure = "figure 4"
    cost = Cost(full_min=20, quick_s=30)
    seeds = Seeds(full=4, quick=1, tiny=2)

    def jobs(self, size: Size) -> list[Job]:
        """The plain run."""
        return baseline(size)

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Errors per shape and mark, and the paths of the seed in the middle."""
        marks = MARKS[size.name]
        tables = [result.csv(SHAPES) for result in results]
        table = files.join_tables(tables)
        errors = {mark: _errors(table, mark, "together") for mark in marks}
        means = [float(np.mean(errors[mark])) for mark in marks]
        improves = all(b <= 1.1 * a for a, b in pairwise(means)) and means[-1] < means[0]
        decisive = 200 if 200 in marks else marks[-1]
        reached = float(np.mean(errors[decisive])) <= PAPER_AT_200_M
        verdict = Verdict.of(reached, size)
        rows = [
            Comparison(
                f"mean error on the shapes, episode {mark} (cm; in brackets the seeds)",
                f"{100 * np.mean(errors[mark]):.1f} ({', '.join(f'{100 * e:.1f}' for e in errors[mark])})",
                "5.5" if mark == 200 else "–",
                verdict if mark == decisive else None,
            )
            for mark in marks
        ]
        names = [str(n) for n in dict.fromkeys(table["reference"]) if n != "together"]
        rows += [
            Comparison(
                f"{name} at episode {marks[-1]}: mean and largest error (cm)",
                f"{100 * np.mean(_errors(table, marks[-1], name)):.1f} and "
                f"{100 * np.max(_errors(table, marks[-1], name, 'max_error')):.0f}",
                "–",
            )
            for name in names
        ]
        seed = int(_seeds(table, marks[-1])[np.argsort(errors[marks[-1]])[len(errors[marks[-1]]) // 2]])
        figure = path_grid([[_panel(results, mark, seed, names) for mark in marks]], PathAxes(("x (m)", "z (m)"), True))
        return Finding(
            verdict,
            _text(marks, means, decisive, reached, improves, len(errors[decisive])),
            tuple(rows),
            figures={"shapes": figure},
            tables={"shapes": table},
            numbers={"mean_error": dict(zip(map(str, marks), means, strict=True)), "drawn_seed": seed},
        )


def _errors(table: dict, mark: int, name: str, column: str = "mean_error") -> np.ndarray:
    return table[column][(table["episode"] == mark) & (table["reference"] == name)]


def _seeds(table: dict, mark: int) -> np.ndarray:
    return table["seed"][(table["episode"] == mark) & (table["reference"] == "together")]


def _panel(results: list[Result], mark: int, seed: int, names: list[str]) -> PathPanel:
    """All shapes of one seed at one mark, as the paper draws them."""
    for result in results:
        if seed in result.job.parameters["seeds"]:
            arrays, _ = files.read_arrays(result.folder / "paths" / f"{mark:06d}.safetensors")
            pairs = tuple((arrays[f"{seed}.{n}.reference"], arrays[f"{seed}.{n}.path"]) for n in names)
            errors = np.concatenate([np.linalg.norm(path - reference, axis=1) for reference, path in pairs])
            return PathPanel(f"episode {mark}", pairs, float(np.mean(errors)))
    raise ValueError(f"no job has the seed {seed}")


def _text(marks: tuple[int, ...], means: list[float], decisive: int, reached: bool, improves: bool, seeds: int) -> str:
    each = ", ".join(f"{100 * mean:.1f} cm at episode {mark}" for mark, mean in zip(marks, means, strict=True))
    claim = "The paper's 5.5 cm after 200 episodes" + (
        f" {'is' if reached else 'is not'} reached"
        if decisive == 200
        else f", which need a full run, are {'already' if reached else 'not yet'} reached at episode {decisive}"
    )
    steady = "never rises by more than a tenth between marks" if improves else "does not fall from mark to mark"
    return (
        "The policies that ran these episodes followed a circle of radius 1 m, a square of side 2 m and a "
        "line, from rest "
        f"at 0.5 m/s; no training reference is like them. Mean over {seeds} seeds: {each}; the error {steady}. "
        f"{claim}. "
        "Our machine is not theirs, so the levels say less than the way down."
    )
