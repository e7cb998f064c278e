"""The agent: acts, remembers, learns, and can be stored and continued."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from firsthand.errors import UserError
from firsthand.runs import pytrees

from .config import Config
from .learning import Batch, State, UpdateNoise, draw_update_noise, numbers_in, update
from .planning import draw_plan_noise, plan
from .replay import Replay

# `discount` and `config` are plain Python values: part of what is compiled.
_plan: Any = eqx.filter_jit(plan)


@eqx.filter_jit(donate="all-except-first")
def _update(given: tuple[Batch, UpdateNoise], state: State, discount: float, config: Config):
    # The state's memory is used again for the new state.
    batch, noise = given
    return update(state, batch, noise, discount, config)


class Agent:
    """TD-MPC2 for one task with state observations. Actions are in [−1, 1].

    An episode ends by a time limit only: values are always bootstrapped from the last observation. Tasks that end
    early because something terminal happened are not supported.

    The order of a training loop is `act`, step the environment, `remember`, `learn(agent.due)`. Random numbers are
    derived from the seed and from counters, so that a restored agent goes on with the same ones.
    """

    def __init__(
        self, config: Config, observation_size: int, action_size: int, *, seed: int, episode_length: int
    ) -> None:
        for name, value in (
            ("observation_size", observation_size),
            ("action_size", action_size),
            ("episode_length", episode_length),
        ):
            if value < 1:
                raise UserError(f"{name} is {value}, but must be a whole number of at least 1.")
        if seed < 0:
            raise UserError(f"seed is {seed}, but must be a whole number of at least 0.")
        if episode_length < config.horizon:
            raise UserError(
                f"episode_length is {episode_length}, but must be at least horizon, which is {config.horizon}."
            )
        self.config = config
        self.observation_size, self.action_size = observation_size, action_size
        self.seed, self.episode_length = seed, episode_length
        self.discount = config.discount(episode_length)
        self.seed_steps = config.seed_steps(episode_length)
        self._state = State.random(config, observation_size, action_size, rng=self._rng(0, 0))
        self._replay = Replay(config.capacity, observation_size, action_size, horizon=config.horizon)
        self.mean = jnp.zeros((config.horizon, action_size))
        """The last plan, from which the next one starts."""
        self.steps = 0
        """Steps remembered."""
        self.decisions = 0
        """Actions asked for."""
        self.updates = 0
        """Gradient updates made."""

    @property
    def parameters(self) -> int:
        """Trained numbers: model and policy, without the target Q functions."""
        return numbers_in((self._state.model, self._state.policy))

    @property
    def replay(self) -> Replay:
        """The stored experience."""
        return self._replay

    @property
    def due(self) -> int:
        """Updates that the schedule asks for now: none during the seed steps, which are then made up for at once."""
        if self.steps < self.seed_steps or not self._replay.slices:
            return 0
        return max(int(self.config.updates_per_step * self.steps) - self.updates, 0)

    def act(self, observation: np.ndarray, *, first: bool, explore: bool) -> Float[np.ndarray, " action"]:
        """The action for an observation: planned, or uniformly random when exploring during the seed steps.

        `first` says that an episode begins: planning then starts afresh.
        """
        count, self.decisions = self.decisions, self.decisions + 1
        if explore and self.steps < self.seed_steps:
            return self._rng(1, count).uniform(-1.0, 1.0, self.action_size).astype(np.float32)
        observation = np.asarray(observation, np.float32)
        if observation.shape != (self.observation_size,) or not np.isfinite(observation).all():
            raise UserError(f"the observation must be {self.observation_size} finite numbers, but is {observation}.")
        result = _plan(
            self._state.model,
            self._state.policy,
            observation,
            self.mean,
            np.bool_(first),
            np.bool_(explore),
            draw_plan_noise(self.config, self.action_size, self._rng(1, count)),
            self.discount,
            self.config,
        )
        self.mean = result.mean
        return np.asarray(result.action)

    def remember(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        *,
        first: bool,
        last: bool,
    ) -> None:
        """Store a step. `action` is what was really applied. With `last` the episode ended, by its time limit."""
        if first:
            self._replay.drop_open()
        if not np.isfinite(reward):
            raise UserError(f"the reward must be a finite number, but is {reward}.")
        self._replay.add(observation, action, reward, next_observation, last=last)
        self.steps += 1

    def learn(self, updates: int) -> dict[str, float]:
        """Make this number of updates; the mean of what they report, empty when there were none."""
        if updates <= 0:
            return {}
        if not self._replay.slices:
            raise UserError(f"there is no finished episode of {self.config.horizon} steps or more to learn from yet.")
        reports = []
        for _ in range(updates):
            rng = self._rng(2, self.updates)
            given = (self._replay.sample(self.config.batch, rng), draw_update_noise(self.config, self.action_size, rng))
            self._state, report = _update(given, self._state, self.discount, self.config)
            self.updates += 1
            reports.append(report)
        names = reports[0]._fields
        means = np.mean(np.array(jax.device_get(reports), np.float64), axis=0)
        return {name: float(mean) for name, mean in zip(names, means, strict=True)}

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that is needed to go on, as named arrays that a safetensors file can hold."""
        # Copies, because updates reuse the memory of the state they replace.
        arrays = {name: np.array(array) for name, array in pytrees.to_arrays(self._progress()).items()}
        return arrays | {f"replay.{name}": array for name, array in self._replay.to_arrays().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a snapshot of an agent with the same settings, sizes and seed."""
        replay = {name[len("replay.") :]: array for name, array in arrays.items() if name.startswith("replay.")}
        others = {name: array for name, array in arrays.items() if not name.startswith("replay.")}
        kept = pytrees.from_arrays(self._progress(), others)
        if kept["seed"] != self.seed or kept["episode_length"] != self.episode_length:
            raise UserError(
                f"the snapshot is of an agent with the seed {kept['seed']} and episodes of {kept['episode_length']} "
                f"steps, and this one has {self.seed} and {self.episode_length}."
            )
        self._replay.from_arrays(replay)
        self._state, self.mean = kept["state"], kept["mean"]
        self.steps, self.decisions, self.updates = kept["steps"], kept["decisions"], kept["updates"]

    def _rng(self, purpose: int, count: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose, count])

    def _progress(self) -> dict[str, Any]:
        return {
            "state": self._state,
            "mean": self.mean,
            "steps": self.steps,
            "decisions": self.decisions,
            "updates": self.updates,
            "seed": self.seed,
            "episode_length": self.episode_length,
        }
