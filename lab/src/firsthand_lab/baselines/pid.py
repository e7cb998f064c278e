"""An engineer's baseline today: `firsthand.controllers`, identified and tuned on the robot."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.controllers import GainSearch, design_controller
from firsthand.controllers.by_hand import StepController
from firsthand.controllers.pi import episodes_for_tuning
from firsthand.controllers.pid import FACTORS
from firsthand.errors import UserError
from firsthand.robots.simulated import SimulatedRobot
from firsthand.tasks import Task

from ..experiments.base import Report
from .ledger import Ledger, Stopwatch
from .setup import plant_and_task
from .view import RobotView


def require(task: Task, episodes: int) -> None:
    """Raise `UserError` for less robot time than identification and tuning take."""
    needed = episodes_for_tuning(task, len(FACTORS))
    if episodes < needed:
        raise UserError(
            f"episodes is {episodes}, but pid needs at least {needed} for identification and tuning: give more "
            "--episodes, or leave pid out of --peers."
        )


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Identify, tune, and go on with the best gains. Robot time of identification counts in whole episodes."""
    tiny = parameters["setting"] == "tiny"
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    episodes, seed = parameters["episodes"], parameters["seed"]
    view = RobotView(plant, task, seed=seed)
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    whole = plant_and_task(parameters["robot"])[1]
    found = design_controller(SimulatedRobot(plant, whole, seed=seed), whole, seed=seed)
    minutes = found.robot_time_s / 60
    spent = 0 if tiny else math.ceil(found.robot_time_s / task.episode_s)  # a tiny episode is shorter than a push
    report(min(spent, episodes), f"identified in {minutes:.1f} min of robot time")
    watch = Stopwatch(view)
    search = GainSearch(found.factors)
    for episode in range(spent + 1, episodes + 1):
        factor = search.next_factor()
        follow_episode(view, found.make(factor))
        search.record(factor, view.errors[-1])
        evaluating = found.processor_time_s if episode == spent + 1 else 0.0
        ledger.episode(episode, view.errors[-1], watch.take() + evaluating, 0)
        ledger.test(episode, found.make(search.best))
        watch.restart()
    tuned = f"{minutes:.1f} min of inspection, then {len(search.errors)} episodes of tuning"
    ledger.describe(parameters=found.parameters, setting=f"{found.kind}; {tuned}; gains {search.best:g} × the rule's")


def follow_episode(view: RobotView, controller: StepController) -> None:
    """Run one episode with the controller."""
    episode = view.episode
    while view.episode == episode:
        seen, first = view.begin(), True
        while not view.over:
            seen, _ = view.step(controller(seen[None], np.asarray([first]))[0])
            first = False
