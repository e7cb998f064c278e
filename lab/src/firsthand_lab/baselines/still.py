"""Standing still: what every controller has to beat."""

from pathlib import Path
from typing import Any

import numpy as np

from ..experiments.base import Report
from .ledger import Ledger
from .setup import plant_and_task
from .view import Controller, RobotView


class Still(Controller):
    """The middle of the command range, always."""

    def __init__(self, commands: int) -> None:
        self.commands = commands

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Zeros."""
        return np.zeros((len(seen), self.commands), np.float32)


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """The same episodes and tests as for every peer, without motion."""
    plant, task = plant_and_task(parameters["robot"], tiny=parameters["setting"] == "tiny")
    view = RobotView(plant, task, seed=parameters["seed"])
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    still = Still(view.action_size)
    while view.episode < parameters["episodes"]:
        episode, seen = view.episode, view.begin()
        while not view.over:
            seen, _ = view.step(still(seen[None], np.zeros(1))[0])
        if view.episode > episode:
            ledger.episode(view.episode, view.errors[-1], 0.0, 0)
            ledger.test(view.episode, still)
    ledger.describe(parameters=0, setting="the middle of every command's range")
