"""The probe plants against hand-worked steps, and their known optimum against dense least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.plants.linear_quadratic import (
    augment,
    augmented_system,
    preview_policy_cost,
    simulate,
    solve_preview,
    solve_tracking,
)
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant

KEY = jax.random.key(0)
WEIGHTS = {"length_scale": 0.5, "change_weight": 0.01}


def drive(plant, position, commands):
    """What is measured before each command and after the last."""

    def body(state, command):
        return plant.step(state, command, key=KEY), plant.measure(state, key=KEY)

    last, measured = jax.lax.scan(body, plant.reset(jnp.asarray(position)), jnp.asarray(commands))
    return np.concatenate([measured, plant.measure(last, key=KEY)[None]])


def random_reference(seed, steps, outputs=1):
    """A smooth path of order one."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0.0, 1.0, steps)[:, None, None]
    phase, size = rng.uniform(0, 2 * np.pi, (outputs, 3)), rng.normal(size=(outputs, 3))
    return np.sum(size * np.sin(2 * np.pi * np.arange(1, 4) * time + phase), axis=-1)


def dense_optimum(system, reference, initial_state, *, length_scale, change_weight):
    """Commands and cost from one least-squares problem over all commands stacked: an independent answer."""
    steps, (size, width) = len(reference), system.B.shape
    free, forced = np.asarray(initial_state, float), np.zeros((size, steps * width))
    last_free, last_forced = system.S @ free, np.zeros((width, steps * width))
    rows, targets = [], []
    for k in range(steps):
        pick = np.zeros((width, steps * width))
        pick[:, k * width : (k + 1) * width] = np.eye(width)
        rows.append(system.C @ forced / length_scale)
        targets.append((reference[k] - system.C @ free) / length_scale)
        rows.append(np.sqrt(change_weight) * (pick - last_forced))
        targets.append(np.sqrt(change_weight) * last_free)
        last_free, last_forced = np.zeros(width), pick
        free, forced = system.A @ free, system.A @ forced + system.B @ pick
    matrix, target = np.concatenate(rows), np.concatenate(targets)
    commands = np.linalg.lstsq(matrix, target, rcond=None)[0]
    return commands.reshape(steps, width), np.sum((matrix @ commands - target) ** 2) / steps


def test_scalar_plant_by_hand():
    plant = ScalarPlant(a=0.5, b=2.0, period=0.04)
    assert (plant.period_s, plant.num_commands, plant.num_measured) == (0.04, 1, 1)
    measured = drive(plant, [4.0], [[1.0], [-3.0]])
    np.testing.assert_allclose(measured, [[4.0], [4.0], [-4.0]])


def test_delayed_double_integrator_by_hand():
    plant = DelayedDoubleIntegrator(gain=2.0, delay=1, period=0.5)
    assert (plant.period_s, plant.num_commands, plant.num_measured) == (0.5, 1, 2)
    measured = drive(plant, [1.0], [[1.0], [5.0], [0.0]])
    # Step 0: nothing acts. Step 1: acceleration 2. Step 2: acceleration 10 from velocity 1.
    np.testing.assert_allclose(measured, [[1, 0], [1, 0], [1.25, 1], [3.0, 6]])


@pytest.mark.parametrize("delay", [0, 3])
def test_delayed_double_integrator_is_the_exact_zero_order_hold(delay):
    plant = DelayedDoubleIntegrator(gain=1.7, delay=delay, period=0.2)
    commands = np.random.default_rng(0).normal(size=(6, 1))
    held = np.concatenate([np.zeros(delay), commands[:, 0]])
    state = np.array([0.3, 0.0])
    for acting in held[: len(commands)]:
        state = scipy.integrate.solve_ivp(
            lambda _, y, u=acting: [y[1], 1.7 * u], (0, 0.2), state, rtol=1e-10, atol=1e-12
        ).y[:, -1]
    np.testing.assert_allclose(drive(plant, [0.3], commands)[-1], state, rtol=1e-5, atol=1e-6)


def test_probes_do_not_clip_and_differentiate():
    plant = DelayedDoubleIntegrator(delay=2)
    commands = jnp.ones((5, 1))

    def final(scale):
        state = plant.reset(jnp.zeros(1))
        for command in commands:
            state = plant.step(state, scale * command, key=KEY)
        return plant.measure(state, key=KEY)

    np.testing.assert_allclose(final(50.0), 50.0 * final(1.0), rtol=1e-6)
    np.testing.assert_allclose(jax.jacrev(final)(3.0), final(1.0), rtol=1e-6)


@pytest.mark.parametrize("plant_class", [ScalarPlant, DelayedDoubleIntegrator])
def test_probes_keep_the_width_of_floats(plant_class):
    def final(dtype):
        plant = plant_class()
        state = plant.step(plant.reset(jnp.zeros(1, dtype)), jnp.ones(1, dtype), key=KEY)
        return plant.measure(state, key=KEY)

    assert final(jnp.float32).dtype == jnp.float32
    with jax.enable_x64(True):
        assert final(jnp.float64).dtype == jnp.float64


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"delay must be a whole number of steps"):
        DelayedDoubleIntegrator(delay=-1)
    with pytest.raises(ValueError, match=r"period must be a positive"):
        ScalarPlant(period=0.0)
    with pytest.raises(ValueError, match=r"command_memory must be at least 3"):
        augmented_system(DelayedDoubleIntegrator(delay=3), 2)
    system = augmented_system(ScalarPlant(), 1)
    with pytest.raises(ValueError, match=r"change_weight must be positive"):
        solve_tracking(system, np.zeros((3, 1)), length_scale=1.0, change_weight=0.0)
    with pytest.raises(ValueError, match=r"preview must be 0 or more"):
        solve_preview(system, preview=-1, **WEIGHTS)


@pytest.mark.parametrize("memory", [3, 5])
@pytest.mark.parametrize(
    "plant", [ScalarPlant(a=0.9, b=0.3), *(DelayedDoubleIntegrator(gain=1.5, delay=d) for d in (0, 1, 3))]
)
def test_augmented_system_moves_as_the_plant_does(plant, memory):
    system = augmented_system(plant, memory)
    commands = np.random.default_rng(1).normal(size=(8, 1)).astype(np.float32)
    measured = drive(plant, [0.4], commands)
    size = plant.num_measured
    state = np.zeros(size + memory)
    state[0] = 0.4
    for k, command in enumerate(commands):
        np.testing.assert_allclose(state[:size], measured[k], rtol=1e-5, atol=1e-6)
        recent = [commands[k - age, 0] if k >= age else 0.0 for age in range(1, memory + 1)]
        np.testing.assert_allclose(state[size:], recent)
        np.testing.assert_allclose(system.C @ state, measured[k, :1], rtol=1e-5, atol=1e-6)
        state = system.A @ state + system.B @ command


def test_one_step_optimum_by_hand():
    # x_1 = x_0 + u_0 should be 1 from x_0 = 0, u_{-1} = 0; H = 2, so u_1 = u_0 and the cost is
    # (|0 − 0|² + w u² + |u − 1|²) / 2, least at u = 1 / (1 + w).
    system = augmented_system(ScalarPlant(a=1.0, b=1.0), 1)
    solution = solve_tracking(system, np.array([[0.0], [1.0]]), length_scale=1.0, change_weight=0.25)
    np.testing.assert_allclose(solution.command(0, np.zeros(2)), [0.8])
    np.testing.assert_allclose(solution.command(1, np.array([0.8, 0.8])), [0.8])
    np.testing.assert_allclose(solution.cost(np.zeros(2)), 0.5 * 0.25 / 1.25)


@pytest.mark.parametrize("steps", [1, 2, 40])
@pytest.mark.parametrize("plant", [ScalarPlant(a=0.95, b=0.2), *(DelayedDoubleIntegrator(delay=d) for d in (0, 1, 3))])
def test_optimum_matches_dense_least_squares(plant, steps):
    system = augmented_system(plant, 4)
    reference = random_reference(2, steps)
    initial = np.random.default_rng(3).normal(size=len(system.A))
    solution = solve_tracking(system, reference, **WEIGHTS)
    run = simulate(system, reference, initial, solution.command, **WEIGHTS)
    commands, cost = dense_optimum(system, reference, initial, **WEIGHTS)
    np.testing.assert_allclose(run.cost, cost, rtol=1e-9)
    np.testing.assert_allclose(solution.cost(initial), cost, rtol=1e-9)
    np.testing.assert_allclose(run.commands, commands, rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), delay=st.integers(0, 3), commands=st.integers(1, 3))
def test_optimum_matches_dense_least_squares_on_random_systems(seed, delay, commands):
    rng = np.random.default_rng(seed)
    system = augment(
        0.6 * rng.normal(size=(3, 3)),
        rng.normal(size=(3, commands)),
        rng.normal(size=(2, 3)),
        delay=delay,
        command_memory=max(1, delay),
    )
    reference, initial = rng.normal(size=(12, 2)), rng.normal(size=len(system.A))
    solution = solve_tracking(system, reference, **WEIGHTS)
    found, cost = dense_optimum(system, reference, initial, **WEIGHTS)
    np.testing.assert_allclose(solution.cost(initial), cost, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(solution.command(0, initial), found[0], rtol=1e-4, atol=1e-4)


PREVIEW_PLANTS = [ScalarPlant(a=0.95, b=0.2), DelayedDoubleIntegrator(gain=4.0, delay=2)]


@pytest.mark.parametrize("plant", PREVIEW_PLANTS)
def test_preview_gain_is_the_first_gain_of_a_long_horizon(plant):
    system = augmented_system(plant, 3)
    policy = solve_preview(system, preview=200, **WEIGHTS)
    reference = random_reference(4, 400)
    solution = solve_tracking(system, reference, **WEIGHTS)
    np.testing.assert_allclose(policy.gain, solution.gains[0], rtol=1e-6, atol=1e-8)
    state = np.random.default_rng(5).normal(size=len(system.A))
    np.testing.assert_allclose(policy.command(0, state, reference), solution.command(0, state), rtol=1e-6, atol=1e-8)
    assert np.all(policy.preview_gains[0] == 0.0)


@pytest.mark.parametrize("preview", [0, 1, 5])
@pytest.mark.parametrize("plant", PREVIEW_PLANTS)
def test_preview_is_optimal_when_the_reference_stays_where_the_window_ends(plant, preview):
    system = augmented_system(plant, 3)
    policy = solve_preview(system, preview=preview, **WEIGHTS)
    reference = np.full((400, 1), 0.7)
    reference[: preview + 1] = random_reference(6, 400)[: preview + 1]
    reference[preview:] = reference[preview]
    solution = solve_tracking(system, reference, **WEIGHTS)
    state = np.random.default_rng(7).normal(size=len(system.A))
    np.testing.assert_allclose(policy.command(0, state, reference), solution.command(0, state), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("plant", PREVIEW_PLANTS)
def test_preview_cost_is_a_little_above_the_optimum_and_falls_with_the_window(plant):
    system = augmented_system(plant, 3)
    # At rest at both ends, as the polynomials of the tasks are.
    reference = random_reference(8, 125) * np.hanning(125)[:, None] ** 2
    initial = np.zeros(len(system.A))
    initial[0] = reference[0, 0]
    best = solve_tracking(system, reference, **WEIGHTS).cost(initial)
    costs = [preview_policy_cost(system, reference, initial, preview=preview, **WEIGHTS) for preview in (0, 5, 20, 60)]
    assert (1.0 - 1e-9) * best < costs[-1] < 1.001 * best
    assert costs[0] > costs[1] > costs[2]
