"""The PID that is identified and tuned on the robot, on every robot of the suite that comes in a file of its own.

    python benchmarks/pid_any_robot.py [ROBOT...]

One seed. Prints a line per robot and writes benchmarks/results/pid-any-robot.json. Errors count every step that was
asked for, on goals that the tuning did not see; `still` is the neutral command's.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.controllers import GainSearch, design_controller, run_by_hand
from firsthand.evaluation.metrics import whole_error
from firsthand_lab.baselines.direct import stand_still, test_goals
from firsthand_lab.experiments.suite import ROBOTS, make_robot

RESULTS = Path(__file__).parent / "results" / "pid-any-robot.json"


def measure(name: str) -> dict[str, Any]:
    """One robot."""
    began = time.process_time()
    robot = make_robot(name, seed=0)
    task = robot.task
    still = stand_still(robot)
    design = design_controller(robot, task)
    search, tries = GainSearch(design.factors), 0
    while tries < len(design.factors):
        factor = search.next_factor()
        if factor in search.errors:
            break
        goals = task.sample_goals(np.random.default_rng(tries), robot.measured(), task.trajectories)
        search.record(factor, whole_error(task.spec, run_by_hand(robot, design.make(factor), goals)))
        tries += 1
    record = run_by_hand(robot, design.make(search.best), test_goals(robot))
    position = record.measured[:, 1:][..., list(task.spec.layout.position)][record.valid]
    low, high = np.asarray(task.spec.limits.position_low), np.asarray(task.spec.limits.position_high)
    return {
        "unit": task.unit,
        "still": still,
        "pid": whole_error(task.spec, record),
        "followed": float(record.valid.mean()),
        "outside_limits": float(((position < low) | (position > high)).any(axis=-1).mean()),
        "identification_min": design.robot_time_s / 60,
        "tries": tries,
        "factor": search.best,
        "kind": design.kind,
        "core_s": time.process_time() - began,
    }


def main() -> None:
    """All of them, or the ones that are named."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in sys.argv[1:] or [name for name, where in ROBOTS.items() if ":" in where]:
        found[name] = row = measure(name)
        print(
            f"{name}: still {row['still']:.3g}, PID {row['pid']:.3g} {row['unit']}, "
            f"{100 * row['followed']:.0f} % followed, {row['identification_min']:.1f} min, {row['core_s']:.0f} s",
            flush=True,
        )
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
