"""Spikes and stuck sensors are seen, and a healthy robot is not suspected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.settings import ExcitationSettings
from firsthand.models import Policy
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.plants.sensors import SensedPlant, Sensors
from firsthand.robots import EpisodeRecord, SimulatedRobot
from firsthand.tasks import excavator_task
from firsthand.training.learning import as_rollout, smooth_excitation
from firsthand_onboard.signals import find_spikes, find_stuck_sensors, mark_memory

TASK = excavator_task(trajectories=2, steps=60, hidden=(8,))
SPEC = TASK.spec


@pytest.fixture(scope="module")
def episode():
    """A lively episode with the sensors as given; the motion is the same every time (commands do not depend on it)."""
    policy = Policy.random(SPEC, key=jax.random.key(0), last_gain=0.0)
    rng = np.random.default_rng(0)
    goals = TASK.sample_goals(rng, np.zeros(8), 2)
    there_and_back = np.repeat([0.7, -0.7], 30)[None, :, None] * np.array([1.0, 0.9, 0.8, 0.3])
    excitation = np.repeat(there_and_back, 2, axis=0) + smooth_excitation(TASK, ExcitationSettings(amplitude=0.3), rng)

    def run(sensors: Sensors, stuck: int | None = None) -> EpisodeRecord:
        sensors = sensors.for_entries(SPEC.layout.measured)
        robot = SimulatedRobot(SensedPlant(ExcavatorFlow(), sensors), TASK)
        if stuck is not None:
            robot.plant = SensedPlant(ExcavatorFlow(), sensors.with_stuck(stuck))
        return robot.run_episode(policy, goals, excitation)

    return run


def test_a_healthy_robot_is_not_suspected(episode):
    healthy = episode(Sensors())
    assert np.asarray(as_rollout(SPEC, healthy).valid).all()
    noisy = Sensors(noise=(*(1e-3,) * 4, *(5e-3,) * 4))
    assert np.asarray(as_rollout(SPEC, episode(noisy)).valid).all()


def test_every_spike_is_found_and_nothing_else(episode):
    true = episode(Sensors()).measured
    size = 8.0 * np.asarray(SPEC.scales.change_scale)
    seen = episode(Sensors(outlier_share=0.01, outlier_size=size))
    off = (np.abs(seen.measured - true) > 0.5 * size).any(axis=-1)
    off[:, [0, -1]] = False  # at the ends there is no neighbour to tell
    assert 5 < off.sum() < 50
    found = find_spikes(SPEC, seen.measured, seen.valid)
    assert (found[off]).mean() > 0.9  # two spikes in a row hide each other
    beside = off.copy()
    beside[:, 1:] |= off[:, :-1]
    beside[:, :-1] |= off[:, 1:]
    assert not found[~beside].any()
    valid = np.asarray(as_rollout(SPEC, seen).valid)
    marked = mark_memory(found, SPEC.layout.measurement_memory)
    assert not valid[marked[:, :-1]].any()
    assert not valid[marked[:, 1:]].any()


@pytest.mark.parametrize("channel", [1, 5])
def test_a_stuck_sensor_is_found(episode, channel):
    seen = episode(Sensors(), stuck=channel)
    assert (np.diff(seen.measured[..., channel], axis=1) == 0).all()
    assert find_stuck_sensors(SPEC, seen.measured).mean() > 0.5


def test_a_stuck_sensor_is_found_after_a_gap(episode):
    """A sample that was not measured says nothing about those long after it."""
    seen = episode(Sensors(), stuck=1).measured.copy()
    found = find_stuck_sensors(SPEC, seen)
    seen[:, 2, 5] = np.nan
    assert find_stuck_sensors(SPEC, seen)[:, 10:].sum() >= 0.9 * found[:, 10:].sum() > 0


def test_standing_still_is_not_being_stuck():
    still = np.zeros((1, 60, 8), np.float32) + jnp.asarray(SPEC.scales.measured_center)
    assert not find_stuck_sensors(SPEC, np.asarray(still)).any()
