"""Soil before the shovel: forces with known answers, a surface that is cut, and the machine that feels it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.check import check_plant
from firsthand.plants.excavator import ExcavatorGrading, grading
from firsthand.plants.excavator.effects import NO_EFFECTS
from firsthand.plants.excavator.grading import GRID_M, cut
from firsthand.plants.excavator.realistic import ExcavatorRealistic
from firsthand.plants.excavator.soil import GRAVITY, Soil, cutting_force, factors_at, soil_force, wedge_factors
from firsthand.robots.registry import find_robot
from firsthand.tasks import excavator_grading as task_module
from firsthand.tasks import excavator_grading_task
from firsthand_onboard.features import build_reference
from firsthand_onboard.kinematics import nearest_configuration, output_of_positions

SOIL, ONE = Soil(), jnp.asarray(1.0)
TASK = excavator_grading_task(hidden=(4,))


def pose(tip) -> np.ndarray:
    return nearest_configuration(
        task_module.CHAIN, np.asarray(tip), low=task_module.JOINT_LOW, high=task_module.JOINT_HIGH
    )


def test_before_a_smooth_vertical_wall_it_is_rankines_passive_pressure():
    friction = np.deg2rad(32.0)
    found = wedge_factors(np.pi / 2, friction, 0.0)
    passive = np.tan(np.pi / 4 + friction / 2) ** 2
    assert found.weight == pytest.approx(passive / 2, rel=1e-5)
    assert found.cohesion == pytest.approx(2 * np.sqrt(passive), rel=1e-3)
    assert found.plane == pytest.approx(np.pi / 4 - friction / 2, abs=1e-3)


@pytest.mark.parametrize("plane", [0.4, 0.6, 0.8])
def test_the_factors_hold_the_wedge_in_equilibrium(plane: float):
    """Two balances of forces per metre of width, solved for the blade's force P and the reaction R below the wedge."""
    rake, friction, metal, depth, density, cohesion = 0.8, 0.5, 0.3, 0.2, 1700.0, 9e3
    area = depth**2 / 2 * (1 / np.tan(rake) + 1 / np.tan(plane))
    weight, along = density * GRAVITY * area, cohesion * depth / np.sin(plane)
    # The blade pushes forward and up, at `metal` below its normal; the ground below pushes back and up.
    p = np.array([np.sin(rake + metal), np.cos(rake + metal)])
    r = np.array([-np.sin(plane + friction), np.cos(plane + friction)])
    held = np.array([along * np.cos(plane), weight + along * np.sin(plane)])
    force, _ = np.linalg.solve(np.stack([p, r], axis=1), held)
    n_weight, n_cohesion, _ = factors_at(np.array([plane]), rake, friction, metal)
    found = density * GRAVITY * depth**2 * n_weight + cohesion * depth * n_cohesion
    assert found[0] == pytest.approx(force, rel=1e-9)


def test_forces_of_the_blade():
    n = SOIL.factors
    slow = 1.2 * (1700 * 9.81 * 0.04 * n.weight + 12e3 * 0.2 * n.cohesion)
    assert float(cutting_force(SOIL, jnp.asarray(0.2), jnp.asarray(0.0))) == pytest.approx(slow, rel=1e-6)
    fast = float(cutting_force(SOIL, jnp.asarray(0.2), jnp.asarray(0.5)))
    assert fast - slow == pytest.approx(1.2 * 1700 * 0.25 * 0.2 * n.inertia, rel=1e-4)
    # Drawn towards the machine, it is held back and drawn in; elsewhere nothing happens.
    push = soil_force(SOIL, jnp.asarray(0.2), jnp.asarray([-0.5, 0.0]), ONE).force
    np.testing.assert_allclose(push, fast * np.array([np.sin(1.1345), -np.cos(1.1345)]), rtol=1.2e-2)
    for depth, velocity in ((-0.1, (-0.5, -0.5)), (0.2, (0.5, 0.0)), (0.2, (0.0, 0.5)), (0.2, (0.0, 0.0))):
        assert np.abs(soil_force(SOIL, jnp.asarray(depth), jnp.asarray(velocity), ONE).force).max() < 1e-3
    pressed = soil_force(SOIL, jnp.asarray(0.1), jnp.asarray([0.0, -1.0]), ONE).force
    np.testing.assert_allclose(pressed, [0.0, 1.2 * 0.03 * 1.5e6 * 0.1], rtol=2e-3)


def test_soil_takes_energy_and_gives_none():
    rng = np.random.default_rng(0)
    velocity = jnp.asarray(rng.uniform(-1, 1, (2000, 2)) * rng.uniform(0.01, 1, (2000, 1)))
    depth = jnp.asarray(rng.uniform(0.0, 0.3, 2000))
    force = jax.vmap(lambda d, v: soil_force(SOIL, d, v, ONE).force)(depth, velocity)
    power = np.sum(np.asarray(force * velocity), axis=1)
    assert power.max() < 20.0  # W: near rest, where the forces set in
    assert power.min() < -1000.0


def test_the_slope_is_the_forces_own_derivative():
    """But for the part of the cutting force that grows with the speed itself, which is small where it is steep."""
    for velocity in ((-0.02, 0.0), (0.0, -0.02), (0.3, 0.3)):
        at = jnp.asarray(velocity)
        found = soil_force(SOIL, jnp.asarray(0.2), at, ONE)
        exact = jax.jacfwd(lambda v: soil_force(SOIL, jnp.asarray(0.2), v, ONE).force)(at)
        np.testing.assert_allclose(found.slope, -np.diag(exact), rtol=0.01, atol=1e-3)


def test_the_surface_is_cut_where_the_tip_passes_below_it():
    surface = jnp.full(len(GRID_M), 0.9)
    found = np.asarray(cut(surface, jnp.asarray([5.02, 0.8]), jnp.asarray([4.83, 0.7])))
    passed = (GRID_M >= 4.83) & (GRID_M <= 5.02)
    assert passed.sum() == 4
    np.testing.assert_allclose(found[passed], 0.7 + (GRID_M[passed] - 4.83) / 0.19 * 0.1, atol=1e-5)
    np.testing.assert_array_equal(found[~passed], surface[~passed])
    np.testing.assert_array_equal(cut(surface, jnp.asarray([5.02, 1.0]), jnp.asarray([4.8, 1.1])), surface)
    # Only what is passed depends on the tip.
    slope = jax.jacfwd(lambda end: cut(surface, jnp.asarray([5.02, 0.8]), end))(jnp.asarray([4.83, 0.7]))
    assert (np.abs(np.asarray(slope)).sum(axis=1) > 0).sum() == 4


def test_the_machine_feels_the_soil_and_a_lane_is_left_in_the_air():
    plant = ExcavatorGrading(ExcavatorRealistic(effects=NO_EFFECTS))
    state = plant.reset(jnp.asarray(pose((5.8, 0.75))))

    @jax.jit
    def play(state, commands, level):
        moved = ExcavatorGrading(plant.machine, plant.soil, level)
        state = state._replace(surface=moved.fresh(state.lane))
        step = lambda s, u: (moved.step(s, u, key=jax.random.key(0)), None)  # noqa: E731
        return jax.lax.scan(step, state, commands)[0]

    drawn = jnp.tile(jnp.asarray([0.3, 0.5, 0.0, 0.0]), (25, 1))
    in_soil, in_air = (play(state, drawn, jnp.asarray(level)) for level in (0.9, -5.0))
    tips = [np.asarray(plant.machine.shovel_tip(s.machine)) for s in (in_soil, in_air)]
    assert tips[1][0] < tips[0][0] - 0.02  # the soil holds it back
    assert np.asarray(in_soil.surface).min() < 0.8
    np.testing.assert_array_equal(in_soil.lane, state.lane)  # deep in it: no other lane
    np.testing.assert_allclose(in_air.surface, play(state, drawn[:0], jnp.asarray(-5.0)).surface, atol=0.1)
    assert np.abs(np.asarray(in_air.lane)).max() > 0.1


@pytest.mark.slow
def test_derivatives_hold_in_soil():
    report = check_plant(
        ExcavatorGrading(),
        positions=pose((5.5, 0.8))[None],
        key=jax.random.key(0),
        steps=30,
        noise_free=False,
        rest_tolerance=5e-3,
        num_points=4,
        num_directions=1,
        several_steps=2,
    )
    assert report.derivative_dtype == "float64"


# The task


def test_plant_and_task_agree_and_every_pass_can_be_reached():
    assert task_module.LEVEL_M == grading.LEVEL_M
    spec, rng = TASK.spec, np.random.default_rng(0)
    measured = np.asarray([*TASK.home, *[0.0] * 4])
    goals = TASK.sample_goals(rng, measured, 30)
    assert goals.shape == (30, 2)
    assert (goals[::3, 1] > grading.LEVEL_M + grading.LIFTED_M + grading.BUMP_M).all()  # between passes in the air
    assert (goals[1::3, 1] < grading.LEVEL_M + grading.BUMP_M).all()
    for goal in goals:
        reference = build_reference(spec, measured, goal)
        np.testing.assert_allclose(reference[-1], goal, atol=1e-5)  # near enough to be reached in time
        measured[:4] = pose(goal)
    for reference in TASK.evaluation(0.4):
        np.testing.assert_allclose(
            output_of_positions(spec.kinematics, reference.start), reference.points[0], atol=1e-4
        )
        on = task_module.is_pass(reference.points, task_module.EVALUATION[reference.name])
        assert 1.5 < np.ptp(reference.points[on, 0]) < 1.71


def test_the_robot_is_found_in_soil_and_in_the_air():
    assert find_robot("excavator-grading").task.name == "excavator-grading"
    in_air: Any = find_robot("excavator-grading:air").make(seed=0)
    assert in_air.plant.plant.soil is None
    with pytest.raises(UserError, match=r"is 'water', but must be 'air'"):
        find_robot("excavator-grading:water").make(seed=0)
