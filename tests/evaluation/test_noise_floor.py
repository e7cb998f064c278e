"""What sensors alone make of an error, and errors of robots that end early."""

import dataclasses

import numpy as np
import pytest

from firsthand.evaluation.metrics import command_effect, noise_floor, saturation, whole_error
from firsthand.robots import EpisodeRecord


def episode(toy_spec, measured: np.ndarray, commands: np.ndarray | None = None) -> EpisodeRecord:
    count, steps = len(measured), measured.shape[1] - 1
    commands = np.zeros((count, steps, 2)) if commands is None else commands
    return EpisodeRecord.complete(
        np.zeros((count, toy_spec.layout.size)), measured, commands, np.zeros((count, steps + 3, 2))
    )


@pytest.fixture
def smooth() -> np.ndarray:
    time = np.linspace(0.0, 1.0, 201)
    return np.stack([np.sin(3 * time), np.cos(2 * time)], axis=-1)[None].repeat(3, axis=0)


def test_the_noise_floor_is_that_of_the_sensors_whether_the_truth_is_known_or_not(toy_spec, smooth):
    noise = 0.01 * np.random.default_rng(0).standard_normal(smooth.shape)
    record = episode(toy_spec, smooth + noise)
    expected = 0.01 * np.sqrt(np.pi / 2)  # the mean of a Rayleigh distribution
    assert noise_floor(toy_spec, record) == pytest.approx(expected, rel=0.1)
    known = dataclasses.replace(record, truth=smooth.astype(np.float32))
    assert noise_floor(toy_spec, known) == pytest.approx(expected, rel=0.1)
    assert noise_floor(toy_spec, episode(toy_spec, smooth)) < 1e-4
    assert np.isnan(noise_floor(toy_spec, episode(toy_spec, smooth[:1, :20])))


def test_the_noise_floor_of_several_units_is_on_the_scale_of_the_errors(toy_spec, smooth):
    layout = dataclasses.replace(toy_spec.layout, measured_units=("rad", "bar"))
    scales = dataclasses.replace(toy_spec.scales, error=(0.1, 10.0))
    spec = dataclasses.replace(toy_spec, layout=layout, scales=scales)
    assert spec.has_mixed_units
    noise = np.asarray([0.01, 1.0]) * np.random.default_rng(0).standard_normal(smooth.shape)
    record = episode(spec, smooth + noise)
    expected = 0.1 * np.sqrt(np.pi / 2)
    assert noise_floor(spec, record) == pytest.approx(expected, rel=0.1)
    assert noise_floor(spec, dataclasses.replace(record, truth=smooth.astype(np.float32))) == pytest.approx(
        expected, rel=0.1
    )


def test_a_robot_that_ends_early_counts_as_standing_where_it_ended(toy_spec):
    measured = np.ones((1, 11, 2))
    measured[:, :3] = 0.0
    record = dataclasses.replace(episode(toy_spec, measured), valid=np.arange(10)[None] < 3)
    assert whole_error(toy_spec, record) == pytest.approx(0.7 * np.sqrt(2))


def test_the_effect_of_commands_is_seen_and_so_is_its_absence(toy_spec):
    rng = np.random.default_rng(0)
    commands = rng.uniform(-1, 1, (4, 100, 2))
    moved = np.cumsum(0.1 * commands, axis=1)
    still = 0.05 * rng.standard_normal((4, 101, 2))
    path = np.concatenate([np.zeros((4, 1, 2)), moved], axis=1) + 0.2 * still
    assert command_effect(toy_spec, episode(toy_spec, path, commands)) > 0.3
    assert command_effect(toy_spec, episode(toy_spec, still, commands)) < 0.02
    assert np.isnan(command_effect(toy_spec, episode(toy_spec, still)))  # no command varied
    assert saturation(toy_spec, episode(toy_spec, still, np.ones((4, 100, 2)))) == 1.0
    assert saturation(toy_spec, episode(toy_spec, still)) == 0.0
