"""`ingredients`: what each part of the fast preset is worth. One part at a time is left out; the rest stays."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, episode_axis, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import TINY_SETTINGS, small
from .curves import gather
from .learning import SHAPES, Setup

COMPLETE = "complete"
LEFT_OUT: dict[str, dict[str, Any]] = {
    COMPLETE: {},
    "nothing imagined": {"imagination.trajectories": 0},
    "steps do not grow": {"policy_step.pace_growth": 1.0},
    "one excited episode": {"excitation.episodes": 1},
    "no trust region": {"trust_region.radius": 100.0, "trust_region.max_radius": 100.0, "refinement.steps": 0},
    "no refinement": {"refinement.steps": 0},
    "300 Adam steps": {"model.steps": 300},
    "one policy step": {"policy_step.steps": 1, "imagination.trajectories": 0},
    "ten imagined": {"imagination.trajectories": 10},
    "Adam's rate constant": {"model.rate_end": 1.0},
    "no outlier scaling": {"policy_step.outlier": 0.0},
    "one-step model": {"model.horizon": 1},
    "no imagined disturbances": {"imagination.disturbances": 0},
    "no observer": {"observer.use": 0},
}
"""What is left out, and how; without imagined trajectories there is no refinement either."""
EPISODES = {"full": 8, "quick": 3, "tiny": 2}
MARKS = {"full": (7, 9), "quick": (4,), "tiny": (3,)}
"""Before these episodes the shapes are run."""


class Ingredients(Experiment):
    """The ablation of the fast preset."""

    name = "ingredients"
    shows = "what each part of the fast preset is worth"
    figure = "ours"
    cost = Cost(full_min=20, quick_s=40)
    seeds = Seeds(full=3, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One per part, all its seeds side by side."""
        jobs = []
        chosen = size.pick(full=list(LEFT_OUT), quick=list(LEFT_OUT)[:2], tiny=list(LEFT_OUT)[:1])
        for name in chosen:
            setup = Setup(
                preset="fast",
                episodes=EPISODES[size.name],
                seeds=tuple(range(size.seeds)),
                marks=MARKS[size.name],
                **small(size),
            )
            settings = {**size.pick(full={}, quick={}, tiny=TINY_SETTINGS), **LEFT_OUT[name]}
            setup = dataclasses.replace(setup, settings=settings)
            jobs.append(setup.job(name.replace(" ", "-").replace("'", ""), weight=4.0))
        return jobs

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Errors early and late, with each part left out."""
        rows, table, curves = [], {}, {}
        names = list(LEFT_OUT)[: len(results)]
        early, late = size.pick(full=(4, 8), quick=(2, 3), tiny=(1, 2))
        for name, result in zip(names, results, strict=True):
            error = gather([result], "tracking_error").values
            curves[name] = error
            shapes = result.csv(SHAPES)
            together = shapes["mean_error"][shapes["reference"] == "together"]
            values = {
                f"random, episode {early}": np.median(error[:, early - 1]),
                f"random, episode {late}": np.median(error[:, late - 1]),
                "random, second half": np.mean(error[:, error.shape[1] // 2 :]),
                "largest of the second half": np.max(error[:, error.shape[1] // 2 :]),
                "shapes, mean of the marks": np.mean(together),
                "shapes, worst": np.max(together),
            }
            shown = ", ".join(f"{100 * value:.1f}" for value in values.values())
            rows.append(Comparison(f"{name} (cm)", shown, "–"))
            for column, value in {"left out": name, **values}.items():
                table.setdefault(column, []).append(value if isinstance(value, str) else float(value))
        columns = ", ".join(list(table)[1:])
        return Finding(
            Verdict.NOT_COMPARABLE,
            f"The fast preset with one part at a time left out, {len(curves[COMPLETE])} seeds. Each row: "
            f"{columns}, in cm; medians over seeds for single episodes. The paper has no such claim.",
            tuple(rows),
            figures={"ingredients": ingredients_figure(curves)},
            tables={"ingredients": table},
        )


@styled
def ingredients_figure(curves: dict[str, np.ndarray]) -> Figure:
    """The median error per episode with each part left out, over that of the complete preset."""
    figure = Figure(figsize=(7.6, 9.0), layout="constrained")
    panels = np.atleast_1d(figure.subplots(5, 2, sharex=True, sharey=True)).ravel()
    complete = 100 * np.median(curves[COMPLETE], axis=0)
    episodes, shown = np.arange(1, len(complete) + 1), [complete]
    for axes, (name, values) in zip(panels, list(curves.items())[1:] or list(curves.items()), strict=False):
        median = 100 * np.median(values, axis=0)
        axes.plot(episodes, complete, color="#B0B0B0", label=COMPLETE)
        axes.plot(episodes, median, color=PALETTE[0], label=name)
        axes.set_title(name, loc="left", fontsize=9)
        shown.append(median)
    for i, axes in enumerate(panels):
        axes.set_visible(i < max(len(curves) - 1, 1))
        log_scale(axes, shown)
        episode_axis(axes, episodes)
    for axes in panels[-2:]:
        axes.set_xlabel("episode")
    for axes in panels[::2]:
        axes.set_ylabel("error (cm)")
    return figure
