"""The excavator with its cabin turning: the tip in space, goals, references, and the swing drive."""

import jax
import jax.numpy as jnp
import numpy as np

from firsthand.plants.excavator import ExcavatorCabin, cabin
from firsthand.tasks import excavator_cabin as task_module
from firsthand.tasks import excavator_cabin_task, excavator_task
from firsthand_onboard.features import build_reference
from firsthand_onboard.kinematics import nearest_configuration, output_of_positions

TASK = excavator_cabin_task(hidden=(4,))
SPEC = TASK.spec


def test_the_cabin_turns_the_arms_plane():
    rng = np.random.default_rng(0)
    poses = rng.uniform(SPEC.limits.position_low, SPEC.limits.position_high, (20, 5))
    x, z = output_of_positions(excavator_task(hidden=(4,)).spec.kinematics, poses[:, 1:]).T
    expected = np.stack([x * np.cos(poses[:, 0]), x * np.sin(poses[:, 0]), z], axis=1)
    np.testing.assert_allclose(output_of_positions(SPEC.kinematics, poses), expected, atol=1e-9)


def test_goals_are_inside_the_limits_and_within_reach():
    rng, measured = np.random.default_rng(1), np.asarray([*TASK.home, *[0.0] * 5])
    goals = TASK.sample_goals(rng, measured, 50)
    assert goals.shape == (50, 5)
    assert (goals > SPEC.limits.position_low).all()
    assert (goals < SPEC.limits.position_high).all()
    assert np.ptp(goals[:, 0]) > 1.5
    reference = build_reference(SPEC, measured, goals[0])
    np.testing.assert_allclose(reference[-1], output_of_positions(SPEC.kinematics, goals[0]), atol=1e-6)


def test_evaluation_paths_are_in_space_and_can_be_reached():
    for reference in TASK.evaluation(0.5):
        np.testing.assert_allclose(
            output_of_positions(SPEC.kinematics, reference.start), reference.points[0], atol=1e-4
        )
        assert np.ptp(reference.points[:, 1]) > 1.5
        steps = np.linalg.norm(np.diff(reference.points, axis=0), axis=1)
        assert steps.max() <= 0.5 * SPEC.period_s * 1.01
        farthest = reference.points[np.argmax(np.linalg.norm(reference.points, axis=1))]
        nearest_configuration(task_module.CABIN_CHAIN, farthest, low=task_module.LOW, high=task_module.HIGH)


def test_the_swing_drive():
    """Still within its dead band and dead time, then at full speed; slower to start with the arm stretched out."""
    plant, key = ExcavatorCabin(), jax.random.key(0)

    def turn(home, command, steps):
        state = plant.reset(jnp.asarray(home))
        commands = jnp.zeros((steps, 5)).at[:, 0].set(command)

        def step(state, command):
            after = plant.step(state, command, key=key)
            return after, after

        _, seen = jax.lax.scan(step, state, commands)
        return seen.angle, seen.speed

    turn_jit = jax.jit(turn, static_argnums=2)
    near, far = (0.0, -0.3, 2.4, 0.0, 1.5), (0.0, -0.5, 0.6, 1.8, 0.2)
    angle, speed = (np.asarray(v) for v in turn_jit(near, 1.0, 60))
    assert (angle[:3] == 0).all()
    assert angle[4] > 0
    assert abs(speed[40] - cabin.CABIN_SPEED) < 0.01
    assert angle.max() <= cabin.CABIN_HIGH
    assert (np.asarray(turn_jit(near, 0.05, 60)[0]) == 0).all()
    assert np.asarray(turn_jit(far, 1.0, 60)[1])[8] < speed[8]
    for name in ("CABIN_LOW", "CABIN_HIGH", "CABIN_SPEED"):
        assert getattr(cabin, name) == getattr(task_module, name)
