"""PPO and SAC of stable-baselines3 on the same robot, through Gymnasium.

Settings are the published defaults; what is changed is in `SETTINGS` and goes into the table. Observations are in units
of their scales, and PPO's observations and rewards are normalised by its package's own wrapper besides.
"""

# PyTorch and stable-baselines3 are the extra `peers`, which need not be installed.
# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError

from ..experiments.base import Report
from .ledger import Ledger, Stopwatch
from .setup import plant_and_task
from .view import RobotView

SETTINGS = {
    "ppo": "defaults of stable-baselines3; observations and rewards normalised (VecNormalize); an update "
    "every 2048 steps, so that the steps after the last one are not learned from",
    "sac": "defaults of stable-baselines3; learning starts after one episode of random actions",
}


def require() -> None:
    """Raise `UserError` where the packages are missing."""
    try:
        import stable_baselines3  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"PPO and SAC need stable-baselines3 and PyTorch ({error.name} is missing): "
            "run `make peers`, or install firsthand-lab[peers]."
        ) from error


def environment(view: RobotView) -> Any:
    """A Gymnasium environment: an episode is one trajectory, which starts where the last one ended."""
    import gymnasium

    class RobotEnvironment(gymnasium.Env):
        """The robot as Gymnasium has it."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (view.observation_size,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (view.action_size,), np.float32)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            """The next trajectory; the robot itself is not moved."""
            super().reset(seed=seed)
            return view.begin(), {}

        def step(self, action: np.ndarray) -> Any:
            """One control period; a trajectory ends by its length, never by a failure."""
            seen, reward = view.step(action)
            return seen, reward, False, view.over, {}

    return RobotEnvironment()


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Learn for the given robot time; an interrupted job begins anew, which costs minutes."""
    require()
    import torch
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)  # such small networks gain nothing from more
    tiny = parameters["setting"] == "tiny"
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    view = RobotView(plant, task, seed=parameters["seed"])
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    steps = parameters["episodes"] * task.trajectories * task.steps
    watch = Stopwatch(view)
    vector = DummyVecEnv([lambda: environment(view)])
    if parameters["algorithm"] == "ppo":
        vector = VecNormalize(vector)
        changes: dict[str, Any] = {"n_steps": 64} if tiny else {}
        model: Any = PPO("MlpPolicy", vector, seed=parameters["seed"], device="cpu", **changes)
        passes = 1 if tiny else -(-model.n_steps // model.batch_size)
    else:
        first = task.trajectories * task.steps
        model = SAC(
            "MlpPolicy", vector, seed=parameters["seed"], device="cpu", learning_starts=first, buffer_size=steps + 1
        )
        passes = 1

    def act(seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        if isinstance(vector, VecNormalize):
            seen = np.asarray(vector.normalize_obs(seen))
        return model.predict(seen, deterministic=True)[0]

    class Episodes(BaseCallback):
        """Notices whole episodes of robot time."""

        seen = 0

        def _on_step(self) -> bool:
            if view.episode > self.seen:
                self.seen = view.episode
                ledger.episode(self.seen, view.errors[-1], watch.take(), passes * model._n_updates)
                if self.seen < parameters["episodes"]:
                    ledger.test(self.seen, act)
                    watch.restart()
            return view.episode < parameters["episodes"]

    model.set_logger(Logger(None, []))  # its own would leave a folder in /tmp
    model.learn(steps, callback=Episodes())
    ledger.test(parameters["episodes"], act)
    count = sum(p.numel() for p in model.policy.parameters() if p.requires_grad)
    ledger.describe(parameters=int(count), setting=SETTINGS[parameters["algorithm"]])
