"""What a linear filter of valve openings, learned from the PD's log, leaves unexplained in other kinds of motion.

    python scripts/compare_log_kinds.py FOLDER

FOLDER holds the logs as for fit_real_excavator.py, and learned_mini_round1, learned_mini_round2, learned_round1.npz.
Each joint's rate is explained by its own valve's openings of the last 0.7 s; then also by those of the others; then by
products of both, as where valves share a pump. Printed: the share of the rate's standard deviation that is left.
"""

import argparse
from pathlib import Path

import numpy as np

from firsthand.logs import Series, read_log
from firsthand.plants.learned.plant import KNEE, WIDEST, valve_opening
from firsthand.robots.real_excavator import load_description
from firsthand.simulators.dead_band import find_dead_bands

LEARNED = ("pd_noisy", "pd_train")
JUDGED = ("learned_mini_round1", "learned_mini_round2", "learned_round1")
LAGS, BLOCKS = 14, ((1, 4), (4, 8), (8, 14))
SHARE_OF_CYCLES = 6
"""One cycle in this many of the long log is learned from."""
INPUTS = ("own", "others", "products")


def inputs_of(series: Series, joint: int, kind: str, bands: np.ndarray) -> np.ndarray:
    """A row per period from the first with a whole history on."""
    commands = series.commands.astype(float)
    low, high = bands
    opening = valve_opening(commands, low, high)
    wide = valve_opening(commands, np.minimum(low + KNEE, WIDEST), np.minimum(high + KNEE, WIDEST))
    rows = np.arange(LAGS, len(commands))
    either = (np.maximum(opening, 0.0), np.maximum(-opening, 0.0))
    columns = [part[rows - lag, joint] for lag in range(1, LAGS + 1) for part in (*either, wide)]
    others = [other for other in range(commands.shape[1]) if other != joint]
    for begin, end in BLOCKS if kind != "own" else ():

        def mean(values: np.ndarray, begin: int = begin, end: int = end) -> np.ndarray:
            return np.stack([values[rows - lag] for lag in range(begin, end)]).mean(axis=0)

        beside = [mean(np.abs(opening[:, other])) for other in others]
        if kind == "others":
            columns += [mean(opening[:, other]) for other in others] + beside
        else:
            columns += [mean(part[:, joint]) * other for part in either for other in beside]
    return np.stack([*columns, np.ones(len(rows))], axis=1)


def main() -> None:
    """Fit on the PD's log, judge on the other kinds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    robot = load_description()
    spec = robot.make_task().spec
    logs = {n: read_log(folder / f"{n}.npz", spec, robot.columns).series for n in (*LEARNED, *JUDGED)}
    bands = find_dead_bands(spec, [s for name in LEARNED for s in logs[name]], LAGS - 1)
    learned = [*logs["pd_noisy"][::SHARE_OF_CYCLES], *logs["pd_train"]]
    for joint, name in enumerate(robot.joints):
        for kind in INPUTS:

            def table(series: list[Series], joint: int = joint, kind: str = kind) -> tuple[np.ndarray, np.ndarray]:
                usable = [s for s in series if len(s.commands) > LAGS]
                rates = [np.diff(s.measured[:, joint].astype(float))[LAGS:] / spec.period_s for s in usable]
                return np.concatenate([inputs_of(s, joint, kind, bands) for s in usable]), np.concatenate(rates)

            seen, rate = table(learned)
            square = seen.T @ seen
            ridge = 1e-4 * (np.diag(square) + 1e-6 * np.trace(square) / len(square))
            weights = np.linalg.solve(square + np.diag(ridge), seen.T @ rate)
            left = []
            for log in JUDGED:
                inputs, rates = table(list(logs[log]))
                left.append(f"{log} {np.std(rates - inputs @ weights) / rates.std():.2f}")
            print(f"{name}, {kind}: " + ", ".join(left), flush=True)


if __name__ == "__main__":
    main()
