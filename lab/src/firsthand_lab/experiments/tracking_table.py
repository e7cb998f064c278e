"""Table 1: speed and accuracy, at several reference speeds up to the paper's highest."""

import dataclasses
from importlib.util import find_spec

import numpy as np
from matplotlib.figure import Figure

from firsthand.evaluation.published import PAPER_TABLE_1
from firsthand.report.style import INK, PALETTE, log_scale, styled
from firsthand.training.presets import preset

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import SPEEDS, baseline, jobs_of, small
from .learning import SPEEDS as SPEEDS_FILE
from .learning import Setup

COLUMNS = ("mean_speed", "max_speed", "mean_error", "max_error", "rho_s")
PAPER = PAPER_TABLE_1["paper, real HEAP"]
EARLIER = {"Nan & Hutter 2024": "randomised", "Egli & Hutter 2022": "simulator"}
"""The earlier approaches, and what `baselines.earlier` calls them."""
EARLIER_STEPS = 10_000_000
"""Control steps in simulation for each of them: 111 hours of a machine."""
PLAIN = "paper-exact"
"""The preset of the plain run."""
UNMEASURED = "not measured: run `make peers` first"


class TrackingTable(Experiment):
    """The last policies of `paper-exact` and `fast` on circle, square and line at several speeds."""

    name = "tracking-table"
    shows = "speed and accuracy beside the paper's and two earlier approaches"
    figure = "table 1"
    cost = Cost(full_min=80, quick_s=70)
    seeds = Seeds(full=4, quick=1, tiny=2)

    def jobs(self, size: Size) -> list[Job]:
        """The plain run, and the fast preset."""
        fast = Setup(
            preset="fast",
            episodes=size.pick(full=40, quick=8, tiny=16),
            speeds=size.pick(full=SPEEDS, quick=SPEEDS, tiny=SPEEDS[1:2]),
            **small(size),
        )
        if size.name == "tiny":
            # Settings of the other preset under this name: nothing is compiled for it.
            fast = dataclasses.replace(fast, settings={**preset(PLAIN).flat(), **fast.settings})
        return [*baseline(size), *jobs_of(fast, "excavator-fast", size.seeds, weight=2.0), *earlier_jobs(size)]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Medians over seeds, in the paper's columns."""
        presets = {p: _table([r for r in results if r.job.parameters.get("preset") == p]) for p in (PLAIN, "fast")}
        rebuilt = {
            name: _table(found)
            for name, called in EARLIER.items()
            if (found := [r for r in results if r.job.parameters.get("approach") == called])
        }
        speeds = [s for s in SPEEDS if s in presets[PLAIN]["speed"]]
        rows, table = [], {name: [] for name in ("approach", "cruising_speed", *COLUMNS)}

        def add(approach: str, speed: float, values: tuple[float, ...]) -> None:
            for name, value in zip(table, (approach, speed, *values), strict=True):
                table[name].append(value)

        for name, data in presets.items():
            for speed in (*speeds, np.nan):
                values = _row(data, speed)
                add(f"ours, {name} preset", speed, values)
                where = "random references" if np.isnan(speed) else f"shapes at {100 * speed:.0f} cm/s"
                rows.append(Comparison(f"{name} preset, {where}", _cell(values), "–"))
        for approach, values in PAPER_TABLE_1.items():
            add(f"published: {approach}", np.nan, values)
        for approach in EARLIER:
            published = _cell(PAPER_TABLE_1[approach])
            if approach not in rebuilt:
                add(f"{approach}, rebuilt", np.nan, (np.nan,) * 5)
                rows.append(Comparison(f"{approach}, rebuilt here", UNMEASURED, published))
                continue
            for speed in (*speeds, np.nan):
                values = _row(rebuilt[approach], speed)
                add(f"{approach}, rebuilt", speed, values)
                where = "random references" if np.isnan(speed) else f"shapes at {100 * speed:.0f} cm/s"
                rows.append(
                    Comparison(f"{approach}, rebuilt here, {where}", _cell(values), published if speed == 0.5 else "–")
                )
        best = {p: _row(data, speeds[-1]) for p, data in presets.items()}
        random = {p: _row(data, np.nan) for p, data in presets.items()}
        verdict = Verdict.of(random[PLAIN][4] <= 1.1 * PAPER[4], size)
        what = "v avg, v max (cm/s), mean, max error (cm), ρ (s)"
        harder = Verdict.of(best[PLAIN][4] <= 1.1 * PAPER[4], size)
        rows = [
            Comparison(f"{what}, random references", _cell(random[PLAIN]), _cell(PAPER), verdict),
            Comparison("the same on the shapes at the highest speed", _cell(best[PLAIN]), _cell(PAPER), harder),
            *rows,
        ]
        return Finding(
            verdict,
            _text(best, random, rebuilt, verdict),
            tuple(rows),
            figures={"tracking": _figure({**{f"{p} preset": t for p, t in presets.items()}, **rebuilt}, speeds)},
            tables={"tracking": table},
            numbers={p: dict(zip(COLUMNS, values, strict=True)) for p, values in best.items()},
        )


def _table(results: list[Result]) -> dict[str, np.ndarray]:
    return files.join_tables([result.csv(SPEEDS_FILE) for result in results])


def _row(table: dict[str, np.ndarray], speed: float) -> tuple[float, ...]:
    at = np.isnan(table["speed"]) if np.isnan(speed) else table["speed"] == speed
    return tuple(float(np.median(table[name][at])) for name in COLUMNS)


def _cell(values: tuple[float, ...]) -> str:
    average, most, mean, largest, rho = values
    return f"{100 * average:.1f}, {100 * most:.1f}, {100 * mean:.1f}, {100 * largest:.1f}, {rho:.2f}"


def earlier_jobs(size: Size) -> list[Job]:
    """The earlier approaches rebuilt, in the full size and where PyTorch is installed."""
    if size.name != "full" or find_spec("stable_baselines3") is None:
        return []
    from ..baselines import earlier

    return [earlier.job(called, 0, steps=EARLIER_STEPS, speeds=SPEEDS) for called in EARLIER.values()]


def _text(
    best: dict[str, tuple[float, ...]],
    random: dict[str, tuple[float, ...]],
    rebuilt: dict[str, dict[str, np.ndarray]],
    verdict: Verdict,
) -> str:
    than = {Verdict.PASS: "no worse than", Verdict.FAIL: "worse than"}.get(verdict, "not to be compared with")
    paper, fast = random[PLAIN], random["fast"]
    return (
        "Numbers are medians over seeds. The paper's row is of random references on the real machine, so random "
        f"references decide: the paper's algorithm has {100 * paper[2]:.1f} cm and ρ (largest error over highest "
        f"speed) {paper[4]:.2f} s at up to {100 * paper[1]:.0f} cm/s, {than} the paper's {PAPER[4]:.2f} s; the fast "
        f"preset has {100 * fast[2]:.1f} cm and {fast[4]:.2f} s at up to {100 * fast[1]:.0f} cm/s. Our random "
        f"references are slower on average ({100 * paper[0]:.0f} cm/s; the paper's {100 * PAPER[0]:.0f}). Circle, "
        "square and line at a cruising speed of 129.3 cm/s are harder: they keep that speed, and the square has four "
        f"corners; there ρ is {best[PLAIN][4]:.2f} s with the paper's algorithm and {best['fast'][4]:.2f} s with the "
        "fast preset. "
        + (
            "The two earlier approaches, rebuilt here, learned in simulation for the equivalent of "
            f"{EARLIER_STEPS / 25 / 3600:.0f} hours of a machine (one seed each) and then ran on the machine."
            if rebuilt
            else "Of the two earlier approaches only the published numbers are shown."
        )
    )


@styled
def _figure(tables: dict[str, dict[str, np.ndarray]], speeds: list[float]) -> Figure:
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    axes = figure.subplots()
    shown: list[np.ndarray | float] = [100 * values[2] for values in PAPER_TABLE_1.values()]
    for i, (name, table) in enumerate(tables.items()):
        rows = np.asarray([_row(table, speed) for speed in speeds])
        axes.plot(100 * rows[:, 1], 100 * rows[:, 2], "o-", color=PALETTE[i], label=f"{name}, mean error")
        axes.plot(100 * rows[:, 1], 100 * rows[:, 3], "o:", color=PALETTE[i], label=f"{name}, largest error")
        shown += [100 * rows[:, 2], 100 * rows[:, 3]]
    for (name, values), marker in zip(PAPER_TABLE_1.items(), "s^v", strict=True):
        axes.plot(100 * values[1], 100 * values[2], marker, color=INK, markersize=7, label=f"{name}, published")
    log_scale(axes, shown)
    axes.set_xlabel("highest speed of the reference (cm/s)")
    axes.set_ylabel("error (cm)")
    figure.legend(loc="outside right upper")
    return figure
