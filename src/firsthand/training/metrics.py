"""The metrics of an episode, as metrics.jsonl has them; docs/metrics.md explains each."""

import dataclasses
from typing import Any

import numpy as np

from ..agent import LearnerState
from ..evaluation import tracking_metrics
from ..robots import AbstractRobot, EpisodeRecord
from .learning import EpisodeUpdate


def episode_metrics(
    episode: int, robot: AbstractRobot, record: EpisodeRecord, state: LearnerState, update: EpisodeUpdate
) -> dict[str, Any]:
    """What the robot did, as far as its sensors can be believed, and what both updates made of it.

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
