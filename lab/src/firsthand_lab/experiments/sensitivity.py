"""The paper's remark on hyperparameters: how the result depends on α, ε and η."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.agent.trees import stack_settings
from firsthand.report.style import plain_number, styled

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict
from .baseline import TINY_SETTINGS, TINY_TASK
from .throughput import CAPACITY

RUNNER = f"{__name__}:run"
NAMES: tuple[str, ...] = ("alpha", "epsilon", "eta")
GREEK = {"alpha": "α", "epsilon": "ε", "eta": "η"}
CENTER = {"alpha": 0.01, "epsilon": 0.05, "eta": 0.5}
"""The paper's."""
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "full": {
        "alpha": (0.0004, 0.002, 0.01, 0.05, 0.25),
        "epsilon": (0.002, 0.01, 0.05, 0.25, 1.25),
        "eta": (0.1, 0.5, 2.5),
    },
    "quick": {"alpha": (0.002, 0.01, 0.05), "epsilon": (0.01, 0.05, 0.25), "eta": (0.1, 0.5, 2.5)},
    "tiny": {"alpha": (0.002, 0.01), "epsilon": (0.01, 0.05), "eta": (0.1, 0.5)},
}
"""Factors of five around the paper's values."""
EPISODES = {"full": 30, "quick": 10, "tiny": 2}
WINDOW = 10
"""Episodes at the end (a quarter, in a short run) that make the error of a setting."""
MAX_SETTINGS_PER_JOB = 15
"""Settings in one job, at most."""
FILE = "errors.csv"


def settings(size: str) -> list[dict[str, float]]:
    """The grid: all combinations in a full run; in a quick one α × ε at the paper's η, and η alone."""
    grid = GRIDS[size]
    every = [dict(zip(NAMES, values, strict=True)) for values in itertools.product(*(grid[n] for n in NAMES))]
    if size != "quick":
        return every
    center = {"alpha": CENTER["alpha"], "epsilon": CENTER["epsilon"]}
    return [s for s in every if s["eta"] == CENTER["eta"] or {n: s[n] for n in center} == center]


class Sensitivity(Experiment):
    """A grid over α, ε and η."""

    name = "sensitivity"
    shows = "the step size η matters little, ε and α more"
    figure = "section 5.2"
    cost = Cost(full_min=87, quick_s=70)
    seeds = Seeds(full=3, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """Settings in groups that learn side by side."""
        every, episodes, jobs = settings(size.name), EPISODES[size.name], []
        together = size.pick(full=MAX_SETTINGS_PER_JOB, quick=MAX_SETTINGS_PER_JOB, tiny=4)
        for seed in range(size.seeds):
            for first in range(0, len(every), together):
                chosen = every[first : first + together]
                parameters = {"settings": chosen, "seed": seed, "episodes": episodes, "tiny": size.name == "tiny"}
                name = f"settings-{first}-{first + len(chosen) - 1}-seed-{seed}"
                jobs.append(Job(name, RUNNER, parameters, steps=episodes, weight=0.4 * len(chosen)))
        return jobs

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """The error of each setting, and how far each of the three moves it."""
        tables = [result.csv(FILE) for result in results]
        table = {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}
        grid = GRIDS[size.name]
        errors = _mean_errors(table)
        effects = {name: effect(errors, name, grid[name]) for name in NAMES}
        ranked = sorted(NAMES, key=lambda n: -effects[n])
        # A small form tells how fast learning gets going, and the claim is about where it ends.
        verdict = Verdict.of_full(ranked[-1] == "eta", size)
        best = min(errors, key=lambda s: errors[s])
        at_paper = errors[tuple(CENTER[n] for n in NAMES)]
        rows = [
            Comparison(
                f"error when {GREEK[n]} goes from {grid[n][0]:g} to {grid[n][-1]:g}: largest over smallest",
                f"× {effects[n]:.1f}",
                "little" if n == "eta" else "more",
                verdict if n == "eta" else None,
            )
            for n in NAMES
        ]
        shown = ", ".join(f"{GREEK[n]} {v:g}" for n, v in zip(NAMES, best, strict=True))
        rows.append(Comparison("error at the paper's α 0.01, ε 0.05, η 0.5 (cm)", f"{100 * at_paper:.1f}", "–"))
        rows.append(Comparison(f"smallest error (cm), at {shown}", f"{100 * errors[best]:.1f}", "–"))
        return Finding(
            verdict,
            _text(size, effects, ranked, at_paper, errors[best], verdict),
            tuple(rows),
            figures={"sensitivity": _figure(errors, grid)},
            tables={"sensitivity": table},
            numbers={"effects": effects, "order": ranked},
        )


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Every setting learns from the same seed, side by side; short enough to begin anew when it was interrupted."""
    from firsthand.robots.registry import make_robot
    from firsthand.tasks import excavator_task
    from firsthand.training.presets import preset

    from .learning import tuples
    from .together import Together

    tiny = parameters["tiny"]
    task = excavator_task(**tuples(TINY_TASK if tiny else {}))
    base = preset("paper-exact").with_changes(TINY_SETTINGS if tiny else {})
    chosen = [
        base.with_changes({f"policy_step.{name}": value for name, value in values.items()})
        for values in parameters["settings"]
    ]
    robot: Any = make_robot("excavator", task)
    seeds = [parameters["seed"]] * len(chosen)
    stacked = stack_settings(chosen)
    together = Together(robot.plant, task, stacked, seeds, episodes=max(parameters["episodes"], CAPACITY))
    curves = []
    for episode in range(1, parameters["episodes"] + 1):
        curves.append(together.run_episode()["tracking_error"])
        report(episode, f"best error {100 * np.nanmin(curves[-1]):.1f} cm")
    last = np.stack(curves)[-min(WINDOW, max(len(curves) // 4, 1)) :]
    error = np.exp(np.mean(np.log(last), axis=0))
    columns = {name: [values[name] for values in parameters["settings"]] for name in NAMES}
    files.write_csv(folder / FILE, {**columns, "seed": seeds, "error_m": error})


def _mean_errors(table: dict[str, np.ndarray]) -> dict[tuple[float, ...], float]:
    """The log-scale mean over seeds per setting; a run that broke down counts as 10 m."""
    errors: dict[tuple[float, ...], list[float]] = {}
    for row in zip(*(table[n] for n in NAMES), table["error_m"], strict=True):
        errors.setdefault(tuple(float(v) for v in row[:3]), []).append(row[3] if np.isfinite(row[3]) else 10.0)
    return {setting: float(np.exp(np.mean(np.log(values)))) for setting, values in errors.items()}


def effect(errors: dict[tuple[float, ...], float], name: str, values: tuple[float, ...]) -> float:
    """Largest over smallest error while one setting is varied and the others stay; log-scale mean over the others."""
    at = NAMES.index(name)
    ratios = []
    for others in {tuple(v for i, v in enumerate(s) if i != at) for s in errors}:
        along = [errors[s] for v in values if (s := (*others[:at], v, *others[at:])) in errors]
        if len(along) == len(values):
            ratios.append(np.log(max(along) / min(along)))
    return float(np.exp(np.mean(ratios))) if ratios else float("nan")


def _text(
    size: Size, effects: dict[str, float], ranked: list[str], at_paper: float, best: float, verdict: Verdict
) -> str:
    order = ", then ".join(f"{GREEK[n]} (× {effects[n]:.1f})" for n in ranked)
    claim = {
        Verdict.PASS: "As the paper says, η matters least",
        Verdict.FAIL: "Here η does not matter least, which the paper says it does",
    }.get(verdict, "This size is too small to tell")
    return (
        f"{len(settings(size.name))} settings learned for {EPISODES[size.name]} episodes with the paper's "
        "algorithm, each of α, ε "
        "and η over factors of five around the paper's value. What the error of the last episodes varies by "
        "when one of them "
        f"is varied and the others stay: {order}. {claim}. The paper's own setting has {100 * at_paper:.1f} cm, "
        "the best one "
        f"{100 * best:.1f} cm."
        + ("" if size.name == "full" else " After so few episodes this is about how fast learning gets going.")
    )


@styled
def _figure(errors: dict[tuple[float, ...], float], grid: dict[str, tuple[float, ...]]) -> Figure:
    etas = [e for e in grid["eta"] if sum(s[2] == e for s in errors) > 1]
    width = 2.5 * len(etas) + 1.6
    figure = Figure(figsize=(max(width, 4.2), 3.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(etas), sharey=True))
    values = 100 * np.asarray(list(errors.values()))
    low, high = np.log10(values.min()), np.log10(values.max())
    image: Any = None
    for axes, eta in zip(panels, etas, strict=True):
        field = [[100 * errors.get((a, e, eta), np.nan) for a in grid["alpha"]] for e in grid["epsilon"]]
        image = axes.imshow(np.log10(field), origin="lower", cmap="viridis_r", vmin=low, vmax=high, aspect="auto")
        for (j, i), error in np.ndenumerate(np.asarray(field)):
            color = "white" if np.log10(error) > (low + high) / 2 else "black"
            shown = f"{error:.2g}" if error < 99.5 else f"{error:.0f}"
            axes.text(i, j, shown, ha="center", va="center", fontsize=8.5, color=color)
        axes.set_xticks(range(len(grid["alpha"])), [plain_number(a) for a in grid["alpha"]], rotation=45)
        axes.set_yticks(range(len(grid["epsilon"])), [plain_number(e) for e in grid["epsilon"]])
        axes.set_xlabel("α")
        axes.set_title(f"η = {eta:g}", loc="left")
        axes.grid(False)
    panels[0].set_ylabel("ε")
    bar = figure.colorbar(image, ax=list(panels), shrink=0.9)
    bar.set_label("tracking error (cm)")
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if 10**low <= t <= 10**high]
    bar.set_ticks([float(np.log10(t)) for t in ticks], labels=[str(t) for t in ticks])
    return figure
