"""From what the robot did to a new model and a new policy: the data, the learner's two updates, and their metrics."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..agent import Agent, AgentState, Experience, LearnerState, Settings, Update, append
from ..agent.buffer import Buffer, make_room
from ..evaluation import tracking_metrics
from ..models import Policy
from ..robots import AbstractRobot, EpisodeRecord
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


def episode_metrics(
    episode: int, robot: AbstractRobot, record: EpisodeRecord, state: LearnerState, update: EpisodeUpdate
) -> dict[str, Any]:
    """A line of metrics.jsonl; docs/metrics.md explains each entry.

    What the robot did, as far as its sensors can be believed, and what both updates made of it.

    `state` is the learner's after the update.
    """
    # What a spike or a stuck sensor reports is not an error of the robot's. The truth has neither.
    sound = dataclasses.replace(record, valid=np.asarray(update.valid))
    tracking = tracking_metrics(robot.task.spec, (sound if record.truth is None else record,))
    measured = tracking_metrics(robot.task.spec, (sound,)).measured_mean_error
    policy, model = update.agent.policy, update.agent.model
    return {
        "episode": episode,
        "robot_time_s": episode * robot.task.episode_s,
        "tracking_error": tracking.mean_error,
        "measured_tracking_error": measured,
        "rms_error": tracking.rms_error,
        "max_error": tracking.max_error,
        "controller_loss": tracking.rms_error**2,
        "cost": float(policy.cost),
        "model_loss": float(model.loss),
        "prediction_error": float(update.agent.prediction_error),
        "closed_loop_growth": float(update.closed_loop_growth),
        "gradient_norm": float(policy.step.gradient_norm),
        "discount": float(policy.step.discount),
        "step_norm": float(policy.step.step_norm),
        "command_step": float(policy.step.command_step_norm),
        "steps_taken": int(policy.steps_taken),
        "predicted_cost": float(policy.predicted_cost),
        "surprise": float(policy.surprise),
        "deviation": float(policy.deviation),
        "radius": float(state.radius),
        "refined": bool(state.refinement.active),
        "cg_iterations": int(policy.step.iterations),
        "cg_residual": float(policy.step.relative_residual),
        "update_accepted": bool(policy.step.accepted),
        "refused_updates": int(state.refused),
        "command_change": tracking.command_change,
        "limit_hits": tracking.limit_hits,
        "valid_share": float(sound.valid.mean()),
    }
