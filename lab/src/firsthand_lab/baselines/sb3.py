"""PPO and SAC of stable-baselines3, CrossQ, DroQ and SimBa of sbx, on the same robot, through Gymnasium.

Settings are the published defaults; what is changed is in `SETTINGS` and goes into the table. Observations are in units
of their scales. PPO's observations and rewards and SimBa's observations are normalised besides, by the package's own
wrapper. sbx is the JAX counterpart of stable-baselines3, by its authors: DroQ is its SAC with dropout, layer norm and
20 updates per step, SimBa its SAC with SimBa's residual networks.
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
    "crossq": "defaults of sbx; learning starts after one episode of random actions",
    "crossq:reduced": "defaults of sbx but critics of two layers of 256 in place of 1024; learning starts after one "
    "episode of random actions",
    "droq": "SAC of sbx with dropout 0.01, layer norm, 20 updates per step and a policy update every 20th, as sbx "
    "documents DroQ; learning starts after one episode of random actions",
    "simba": "SAC of sbx with SimbaPolicy: one block of 128 for the policy, two of 256 for each of two critics, AdamW; "
    "observations normalised (VecNormalize); learning starts after one episode of random actions",
    "simba:reduced": "SAC of sbx with SimbaPolicy: one block of 128 for the policy, two of 128 for each of two critics "
    "(published: two of 512), AdamW; observations normalised (VecNormalize); learning starts after one episode of "
    "random actions",
}
FROM_SBX = ("crossq", "droq", "simba", "mbpo")


def require(algorithm: str) -> None:
    """Raise `UserError` where the packages are missing."""
    try:
        import stable_baselines3  # noqa: F401
        import torch  # noqa: F401

        if algorithm in FROM_SBX:
            import sbx  # noqa: F401
    except ImportError as error:
        needs = "sbx, stable-baselines3" if algorithm in FROM_SBX else "stable-baselines3"
        raise UserError(
            f"{algorithm} needs {needs} and PyTorch ({error.name} is missing): run `make peers`, or "
            "pip install -c constraints.txt -e 'lab[peers]'."
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


def make_model(algorithm: str, vector: Any, *, seed: int, first: int, steps: int, setting: str) -> tuple[Any, int]:
    """The learner, and how many gradient steps it takes for each that its package counts.

    `first` steps are random where the algorithm learns from a replay buffer of `steps`. The settings `reduced` and
    `tiny` have smaller networks or fewer updates.
    """
    tiny, reduced = setting == "tiny", setting == "reduced"
    if algorithm == "ppo":
        from stable_baselines3 import PPO

        model: Any = PPO("MlpPolicy", vector, seed=seed, device="cpu", **({"n_steps": 64} if tiny else {}))
        return model, 1 if tiny else -(-model.n_steps // model.batch_size)
    options: dict[str, Any] = {"seed": seed, "device": "cpu", "learning_starts": first, "buffer_size": steps + 1}
    if algorithm == "sac":
        from stable_baselines3 import SAC

        return SAC("MlpPolicy", vector, **options), 1
    import optax
    import sbx

    if algorithm == "crossq":
        sizes: dict[str, Any] = {"policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [256, 256]}}} if reduced else {}
        return sbx.CrossQ("MlpPolicy", vector, **sizes, **options), 1
    if algorithm == "droq":
        times = 2 if tiny else 20
        networks: dict[str, Any] = {"dropout_rate": 0.01, "layer_norm": True}
        options |= {"gradient_steps": times, "policy_delay": times}
        return sbx.SAC("MlpPolicy", vector, policy_kwargs=networks, **options), 1
    blocks = [128, 128] if reduced else [256, 256]
    networks = {"optimizer_class": optax.adamw, "net_arch": {"pi": [128], "qf": blocks}, "n_critics": 2}
    return sbx.SAC("SimbaPolicy", vector, policy_kwargs=networks, **options), 1


def count_parameters(model: Any, algorithm: str) -> int:
    """Of policy and critics."""
    if algorithm not in FROM_SBX:
        return int(sum(p.numel() for p in model.policy.parameters() if p.requires_grad))
    import jax

    trees = (model.policy.actor_state.params, model.policy.qf_state.params)
    return sum(int(leaf.size) for leaf in jax.tree.leaves(trees))


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Learn for the given robot time; an interrupted job begins anew, which costs minutes."""
    algorithm = parameters["algorithm"]
    require(algorithm)
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)  # such small networks gain nothing from more
    setting = parameters["setting"]
    tiny = setting == "tiny"
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    view = RobotView(plant, task, seed=parameters["seed"])
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    per_episode = task.trajectories * task.steps
    steps = parameters["episodes"] * per_episode
    watch = Stopwatch(view)
    vector: Any = DummyVecEnv([lambda: environment(view)])
    if algorithm in ("ppo", "simba"):
        vector = VecNormalize(vector, norm_reward=algorithm == "ppo")
    model, passes = make_model(
        algorithm, vector, seed=parameters["seed"], first=per_episode, steps=steps, setting=setting
    )

    def act(seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        if isinstance(vector, VecNormalize):
            seen = np.asarray(vector.normalize_obs(seen))
        return model.predict(seen, deterministic=True)[0]

    class Episodes(BaseCallback):
        """Notices whole episodes of robot time."""

        seen = 0

        def _on_step(self) -> bool:
            ledger.show(view, f"{passes * model._n_updates} updates")
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
    name = f"{algorithm}:{setting}"
    ledger.describe(parameters=count_parameters(model, algorithm), setting=SETTINGS.get(name, SETTINGS[algorithm]))
