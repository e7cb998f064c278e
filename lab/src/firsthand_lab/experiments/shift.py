"""`shift`: eight hours of work with warming oil, five loads in random order and a valve that wears."""

from dataclasses import asdict

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, log_scale, styled
from firsthand.training.work import WorkSettings

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import HONEST_ROBOT
from .theory.setup import settings

RUNNER = "firsthand_lab.experiments.shift_job:run"
LOADS = (0.0, 300.0, 600.0, 900.0, 1200.0)
ARMS = {"base": "the PI controller", "fixed": "the morning's policy", "learning": "learning"}
STEADY = 1.5
"""Back is an error of at most this many times the first steady one of that load."""
KNOWN_S, NEW_S = 60.0, 150.0
"""Asked for: how long a load that was met before may take, and a new one."""
BLOCK_S = 30.0


class Shift(Experiment):
    """A working day."""

    name = "shift"
    shows = "learning during eight hours of work: loads, warming oil and wear"
    figure = "none: ours"
    cost = Cost(full_min=60, quick_s=600)
    seeds = Seeds(full=1, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One day per seed."""
        blocks = size.pick(full=960, quick=96, tiny=9)
        tests = {"observer.use": 0} if size.name == "tiny" else {}
        chosen = settings(size, "fast", {"refinement.steps": 0} | tests)
        tiny = {"blocks": 1, "idle_blocks": 2, "eager_updates": 1, "chunks": 6, "recent_chunks": 3}
        shared = {
            "robot": HONEST_ROBOT[size.name],
            "identify": size.name != "tiny",  # the tests' trajectories are too short for that
            "blocks": blocks,
            "block_trajectories": size.pick(full=6, quick=6, tiny=2),
            "episodes": size.pick(full=12, quick=8, tiny=2),
            "loads": list(size.pick(full=LOADS, quick=LOADS[::2], tiny=(0.0, 300.0))),
            "load_blocks": size.pick(full=[16, 24], quick=[8, 12], tiny=[2, 3]),
            "worn_after": size.pick(full=600, quick=72, tiny=6),
            "work": asdict(WorkSettings()) | (tiny if size.name == "tiny" else {}),
            **chosen,
        }
        return [
            Job(f"day-{seed}", RUNNER, {**shared, "seed": seed}, steps=3 * blocks, weight=1.2)
            for seed in range(size.seeds)
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """How long a change is felt, and what the day looked like."""
        tables = [result.csv("shift.csv") for result in results]
        known, new = (np.concatenate([changes(table)[i] for table in tables]) for i in (0, 1))
        mean = {arm: float(np.mean([table[arm].mean() for table in tables])) for arm in ARMS}
        late = {arm: float(np.mean([table[arm][table["worn"] == 1].mean() for table in tables])) for arm in ARMS}
        rows = [
            *(Comparison(f"{text}: mean error (cm)", f"{100 * mean[arm]:.2f}", "–") for arm, text in ARMS.items()),
            *(
                Comparison(f"{text}: mean error with the worn valve (cm)", f"{100 * late[arm]:.2f}", "–")
                for arm, text in ARMS.items()
            ),
            _asked("a load met before", known, KNOWN_S, size),
            _asked("a new load", new, NEW_S, size),
        ]
        loads = ", ".join(f"{kg:g}" for kg in sorted(set(tables[0]["load_kg"])))
        text = (
            f"A machine worked for {tables[0]['hour'][-1]:.2g} h ({len(tables)} seed{'s' * (len(tables) > 1)}): "
            f"loads of {loads} kg in random order, oil that warms up, "
            "and in the end a worn boom valve. The learner was told of none of it. Mean error: "
            + ", ".join(f"{name} {100 * mean[arm]:.2f} cm" for arm, name in ARMS.items())
            + f". Of {len(known)} changes to a load that was met before, {_within(known, KNOWN_S)} were back at "
            f"{STEADY:g} times that load's first steady error within {KNOWN_S:.0f} s; of {len(new)} changes to a new "
            f"one, {_within(new, NEW_S)} within {NEW_S:.0f} s."
        )
        numbers = {"mean_error": mean, "worn_error": late, "known_s": known.tolist(), "new_s": new.tolist()}
        return Finding(
            Verdict.overall(rows),
            text,
            tuple(rows),
            figures={"shift": _figure(tables[0])},
            tables={"shift": tables[0]},
            numbers=numbers,
        )


def changes(table: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds until the error is back after each change to a load met before, and to a new one; ∞ where it never is.

    The first steady error of a load is the median of the second half of its first visit; a load's first visit is judged
    by that itself. Changes with the worn valve are in there.
    """
    load, error = table["load_kg"], table["learning"]
    starts = np.flatnonzero(np.diff(load, prepend=np.nan) != 0)
    ends = np.append(starts[1:], len(load))
    steady: dict[float, float] = {}
    known, new = [], []
    for start, end in zip(starts, ends, strict=True):
        kg = float(load[start])
        first = kg not in steady
        if first:
            steady[kg] = float(np.median(error[start + (end - start) // 2 : end]))
        good = np.flatnonzero(error[start:end] <= STEADY * steady[kg])
        seconds = BLOCK_S * (good[0] + 1) if good.size else np.inf
        if start > 0:
            (new if first else known).append(seconds)
    return np.asarray(known, float), np.asarray(new, float)


def _within(seconds: np.ndarray, limit: float) -> str:
    return f"{100 * np.mean(seconds <= limit):.0f} %" if len(seconds) else "none"


def _asked(what: str, seconds: np.ndarray, limit: float, size: Size) -> Comparison:
    """The changes that were back in time, beside what was asked for."""
    if not len(seconds):
        return Comparison(f"{what}: back within {limit:.0f} s", "no such change", "100 %", Verdict.NOT_COMPARABLE)
    slowest = f"{seconds.max():.0f} s" if np.isfinite(seconds).all() else "not until the next"
    return Comparison(
        f"{what}: back within {limit:.0f} s",
        f"{_within(seconds, limit)} of {len(seconds)} (slowest: {slowest})",
        "100 %",
        Verdict.of_full(bool((seconds <= limit).all()), size),
    )


@styled
def _figure(table: dict[str, np.ndarray]) -> Figure:
    figure = Figure(figsize=(7.4, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for i, (arm, text) in enumerate(ARMS.items()):
        above.plot(table["hour"], 100 * table[arm], color=PALETTE[i], linewidth=0.9, label=text)
    above.set_ylabel("error of 30 s (cm)")
    log_scale(above, [100 * table[arm] for arm in ARMS])
    above.legend(ncols=3, loc="upper right")
    below.step(table["hour"], table["load_kg"], where="mid", color="#606060", linewidth=1.0)
    below.set_ylabel("load (kg)")
    below.set_xlabel("hour")
    if (table["worn"] == 1).any():
        hour = table["hour"][np.argmax(table["worn"] == 1)]
        for axes in (above, below):
            axes.axvline(hour, color="#A0A0A0", linestyle="--", linewidth=1.0)
        above.annotate("valve worn", (hour, above.get_ylim()[1]), ha="left", va="top", fontsize=9)
    return figure
