"""Many simulated robots side by side for stable-baselines3: what a policy that is trained in simulation learns on."""

# PyTorch and stable-baselines3 are the extra `peers`, which need not be installed.
# pyright: reportMissingImports=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .view import REWARD, Stepper

RESTART = 10
"""Trajectories between two new starts."""


def fleet(stepper: Stepper, count: int, *, seed: int, extra: np.ndarray | None = None) -> Any:
    """A vector of environments. Trajectories begin and end together, each robot's where its last one ended.

    `extra`, `(count, entries)`, is appended to each robot's observation: what a policy may know of its machine. Every
    `RESTART` trajectories the robots are put to new places at rest, so that none stays in a corner.
    """
    import gymnasium
    from stable_baselines3.common.vec_env import VecEnv

    task, spec = stepper.task, stepper.task.spec
    rng = np.random.default_rng(seed)
    known = np.zeros((count, 0), np.float32) if extra is None else extra.astype(np.float32)
    low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)

    class Fleet(VecEnv):
        """The robots as stable-baselines3 has them."""

        def __init__(self) -> None:
            size = spec.observation_size + known.shape[1]
            box = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
            super().__init__(count, box, gymnasium.spaces.Box(-1.0, 1.0, (spec.layout.num_commands,), np.float32))
            self.key, self.trajectories, self.steps = jax.random.key(seed), 0, 0

        def _seen(self, seen: np.ndarray) -> np.ndarray:
            return np.concatenate([seen, known], axis=1)

        def _begin(self) -> np.ndarray:
            if self.trajectories % RESTART == 0:
                # Somewhere that a task's own goals lead to: the first goal of a robot at a random place.
                places = rng.uniform(low + 0.1 * (high - low), high - 0.1 * (high - low), (count, len(low)))
                rest = np.zeros(spec.layout.num_measured)
                goals = []
                for place in places:
                    rest[list(spec.layout.position)] = place
                    goals.append(task.sample_goals(rng, rest, 1)[0])
                positions = goals if spec.reference.space == "position" else places
                self.robots = stepper.at_rest(np.asarray(positions), int(rng.integers(2**31)))
            measured = np.asarray(self.robots.state)[:, : spec.layout.num_measured]
            goals = np.stack([task.sample_goals(rng, y, 1)[0] for y in measured])
            self.points = jnp.asarray(stepper.towards(self.robots, goals))
            self.key, key = jax.random.split(self.key)
            self.keys = jax.random.split(key, (task.steps, count))
            self.k = 0
            self.trajectories += 1
            return self._seen(stepper.sees(self.robots, self.points))

        def reset(self) -> np.ndarray:
            """Start anew."""
            return self._begin()

        def step_async(self, actions: np.ndarray) -> None:
            """Remember what to do."""
            self.actions = actions

        def step_wait(self) -> Any:
            """One control period of all robots."""
            self.robots, (_, _, seen, price, _) = stepper.step(
                self.robots, self.actions, self.points, self.k, self.keys[self.k]
            )
            self.k += 1
            self.steps += count
            seen, over = self._seen(seen), self.k == task.steps
            infos: list[dict[str, Any]] = [{} for _ in range(count)]
            if over:
                infos = [{"terminal_observation": row, "TimeLimit.truncated": True} for row in seen]
                seen = self._begin()
            return seen, (-REWARD * price).astype(np.float32), np.full(count, over), infos

        def close(self) -> None:
            """Nothing to close."""

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            """An attribute, once per robot, for wrappers."""
            return [getattr(self, attr_name, None)] * count

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Nothing to set."""

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            """The robots have no methods of their own."""
            raise AttributeError(f"the simulated robots have no method {method_name!r}")

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            """Never."""
            return [False] * count

    return Fleet()
