"""`ingredients`: what each part of the fast preset is worth. One part at a time is left out; the rest stays.

Seeds are few and differ by half, so a part is judged by intervals over seeds. It pays where the error without it is
larger, on one of four looks (sensors, references) and with the interval corrected for four. The verdict is about two
things that can come out otherwise: the parts that carry the preset pay, and no part does harm.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, episode_axis, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import TINY_SETTINGS, small
from .contrasts import Contrasts, contrast
from .curves import MIN_SEEDS, gather
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
CARRY = ("one-step model", "no observer", "nothing imagined", "one policy step")
"""Left out, these have to cost something: docs/fast.md, docs/learned_state.md and decision 12 say that they carry the
preset."""
LATE = ("no refinement", "no lag in refinement", "no running mean")
"""Refinement waits until predictions have come true four times: so few episodes say little about these."""
EPISODES = {"full": 8, "quick": 3, "tiny": 2}
KINDS = ("random", "shapes")
LOOKS = tuple((sensors, kind) for sensors in SENSORS for kind in KINDS)


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
        """Errors with each part left out, over those of the complete preset, seed by seed."""
        by_file = {_file_name(sensors, part): (sensors, part) for sensors in SENSORS for part in LEFT_OUT}
        curves = {by_file[result.job.name]: gather([result], "tracking_error").values for result in results}
        errors: dict[tuple[str, str], dict[str, np.ndarray]] = {look: {} for look in LOOKS}
        for result in results:
            sensors, part = by_file[result.job.name]
            late = curves[sensors, part][:, curves[sensors, part].shape[1] // 2 :]
            errors[sensors, "random"][part] = late.mean(axis=1)
            errors[sensors, "shapes"][part] = _shapes(result)
        found = {look: contrast(errors[look], COMPLETE) for look in LOOKS}
        parts = [part for part in LEFT_OUT if any(part in errors[look] for look in LOOKS)]
        rows = [_row(part, errors, found, size) for part in parts]
        is_whole = len(results) == len(self.jobs(size))
        judged = [row for row in rows if row.verdict is not None]
        return Finding(
            Verdict.overall(rows) if is_whole and judged else Verdict.NOT_COMPARABLE,
            ("" if is_whole else f"So far: {len(results)} of {len(self.jobs(size))} jobs. ") + _text(size),
            tuple(rows),
            figures={"ingredients": ingredients_figure(curves)},
            tables={"ingredients": _table(parts, errors, found)},
        )


def _shapes(result: Result) -> np.ndarray:
    """Mean error on the shapes, per seed."""
    shapes = result.csv(SHAPES)
    together = shapes["reference"] == "together"
    return shapes["mean_error"][together][np.argsort(shapes["seed"][together])]


def _row(
    part: str,
    errors: dict[tuple[str, str], dict[str, np.ndarray]],
    found: dict[tuple[str, str], Contrasts],
    size: Size,
) -> Comparison:
    """Medians, the clearest of the four ratios, and what follows."""
    medians = {look: 100 * np.median(errors[look].get(part, np.asarray([np.nan]))) for look in LOOKS}
    shown = ", ".join(f"{s} {medians[s, 'random']:.2f}/{medians[s, 'shapes']:.2f}" for s in SENSORS)
    quantity = f"{part} (cm, random/shapes)"
    known = {look: one.ratio(part, len(LOOKS)) for look, one in found.items() if part in one.differences}
    if part == COMPLETE or not known:
        return Comparison(quantity, shown, "–")
    # A verdict on the preset looks at every part: so does the interval that it rests on.
    harms = [look for look in known if found[look].ratio(part, len(LOOKS) * (len(LEFT_OUT) - 1))[2] < 1]
    pays = [look for look, (_, low, _) in known.items() if low > 1]
    look = harms[0] if harms else max(known, key=lambda look: (look in pays, known[look][0]))
    ratio, low, high = known[look]
    ends = f" ({low:.2f} to {high:.2f})" if np.isfinite(low) else ""
    shown += f"; × {ratio:.2f}{ends}, {look[0]}, {look[1]}"
    verdict = None
    if size.name != "full" or not np.isfinite(low):
        verdict = Verdict.NOT_COMPARABLE if part in CARRY else None
    elif harms:
        verdict = Verdict.FAIL
    elif pays:
        verdict = Verdict.PASS
    elif part in CARRY:
        verdict = Verdict.FAIL
    return Comparison(quantity, shown, "–", verdict)


def _table(
    parts: list[str], errors: dict[tuple[str, str], dict[str, np.ndarray]], found: dict[tuple[str, str], Contrasts]
) -> dict[str, list[Any]]:
    """A row per part: the medians over seeds, and the ratios with their intervals."""
    nothing = np.asarray([np.nan])
    table: dict[str, list[Any]] = {"left out": parts}
    for (sensors, kind), one in found.items():
        medians = [float(np.median(errors[sensors, kind].get(part, nothing))) for part in parts]
        table[f"{sensors}, {kind}"] = medians
        ratios = [(1.0, 1.0, 1.0) if part == COMPLETE else one.ratio(part, len(LOOKS)) for part in parts]
        for i, name in enumerate(("ratio", "low", "high")):
            table[f"{sensors}, {kind}, {name}"] = [ratio[i] for ratio in ratios]
    return table


def _text(size: Size) -> str:
    few = "" if size.seeds >= MIN_SEEDS else f" Below {MIN_SEEDS} seeds there is no interval, and no verdict."
    return (
        f"The fast preset on `excavator`, {EPISODES[size.name]} episodes, {size.seeds} seed{'s' * (size.seeds > 1)}, "
        "one part at a time left out; medians over seeds. Random: mean error of the second half of the episodes, while "
        "learning. Shapes: the newest policy at the end. Ratios are to the complete preset, seed by seed (geometric "
        f"mean, with the 95 % interval for {len(LOOKS)} looks together). A part pays (PASS) where one of the "
        f"{len(LOOKS)} intervals lies above 1. The experiment passes where the parts that are said to carry the preset "
        f"pay ({', '.join(CARRY)}), and where leaving out no part makes it better (interval for all parts and looks "
        "together). A part without a verdict is not shown to pay: so few seeds show large effects alone. "
        f"{', '.join(LATE).capitalize()}: refinement waits until predictions have come true four times, so that it "
        f"hardly acts in {EPISODES[size.name]} episodes, and its parts need more of them.{few} The paper has no such "
        "claim."
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
