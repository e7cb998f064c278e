"""How long trajectories are, for robots that fall and for those that do not."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.corrected_model import make_rollout_inputs
from firsthand.models import Dynamics
from firsthand.robots import EpisodeRecord
from firsthand.tasks import Task
from firsthand.training.horizon import MIN_HORIZON, Horizon
from firsthand.training.learning import as_rollout, draw_imagined_starts


@pytest.fixture(scope="module")
def task(make_probe_task) -> Task:
    made = make_probe_task(
        measured=1,
        command_memory=1,
        steps=60,
        preview=(1, 2),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
        trajectories=10,
    )
    return dataclasses.replace(made, adaptive_horizon=True)


def episode(task: Task, lengths: list[int]) -> EpisodeRecord:
    shape = (len(lengths), task.steps)
    record = EpisodeRecord.complete(
        np.zeros((len(lengths), 2)),
        np.zeros((*shape[:1], 61, 1)),
        np.zeros((*shape, 1)),
        np.zeros((len(lengths), 62, 1)),
    )
    return dataclasses.replace(record, valid=np.arange(task.steps) < np.asarray(lengths)[:, None])


def test_a_robot_that_stays_up_keeps_the_whole_length(task: Task):
    horizon = Horizon(task)
    assert horizon.update(episode(task, [60] * 10)) == 0.0
    assert horizon.steps == 60


@pytest.mark.parametrize("steps", [None, [], "12", True, 0, -3, 61, 10**400, 12.5])
def test_a_stored_horizon_that_cannot_be_is_refused(task: Task, steps: Any):
    horizon = Horizon(task)
    horizon.resume(20, episode(task, [20] * 10))
    assert horizon.steps > 20
    with pytest.raises((ValueError, TypeError), match=r"horizon is|steps"):
        horizon.resume(steps, episode(task, [20] * 10))


def test_falls_shorten_it_and_standing_lengthens_it_again(task: Task):
    horizon = Horizon(task)
    assert horizon.update(episode(task, [20] * 10)) == 1.0
    assert horizon.steps == 20
    assert horizon.imagined_steps == 40
    horizon.update(episode(task, [20] * 2 + [15] * 8))  # 20 steps from fall to fall
    assert horizon.steps == 20
    horizon.update(episode(task, [16] * 10))
    assert horizon.steps == 16
    horizon.update(episode(task, [16] * 9 + [10]))  # 154
    assert horizon.steps == 21
    horizon.update(episode(task, [21] * 10))
    assert horizon.steps == 28
    horizon.update(episode(task, [1] * 10))
    assert horizon.steps == MIN_HORIZON
    for _ in range(8):
        horizon.update(episode(task, [horizon.steps] * 10))
    assert horizon.steps == 60


def test_trajectories_that_never_began_are_no_falls(task: Task):
    horizon = Horizon(task)
    assert horizon.update(episode(task, [60, 60, 60, 30] + [0] * 6)) == 0.25  # the robot failed in the fourth
    assert horizon.steps == 60
    assert horizon.update(episode(task, [0] * 10)) == 1.0
    assert horizon.steps == 60


def test_a_length_that_was_given_stays(task: Task):
    horizon = Horizon(dataclasses.replace(task, adaptive_horizon=False))
    assert horizon.update(episode(task, [16] * 10)) == 1.0
    assert horizon.steps == 60


def test_imagined_trajectories_count_up_to_the_horizon_in_arrays_of_one_shape(task: Task):
    record = episode(task, [16] * 10)
    dynamics = Dynamics.random(task.spec, (4,), key=jax.random.key(0))
    shapes = set()
    for horizon in (20, 60):
        imagined = draw_imagined_starts(task, record, 4, np.random.default_rng(0), horizon=horizon)
        assert imagined is not None
        inputs = make_rollout_inputs(dynamics, as_rollout(task.spec, record), imagined)
        assert jnp.all(inputs.valid[10:].sum(axis=1) == horizon)
        shapes.add(tuple(np.shape(leaf) for leaf in jax.tree.leaves(inputs)))
    assert len(shapes) == 1
