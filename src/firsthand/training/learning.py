"""From what the robot did to a new model and a new policy: the data, and the learner's two updates."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..agent import Agent, AgentState, Experience, LearnerState, Settings, Update, append
from ..agent.buffer import Buffer, make_room
from ..models import Policy
from ..robots import EpisodeRecord
from ..tasks import Task
from .data import as_rollout, prepare_experience
from .health import closed_loop_growth


class EpisodeUpdate(NamedTuple):
    """What one episode's update did, and what it showed."""

    agent: Update
    """The agent's report."""
    closed_loop_growth: Float[Array, ""]
    """Growth of a small deviation per step, as the new model sees the policy that ran."""
    valid: Bool[Array, "trajectories steps"]
    """Steps that were measured soundly."""


class Learner:
    """The agent on the host: keeps the transitions, and turns an episode into an update."""

    def __init__(self, task: Task, settings: Settings, buffer: Buffer) -> None:
        self.task, self.settings, self.buffer = task, settings, buffer
        self.agent = Agent(task.spec, task.cost, settings)

    def remember(self, record: EpisodeRecord) -> None:
        """Append an episode to the buffer without learning from it, as when a run is resumed."""
        self.buffer = append(self.buffer, as_rollout(self.task.spec, record))

    def observe(
        self, state: LearnerState, record: EpisodeRecord, rng: np.random.Generator
    ) -> tuple[LearnerState, EpisodeUpdate]:
        """Append, learn the model, improve the policy."""
        experience = self.prepare(record, rng)
        assert experience.rollout is not None
        before = AgentState(state, make_room(self.buffer, record.valid.size))
        after, update = self.agent.observe(before, experience)
        self.buffer = after.buffer
        growth = closed_loop_growth(state.policy, after.learner.dynamics, experience.rollout)
        return jax.block_until_ready(after.learner), EpisodeUpdate(update, growth, experience.rollout.valid)

    def prepare(self, record: EpisodeRecord, rng: np.random.Generator) -> Experience:
        """What the agent learns from: what the robot did, and starts of imagined trajectories."""
        return prepare_experience(self.task, self.settings, self.buffer, record, rng)


def with_policy(state: LearnerState, policy: Policy) -> LearnerState:
    """The same learner with another policy, for which the model has predicted nothing."""
    return dataclasses.replace(state, policy=policy, expected_cost=jnp.full_like(state.expected_cost, jnp.nan))
