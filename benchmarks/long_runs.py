"""How steady a preset is in long runs: the error of every episode, several seeds side by side.

    taskset -c 1 python benchmarks/long_runs.py --preset paper --episodes 400 --seeds 0 1 2 3

A row per episode and seed goes to benchmarks/results/long-runs/ROBOT-PRESET.csv, tracking errors in cm. At the end, and
with `--show` for a file that is there already, the figures are printed: per seed the mean of the last 50 episodes over
the best mean of 50 episodes in a row, and the worst episode after the fiftieth.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

import firsthand as fh

RESULTS = Path(__file__).parent / "results" / "long-runs"
WINDOW = 50
"""Episodes that are taken together."""
COLUMNS = (
    "tracking_error",
    "cost",
    "prediction_error",
    "gradient_norm",
    "step_norm",
    "change",
    "usual_cost",
    "steps_taken",
    "rolled_back",
)


def run(robot: str, preset_name: str, episodes: int, seeds: list[int], changes: dict[str, float], path: Path) -> None:
    """Train all seeds side by side, and write a row per episode and seed as they come."""
    from firsthand.agent.track_record import change_length
    from firsthand.agent.trees import take_member
    from firsthand.training.presets import preset
    from firsthand_lab.experiments.together import Together

    made = fh.make_robot(robot, seed=0)
    if made.plant is None:
        raise SystemExit(f"{robot} is not simulated here.")
    settings = preset(preset_name).with_changes(changes)
    together = Together(made.plant, made.task, settings, seeds, episodes=episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("episode", "seed", *COLUMNS))
        for episode in range(1, episodes + 1):
            before = together.state.policy
            metrics = together.run_episode()
            metrics["tracking_error"] = 100 * metrics["tracking_error"]
            after, record = together.state.policy, together.state.record
            metrics["change"] = np.array(
                [change_length(take_member(before, i), take_member(after, i)) for i in range(len(seeds))]
            )
            metrics["usual_cost"] = np.asarray(record.usual_cost)
            for i, seed in enumerate(seeds):
                writer.writerow((episode, seed, *(f"{float(metrics[name][i]):.4g}" for name in COLUMNS)))
            file.flush()
            if episode % 10 == 0:
                print(episode, np.round(metrics["tracking_error"], 1), flush=True)


def show(path: Path) -> None:
    """Print the figures of a file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    print(f"{path.name}: tracking error, cm")
    for seed in sorted({int(row["seed"]) for row in rows}):
        errors = np.array([float(row["tracking_error"]) for row in rows if int(row["seed"]) == seed])
        window = min(WINDOW, len(errors))
        means = np.convolve(errors, np.ones(window) / window, "valid")
        best = int(np.argmin(means))
        late = errors[WINDOW:] if len(errors) > WINDOW else errors
        print(
            f"seed {seed}, {len(errors)} episodes: best {window} (episodes {best + 1} to {best + window}) "
            f"{means[best]:.2f}, last {window} {means[-1]:.2f}: {means[-1] / means[best]:.2f} times; "
            f"worst episode after {WINDOW}: {late.max():.1f}; "
            f"back to a proven policy {sum(float(r['rolled_back']) for r in rows if int(r['seed']) == seed):.0f} times"
        )


def main() -> None:
    """Train and print, or print only."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--robot", default="excavator")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--set", nargs=2, action="append", default=[], metavar=("SETTING", "VALUE"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    path = given.out or RESULTS / f"{given.robot}-{given.preset}.csv"
    if not given.show:
        changes = {name: float(value) if "." in value else int(value) for name, value in given.set}
        run(given.robot, given.preset, given.episodes, given.seeds, changes, path)
    show(path)


if __name__ == "__main__":
    main()
