"""What the tests of TD-MPC2 share: small settings, networks without zeros, and a task whose optimum is known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firsthand_lab.baselines.tdmpc2 import Agent, Config
from firsthand_lab.baselines.tdmpc2.learning import (
    Batch,
    State,
)
from firsthand_lab.baselines.tdmpc2.networks import (
    WorldModel,
)

TINY = Config(
    latent=16,
    encoder_width=32,
    width=32,
    members=3,
    batch=32,
    samples=64,
    policy_samples=8,
    elites=12,
    rounds=3,
    capacity=5000,
    seed_episodes=4,
    min_seed_steps=50,
    rate=1e-3,
)


def new_model(config: Config, observation: int, action: int) -> WorldModel:
    return WorldModel.random(config, observation, action, rng=np.random.default_rng(0))


def new_state(config: Config, observation: int, action: int) -> State:
    return State.random(config, observation, action, rng=np.random.default_rng(0))


def perturbed(tree: Any) -> Any:
    """The same with noise on every number, so that nothing is zero by its initial value."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x) + np.float32(0.1) * rng.standard_normal(x.shape, np.float32)), tree
    )


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(2).standard_normal(shape, np.float32))


def random_batch(config: Config, observation: int, action: int) -> Batch:
    rng = np.random.default_rng(0)
    shape = (config.horizon, config.batch)
    return Batch(
        jnp.asarray(rng.standard_normal((shape[0] + 1, shape[1], observation)), jnp.float32),
        jnp.asarray(rng.uniform(-1, 1, (*shape, action)), jnp.float32),
        jnp.asarray(rng.standard_normal(shape), jnp.float32),
    )


class Line:
    """A point on a line: x⁺ = x + 0.2 a, reward −|x⁺|. Going straight to zero is optimal."""

    length = 20

    def reset(self, rng: np.random.Generator) -> np.ndarray:
        self.x = rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.5)
        return np.array([self.x])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float]:
        self.x += 0.2 * float(action[0])
        return np.array([self.x]), -abs(self.x)

    @classmethod
    def best_return(cls, x: float) -> float:
        return -sum(max(abs(x) - 0.2 * (t + 1), 0.0) for t in range(cls.length))


def run_episode(agent: Agent, rng: np.random.Generator, *, explore: bool) -> tuple[float, float]:
    """The return of an episode, and the best one possible."""
    line = Line()
    seen, total = line.reset(rng), 0.0
    best = line.best_return(line.x)
    for t in range(line.length):
        action = agent.act(seen, first=t == 0, explore=explore)
        assert action.shape == (1,)
        assert np.abs(action) <= 1
        following, reward = line.step(action)
        if explore:
            agent.remember(seen, action, reward, following, first=t == 0, last=t == line.length - 1)
            agent.learn(agent.due)
        seen, total = following, total + reward
    return total, best


def line_agent(config: Config = TINY, seed: int = 0) -> Agent:
    return Agent(config, 1, 1, seed=seed, episode_length=Line.length)
