"""Learners at work and blocks of work that are made up, for the tests of what a session keeps."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from firsthand.agent import LearnerState
from firsthand.models.function_base import function_base
from firsthand.robots import EpisodeRecord
from firsthand.tasks import Task
from firsthand.training import preset
from firsthand.training.work import WorkLearner, WorkSettings
from firsthand_onboard.base_control import NO_LIMIT, BaseControl
from firsthand_onboard.kinematics import tracked_output

SETTINGS = preset("fast").with_changes({"observer.use": 0, "model.hidden": (8,)})


def block_of_work(task: Task, count: int, error: float = 0.0, seed: int = 0) -> EpisodeRecord:
    """A block with this tracking error."""
    rng, steps = np.random.default_rng(seed), task.steps
    measured = np.repeat(rng.normal(size=(count, steps + 1, 1)), 2, axis=2).astype(np.float32)
    found = np.asarray(tracked_output(task.spec, measured))
    references = np.concatenate([found, found[:, -1:]], axis=1)[:, 1 : 1 + steps + task.spec.preview[-1]]
    references = (references + error).astype(np.float32)
    starts = np.zeros((count, task.spec.layout.size), np.float32)
    return EpisodeRecord.complete(starts, measured, np.zeros((count, steps, 1)), references)


def with_memory(record: EpisodeRecord) -> EpisodeRecord:
    """The block of a policy on a base."""
    return dataclasses.replace(record, memory=np.asarray([[0.0, 1.0]] * len(record.commands), np.float32))


def learner_of(task: Task, **work: Any) -> WorkLearner:
    """A learner whose conditions never change."""
    state = LearnerState.random(task.spec, SETTINGS, seed=0)
    options: dict[str, Any] = {"surprise": 1e9, "better": 1e-9, **work}
    return WorkLearner(task, SETTINGS, state, WorkSettings(**options), block_trajectories=2)


def push(measurement, reference, state=()):
    """A base that is a spring."""
    return 0.5 * (reference - measurement[:1]), state


def on_base(task: Task, authority: float = 0.4) -> WorkLearner:
    """A learner whose policy stands on a base."""
    control = BaseControl(function_base(push, "push", task.spec), jnp.asarray(authority), jnp.asarray(NO_LIMIT))
    state = LearnerState.random(task.spec, SETTINGS, seed=0, control=control)
    options: dict[str, Any] = {"surprise": 1e9, "better": 1e-9}
    return WorkLearner(task, SETTINGS, state, WorkSettings(**options), block_trajectories=2)
