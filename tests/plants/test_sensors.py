"""Sensors: each effect alone against its own formula, both arrays' implementations, bad descriptions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.plants.sensors import SensedPlant, SensorDraws, Sensors, draw_reading

STILL = SensorDraws(np.zeros(2, np.float32), np.ones(2, np.float32), np.ones(2, np.float32))
"""A reading in which nothing random happens."""


def shown(sensors: Sensors, truth: np.ndarray, draws: SensorDraws = STILL, jitter: float = 0.0) -> np.ndarray:
    """What the sensors show of a sequence `(steps, entries)` that begins at rest in its first row."""
    state, readings = sensors.start(truth[0]), []
    for row in truth[1:]:
        state = sensors.advance(state, row, np.full(len(row), jitter, np.float32))
        readings.append(sensors.read(state, draws))
    return np.asarray(readings)


RAMP = np.stack([np.arange(8.0), 10 * np.arange(8.0)], axis=1).astype(np.float32)


def test_exact_sensors_show_the_truth():
    np.testing.assert_array_equal(shown(Sensors().for_entries(("a", "b")), RAMP), RAMP[1:])


def test_a_lag_is_a_first_order_low_pass():
    expected, value = [], 0.0
    for true in RAMP[1:, 0]:
        value = 0.5 * value + 0.5 * true
        expected.append(value)
    np.testing.assert_allclose(shown(Sensors(lag=0.5).for_entries(("a", "b")), RAMP)[:, 0], expected, rtol=1e-6)


def test_a_delay_shows_what_was_true_that_many_periods_ago():
    readings = shown(Sensors(delay=2).for_entries(("a", "b")), RAMP)
    np.testing.assert_array_equal(readings[:, 1], [0, 0, 10, 20, 30, 40, 50])


def test_quantisation_rounds_to_whole_steps():
    truth = np.asarray([[0.0, 0.0], [0.26, 0.26], [-0.24, -0.24]], np.float32)
    readings = shown(Sensors(resolution=(0.5, 0.0)).for_entries(("a", "b")), truth)
    np.testing.assert_allclose(readings, [[0.5, 0.26], [0.0, -0.24]], atol=1e-7)


def test_jitter_moves_the_sample_along_the_motion():
    readings = shown(Sensors(jitter=(0.1, 0.0)).for_entries(("a", "b")), RAMP, jitter=2.0)
    np.testing.assert_allclose(readings[:, 0], RAMP[1:, 0] + 0.2, rtol=1e-6)
    np.testing.assert_array_equal(readings[:, 1], RAMP[1:, 1])


def test_outliers_stand_off_for_one_sample_to_the_drawn_side():
    sensors = Sensors(outlier_share=0.1, outlier_size=3.0).for_entries(("a", "b"))
    draws = SensorDraws(np.zeros(2), np.asarray([0.05, 0.5]), np.asarray([-1.0, 1.0]))
    np.testing.assert_allclose(shown(sensors, RAMP, draws), RAMP[1:] - [3.0, 0.0])


def test_a_stuck_sensor_keeps_showing_what_it_showed():
    sensors = Sensors(noise=0.1).for_entries(("a", "b"))
    state = sensors.advance(sensors.start(RAMP[0]), RAMP[1], np.zeros(2, np.float32))
    stuck = sensors.with_stuck(1)
    draws = STILL._replace(normal=np.ones(2, np.float32))
    for row in RAMP[2:]:
        state = stuck.advance(state, row, np.zeros(2, np.float32))
        reading = stuck.read(state, draws)
        assert reading[0] == pytest.approx(row[0] + 0.1)
        assert reading[1] == 10.0


def test_noise_and_outliers_have_the_size_and_the_share_asked_for():
    sensors = Sensors(noise=(0.1, 0.0), outlier_share=(0.0, 0.02), outlier_size=5.0).for_entries(("a", "b"))
    rng, state = np.random.default_rng(0), sensors.start(np.zeros(2, np.float32))
    readings = np.asarray([sensors.read(state, draw_reading(rng, 2)) for _ in range(4000)])
    assert readings[:, 0].std() == pytest.approx(0.1, rel=0.05)
    assert (readings[:, 1] != 0).mean() == pytest.approx(0.02, rel=0.25)
    assert set(np.abs(readings[:, 1])) == {0.0, 5.0}


def test_a_sensed_plant_moves_as_it_would_unseen_and_keeps_its_truth():
    plant = ExcavatorFlow()
    sensors = Sensors(noise=(*(2e-4,) * 4, *(0.01,) * 4), lag=(*(0.0,) * 4, *(0.5,) * 4))
    sensed = SensedPlant(plant, sensors.for_entries(tuple("abcdefgh")))
    position, command = jnp.asarray((-0.85, 1.2, 0.6, 0.8)), jnp.asarray((0.5, -0.5, 0.3, 0.2))
    bare, seen, key = plant.reset(position), sensed.reset(position), jax.random.key(0)
    step, look, measure = eqx.filter_jit(plant.step), eqx.filter_jit(sensed.step), eqx.filter_jit(sensed.measure)
    errors = []
    for k in range(60):
        bare, seen = step(bare, command, key=key), look(seen, command, key=jax.random.key(k))
        np.testing.assert_array_equal(sensed.truth(seen), plant.measure(bare, key=key))
        errors.append(measure(seen, key=jax.random.key(1000 + k)) - sensed.truth(seen))
    errors = np.asarray(errors)
    assert 1e-4 < errors[:, :4].std() < 3e-4
    assert 0.008 < errors[20:, 4:].std() < 0.03  # noise, and the lag while the arm still accelerates


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"noise": -0.1}, "sensors: noise is -0.1, but must be zero or positive."),
        ({"noise": float("nan")}, "sensors: noise is nan, but must be zero or positive."),
        ({"lag": 1.5}, "sensors: lag is 1.5, but must be between 0 and 1."),
        ({"outlier_share": 2}, "sensors: outlier_share is 2, but must be between 0 and 1."),
        ({"noise": "much"}, "sensors: noise is 'much', but must be a number, or one per measured value."),
        ({"delay": 1.5}, "sensors: delay is 1.5, but must be a whole number of control periods, 0 to 100."),
        ({"delay": -1}, "sensors: delay is -1, but must be a whole number of control periods, 0 to 100."),
    ],
)
def test_a_bad_description_is_one_sentence(fields, sentence):
    with pytest.raises(UserError) as caught:
        Sensors(**fields)
    assert str(caught.value) == sentence


def test_sensors_for_another_robot_are_refused():
    with pytest.raises(UserError, match=r"noise has the shape \(3,\), but the robot measures 2 values \(a, b\)"):
        Sensors(noise=(0.1, 0.1, 0.1)).for_entries(("a", "b"))
