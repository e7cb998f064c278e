"""TD-MPC2 on one of our robots, as a job that can be interrupted and continued."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...experiments import files
from ...experiments.base import Report
from ..ledger import Ledger, Stopwatch, peak_memory_mb
from ..setup import plant_and_task
from ..view import Controller, RobotView, below
from .agent import Agent
from .config import Config, default, reduced

CHECKPOINT_S = 60.0
"""A checkpoint is written at the end of a trajectory when the last one is so old."""
UPDATES_AT_ONCE = 20
TEXTS = {
    "default": "published settings with the smallest official network sizes (1 M; its authors' single-task figures are "
    "with 5 M) and five Q functions",
    "reduced": "two Q functions as the official 1 M size; planning with 128 samples × 3 rounds (512 × 6), 16 elites "
    "(64) and 8 of the policy (24); batch 128 (256), an update every other step (every)",
    "tiny": "for the tests",
}


def config_of(setting: str) -> Config:
    """The settings by name."""
    if setting == "tiny":
        small = {"samples": 16, "policy_samples": 4, "elites": 4, "rounds": 1, "batch": 8, "updates_per_step": 0.1}
        small |= {"seed_episodes": 1, "min_seed_steps": 40}
        return dataclasses.replace(reduced(), **small)
    return {"default": default, "reduced": reduced}[setting]()


class Planner(Controller):
    """The agent without exploration, planning for several robots in turn."""

    def __init__(self, agent: Agent, alive: Callable[[], None]) -> None:
        self.agent, self.means, self.alive = agent, {}, alive

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Planned actions; what training had planned is left as it was."""
        before, actions = self.agent.mean, []
        for i, row in enumerate(seen):
            self.agent.mean = self.means.get(i, before)
            actions.append(self.agent.act(row, first=bool(first[i]) or i not in self.means, explore=False))
            self.means[i] = self.agent.mean
        self.agent.mean = before
        self.alive()
        return np.stack(actions)


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Learn for the given robot time."""
    setting = parameters["setting"]
    plant, task = plant_and_task(parameters["robot"], tiny=setting == "tiny")
    view = RobotView(plant, task, seed=parameters["seed"])
    agent = Agent(
        config_of(setting), view.observation_size, view.action_size, seed=parameters["seed"], episode_length=task.steps
    )
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    kept = folder / files.CHECKPOINT / "state.safetensors"
    spent = memory = 0.0
    if kept.exists():
        arrays, info = files.read_arrays(kept)
        agent.restore(below(arrays, "agent."))
        view.restore(below(arrays, "view."))
        ledger.curves, ledger.tests, spent = info["curves"], info["tests"], info["spent"]
        memory = info.get("memory_mb", 0.0)
    watch, saved, done = Stopwatch(view), time.monotonic(), view.episode

    def alive() -> None:
        ledger.show(view, f"{agent.updates} updates")

    while view.episode < parameters["episodes"]:
        trajectory(view, agent, alive)
        spent += watch.take()
        if view.episode > done:
            done = view.episode
            ledger.test(done, Planner(agent, alive))
            ledger.episode(done, view.errors[-1], spent, agent.updates)
            memory = max(memory, peak_memory_mb())
            ledger.describe(parameters=agent.parameters, setting=TEXTS[setting], memory_mb=memory)
            spent = 0.0
        if time.monotonic() - saved > CHECKPOINT_S:
            state = {f"agent.{name}": a for name, a in agent.snapshot().items()}
            state |= {f"view.{name}": a for name, a in view.snapshot().items()}
            info = {"curves": ledger.curves, "tests": ledger.tests, "spent": spent, "memory_mb": memory}
            files.write_arrays(kept, state, info)
            saved = time.monotonic()
        watch.restart()


def trajectory(view: RobotView, agent: Agent, alive: Callable[[], None]) -> None:
    """Act, remember and learn along one trajectory."""
    seen, first = view.begin(), True
    while not view.over:
        action = agent.act(seen, first=first, explore=True)
        following, reward = view.step(action)
        agent.remember(seen, action, reward, following, first=first, last=view.over)
        while agent.due:  # after the random steps all their updates at once
            agent.learn(min(agent.due, UPDATES_AT_ONCE))
            alive()
        seen, first = following, False
