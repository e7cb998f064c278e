"""How well policies of a run follow the work cycles of a log: mean absolute error of each tracked joint, in degrees.

    firsthand train real-excavator --episodes 15 --seed 0 --data pd_noisy.npz pd_train.npz --out runs/log-0
    python benchmarks/cycle_errors.py runs/log-0 --cycles pd_test.npz --policies 1 2 5 10 --way "from the log"

Policies are named by the episode that they ran in; the kept one is added. Errors are those of the true state. Rows go
to benchmarks/results/cycles-ROBOT.csv.
"""

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from firsthand.evaluation import evaluate
from firsthand.logs import read_cycles
from firsthand.training.run import Run

RESULTS = Path(__file__).parent / "results"
SEED = 77
"""Of the robot's sensors."""


def main() -> None:
    """Follow, print, add the rows to the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--cycles", type=Path, required=True, help="an .npz log with the array `reference`")
    parser.add_argument("--policies", type=int, nargs="*", default=[], help="episodes")
    parser.add_argument("--way", required=True, help="how the run began, for the table")
    given = parser.parse_args()
    run = Run.open(given.run)
    found = run.find_robot()
    cycles = read_cycles(given.cycles, found.task.spec)
    robot = replace(found, task=replace(found.task, evaluation=lambda speed: cycles)).make(seed=SEED)
    policies = {str(episode): run.policy(episode) for episode in given.policies}
    kept = run.kept_episode()
    if kept is not None:
        policies[f"kept ({kept})"] = run.kept_policy()
    path = RESULTS / f"cycles-{run.config.robot}.csv"
    for name, policy in policies.items():
        each = {joint: float(np.rad2deg(error)) for joint, error in evaluate(robot, policy).each_output.items()}
        row = {"way": given.way, "seed": run.config.seed, "policy": name, **each, "all": np.mean(list(each.values()))}
        shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        print(shown, flush=True)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, shown)
            if new:
                writer.writeheader()
            writer.writerow(shown)


if __name__ == "__main__":
    main()
