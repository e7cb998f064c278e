"""The least error that any controller of examples/tanks.py can have on set-points that jump, found with its equations.

    python benchmarks/tanks_bound.py

For each set-point, from where the last one ended: full flow (or none) for a while, the opposite for a while, then the
flow that holds the level; the two times are searched whole periods by whole periods. A time-optimal fill has this form.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import tanks  # type: ignore[import-not-found]

SEED = 999
"""Of the set-points that tests of the suite use."""
MAX_FIRST, MAX_SECOND = 60, 40
"""Longest times that are tried, in control periods."""


def errors_of(env: tanks.Tanks, levels: np.ndarray, commands: np.ndarray, goal: float) -> tuple[float, np.ndarray]:
    """Mean distance of the lower level from the set-point, and where the levels end."""
    env.levels, total = levels.copy(), 0.0
    for command in commands:
        total += abs(env.levels[1] - goal)
        env.step([command])
    return total / len(commands), env.levels.copy()


def best_fill(env: tanks.Tanks, levels: np.ndarray, goal: float, steps: int) -> tuple[float, np.ndarray]:
    """The least error, and where the levels end."""
    hold = min(tanks.OUTLET * np.sqrt(goal) / tanks.FLOW, tanks.PUMP_MAX)
    first, second = (tanks.PUMP_MAX, 0.0) if goal > levels[1] else (0.0, tanks.PUMP_MAX)
    found = []
    for a in range(MAX_FIRST):
        for b in range(MAX_SECOND):
            commands = np.full(steps, hold)
            commands[:a], commands[a : a + b] = first, second
            found.append(errors_of(env, levels, commands, goal))
    return min(found, key=lambda one: one[0])


def main() -> None:
    """Four set-points from a reset."""
    task = tanks.task.make_task()
    robot = tanks.task.make_robot(task, payload_kg=0.0, seed=0)
    goals = task.sample_goals(np.random.default_rng(SEED), robot.measured(), task.trajectories)[:, 0]
    env, levels, errors = tanks.Tanks(), np.asarray(robot.measured(), float), []
    env.reset(seed=0)
    for goal in goals:
        error, levels = best_fill(env, levels, float(goal), task.steps)
        errors.append(100 * error)
        print(f"set-point {100 * goal:.1f} cm: {error * 100:.2f} cm")
    print(f"mean {np.mean(errors):.2f} cm")


if __name__ == "__main__":
    main()
