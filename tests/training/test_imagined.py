import dataclasses

import numpy as np
import pytest

from firsthand.agent.buffer import Buffer
from firsthand.robots import EpisodeRecord
from firsthand.tasks import excavator_task, soft_arm_task
from firsthand.training.learning import draw_imagined_starts, prepare_experience, turning_reference
from firsthand.training.presets import preset
from firsthand_onboard.features import build_reference, initial_state, measured_part, reference_path
from firsthand_onboard.kinematics import tracked_output


def episode(task, start):
    spec, steps = task.spec, task.steps
    measured = np.repeat(measured_part(spec.layout, start)[None], steps + 1, axis=0)[None]
    points = build_reference(spec, measured[0, 0], task.sample_goals(np.random.default_rng(0), measured[0, 0], 1)[0])
    commands = np.zeros((1, steps, spec.layout.num_commands))
    return EpisodeRecord.complete(start[None], measured, commands, points[None])


def standing(task, shift=0.0):
    measured = np.asarray(task.spec.scales.measured_center, np.float32)
    measured[list(task.spec.layout.position)] = task.home
    return initial_state(task.spec.layout, measured + np.float32(shift), np.zeros(task.spec.layout.num_commands))


def moving(task):
    state = standing(task).astype(np.float32)
    state[task.spec.layout.command_start :] = 0.7
    return state


def test_they_start_in_turn_where_the_episode_did_at_rest_elsewhere_and_in_mid_motion():
    task = excavator_task()
    start, swing = standing(task).astype(np.float32), moving(task)
    imagined = draw_imagined_starts(task, episode(task, start), 9, np.random.default_rng(1), np.stack([swing, swing]))
    assert imagined is not None
    starts = np.asarray(imagined.starts)
    np.testing.assert_array_equal(starts[::3], np.stack([start] * 3))
    np.testing.assert_array_equal(starts[2::3], np.stack([swing] * 3))
    rest = starts[1::3]
    assert np.unique(rest[:, 0]).size == 3, "each in a posture of its own"
    np.testing.assert_array_equal(rest[:, list(task.spec.layout.velocity)], 0.0)


@pytest.mark.parametrize("make", [excavator_task, soft_arm_task])
def test_every_reference_begins_where_its_trajectory_starts(make):
    task = make()
    imagined = draw_imagined_starts(
        task, episode(task, standing(task).astype(np.float32)), 6, np.random.default_rng(1), moving(task)[None]
    )
    assert imagined is not None
    for start, previews in zip(np.asarray(imagined.starts), np.asarray(imagined.previews), strict=True):
        here = tracked_output(task.spec, measured_part(task.spec.layout, start))
        np.testing.assert_allclose(previews[0, 0], here, atol=1e-5)


def test_states_that_no_sensor_can_have_measured_are_no_starts():
    task = excavator_task()
    broken = np.full((3, task.spec.layout.size), np.nan, np.float32)
    imagined = draw_imagined_starts(
        task, episode(task, standing(task).astype(np.float32)), 4, np.random.default_rng(1), broken
    )
    assert imagined is not None
    assert np.isfinite(np.asarray(imagined.starts)).all()


@pytest.mark.parametrize("make", [excavator_task, soft_arm_task])
def test_a_turning_reference_has_one_corner_and_no_jump(make):
    """Its speed changes at once, where a straight reference's changes by little from step to step."""
    task = make()
    spec, rng = task.spec, np.random.default_rng(0)
    measured = measured_part(spec.layout, standing(task).astype(np.float32))
    goals = task.sample_goals(rng, measured, 40)
    straight = np.stack([build_reference(spec, measured, goal.astype(np.float32)) for goal in goals])
    turning = np.stack([turning_reference(task, measured, rng) for _ in range(40)])
    assert turning.shape == straight.shape
    np.testing.assert_allclose(turning[:, 0], straight[:, 0], atol=1e-5)

    def largest(paths: np.ndarray, order: int) -> np.ndarray:
        return np.linalg.norm(np.diff(paths, order, axis=1), axis=-1).max(axis=1)

    assert largest(turning, 1).max() < 2 * largest(straight, 1).max()
    assert np.median(largest(turning, 2)) > 4 * np.median(largest(straight, 2))
    sharp = np.linalg.norm(np.diff(turning, 2, axis=1), axis=-1) > 3 * largest(straight, 2).max()
    assert sharp.sum(axis=1).max() <= 2, "one corner is felt in at most two differences"


def test_a_path_entered_in_motion_goes_as_fast_as_one_from_rest():
    task = excavator_task()
    start = np.asarray(task.home, np.float32)
    goal = task.sample_goals(np.random.default_rng(0), measured_part(task.spec.layout, standing(task)), 1)[0]
    whole, entered = (reference_path(task.spec, start, goal, entry=entry) for entry in (0.0, 0.5))
    np.testing.assert_allclose(entered[0], start)
    fastest = np.abs(np.diff(whole, axis=0)).max(axis=0)
    np.testing.assert_allclose(np.abs(np.diff(entered, axis=0)).max(axis=0), fastest, rtol=1e-2)


def count_turning(imagined) -> int:
    """References with a bend far above their usual one."""
    assert imagined is not None
    points = np.asarray(imagined.previews)[:, :, 0]
    bend = np.linalg.norm(np.diff(points, 2, axis=1), axis=-1)
    return int((bend.max(axis=1) > 8 * np.median(bend, axis=1)).sum())


def test_corners_are_a_share_of_the_references():
    task = excavator_task()
    record = episode(task, standing(task).astype(np.float32))

    def count(share: float) -> int:
        return count_turning(draw_imagined_starts(task, record, 60, np.random.default_rng(2), corners=share))

    assert count(0.0) == 0
    assert 10 < count(0.4) < 40


@pytest.mark.parametrize(("noise_share", "fewest", "most"), [(1.0, 0, 0), (0.5, 5, 20), (0.0, 15, 40)])
def test_corners_are_as_many_as_the_model_is_free_of_noise(noise_share: float, fewest: int, most: int):
    task = excavator_task()
    record = episode(task, standing(task).astype(np.float32))
    settings = preset("fast").with_changes({"imagination.trajectories": 60, "imagination.corners": 0.4})
    layout = task.spec.layout
    sizes = layout.size, layout.num_commands, layout.num_measured
    buffer = Buffer.empty(10 * record.valid.size, *sizes)
    rng = np.random.default_rng(2)
    experience = prepare_experience(task, settings, buffer, record, rng, noise_share=noise_share)
    starts = experience.imagined
    assert starts is not None
    first = dataclasses.replace(starts, starts=starts.starts[:60], previews=starts.previews[:60])
    assert fewest <= count_turning(first) <= most
