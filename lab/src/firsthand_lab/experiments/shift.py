"""`shift`: eight hours of work with warming oil, five loads in random order and a valve that wears.

Learning has to pay: with less error than the base and than the policy of the morning, over the day, with the worn valve
and under every load. And it has to be quick: back at a load's steady error in time. That error is no larger than what
the other two have under the load, so that a learner that is bad from the beginning is never back.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import PALETTE, log_scale, styled
from firsthand.training.work import WorkSettings

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import HONEST_ROBOT
from .curves import MIN_SEEDS, mean_interval
from .theory.setup import settings

RUNNER = "firsthand_lab.experiments.shift_job:run"
LOADS = (0.0, 300.0, 600.0, 900.0, 1200.0)
ARMS = {"base": "the PI controller", "fixed": "the morning's policy", "learning": "learning"}
OTHERS = ("base", "fixed")
STEADY = 1.5
"""Back is an error of at most this many times the steady one of that load."""
EVEN = 2.0
"""In the end the steady error under the hardest load may be this many times that under the easiest."""
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
        chosen = settings(size, "fast", {"observer.use": 0} if size.name == "tiny" else {})
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
        """Whether learning paid, how long a change is felt, and what the day looked like."""
        tables = [result.csv("shift.csv") for result in results]
        known, new = (np.concatenate([changes(table)[i] for table in tables]) for i in (0, 1))
        mean = {arm: float(np.mean([table[arm].mean() for table in tables])) for arm in ARMS}
        late = {arm: float(np.mean([table[arm][table["worn"] == 1].mean() for table in tables])) for arm in ARMS}
        spread = max(unevenness(table) for table in tables)
        rows = [
            *(Comparison(f"{text}: mean error (cm)", f"{100 * mean[arm]:.2f}", "–") for arm, text in ARMS.items()),
            *(
                Comparison(f"{text}: mean error with the worn valve (cm)", f"{100 * late[arm]:.2f}", "–")
                for arm, text in ARMS.items()
            ),
            *(_pays(tables, arm, size) for arm in OTHERS),
            *(_pays(tables, arm, size, worn=True) for arm in OTHERS),
            *(_pays_under_every_load(tables, arm, size) for arm in OTHERS),
            Comparison(
                "learning: steady error in the end, the hardest load over the easiest",
                f"× {spread:.2f}",
                f"at most {EVEN:g}",
                Verdict.of_full(spread <= EVEN, size),
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
            f"{STEADY:g} times that load's steady error within {KNOWN_S:.0f} s; of {len(new)} changes to a new "
            f"one, {_within(new, NEW_S)} within {NEW_S:.0f} s. That error is the learner's at the load's first visit, "
            "or what the base or the morning's policy has under the load where that is less. Learning counts as better "
            "where the 95 % interval of the ratio, over visits to loads, lies below 1."
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


def visits(load_kg: np.ndarray) -> list[slice]:
    """The blocks of each visit to a load."""
    starts = np.flatnonzero(np.diff(load_kg, prepend=np.nan) != 0)
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(load_kg)], strict=True)]


def steady_error(errors: np.ndarray) -> float:
    """Of one visit: the median of its second half."""
    return float(np.median(errors[len(errors) // 2 :]))


def steady_levels(table: dict[str, np.ndarray]) -> dict[float, float]:
    """The error under each load that the learner has to come back to.

    Its own steady error at the load's first visit, but no more than the median of either other arm under that load: a
    learner that learns nothing is not measured against itself.
    """
    load, levels = table["load_kg"], {}
    for visit in visits(load):
        kg = float(load[visit.start])
        if kg not in levels:
            others = (float(np.median(table[arm][load == kg])) for arm in OTHERS)
            levels[kg] = min(steady_error(table["learning"][visit]), *others)
    return levels


def changes(table: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds until the error is back after each change to a load met before, and to a new one; ∞ where it never is.

    Changes with the worn valve are in there.
    """
    load, levels = table["load_kg"], steady_levels(table)
    met: set[float] = set()
    known, new = [], []
    for visit in visits(load):
        kg = float(load[visit.start])
        good = np.flatnonzero(table["learning"][visit] <= STEADY * levels[kg])
        if visit.start > 0:
            (known if kg in met else new).append(BLOCK_S * (good[0] + 1) if good.size else np.inf)
        met.add(kg)
    return np.asarray(known, float), np.asarray(new, float)


def unevenness(table: dict[str, np.ndarray]) -> float:
    """The learner's steady error at the last visit to each load: the largest over the smallest."""
    load = table["load_kg"]
    last = {float(load[visit.start]): steady_error(table["learning"][visit]) for visit in visits(load)}
    return max(last.values()) / min(last.values())


def ratios(table: dict[str, np.ndarray], arm: str, chosen: np.ndarray) -> np.ndarray:
    """The learner's error over that of an arm in each visit to a load, over the chosen blocks of it."""
    found = []
    for visit in visits(table["load_kg"]):
        blocks = np.flatnonzero(chosen[visit]) + visit.start
        if blocks.size:
            found.append(table["learning"][blocks].mean() / table[arm][blocks].mean())
    return np.asarray(found)


def _pays(tables: Sequence[dict[str, np.ndarray]], arm: str, size: Size, *, worn: bool = False) -> Comparison:
    """Whether learning has less error than an arm: on average, and beyond what visits differ by."""
    chosen = [table["worn"] == 1 if worn else np.ones(len(table["worn"]), bool) for table in tables]
    each = np.concatenate([ratios(table, arm, blocks) for table, blocks in zip(tables, chosen, strict=True)])
    what = f"learning over {ARMS[arm]}{', worn valve' * worn}: geometric mean of visits"
    if len(each) < MIN_SEEDS:
        return Comparison(what, f"{len(each)} visits", "below 1", Verdict.NOT_COMPARABLE)
    ratio, low, high = np.exp(mean_interval(np.log(each)))
    mine, theirs = (
        np.concatenate([table[name][blocks] for table, blocks in zip(tables, chosen, strict=True)]).mean()
        for name in ("learning", arm)
    )
    shown = f"× {ratio:.2f} (95 %: {low:.2f} to {high:.2f}); of means × {mine / theirs:.2f}"
    return Comparison(what, shown, "below 1", Verdict.of_full(bool(high < 1 and mine < theirs), size))


def _pays_under_every_load(tables: Sequence[dict[str, np.ndarray]], arm: str, size: Size) -> Comparison:
    """Whether learning has less error than an arm under each load."""
    found = {}
    for kg in sorted({float(kg) for table in tables for kg in table["load_kg"]}):
        blocks = [table["load_kg"] == kg for table in tables]
        mine, theirs = (
            np.concatenate([table[name][at] for table, at in zip(tables, blocks, strict=True)]).mean()
            for name in ("learning", arm)
        )
        found[kg] = mine / theirs
    return Comparison(
        f"learning over {ARMS[arm]}, by load: mean error",
        ", ".join(f"{kg:g} kg × {ratio:.2f}" for kg, ratio in found.items()),
        "each below 1",
        Verdict.of_full(all(ratio < 1 for ratio in found.values()), size),
    )


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
