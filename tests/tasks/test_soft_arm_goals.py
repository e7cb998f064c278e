"""The soft arm's task: goals, references and evaluation paths lie where the arm can go."""

import numpy as np
import pytest

from firsthand.plants.soft_arm import SoftArmParameters
from firsthand.plants.soft_arm.geometry import straight
from firsthand.robots.registry import ROBOTS
from firsthand.tasks.soft_arm import HOME, REACH_M, SPEED_M_S, soft_arm_task
from firsthand_onboard.features import build_reference
from firsthand_onboard.kinematics import tracked_output


@pytest.fixture(scope="module")
def task():
    return soft_arm_task()


def test_it_is_the_robot_of_the_paper(task):
    layout = task.spec.layout
    assert (layout.num_measured, layout.num_commands, task.spec.num_outputs) == (9, 6, 2)
    assert layout.velocity == ()
    assert (task.trajectories, task.steps, task.spec.period_s) == (10, 120, 0.05)
    assert task.spec.reference.space == "output"
    assert ROBOTS["soft-arm"].make_task().spec == task.spec


def test_home_is_the_upright_arm_of_the_plant():
    np.testing.assert_allclose(HOME, straight(SoftArmParameters().length_m), atol=1e-9)


def test_goals_fill_the_disk_and_are_some_way_apart(task):
    rng = np.random.default_rng(0)
    goals = np.concatenate([task.sample_goals(rng, np.asarray(HOME), 10) for _ in range(60)])
    radius = np.linalg.norm(goals, axis=1)
    assert radius.max() <= REACH_M
    assert (radius > 0.25).mean() > 0.2
    for quadrant in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        assert (np.sign(goals) == quadrant).all(axis=1).mean() > 0.15
    hops = np.linalg.norm(np.diff(goals.reshape(60, 10, 2), axis=1), axis=-1)
    assert hops.min() >= 0.15


def test_references_start_at_the_tip_reach_the_goal_and_keep_the_speed(task):
    rng = np.random.default_rng(1)
    measured = np.asarray(HOME)
    for goal in task.sample_goals(rng, measured, 20):
        points = build_reference(task.spec, measured, goal)
        np.testing.assert_allclose(points[0], tracked_output(task.spec, measured), atol=1e-9)
        np.testing.assert_allclose(points[task.steps], goal, atol=1e-6)
        speed = np.abs(np.diff(points, axis=0)).max() / task.spec.period_s
        assert speed <= SPEED_M_S * 1.001
        measured = measured.copy()
        measured[6:8] = goal


def test_evaluation_is_the_circle_and_the_square_of_figure_11(task):
    circle, square = task.evaluation(task.evaluation_speed)
    assert (circle.name, square.name) == ("circle", "square")
    for reference in (circle, square):
        np.testing.assert_allclose(reference.points[0], 0.0, atol=1e-9)
        np.testing.assert_allclose(reference.start, HOME)
        speed = np.linalg.norm(np.diff(reference.points, axis=0), axis=1) / task.spec.period_s
        assert speed.max() <= 0.125 * 1.001
    away = np.linalg.norm(circle.points, axis=1)
    assert away.max() == pytest.approx(0.25, abs=1e-6)
    assert (away > 0.2499).sum() * 0.05 == pytest.approx(12.6 + 1.0, abs=0.3)
    assert np.abs(square.points).max() == pytest.approx(0.2, abs=1e-6)


def test_the_soft_limits_are_silent_where_the_arm_works(task):
    """Upright, and leaning as far as goals ask for, no position is inside its soft margin."""
    low, high = np.asarray(task.spec.limits.position_low), np.asarray(task.spec.limits.position_high)
    margin = task.cost.limit_margin * (high - low)
    leaning = np.asarray([0.1, 0.0, 0.27, 0.25, 0.0, 0.55, REACH_M, 0.0, 0.75])
    for position in (np.asarray(HOME), leaning):
        assert (position >= low + margin).all()
        assert (position <= high - margin).all()
