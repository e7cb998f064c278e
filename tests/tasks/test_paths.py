"""Evaluation paths: where they start and end, how fast they are, and that they never jump."""

import math

import numpy as np
import pytest

from firsthand.tasks import paths
from firsthand.tasks.excavator import BOX_HIGH, BOX_LOW, CHAIN, JOINT_HIGH, JOINT_LOW, excavator_task
from firsthand_onboard.kinematics import output_of_positions

PERIOD = 0.04
CENTER = (5.0, 1.5)


def speeds(points):
    return np.linalg.norm(np.diff(points, axis=0), axis=1) / PERIOD


def shapes(speed):
    return {
        "circle": paths.circle(CENTER, 1.0, speed=speed, period_s=PERIOD),
        "square": paths.square(CENTER, 2.0, speed=speed, period_s=PERIOD),
        "line": paths.there_and_back((4.0, 1.5), (6.0, 1.5), speed=speed, period_s=PERIOD),
    }


@pytest.mark.parametrize("speed", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(
    ("name", "start", "length"),
    [("circle", (6.0, 1.5), 2 * math.pi), ("square", (6.0, 0.5), 8.0), ("line", (4.0, 1.5), 4.0)],
)
class TestShapes:
    def test_they_are_closed(self, speed, name, start, length):
        points = shapes(speed)[name]
        np.testing.assert_allclose(points[0], start, atol=1e-9)
        np.testing.assert_allclose(points[-1], start, atol=1e-9)
        assert points.shape[1] == 2

    def test_they_have_their_length(self, speed, name, start, length):
        travelled = np.sum(speeds(shapes(speed)[name])) * PERIOD
        # Chords cut a circle short, a little.
        assert travelled == pytest.approx(length, rel=2e-3)

    def test_their_peak_speed_is_the_one_asked_for(self, speed, name, start, length):
        assert np.max(speeds(shapes(speed)[name])) == pytest.approx(speed, rel=5e-3)

    def test_they_start_and_end_at_rest(self, speed, name, start, length):
        fast = speeds(shapes(speed)[name])
        assert fast[0] < 0.01 * speed
        assert fast[-1] < 0.01 * speed

    def test_their_velocity_never_jumps(self, speed, name, start, length):
        """A speed that ramps along a quintic in 1 s accelerates by at most 1.875 v/s; a circle adds v²/r."""
        velocity = np.diff(shapes(speed)[name], axis=0) / PERIOD
        change = np.linalg.norm(np.diff(velocity, axis=0), axis=1)
        most = math.hypot(1.875 * speed, speed**2)
        assert np.max(change) <= 1.02 * most * PERIOD

    def test_their_duration_is_length_over_speed_and_the_ramps(self, speed, name, start, length):
        parts = {"circle": 1, "square": 4, "line": 2}[name]
        expected = length / speed + parts * paths.RAMP_S
        # Each part ends at a control step: up to one step longer.
        assert expected <= (len(shapes(speed)[name]) - 1) * PERIOD + 1e-9
        assert (len(shapes(speed)[name]) - 1) * PERIOD <= expected + parts * PERIOD + 1e-9


def test_the_circle_is_round_and_goes_counter_clockwise():
    points = paths.circle(CENTER, 1.0, speed=0.5, period_s=PERIOD) - np.asarray(CENTER)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-12)
    turn = points[:-1, 0] * points[1:, 1] - points[:-1, 1] * points[1:, 0]
    assert np.all(turn >= -1e-12)
    assert np.max(points[: len(points) // 3, 1]) > 0.9


def test_the_square_stops_at_its_corners_and_stays_on_its_sides():
    points = paths.square(CENTER, 2.0, speed=0.5, period_s=PERIOD) - np.asarray(CENTER)
    np.testing.assert_allclose(np.max(np.abs(points), axis=1), 1.0, atol=1e-9)
    for corner in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
        distance = np.linalg.norm(points - np.asarray(corner), axis=1)
        assert np.min(distance) < 1e-9
    resting = np.flatnonzero(speeds(points) < 1e-3)
    assert len(resting) >= 8  # before and after each of the four stops


def test_a_slow_process_starts_as_smoothly_as_a_fast_one():
    for period in (0.04, 5.0, 600.0):
        steps = np.diff(paths.travelled_distance(100 * period, 1.0, period)) / period
        assert steps[0] < 0.02
        assert np.max(np.abs(np.diff(steps))) < 0.2  # of the cruising speed, in one control period
        assert np.max(steps) == pytest.approx(1.0, rel=0.02)


def test_a_short_way_is_travelled_at_a_lower_peak():
    distance = paths.travelled_distance(0.3, 1.0, PERIOD)
    assert distance[0] == 0.0
    assert distance[-1] == pytest.approx(0.3, abs=1e-12)
    assert np.max(np.diff(distance)) / PERIOD <= 0.3 * 1.01
    assert np.all(np.diff(distance) >= 0)


def test_the_excavators_references_start_at_rest_where_the_arm_can_be():
    task = excavator_task(hidden=(4,))
    references = task.evaluation(task.evaluation_speed)
    assert [reference.name for reference in references] == ["circle", "square", "line"]
    for reference in references:
        np.testing.assert_allclose(output_of_positions(CHAIN, reference.start), reference.points[0], atol=1e-5)
        assert np.all((reference.start >= JOINT_LOW) & (reference.start <= JOINT_HIGH))
        assert np.all((reference.points >= np.asarray(BOX_LOW) - 1e-9) & (reference.points <= BOX_HIGH))
        assert np.max(speeds(reference.points)) == pytest.approx(0.5, rel=5e-3)
