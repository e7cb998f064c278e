"""The run that several experiments look at: preset `paper-exact` on the simulated excavator, several seeds.

Experiments that ask for it with the same size share one and the same job; it is run once.
"""

import dataclasses
import math
from typing import Any

from .base import Job, Size
from .learning import Setup

MARKS = {"full": (1, 100, 200, 400), "quick": (1, 15, 25, 40), "tiny": (1, 2, 3, 4)}
"""Episodes at which the evaluation shapes are run: figure 4's, and the like of them in shorter runs."""
EPISODES = {"full": 400, "quick": 40, "tiny": 16}
SPEEDS = (0.25, 0.5, 0.75, 1.0, 1.293)
"""Cruising speeds of table 1 (m/s), up to the paper's highest."""
TINY_TASK: dict[str, Any] = {"trajectories": 2, "steps": 20, "hidden": [8, 8]}
TINY_SETTINGS: dict[str, Any] = {
    "model.hidden": [8, 8],
    "model.steps": 10,
    "model.batch": 16,
    "policy_step.cg_iterations": 3,
    "refinement.batch": 2,
}
"""For the tests: nothing is learned, but everything is run."""
HONEST_ROBOT = {"full": "excavator-realistic", "quick": "excavator-realistic", "tiny": "excavator"}
"""Where payload, freezing and rare updates are looked at: the machine that drifts, feels its load and has real sensors.
The tests' size has the one that compiles quickly."""
MAX_SEEDS_PER_JOB = 4
"""Seeds that learn side by side in one job, at most."""


def small(size: Size) -> dict[str, Any]:
    """What the tests' size changes in any set-up."""
    return size.pick(full={}, quick={}, tiny={"task": TINY_TASK, "settings": TINY_SETTINGS})


def groups(seeds: int) -> list[tuple[int, ...]]:
    """Seeds in groups that learn side by side: at least two groups, so that two cores have work, of equal size."""
    each = min(math.ceil(seeds / 2), MAX_SEEDS_PER_JOB)
    return [tuple(range(first, min(first + each, seeds))) for first in range(0, seeds, each)]


def jobs_of(setup: Setup, name: str, seeds: int, weight: float = 0.4) -> list[Job]:
    """One job per group of seeds."""
    return [
        dataclasses.replace(setup, seeds=group).job(f"{name}-seeds-{group[0]}-{group[-1]}", weight)
        for group in groups(seeds)
    ]


def baseline(size: Size, robot: str = "excavator") -> list[Job]:
    """The jobs of the plain run."""
    setup = Setup(
        robot=robot,
        episodes=EPISODES[size.name],
        marks=MARKS[size.name],
        speeds=size.pick(full=SPEEDS, quick=SPEEDS, tiny=SPEEDS[1:2]),
        **small(size),
    )
    return jobs_of(setup, f"{robot}-paper", size.seeds)
