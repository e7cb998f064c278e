"""How fast learning follows a load that it is not told of: true error per episode, with a load from some episode on.

    python benchmarks/payload_switch.py --robot excavator-realistic --kg 1500 --at 20 --episodes 26 --seeds 0 1

Goals are those that the load allows, in every episode, so that errors before and after compare. A run has recovered
from the switch where its error is at most 1.25 times the median of the three episodes before it. Rows, one per seed and
episode, go to benchmarks/results/payload/ROBOT-KGkg.csv.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from firsthand.robots.registry import find_robot
from firsthand.training import Trainer, TrainingConfig

RESULTS = Path(__file__).parent / "results" / "payload"
BEFORE, RECOVERED = 3, 1.25


def learn(robot_name: str, preset: str, kg: float, at: int, episodes: int, seed: int) -> list[dict[str, float]]:
    """One run; the first `at` episodes are without a load."""
    source = find_robot(robot_name).source
    task = source.make_robot(source.make_task(), payload_kg=kg, seed=seed).task
    robot = source.make_robot(task, payload_kg=0.0, seed=seed)
    config = TrainingConfig.of(robot_name, preset, episodes=episodes, seed=seed)
    trainer, rows = Trainer(robot, config, keep_going=True), []
    for episode in range(1, episodes + 1):
        if episode == at + 1:
            robot.set_payload(kg)
        error = 100 * trainer.run_episode().metrics["tracking_error"]
        rows.append({"seed": seed, "episode": episode, "payload_kg": 0.0 if episode <= at else kg, "error_cm": error})
        print(rows[-1], flush=True)
    return rows


def describe(errors: np.ndarray, at: int) -> str:
    """The switch, and the worst episode after the tenth over the median of the ten before it."""
    usual = float(np.median(errors[at - BEFORE : at]))
    factors = errors[at:] / usual
    within = np.flatnonzero(factors <= RECOVERED)
    recovered = f"recovered in episode {within[0] + 1} after it" if within.size else "not recovered"
    worst = max((errors[i] / np.median(errors[i - 10 : i]) for i in range(10, at)), default=float("nan"))
    return (
        f"before {usual:.2f} cm, first with the load x {factors[0]:.2f}, {recovered} "
        f"(factors {', '.join(f'{f:.2f}' for f in factors)}); worst episode over the running median {worst:.2f}"
    )


def main() -> None:
    """Run, print, add the rows to the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--robot", default="excavator-realistic")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--kg", type=float, default=1500.0)
    parser.add_argument("--at", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=26)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / f"{given.robot}-{given.preset}-{given.kg:g}kg.csv"
    for seed in given.seeds:
        rows = learn(given.robot, given.preset, given.kg, given.at, given.episodes, seed)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            if new:
                writer.writeheader()
            writer.writerows({name: f"{value:.6g}" for name, value in row.items()} for row in rows)
        print(f"seed {seed}: {describe(np.asarray([row['error_cm'] for row in rows]), given.at)}", flush=True)


if __name__ == "__main__":
    main()
