"""What the fast preset reaches behind sensors: true errors after some episodes, one row per seed and mark.

    python benchmarks/behind_sensors.py --sensors real --episodes 25 --seeds 0 1 2 3 4 --marks 8 25

Random references are 100 fresh ones, each in a motion of its own from where the last ended; shapes are circle, square
and line. Errors are those of the true tip, in cm. Rows go to benchmarks/results/sensors/ROBOT-SENSORS-PRESET.csv, the
error while learning of every episode to ROBOT-SENSORS-PRESET-episodes.csv.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np

import firsthand as fh
from firsthand.evaluation import evaluate, tracking_errors
from firsthand.training import Trainer, TrainingConfig

RESULTS = Path(__file__).parent / "results" / "sensors"
TESTS = 10
"""Episodes of fresh references."""


def test_policy(robot_name: str, sensors: str, policy) -> dict[str, float]:
    """The errors of one policy, in cm."""
    robot = fh.make_robot(robot_name, seed=77, sensors=sensors)
    task, rng, means = robot.task, np.random.default_rng(999), []
    for _ in range(TESTS):
        record = robot.run_episode(policy, task.sample_goals(rng, robot.measured(), task.trajectories))
        means += list(100 * tracking_errors(task.spec, record).reshape(task.trajectories, -1).mean(axis=1))
    shapes = evaluate(robot, policy).overall
    return {
        "random": float(np.mean(means)),
        "random_median": float(np.median(means)),
        "random_worst": float(np.max(means)),
        "shapes": 100 * shapes.mean_error,
        "shapes_max": 100 * shapes.max_error,
        "shapes_measured": 100 * shapes.measured_mean_error,
    }


def learn(
    robot_name: str, sensors: str, preset: str, episodes: int, seed: int, marks: list[int]
) -> tuple[list[dict], list[dict]]:
    """One run: a row per mark, with the error while learning; and a row per episode."""
    config = TrainingConfig.of(robot_name, preset, episodes=episodes, seed=seed, sensors=sensors)
    trainer = Trainer(fh.make_robot(robot_name, seed=seed, sensors=sensors), config, keep_going=True)
    rows, every, began = [], [], time.process_time()
    for episode in range(1, episodes + 1):
        metrics = trainer.run_episode().metrics
        every.append({"seed": seed, "episode": episode, "learning": 100 * metrics["tracking_error"]})
        if episode in marks:
            spent = time.process_time() - began
            row = {"seed": seed, "episode": episode, "learning": 100 * metrics["tracking_error"]}
            rows.append({**row, **test_policy(robot_name, sensors, trainer.state.controller), "cpu_s": spent})
            print({name: round(value, 3) for name, value in rows[-1].items()}, flush=True)
    return rows, every


def add_rows(path: Path, rows: list[dict]) -> None:
    """At the end of a CSV file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        if new:
            writer.writeheader()
        writer.writerows({name: f"{value:.6g}" for name, value in row.items()} for row in rows)


def worst_episode(errors: np.ndarray) -> float:
    """The largest error of an episode after the tenth over the median of the ten before it."""
    return max((float(errors[i] / np.median(errors[i - 10 : i])) for i in range(10, len(errors))), default=float("nan"))


def main() -> None:
    """Run, print medians, add the rows to the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--robot", default="excavator")
    parser.add_argument("--sensors", default="real")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--episodes", type=int, default=25)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--marks", type=int, nargs="+", default=[8, 25])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    path = given.results / f"{given.robot}-{given.sensors}-{given.preset}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        rows, every = learn(given.robot, given.sensors, given.preset, given.episodes, seed, given.marks)
        add_rows(path, rows)
        add_rows(path.with_name(f"{path.stem}-episodes.csv"), every)
        worst = worst_episode(np.asarray([row["learning"] for row in every]))
        print(f"seed {seed}: worst episode after the tenth over the running median {worst:.2f}", flush=True)
    with path.open(newline="") as file:
        stored = list(csv.DictReader(file))
    for mark in given.marks:
        here = [row for row in stored if row["episode"] == str(mark)]
        median = {name: float(np.median([float(row[name]) for row in here])) for name in ("random", "shapes")}
        print(
            f"after {mark} episodes, {len(here)} seeds: random {median['random']:.2f}, shapes {median['shapes']:.2f} cm"
        )


if __name__ == "__main__":
    main()
