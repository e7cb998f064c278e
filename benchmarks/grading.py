"""Grading: how exactly the shovel follows a slope below the ground, with the learned state and without, and in the air.

    python benchmarks/grading.py --ways soil --episodes 25 --seeds 0 1

A run per way and seed. Its kept policy then draws the passes of the evaluation, five times each in other ground. `pass`
is the mean distance of the tip (the true one, of the joints) from the wanted surface along a pass, in cm; `pass_max`
the largest; `whole` the mean tracking error of whole references, with the ways in and out. `soil` and `air` say where
the policy was judged: each is judged in both. Rows go to benchmarks/results/grading.csv.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np

import firsthand as fh
from firsthand.evaluation.metrics import tracking_errors
from firsthand.robots.base import EpisodeRecord
from firsthand.tasks.excavator_grading import EVALUATION, MIDDLE_M, is_pass
from firsthand.training import MemoryRecorder, Trainer, TrainingConfig
from firsthand_onboard.kinematics import tracked_output

RESULTS = Path(__file__).parent / "results" / "grading.csv"
WITHOUT = {"observer.use": 0, "model.horizon": 1}
"""No learned state: the policy sees the register of measurements, and the model learns single steps."""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "soil": ("excavator-grading", {}),
    "soil-register": ("excavator-grading", WITHOUT),
    "air": ("excavator-grading:air", {}),
}
JUDGED = {"soil": "excavator-grading", "air": "excavator-grading:air"}
REPEATS = 5


def across(spec: Any, record: EpisodeRecord, name: str) -> np.ndarray:
    """Distances from the wanted surface along a pass, in cm."""
    one, steps = EVALUATION[name], record.commands.shape[1]
    tip = np.asarray(tracked_output(spec, record.best_known[0, :steps].astype(np.float64)))
    on = is_pass(record.references[0, :steps], one)
    height = one.height(MIDDLE_M) + one.slope * (tip[on, 0] - MIDDLE_M)
    return 100 * np.abs(tip[on, 1] - height) / np.hypot(1.0, one.slope)


def judge(robot_name: str, policy: Any) -> dict[str, float]:
    """What a policy does on the passes, on a machine of its own."""
    robot = fh.make_robot(robot_name, seed=77)
    task, distances, errors = robot.task, [], []
    references = task.evaluation(task.evaluation_speed)
    for _ in range(REPEATS):
        for reference, record in zip(references, robot.follow(policy, references), strict=True):
            distances.append(across(task.spec, record, reference.name))
            errors.append(100 * tracking_errors(task.spec, record))
    every = np.concatenate(distances)
    return {"pass": every.mean(), "pass_max": every.max(), "whole": np.concatenate(errors).mean()}


def learn(way: str, episodes: int, seed: int, marks: list[int]) -> list[dict[str, Any]]:
    """One run; a row per mark and place of judgement."""
    name, changes = WAYS[way]
    config = TrainingConfig.of(name, "fast", episodes=episodes, seed=seed, changes=changes)
    recorder, rows, began = MemoryRecorder(), [], time.process_time()
    trainer = Trainer(fh.make_robot(name, seed=seed), config, recorder, keep_going=True)
    for episode in range(1, episodes + 1):
        metrics = trainer.run_episode().metrics
        print(f"{way} seed {seed} episode {episode}: {100 * metrics['tracking_error']:.2f} cm", flush=True)
        if episode not in marks:
            continue
        policy = trainer.state.controller if recorder.kept is None else recorder.kept.policy
        for place, robot_name in JUDGED.items():
            row = {"way": way, "judged": place, "seed": seed, "episode": episode, **judge(robot_name, policy)}
            rows.append({**row, "cpu_s": time.process_time() - began})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run, and add the rows to the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--episodes", type=int, default=25)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--marks", type=int, nargs="+", default=[10, 25])
    given = parser.parse_args()
    for seed in given.seeds:
        for way in given.ways:
            rows = learn(way, given.episodes, seed, given.marks)
            new = not RESULTS.exists()
            with RESULTS.open("a", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                if new:
                    writer.writeheader()
                for row in rows:
                    writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
