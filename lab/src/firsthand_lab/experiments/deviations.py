"""`deviations`: which of our deviations from the paper carries the algorithm. One at a time is added to none."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, episode_axis, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import small
from .curves import gather
from .learning import Setup

BARE, ALL, JUDGED = "none of them", "all of them: paper-exact", "all of them, and judged steps: paper"
BARE_SETTINGS: dict[str, Any] = {
    "policy_step.discount": 1.0,
    "policy_step.gradient_limit": 1e30,
    "excitation.amplitude": 0.0,
}
BARE_TASK: dict[str, Any] = {"change_weight": 0.0, "limit_weight": 0.0, "measurement_memory": 0}
OURS: dict[str, tuple[str, ...]] = {
    "discount 0.97": ("policy_step.discount",),
    "gradients above 20 damped": ("policy_step.gradient_limit",),
    "excitation in episode 1": ("excitation.amplitude",),
    "cost of command changes": ("change_weight",),
    "cost of joint limits": ("limit_weight",),
    "two past measurements": ("measurement_memory",),
}
"""What is added to the bare algorithm: the entries of `BARE_SETTINGS` and `BARE_TASK` that are left as we have them."""
EPISODES = {"full": 120, "quick": 20, "tiny": 3}
LEARNED = 0.1
"""An algorithm has learned whose median error of the last quarter is below this, in metres."""


class Deviations(Experiment):
    """The ablation of `paper-exact`, from below."""

    name = "deviations"
    shows = "which deviation from the paper carries the algorithm"
    figure = "ours"
    cost = Cost(full_min=60, quick_s=90)
    seeds = Seeds(full=2, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One per variant, all its seeds side by side."""
        chosen = size.pick(full=list(variants()), quick=[BARE, "discount 0.97", ALL], tiny=[BARE, ALL])
        return [self._setup(name, size).job(_file_name(name), weight=0.25) for name in chosen]

    def _setup(self, name: str, size: Size) -> Setup:
        preset, settings, task = variants()[name]
        changed = small(size)
        return dataclasses.replace(
            Setup(preset=preset, episodes=EPISODES[size.name], seeds=tuple(range(size.seeds))),
            settings={**changed.get("settings", {}), **settings},
            task={**changed.get("task", {}), **task},
        )

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """The error of the last quarter with each deviation alone."""
        by_file = {_file_name(name): name for name in variants()}
        curves = {by_file[result.job.name]: gather([result], "tracking_error").values for result in results}
        quarter = max(EPISODES[size.name] // 4, 1)
        late = {name: np.median(values[:, -quarter:], axis=1) for name, values in curves.items()}
        best = {name: values.min(axis=1) for name, values in curves.items()}
        learned = [name for name in OURS if name in late and (late[name] < LEARNED).all()]
        rows = (
            Comparison("enough alone", ", ".join(learned) or "none", "–"),
            *(
                Comparison(
                    f"{name}: error of the last {quarter} episodes (cm), per seed",
                    ", ".join(f"{100 * value:.1f}" for value in late[name]),
                    "–",
                )
                for name in curves
            ),
        )
        bare = bool((late[BARE] < LEARNED).any())
        verdict = Verdict.of_full(not bare and len(learned) > 0, size)
        return Finding(
            verdict,
            _text(late, learned, bare, EPISODES[size.name], verdict),
            rows,
            figures={"deviations": _figure(curves)},
            tables={
                "deviations": {
                    "variant": [name for name in late for _ in late[name]],
                    "seed": [seed for name in late for seed in range(len(late[name]))],
                    "late_error_m": [float(value) for name in late for value in late[name]],
                    "best_error_m": [float(value) for name in best for value in best[name]],
                }
            },
            numbers={"learned": learned, "bare_learns": bare},
        )


def variants() -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name to preset, changed settings and changed task: none of our deviations, one at a time, all."""
    found = {BARE: ("paper-exact", BARE_SETTINGS, BARE_TASK)}
    for name, ours in OURS.items():
        settings = {key: value for key, value in BARE_SETTINGS.items() if key not in ours}
        task = {key: value for key, value in BARE_TASK.items() if key not in ours}
        found[name] = ("paper-exact", settings, task)
    found[ALL] = ("paper-exact", {}, {})
    found[JUDGED] = ("paper", {}, {})
    return found


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _text(late: dict[str, np.ndarray], learned: list[str], bare: bool, episodes: int, verdict: Verdict) -> str:
    def describe(name: str) -> str:
        return f"{100 * float(np.median(late[name])):.1f} cm"

    without = f"Without any of them the error of the last quarter of {episodes} episodes is {describe(BARE)}"
    alone = "; ".join(f"{name} alone {describe(name)}" for name in OURS if name in late)
    carried = f"Alone, {' or '.join(learned)} is enough to learn." if learned else "None of them is enough alone."
    claim = {
        Verdict.PASS: carried,
        Verdict.FAIL: "The bare algorithm learns as it is here." if bare else carried,
    }.get(verdict, "This size is too small to tell.")
    return (
        "The paper's algorithm without our deviations that could carry it (discount, damped gradients, excitation, "
        "cost of command changes and of joint limits, past measurements), and with one of them at a time. "
        f"{without}; {alone}. With all of them it is {describe(ALL)}. Learned counts below {100 * LEARNED:.0f} cm in "
        f"every seed. {claim}"
    )


@styled
def _figure(curves: dict[str, np.ndarray]) -> Figure:
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    axes = figure.subplots()
    shown = []
    for i, (name, values) in enumerate(curves.items()):
        median = 100 * np.median(values, axis=0)
        color = "#909090" if name == BARE else PALETTE[i % len(PALETTE)]
        axes.plot(np.arange(1, len(median) + 1), median, color=color, label=name, linewidth=1.4)
        shown.append(median)
    log_scale(axes, shown)
    episode_axis(axes, np.arange(1, len(shown[0]) + 1))
    axes.set_xlabel("episode")
    axes.set_ylabel("tracking error (cm)")
    axes.legend(fontsize=8, loc="upper right")
    return figure
