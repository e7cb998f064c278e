"""`ingredients`: what each part of the fast preset is worth. One part at a time is left out; the rest stays."""

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, episode_axis, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import TINY_SETTINGS, small
from .curves import gather
from .learning import SHAPES, Setup

COMPLETE = "complete"
SENSORS = ("real", "exact")
LEFT_OUT: dict[str, dict[str, Any]] = {
    COMPLETE: {},
    "one-step model": {"model.horizon": 1},
    "no observer": {"observer.use": 0},
    "nothing imagined": {"imagination.trajectories": 0},
    "no imagined disturbances": {"imagination.disturbances": 0},
    "no smoothing over dead bands": {"imagination.command_noise": 0.0},
    "one policy step": {"policy_step.steps": 1},
    "steps do not grow": {"policy_step.pace_growth": 1.0},
    "no outlier scaling": {"policy_step.outlier": 0.0},
    "no trust region": {"trust_region.radius": 100.0, "trust_region.max_radius": 100.0},
    "no refinement": {"refinement.steps": 0},
    "no lag in refinement": {"refinement.lag": 0.0},
    "no running mean": {"refinement.newest_share": 1.0},
}
"""What is left out, and how; without imagined trajectories there is no refinement either."""
EPISODES = {"full": 8, "quick": 3, "tiny": 2}
PAYS = 1.1
"""A part pays where the error without it is at least this many times the complete preset's."""


class Ingredients(Experiment):
    """The ablation of the fast preset, behind real and exact sensors."""

    name = "ingredients"
    shows = "what each part of the fast preset is worth"
    figure = "ours"
    cost = Cost(full_min=65, quick_s=60)
    seeds = Seeds(full=3, quick=1, tiny=1)
    partial = True

    def jobs(self, size: Size) -> list[Job]:
        """One per kind of sensors and part, all its seeds side by side."""
        chosen = size.pick(full=list(LEFT_OUT), quick=list(LEFT_OUT)[:2], tiny=list(LEFT_OUT)[:1])
        return [
            self._setup(sensors, part, size).job(_file_name(sensors, part), weight=6.0)
            for part in chosen
            for sensors in SENSORS
        ]

    def _setup(self, sensors: str, part: str, size: Size) -> Setup:
        episodes = EPISODES[size.name]
        setup = Setup(
            preset="fast",
            sensors=sensors,
            episodes=episodes,
            seeds=tuple(range(size.seeds)),
            marks=(episodes + 1,),
            **small(size),
        )
        settings = {**size.pick(full={}, quick={}, tiny=TINY_SETTINGS), **LEFT_OUT[part]}
        return dataclasses.replace(setup, settings=settings)

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Errors with each part left out, over those of the complete preset; every part has to pay somewhere."""
        by_file = {_file_name(sensors, part): (sensors, part) for sensors in SENSORS for part in LEFT_OUT}
        curves, errors = {}, {}
        for result in results:
            key = by_file[result.job.name]
            curves[key] = gather([result], "tracking_error").values
            shapes = result.csv(SHAPES)
            together = shapes["mean_error"][shapes["reference"] == "together"]
            late = curves[key][:, curves[key].shape[1] // 2 :]
            errors[key] = {"random": np.median(late.mean(axis=1)), "shapes": np.median(together)}
        rows, table = [], {}
        for part in LEFT_OUT:
            line = {"left out": part}
            for sensors in SENSORS:
                for kind in ("random", "shapes"):
                    here = errors.get((sensors, part), {}).get(kind, math.nan)
                    complete = errors.get((sensors, COMPLETE), {}).get(kind, math.nan)
                    line |= {f"{sensors}, {kind}": float(here), f"{sensors}, {kind}, ratio": float(here / complete)}
            if all(math.isnan(value) for value in line.values() if not isinstance(value, str)):
                continue
            for column, value in line.items():
                table.setdefault(column, []).append(value)
            ratios = [value for column, value in line.items() if column.endswith("ratio")]
            verdict = None if part == COMPLETE else Verdict.of(bool(np.nanmax(ratios) >= PAYS), size)
            shown = ", ".join(
                f"{sensors} {100 * line[f'{sensors}, random']:.2f}/{100 * line[f'{sensors}, shapes']:.2f}"
                for sensors in SENSORS
            )
            rows.append(Comparison(f"{part} (cm, random/shapes)", shown, "–", verdict))
        is_whole = len(results) == len(self.jobs(size))
        judged = [row for row in rows if row.verdict is not None]
        return Finding(
            Verdict.overall(rows) if is_whole and judged else Verdict.NOT_COMPARABLE,
            ("" if is_whole else f"So far: {len(results)} of {len(self.jobs(size))} jobs. ")
            + f"The fast preset on `excavator`, {EPISODES[size.name]} episodes, {size.seeds} "
            f"seed{'s' * (size.seeds > 1)}, one part at a time left out; medians over seeds. Random: mean error of the "
            "second half of the episodes, while learning. Shapes: the newest policy at the end. A part pays "
            f"where one of these is at least {PAYS:g} times the complete preset's without it. The paper has "
            "no such claim.",
            tuple(rows),
            figures={"ingredients": ingredients_figure(curves)},
            tables={"ingredients": table},
        )


def _file_name(sensors: str, part: str) -> str:
    return f"{sensors}-{part.replace(' ', '-')}"


@styled
def ingredients_figure(curves: dict[tuple[str, str], np.ndarray]) -> Figure:
    """The median error per episode with each part left out, over that of the complete preset."""
    parts = [part for part in LEFT_OUT if part != COMPLETE and any((sensors, part) in curves for sensors in SENSORS)]
    columns = 3
    lines = max(math.ceil(len(parts) / columns), 1)
    figure = Figure(figsize=(9.0, 2.0 * lines), layout="constrained")
    panels = np.atleast_1d(figure.subplots(lines, columns, sharex=True, sharey=True)).ravel()
    medians = {key: 100 * np.median(values, axis=0) for key, values in curves.items()}
    episodes = np.arange(1, len(next(iter(medians.values()))) + 1)
    for i, axes in enumerate(panels):
        axes.set_visible(i < max(len(parts), 1))
        for colour, sensors in zip(PALETTE, SENSORS, strict=False):
            complete = medians.get((sensors, COMPLETE))
            if complete is not None:
                axes.plot(episodes, complete, color=colour, linestyle="--", label=f"{sensors}, {COMPLETE}")
            if i < len(parts) and (sensors, parts[i]) in medians:
                axes.plot(episodes, medians[sensors, parts[i]], color=colour, label=f"{sensors}, left out")
        axes.set_title(parts[i] if i < len(parts) else "", loc="left", fontsize=9)
        log_scale(axes, list(medians.values()))
        episode_axis(axes, episodes)
    panels[0].legend(fontsize=7)
    for axes in panels[-columns:]:
        axes.set_xlabel("episode")
    for axes in panels[::columns]:
        axes.set_ylabel("error (cm)")
    return figure
