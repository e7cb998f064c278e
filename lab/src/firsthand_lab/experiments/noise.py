"""`noise`: learning with sensors that are noisy and sometimes wrong, from not at all to severely.

The paper names this as its limitation. The verdict is about the true position of the tip, not about the measured one.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict

RUNNER = f"{__name__}:run"
PRESETS = ("paper", "fast")
SPIKE = 8.0
"""Size of an outlier, in change scales: about as far as a joint moves in a third of a second at full speed."""
WORSE = 1.5
"""This many times the error without noise counts as a significant impact."""
LAST = 4
"""The last quarter of the episodes makes the error on random references."""


@dataclass(frozen=True)
class Level:
    """How bad the sensors are."""

    name: str
    position: float
    """Standard deviation of positions, rad or m."""
    velocity: float
    """Standard deviation of velocities, rad/s or m/s."""
    outliers: float
    """Share of single values that are far off."""


LEVELS = (
    Level("none", 0.0, 0.0, 0.0),
    Level("mild", 5e-4, 5e-3, 0.0),
    Level("moderate", 2e-3, 2e-2, 0.002),
    Level("strong", 5e-3, 5e-2, 0.01),
    Level("severe", 1e-2, 1e-1, 0.03),
)


class Noise(Experiment):
    """Sensor noise and outliers, both presets."""

    name = "noise"
    shows = "how sensor noise and outliers affect learning, with both presets"
    figure = "section 5.3"
    cost = Cost(full_min=13, quick_s=70)
    seeds = Seeds(full=2, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One per preset; in it one level after the other, so that it compiles once."""
        from .theory.setup import settings

        chosen = size.pick(full=LEVELS, quick=(LEVELS[0], LEVELS[4]), tiny=(LEVELS[0], LEVELS[4]))
        jobs = []
        for name in PRESETS:
            each = {"paper": (40, 10, 2), "fast": (10, 3, 2)}[name]
            episodes = size.pick(full=each[0], quick=each[1], tiny=each[2])
            parameters = {
                "robot": "excavator",
                "seeds": list(range(size.seeds)),
                "episodes": episodes,
                "levels": [asdict(level) for level in chosen],
                **settings(size, name),
            }
            weight = {"paper": 0.5, "fast": 3.0}[name] * size.seeds
            jobs.append(Job(name, RUNNER, parameters, steps=len(chosen) * episodes, weight=weight))
        return jobs

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Errors over the levels."""
        tables = {result.job.name: result.csv("levels.csv") for result in results}
        names = [level["name"] for level in results[0].job.parameters["levels"]]
        errors = {
            (preset, column, name): table[column][table["level"] == name]
            for preset, table in tables.items()
            for column in ("shapes_error", "random_error")
            for name in names
        }
        rows, factors = [], {}
        for preset in PRESETS:
            for column, label in (("shapes_error", "shapes"), ("random_error", "random references")):
                means = [100 * float(errors[preset, column, name].mean()) for name in names]
                factors[preset, column] = means[-1] / means[0]
                listed = ", ".join(f"{name} {mean:.1f}" for name, mean in zip(names, means, strict=True))
                rows.append(Comparison(f"true error on {label}, {preset} preset (cm)", listed, "–"))
        for preset in PRESETS:
            factor = factors[preset, "shapes_error"]
            rows.append(
                Comparison(
                    f"{names[-1]} over {names[0]}, shapes, {preset} preset",
                    f"× {factor:.1f}",
                    "significant impact",
                    Verdict.of_full(factor > WORSE, size),
                )
            )
        text = (
            "Both presets learned on the simulated excavator with sensor noise and outliers of growing size. Errors "
            "are of the true tip, on shapes and, as the mean of the last episodes, on the random references of "
            f"training; the feedback is as noisy as in training. From {names[0]} to {names[-1]} noise the error on the "
            f"shapes grew by a factor of {factors['paper', 'shapes_error']:.1f} with the paper preset and of "
            f"{factors['fast', 'shapes_error']:.1f} with the fast one. The paper names noise as a limitation and "
            f"gives no number; we call a factor above {WORSE:g} a significant impact. Outliers that stick out from "
            "their neighbours are dropped before learning, which the paper does not do."
        )
        columns = {name: np.concatenate([table[name] for table in tables.values()]) for name in tables["paper"]}
        which = np.concatenate([[preset] * len(table["seed"]) for preset, table in tables.items()])
        return Finding(
            Verdict.overall(rows),
            text,
            tuple(rows),
            figures={"noise": noise_figure(tables, names)},
            tables={"noise": {"preset": which, **columns}},
            numbers={f"{preset} {column}": factor for (preset, column), factor in factors.items()},
        )


@styled
def noise_figure(tables: dict[str, dict[str, np.ndarray]], names: list[str]) -> Figure:
    """True errors over the levels, seed by seed, both presets."""
    figure = Figure(figsize=(9.0, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    shown: list[np.ndarray | float] = []
    for axes, (column, title) in zip(
        panels, (("shapes_error", "circle, square, line"), ("random_error", "random references")), strict=True
    ):
        for i, (preset, table) in enumerate(tables.items()):
            values = [100 * table[column][table["level"] == name] for name in names]
            axes.plot(range(len(names)), [v.mean() for v in values], color=PALETTE[i], label=f"{preset} preset")
            for x, one in enumerate(values):
                axes.plot(np.full(len(one), x), one, color=PALETTE[i], marker="o", linestyle="none", alpha=0.6)
            shown += values
        axes.set_title(title, loc="left")
        axes.set_xticks(range(len(names)), names)
        axes.set_xlabel("noise and outliers")
    for axes in panels:
        log_scale(axes, shown)
    panels[0].set_ylabel("true mean error (cm)")
    panels[0].legend(loc="upper left")
    return figure


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Leaves levels.csv, a row per level and seed. A finished level is not repeated."""
    from .learning import run_in_order

    parts = {values["name"]: partial(learn, parameters, Level(**values)) for values in parameters["levels"]}
    run_in_order(folder / "levels.csv", "level", parts, parameters["episodes"], report)


def learn(parameters: dict[str, Any], level: Level, report: Report) -> list[dict[str, Any]]:
    """All seeds with sensors of one level; what they reached."""
    from firsthand.evaluation import tracking_metrics
    from firsthand.plants.sensors import Sensors, sense

    from .theory.setup import make_group, plant_of, task_of

    task = task_of(parameters)
    layout, size = task.spec.layout, SPIKE * np.asarray(task.spec.scales.change_scale)
    noise = [level.velocity if i in layout.velocity else level.position for i in range(layout.num_measured)]
    sensors = Sensors(noise=noise, outlier_share=level.outliers, outlier_size=size).for_entries(layout.measured)
    group = make_group(parameters, sense(plant_of(parameters["robot"]), sensors))
    random: list[np.ndarray] = []
    for episode in range(1, parameters["episodes"] + 1):
        random.append(group.run_episode()["tracking_error"])
        report(episode, f"{level.name}: true error {100 * np.mean(random[-1]):.1f} cm")
    last = -(-len(random) // LAST)
    rows = []
    for i, (seed, shapes) in enumerate(zip(group.seeds, group.follow(), strict=True)):
        metrics = tracking_metrics(task.spec, shapes)
        rows.append(
            {
                "level": level.name,
                "seed": seed,
                "shapes_error": metrics.mean_error,
                "random_error": float(np.mean([true[i] for true in random[-last:]])),
                "measured_shapes_error": metrics.measured_mean_error,
                **{name: value for name, value in asdict(level).items() if name != "name"},
            }
        )
    return rows
