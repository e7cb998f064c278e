"""The robot that was fitted to a real machine's log, as it is shipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.learned import LearnedPlant
from firsthand.robots.real_excavator import FOLDER, work_cycle
from firsthand.robots.registry import find_robot
from firsthand.robots.stored_simulator import LearnedRobot

SIGNS = np.asarray([-1.0, -1.0, -1.0, 1.0])
"""A positive command moves boom, arm and bucket to smaller angles."""


@pytest.fixture(scope="module")
def robot() -> LearnedRobot:
    made = find_robot("real-excavator", sensors="exact").make()
    assert isinstance(made, LearnedRobot)
    return made


def follow_with_pd(plant: LearnedPlant, cycles: np.ndarray) -> np.ndarray:
    """Mean absolute error per joint in degrees of u = 4 e + 0.3 tanh(e / 0.01), `cycles` `(count, steps, 4)`."""
    key = jax.random.key(0)

    def one(points):
        def step(state, wanted):
            error = wanted - plant.measure(state, key=key)[:4]
            command = jnp.asarray(SIGNS) * (4 * error + 0.3 * jnp.tanh(error / 0.01))
            return plant.step(state, jnp.clip(command, -1, 1), key=key), error

        return jax.lax.scan(step, plant.reset(points[0]), points)[1]

    errors = jax.jit(jax.vmap(one))(jnp.asarray(cycles, jnp.float32))
    return np.rad2deg(np.abs(np.asarray(errors)).mean(axis=(0, 1)))


def test_a_plain_pd_follows_work_cycles_as_on_the_machine(robot: LearnedRobot) -> None:
    errors = follow_with_pd(robot.networks, np.stack([work_cycle(seed, 0.05) for seed in range(4)]))
    assert 1.0 < errors.mean() < 8.0
    assert errors.max() < 12.0


def test_commands_move_the_joints_as_in_the_log(robot: LearnedRobot) -> None:
    plant = robot.networks
    for joint in range(4):
        state = plant.reset(jnp.asarray([0.0, -0.3, 1.0, 0.2]))
        step = jax.jit(lambda s, u: plant.step(s, u, key=jax.random.key(0)))
        command = jnp.zeros(4).at[joint].set(0.8)
        seen = [float(state.coordinates[joint])]
        for _ in range(20):
            state = step(state, command)
            seen.append(float(state.coordinates[joint]))
        assert SIGNS[joint] * (seen[-1] - seen[0]) > 0.02
        assert abs(seen[2] - seen[0]) < 0.2 * abs(seen[-1] - seen[0]), "dead time"


def test_its_cycles_are_like_those_of_the_log(robot: LearnedRobot) -> None:
    references = robot.task.evaluation(1.0)
    assert len(references) == 3
    for reference in references:
        assert len(reference.points) == 440
        speed = np.abs(np.diff(reference.points, axis=0)) / 0.05
        assert (speed.max(axis=0) < [0.5, 1.1, 2.5, 0.9]).all()
        np.testing.assert_array_equal(reference.points[0], reference.start)


def test_it_says_where_it_comes_from_and_refuses_a_payload(robot: LearnedRobot) -> None:
    notice, licence = (FOLDER / "NOTICE.md").read_text(), (FOLDER / "LICENSE-EfficientTrack").read_text()
    assert "41b4f74d82920be78fc798bdbb17db608b9b42c1" in notice
    assert "MIT License" in licence
    assert (FOLDER / "simulator.safetensors").stat().st_size < 2e6
    with pytest.raises(UserError, match="without one"):
        find_robot("real-excavator").make(payload_kg=100.0)


def test_far_from_the_log_the_networks_disagree(robot: LearnedRobot) -> None:
    plant, key = robot.networks, jax.random.key(0)
    near, far = (plant.reset(jnp.asarray(p)) for p in ([0.0, -0.3, 1.0, 0.2], [3.0, -4.0, 8.0, 0.2]))
    doubts = [float(plant.step(s, jnp.full(4, 0.5), key=key).doubt) for s in (near, far)]
    assert doubts[1] > 2 * max(doubts[0], 0.5)
