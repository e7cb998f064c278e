"""The excavator's goals: inside the workspace with their whole path, at speeds the arm has, and worth going to."""

import numpy as np
import pytest

from firsthand.tasks.excavator import (
    BOX_HIGH,
    BOX_LOW,
    CHAIN,
    JOINT_HIGH,
    JOINT_LOW,
    SOLO_HIGH,
    SOLO_LOW,
    excavator_task,
    outside_box,
)
from firsthand_onboard.features import build_reference
from firsthand_onboard.kinematics import output_of_positions

EPISODES, COUNT = 25, 10


@pytest.fixture(scope="module")
def task():
    return excavator_task(hidden=(4,))


@pytest.fixture(scope="module")
def moves(task):
    """Starts and goals of 25 episodes, each from the end of the last, as if every goal were reached."""
    rng = np.random.default_rng(0)
    at = np.asarray(task.home)
    starts, goals = [], []
    for _ in range(EPISODES):
        for goal in task.sample_goals(rng, np.concatenate([at, np.zeros(4)]), COUNT):
            starts.append(at)
            goals.append(goal)
            at = goal
    return np.stack(starts), np.stack(goals)


def test_there_are_as_many_goals_as_asked_for(task):
    goals = task.sample_goals(np.random.default_rng(0), np.asarray(task.home), 7)
    assert goals.shape == (7, 4)
    again = task.sample_goals(np.random.default_rng(0), np.asarray(task.home), 7)
    np.testing.assert_array_equal(goals, again)


def test_goals_are_inside_the_joint_limits(moves):
    _, goals = moves
    assert np.all(goals >= JOINT_LOW)
    assert np.all(goals <= JOINT_HIGH)


def test_the_whole_path_stays_in_the_box(moves):
    starts, goals = moves
    share = np.linspace(0.0, 1.0, 200)[:, None, None]
    tips = output_of_positions(CHAIN, starts + share * (goals - starts))
    away = np.maximum(np.maximum(np.asarray(BOX_LOW) - tips, tips - np.asarray(BOX_HIGH)), 0.0)
    # The sampler looks at eight points of a path; between them it may bulge by centimetres.
    assert np.max(away) < 0.05
    assert np.mean(np.any(away > 0, axis=(0, 2))) < 0.1


def test_references_stay_below_the_speed_share(moves, task):
    """The peak of a quintic is 1.875 Δ/T; at most 80 % of each joint's own speed in that direction."""
    starts, goals = moves
    peak = 1.875 * (goals - starts) / (125 * 0.04)
    assert np.all(peak <= 0.8 * np.asarray(SOLO_HIGH) + 1e-9)
    assert np.all(peak >= 0.8 * np.asarray(SOLO_LOW) - 1e-9)
    # And the goals ask for a good part of it.
    assert np.mean(np.max(peak / np.where(peak > 0, SOLO_HIGH, SOLO_LOW), axis=1)) > 0.4


def test_the_reference_goes_all_the_way_to_the_goal(moves, task):
    """What the sampler allows, `build_reference` does not shorten."""
    starts, goals = moves
    for start, goal in zip(starts[:20], goals[:20], strict=True):
        reference = build_reference(task.spec, np.concatenate([start, np.zeros(4)]), goal)
        np.testing.assert_allclose(reference[-1], output_of_positions(CHAIN, goal), atol=1e-9)


def test_the_tip_travels_far_enough_to_be_worth_it(moves):
    starts, goals = moves
    travel = np.linalg.norm(output_of_positions(CHAIN, goals) - output_of_positions(CHAIN, starts), axis=1)
    assert np.min(travel) > 0.85


def test_standing_still_costs_about_one_point_six_square_metres(moves, task):
    starts, goals = moves
    costs = []
    for start, goal in zip(starts, goals, strict=True):
        reference = build_reference(task.spec, np.concatenate([start, np.zeros(4)]), goal)[: task.steps]
        costs.append(np.mean(np.sum((reference - output_of_positions(CHAIN, start)) ** 2, axis=1)))
    assert 1.3 <= np.mean(costs) <= 2.0


def test_from_a_corner_of_the_joint_space_the_goals_come_back_inside(task):
    rng = np.random.default_rng(0)
    for corner in (JOINT_LOW, JOINT_HIGH, (JOINT_LOW[0], JOINT_HIGH[1], JOINT_LOW[2], JOINT_HIGH[3])):
        goals = task.sample_goals(rng, np.asarray(corner), 10)
        assert np.all((goals >= JOINT_LOW) & (goals <= JOINT_HIGH))
        tip = output_of_positions(CHAIN, goals[-1])
        assert np.all((tip >= np.asarray(BOX_LOW) - 0.05) & (tip <= np.asarray(BOX_HIGH) + 0.05))


def test_outside_the_box_is_measured_in_metres():
    home = np.array([-0.85, 1.2, 0.6, 0.8])
    assert outside_box(home, home[None])[0] == 0.0
    low = np.array([0.4, 1.2, 0.6, 0.8])  # boom down: the tip is below the ground
    depth = BOX_LOW[1] - output_of_positions(CHAIN, low)[1]
    assert depth > 1.0
    beyond = np.maximum(output_of_positions(CHAIN, low)[0] - BOX_HIGH[0], 0) + np.maximum(
        BOX_LOW[0] - output_of_positions(CHAIN, low)[0], 0
    )
    assert outside_box(low, low[None])[0] == pytest.approx(2 * (depth + beyond), rel=1e-9)
