"""The learned observer: worked by hand, equal to the plain register, guarded, and the same on numpy and JAX."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.models import Dynamics
from firsthand.tasks import excavator_task
from firsthand_onboard import (
    ControlSpec,
    Limits,
    NumpyObserver,
    NumpyPolicy,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    SpecError,
    StateLayout,
    load_controller,
    load_observer,
    load_policy,
    policy_to_bytes,
)
from firsthand_onboard.features import (
    build_reference,
    command_feature,
    initial_state,
    measured_part,
    next_state,
    robot_features,
)
from firsthand_onboard.gate import LOST_MEASUREMENT
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.loop import Executor
from firsthand_onboard.numpy_observer import observer_arrays, observer_digest
from firsthand_onboard.observer import (
    ObserverParameters,
    ObserverSettings,
    begin,
    correct,
    expected_measurement,
    find_fault,
    num_blocks,
    observe,
    predict_state,
    predicted_entries,
    register_gain,
    register_taps,
    start,
    start_motion,
    trusted_measurement,
)
from firsthand_onboard.policy import expected_shapes, network_output
from firsthand_onboard.timing import LockStep
from readings import Readings

SMALL = ControlSpec(
    robot="small",
    period_s=0.1,
    layout=StateLayout(
        measured=("p", "v"), position=(0,), velocity=(1,), commands=("u",), command_memory=1, measurement_memory=1
    ),
    kinematics=SelectedOutput((0,)),
    preview=(1,),
    scales=Scales((0.0, 0.0), (1.0, 1.0), (0.5, 0.25), error=0.1, preview=0.2),
    limits=Limits((-1.0,), (1.0,), (-5.0,), (5.0,)),
    reference=ReferenceSpec(space="output", steps=10, rate_low=(-0.5,), rate_high=(1.0,)),
    policy=PolicyShape((3,)),
)
"""One position with its velocity, one command; the state is p, v, earlier p, earlier v, u."""

SETTINGS = ObserverSettings.of(SMALL)


def random_parameters(spec: ControlSpec, *, seed: int = 0, hidden: tuple[int, ...] = (16, 16)) -> ObserverParameters:
    """A lively observer near the register."""
    rng, layout = np.random.default_rng(seed), spec.layout
    sizes = (layout.size + layout.num_commands, *hidden, len(predicted_entries(spec)))
    layers = tuple(
        (rng.normal(size=(n, m)) / np.sqrt(m), 0.1 * rng.normal(size=n)) for m, n in itertools.pairwise(sizes)
    )
    gain = 0.5 * np.asarray(register_gain(spec)) + 0.1 * rng.normal(
        size=(num_blocks(spec), *(layout.num_measured,) * 2)
    )
    taps = np.asarray(register_taps(spec)) + 0.2 * rng.normal(size=(num_blocks(spec), len(layout.velocity)))
    unit = np.asarray(spec.scales.change_scale)
    given = ObserverParameters(layers, 0.5 * unit[list(predicted_entries(spec))], gain, taps, 0.5 * unit)
    return jax.tree.map(lambda x: np.asarray(x, np.float32), given)


def still(spec: ControlSpec, **changes: Any) -> ObserverParameters:
    """An observer that predicts no change of what the network predicts, and corrects as the register does."""
    layout = spec.layout
    weight = np.zeros((len(predicted_entries(spec)), layout.size + layout.num_commands))
    parts = ObserverParameters(
        ((weight, weight[:, 0]),),
        np.ones(len(weight)),
        np.asarray(register_gain(spec)),
        np.asarray(register_taps(spec)),
        np.full(layout.num_measured, 1e3),
    )
    return parts._replace(**changes)


def random_motion(spec: ControlSpec, steps: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Commands and measurements of a size that the robot sees."""
    rng, scales = np.random.default_rng(seed), spec.scales
    walk = np.cumsum(rng.normal(size=(steps + 1, spec.layout.num_measured)), axis=0)
    measured = np.asarray(scales.measured_center) + 0.3 * np.asarray(scales.change_scale) * walk
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return rng.uniform(low, high, (steps, len(low))).astype(np.float32), measured.astype(np.float32)


@pytest.fixture(scope="module", params=["small", "excavator", "toy"])
def spec(request, toy_spec) -> ControlSpec:
    """With velocities, the real one, and without velocities."""
    return {"small": SMALL, "excavator": excavator_task().spec, "toy": toy_spec}[request.param]


# The equations


def test_one_step_worked_by_hand():
    """p = 1, v = 2, before that 0.8 and 1.8; the network adds 0.4 to v; then p = 1.4 and v = 2.1 are measured."""
    layers = ((np.zeros((1, 6)), np.array([2.0])),)
    gain = np.array([[[0.5, 0.1], [0.2, 0.6]], [[0.0, 0.3], [0.0, 0.0]]])
    parameters = ObserverParameters(layers, np.array([0.2]), gain, np.array([[0.75], [0.25]]), np.array([1.0, 0.05]))
    state = np.array([1.0, 2.0, 0.8, 1.8, 0.3])
    predicted = predict_state(SMALL, layers, parameters.change_scale, state, np.array([-0.5]))
    # v: 2 + 0.2 · 2; p: 1 + 0.1 · (2 + 2.4) / 2
    np.testing.assert_allclose(predicted, [1.22, 2.4, 1.0, 2.0, -0.5])
    # v: 0.75 · 2.4 + 0.25 · 2
    np.testing.assert_allclose(expected_measurement(SMALL, parameters, predicted), [1.22, 2.3])
    found = correct(SMALL, parameters, SETTINGS, predicted, np.array([1.4, 2.1]))
    np.testing.assert_allclose(found.innovation, [0.18, -0.2])  # 0.2 is four scales of 0.05: just not clipped
    # In change scales 0.36 and −0.8: gain 0 gives 0.18 − 0.08 = 0.1 and 0.072 − 0.48 = −0.408, gain 1 −0.24 and 0.
    np.testing.assert_allclose(found.state, [1.22 + 0.5 * 0.1, 2.4 - 0.25 * 0.408, 1.0 - 0.5 * 0.24, 2.0, -0.5])
    carry = observe(SMALL, parameters, SETTINGS, begin(SMALL, state), np.array([-0.5]), np.array([1.4, 2.1]))
    np.testing.assert_array_equal(carry.state, found.state)
    assert carry.restarts.sum() == carry.missing.sum() == 0


def test_the_models_next_state_is_the_formula(spec):
    """Bit for bit what the model has always computed: change of the predicted entries, trapezoidal positions."""
    dynamics = Dynamics.random(spec, (32, 32), key=jax.random.key(0))
    layout = spec.layout
    commands, measured = random_motion(spec, 20)

    def formula(state, command):
        features = jnp.concat([robot_features(spec, state), command_feature(spec, command)])
        old = measured_part(layout, state)
        change = dynamics.change_scale * network_output(dynamics.layers, features)
        new = old.at[jnp.asarray(predicted_entries(spec))].add(change)
        if layout.velocity:
            position, velocity = jnp.asarray(layout.position), jnp.asarray(layout.velocity)
            new = new.at[position].add(0.5 * spec.period_s * (old[velocity] + new[velocity]))
        return next_state(layout, state, command, new)

    ours, formula = jax.jit(lambda state, command: dynamics(state, command)), jax.jit(formula)
    for k, command in enumerate(commands):
        state = initial_state(layout, jnp.asarray(measured[k]), jnp.asarray(commands[k - 1]))
        np.testing.assert_array_equal(ours(state, command), formula(state, command))


def test_the_register_is_an_observer(spec):
    """Identity as the gain of the newest block, taps (1, 0, …), innovations that are never clipped."""
    parameters = random_parameters(spec)._replace(
        gain=np.asarray(register_gain(spec), np.float32),
        taps=np.asarray(register_taps(spec), np.float32),
        scale=np.full(spec.layout.num_measured, 1e3, np.float32),
    )
    commands, measured = random_motion(spec, 50)
    register = initial_state(spec.layout, measured[0], commands[0])
    carry = start(spec, measured[0], commands[0])
    for command, row in zip(commands, measured[1:], strict=True):
        register = next_state(spec.layout, register, command, row)
        carry = observe(spec, parameters, ObserverSettings.of(spec), carry, command, row)
        np.testing.assert_allclose(carry.state, register, atol=2e-6, rtol=1e-6)
    assert carry.state.dtype == np.float32


def test_a_late_velocity_sensor_is_represented_by_taps():
    """A sensor that shows the velocity of one period ago: with that tap, exact knowledge meets no innovation."""
    taps = np.array([[0.0], [1.0]])
    layers = ((np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]]), np.zeros(1)),)  # v grows by 0.3 times the command
    late = still(SMALL, layers=layers, change_scale=np.array([0.3]), taps=taps)
    position, velocity, shown = 0.0, 0.0, 0.0
    carry = start(SMALL, np.zeros(2), np.zeros(1))
    plain = carry
    worst, worst_plain = 0.0, 0.0
    for command in np.random.default_rng(0).uniform(-1, 1, (30, 1)):
        shown, before = velocity, velocity
        velocity = velocity + 0.3 * command[0]
        position += 0.05 * (before + velocity)
        row = np.array([position, shown])
        quiet = late._replace(gain=np.zeros((2, 2, 2)))
        predicted = predict_state(SMALL, late.layers, late.change_scale, carry.state, command)
        worst = max(worst, np.abs(correct(SMALL, quiet, SETTINGS, predicted, row).innovation).max())
        carry = observe(SMALL, quiet, SETTINGS, carry, command, row)
        plain = observe(SMALL, late._replace(taps=np.array([[1.0], [0.0]])), SETTINGS, plain, command, row)
        worst_plain = max(worst_plain, abs(plain.state[1] - velocity))
    assert worst < 1e-12
    assert abs(carry.state[1] - velocity) < 1e-12
    assert worst_plain > 0.2  # the register believes the late velocity


# Starting, missing measurements, outliers, the guard


def test_a_motion_starts_from_the_median_of_what_is_remembered_and_from_the_real_commands(spec):
    commands, measured = random_motion(spec, 5)
    register = initial_state(spec.layout, measured[0], commands[0])
    for command, row in zip(commands, measured[1:], strict=True):
        register = next_state(spec.layout, register, command, row)
    carry = start_motion(spec, register)
    odd = 1 + spec.layout.measurement_memory // 2 * 2  # the newest of them
    standing = initial_state(spec.layout, np.median(measured[-odd:], axis=0), commands[0])
    np.testing.assert_array_equal(carry.state[: spec.layout.command_start], standing[: spec.layout.command_start])
    np.testing.assert_array_equal(carry.state[spec.layout.command_start :], register[spec.layout.command_start :])
    assert carry.clipped.sum() == carry.missing.sum() == carry.restarts.sum() == 0


def test_a_reference_begins_at_the_measurement_unless_it_is_an_outlier(spec):
    parameters, settings = random_parameters(spec), ObserverSettings.of(spec)
    commands, measured = random_motion(spec, 1)
    state = start(spec, measured[0], commands[0]).state
    shown = expected_measurement(spec, parameters, state)
    near = (shown + 0.9 * settings.clip * parameters.scale).astype(np.float32)
    np.testing.assert_array_equal(trusted_measurement(spec, parameters, settings, state, near), near)
    for wrong in (shown[0] + 1.1 * settings.clip * parameters.scale[0], np.nan):
        reading = near.copy()
        reading[0] = wrong
        found = trusted_measurement(spec, parameters, settings, state, reading)
        np.testing.assert_array_equal(found, [shown[0], *near[1:]])


def test_a_missing_measurement_is_predicted_through(spec):
    """The rest of the measurement still corrects; nothing that is not finite enters the estimate."""
    parameters, settings = random_parameters(spec), ObserverSettings.of(spec)
    commands, measured = random_motion(spec, 6)
    carry = start(spec, measured[0], commands[0])
    for gap in (np.nan, np.inf, -np.inf):
        row = measured[1].copy()
        row[0] = gap
        found = observe(spec, parameters, settings, carry, commands[0], row)
        assert np.isfinite(found.state).all()
        assert found.missing[0] == 1
        assert found.missing[1:].sum() == 0
        predicted = predict_state(spec, parameters.layers, parameters.change_scale, carry.state, commands[0])
        row[0] = expected_measurement(spec, parameters, predicted)[0]
        np.testing.assert_allclose(
            found.state, correct(spec, parameters, settings, predicted, row).state, atol=1e-6, rtol=1e-6
        )
    nothing = observe(spec, parameters, settings, carry, commands[0], np.full_like(row, np.nan))
    np.testing.assert_array_equal(nothing.state, predicted)


def test_a_gap_has_a_limit_and_ends_with_a_restart():
    """Up to max_missing steps are predicted through; one more is a fault, and what comes after it is a new start."""
    settings, parameters = ObserverSettings.of(SMALL), still(SMALL, gain=0.1 * np.asarray(register_gain(SMALL)))
    assert settings.max_missing == 5
    for gap, restarts in ((5, 0), (6, 1)):
        carry = start(SMALL, np.array([1.0, 0.5]), np.zeros(1))
        for _ in range(gap):
            assert find_fault(SMALL, settings, carry.missing) == ""
            carry = observe(SMALL, parameters, settings, carry, np.zeros(1), np.array([np.nan, 0.5]))
        np.testing.assert_allclose(carry.state[0], 1.0 + 0.05 * gap)  # it went on with its velocity
        assert carry.missing[0] == gap
        assert find_fault(SMALL, settings, carry.missing) == (
            "no measurement of p for more than 5 steps, as long as the observer may predict" if restarts else ""
        )
        carry = observe(SMALL, parameters, settings, carry, np.zeros(1), np.array([3.0, 0.5]))
        assert list(carry.restarts) == [restarts, 0]
        assert carry.missing.sum() == 0
        if restarts:
            np.testing.assert_array_equal(carry.state[[0, 2]], [3.0, 3.0])
        else:
            assert carry.state[0] < 2.0


def test_an_outlier_moves_the_estimate_by_its_clipped_size_only():
    parameters = still(SMALL, scale=np.array([0.01, 0.02]))
    carry = start(SMALL, np.array([1.0, 0.0]), np.zeros(1))
    for outlier, moved in ((100.0, 0.04), (-100.0, -0.04), (1.03, 0.03)):
        found = observe(SMALL, parameters, SETTINGS, carry, np.zeros(1), np.array([outlier, 0.0]))
        np.testing.assert_allclose(found.state[:2], [1.0 + moved, 0.0], atol=1e-12)
        assert list(found.clipped) == [int(np.sign(outlier)) if abs(outlier) > 2 else 0, 0]
    again = observe(SMALL, parameters, SETTINGS, found, np.zeros(1), np.array([1.03, 0.0]))
    assert list(again.clipped) == [0, 0]


def test_the_guard_restarts_after_clipped_innovations_in_a_row():
    """The robot is somewhere else than the estimate: the fifth clipped innovation restarts that entry, and it alone."""
    parameters = still(SMALL, scale=np.array([0.01, 0.02]))
    carry = start(SMALL, np.array([1.0, 0.0]), np.zeros(1))
    for k in range(1, 5):
        carry = observe(SMALL, parameters, SETTINGS, carry, np.zeros(1), np.array([9.0, 0.0]))
        assert list(carry.clipped) == [k, 0]
    lost = observe(SMALL, parameters, SETTINGS, carry, np.zeros(1), np.array([np.nan, 0.0]))
    assert list(lost.clipped) == [4, 0]  # a missing measurement says nothing
    np.testing.assert_allclose(carry.state[0], 1.16)
    for before in (carry, lost):
        after = observe(SMALL, parameters, SETTINGS, before, np.zeros(1), np.array([9.0, 0.0]))
        np.testing.assert_array_equal(after.state, [9.0, 0.0, 9.0, 0.0, 0.0])
        assert list(after.restarts) == [1, 0]
        assert list(after.clipped) == [0, 0]
    spared = observe(SMALL, parameters, SETTINGS, carry, np.zeros(1), np.array([1.17, 0.0]))
    assert list(spared.clipped) == [0, 0]


def test_outliers_on_both_sides_never_restart_the_estimate():
    parameters = still(SMALL, scale=np.array([0.01, 0.02]))
    carry = start(SMALL, np.array([1.0, 0.0]), np.zeros(1))
    for k in range(40):
        side = 1.0 if k % 4 else -1.0  # three on one side, one on the other
        carry = observe(SMALL, parameters, SETTINGS, carry, np.zeros(1), np.array([1.0 + 100.0 * side, 0.0]))
    assert list(carry.restarts) == [0, 0]


def test_an_estimate_that_is_not_finite_restarts_at_once(spec):
    parameters, settings = random_parameters(spec), ObserverSettings.of(spec)
    commands, measured = random_motion(spec, 2)
    broken = begin(spec, np.full(spec.layout.size, np.nan, np.float32))
    found = observe(spec, parameters, settings, broken, commands[0], measured[1])
    np.testing.assert_array_equal(
        found.state[: spec.layout.command_start], np.tile(measured[1], 1 + spec.layout.measurement_memory)
    )
    assert (found.restarts == 1).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clip": 0.0}, "observer.clip is 0.0, but must be a positive number"),
        ({"clip": math.nan}, "observer.clip is nan, but must be a positive number"),
        ({"restart_after": 0}, "observer.restart_after is 0, but must be a whole number of 1 to 1000000"),
        ({"max_missing": 2.5}, "observer.max_missing is 2.5, but must be a whole number of 1 to 1000000"),
        ({"max_missing": True}, "observer.max_missing is True, but must be a whole number of 1 to 1000000"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, sentence):
    with pytest.raises(SpecError) as raised:
        ObserverSettings(**changes)
    assert str(raised.value) == sentence


def test_half_a_second_may_be_missing_and_at_least_three_steps():
    assert ObserverSettings.of(excavator_task().spec).max_missing == 12
    assert ObserverSettings.of(dataclasses.replace(SMALL, period_s=0.5)).max_missing == 3
    assert ObserverSettings.of(SMALL, max_missing=7, clip=3.0) == ObserverSettings(3.0, 5, 7)


# The same everywhere


def spoil(measured: np.ndarray, spec: ControlSpec) -> np.ndarray:
    """Outliers, a robot that was moved, gaps shorter and longer than the limit."""
    rng, unit = np.random.default_rng(7), np.asarray(spec.scales.change_scale, np.float32)
    spoiled = measured.copy()
    spoiled[rng.uniform(size=measured.shape) < 0.05] += 8.0
    spoiled[40:] += 20 * unit
    spoiled[60:64, 0] = np.nan
    spoiled[80:110, -1] = np.nan
    return spoiled


def test_numpy_the_robots_own_class_and_jax_observe_the_same(spec):
    """A motion with outliers, jumps and gaps, to float32 rounding; the counts are the same."""
    parameters, settings = random_parameters(spec), ObserverSettings.of(spec)
    commands, measured = random_motion(spec, 150)
    measured = spoil(measured, spec)
    carry, rows = start(spec, measured[0], commands[0]), []
    for command, row in zip(commands, measured[1:], strict=True):
        carry = observe(spec, parameters, settings, carry, command, row)
        rows.append(carry)

    @jax.jit
    def run(parameters, commands, measured):
        def step(carry, inputs):
            carry = observe(spec, parameters, settings, carry, *inputs)
            return carry, carry

        return jax.lax.scan(step, start(spec, measured[0], commands[0]), (commands, measured[1:]))[1]

    on_robot = NumpyObserver(spec, parameters, settings)
    on_robot.start_motion(initial_state(spec.layout, measured[0], commands[0]))
    for carry, command, row in zip(rows, commands, measured[1:], strict=True):
        np.testing.assert_allclose(on_robot.observe(command, row), carry.state, atol=2e-5, rtol=2e-5)
        for found, expected in zip(on_robot.carry[1:], carry[1:], strict=True):
            np.testing.assert_array_equal(found, expected)
        assert on_robot.fault == find_fault(spec, settings, carry.missing)
    on_jax = run(jax.tree.map(jnp.asarray, parameters), jnp.asarray(commands), jnp.asarray(measured))
    np.testing.assert_allclose(np.stack([r.state for r in rows]), on_jax.state, atol=2e-5, rtol=2e-5)
    for name in ("clipped", "missing", "restarts"):
        np.testing.assert_array_equal(np.stack([getattr(r, name) for r in rows]), getattr(on_jax, name))
    assert carry.restarts.min() >= 1
    assert np.isfinite(on_jax.state).all()


def test_gradients_stay_finite_where_a_measurement_is_missing(spec):
    """Learning differentiates through the correction; a NaN in the record must not reach the gain."""
    parameters, settings = jax.tree.map(jnp.asarray, random_parameters(spec)), ObserverSettings.of(spec)
    commands, measured = random_motion(spec, 3)
    measured[1, 0] = np.nan

    def loss(parameters):
        carry = start(spec, jnp.asarray(measured[0]), jnp.asarray(commands[0]))
        predicted = predict_state(
            spec, parameters.layers, parameters.change_scale, carry.state, jnp.asarray(commands[0])
        )
        found = correct(spec, parameters, settings, predicted, jnp.asarray(measured[1]))
        return jnp.sum(found.state**2) + jnp.sum(found.innovation**2)

    gradient = jax.jit(jax.grad(loss))(parameters)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient.gain[:, :, 1:]).max() > 0


# In the robot's loop


def random_policy(spec: ControlSpec) -> NumpyPolicy:
    rng = np.random.default_rng(2)
    return NumpyPolicy(spec, [(rng.normal(size=w) / np.sqrt(w[1]), np.zeros(b)) for w, b in expected_shapes(spec)])


def test_the_loop_shows_the_policy_the_estimate_and_builds_references_from_measurements(spec):
    """Two trajectories of one motion: the estimate goes on; after a pause it begins anew."""
    observer = NumpyObserver(spec, random_parameters(spec), ObserverSettings.of(spec))
    policy, seen, steps = random_policy(spec), [], spec.reference.steps
    _, measured = random_motion(spec, 3 * steps + 3)

    def listening(state: np.ndarray, points: np.ndarray) -> np.ndarray:
        seen.append(state.copy())
        return policy(state, points)

    executor = Executor(spec, Readings(measured), GateLimits.wide(spec, None), LockStep(spec.period_s))
    goal = np.zeros(spec.goal_size, np.float32)
    executor.begin()
    np.testing.assert_array_equal(executor.measured, measured[1])
    carry = start_motion(spec, executor.state)
    first = executor.visit(listening, goal, observer=observer)  # pyright: ignore[reportArgumentType]
    second = executor.visit(listening, goal, observer=observer)  # pyright: ignore[reportArgumentType]
    assert first.ended == second.ended == "done"
    expected, restarts = [], np.zeros(spec.layout.num_measured)
    for trajectory in (first, second):
        np.testing.assert_allclose(trajectory.start, carry.state, atol=2e-5, rtol=2e-5)
        trusted = trusted_measurement(
            spec, observer.parameters, observer.settings, trajectory.start, trajectory.measured[0]
        )
        np.testing.assert_allclose(trajectory.reference, build_reference(spec, trusted, goal), atol=1e-6)
        assert trajectory.restarts is not None
        restarts = restarts + trajectory.restarts
        for command, row in zip(trajectory.commands, trajectory.measured[1:], strict=True):
            expected.append(carry.state)
            carry = observe(spec, observer.parameters, observer.settings, carry, command, row)
    np.testing.assert_allclose(seen, expected, atol=5e-5, rtol=5e-5)
    np.testing.assert_array_equal(restarts, carry.restarts)
    np.testing.assert_array_equal(executor.measured, measured[2 * steps + 1])
    executor.begin()
    anew = start_motion(spec, executor.state).state
    third = executor.visit(policy, goal, observer=observer)
    np.testing.assert_array_equal(third.start, anew)


def test_a_measurement_that_stays_away_ends_the_trajectory_with_a_fault():
    """The gate allows more: the observer's own limit counts."""
    observer = NumpyObserver(SMALL, still(SMALL), ObserverSettings.of(SMALL, max_missing=3))
    measured = np.zeros((20, 2), np.float32)
    measured[4:, 1] = np.nan
    limits = GateLimits.of(SMALL, dropouts=10, dropouts_of_20=10)
    executor = Executor(SMALL, Readings(measured), limits, LockStep(SMALL.period_s))
    ran = executor.visit(random_policy(SMALL), np.zeros(1), observer=observer)
    assert ran.fault
    assert ran.ended == "no measurement of v for more than 3 steps, as long as the observer may predict"
    assert ran.valid.sum() == 7  # three with a measurement, three predicted, and the one that was too many


def test_a_short_gap_is_predicted_and_the_motion_goes_on():
    """The policy sees predictions, the gate lets nothing but neutral through, and nothing restarts."""
    observer = NumpyObserver(SMALL, random_parameters(SMALL), ObserverSettings.of(SMALL, clip=100.0))
    policy, seen = random_policy(SMALL), []
    _, measured = random_motion(SMALL, 11)
    measured[5:7, 1] = np.nan

    def listening(state: np.ndarray, points: np.ndarray) -> np.ndarray:
        seen.append(state.copy())
        return policy(state, points)

    executor = Executor(SMALL, Readings(measured), GateLimits.wide(SMALL, None), LockStep(SMALL.period_s))
    ran = executor.visit(listening, np.zeros(1), observer=observer)  # pyright: ignore[reportArgumentType]
    assert ran.ended == "done"
    assert ran.restarts is not None
    assert ran.restarts.sum() == 0
    carry = start_motion(SMALL, seen[0])
    for k, command in enumerate(ran.commands[:-1]):
        np.testing.assert_array_equal(command == 0, k in (5, 6))  # proposed on these measurements
        carry = observe(SMALL, observer.parameters, observer.settings, carry, command, measured[k + 1])
        np.testing.assert_allclose(seen[k + 1], carry.state, atol=2e-5, rtol=2e-5)
        assert carry.missing[1] == {4: 1, 5: 2}.get(k, 0)
    np.testing.assert_array_equal(np.isnan(ran.measured), np.isnan(measured[:11]))
    assert np.abs(seen[5][1] - seen[4][1]) > 1e-3  # not the value before


def test_the_gates_own_limit_comes_first():
    """The observer could predict five steps, but the gate stops in the fourth without a measurement."""
    observer = NumpyObserver(SMALL, still(SMALL), ObserverSettings.of(SMALL))
    measured = np.zeros((20, 2), np.float32)
    measured[4:, 1] = np.nan
    executor = Executor(SMALL, Readings(measured), GateLimits.of(SMALL), LockStep(SMALL.period_s))
    ran = executor.visit(random_policy(SMALL), np.zeros(1), observer=observer)
    assert (ran.ended, ran.fault) == (LOST_MEASUREMENT, True)
    assert observer.fault == ""
    assert ran.valid.sum() == 7


# The policy file


@pytest.fixture(scope="module")
def blob(spec) -> bytes:
    return policy_to_bytes(spec, random_policy(spec).layers, NumpyObserver(spec, random_parameters(spec), OTHER))


OTHER = ObserverSettings(3.7, 6, 9)


def test_an_observer_is_read_back_as_it_was_written(spec, blob, tmp_path):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(blob)
    policy, observer = load_controller(path)
    assert observer is not None
    assert observer.settings == OTHER
    jax.tree.map(np.testing.assert_array_equal, observer.parameters, random_parameters(spec))
    assert observer_digest(observer_arrays(observer)) == observer_digest(observer_arrays(load_observer(path)))
    state, points = np.zeros(spec.layout.size), np.zeros((1 + len(spec.preview), spec.num_outputs))
    np.testing.assert_array_equal(policy(state, points), load_policy(path)(state, points))


def test_a_policy_without_an_observer_is_as_before_and_says_so(tmp_path):
    layers, path = random_policy(SMALL).layers, tmp_path / "policy.safetensors"
    path.write_bytes(policy_to_bytes(SMALL, layers))
    assert load_controller(path).observer is None
    with pytest.raises(SpecError) as raised:
        load_observer(path)
    assert str(raised.value) == f"{path} holds a policy that was exported without an observer"


def test_a_damaged_observer_is_refused(tmp_path):
    """Any byte of its arrays, and any array left out."""
    observer, path = NumpyObserver(SMALL, random_parameters(SMALL, hidden=(4,)), OTHER), tmp_path / "p.safetensors"
    data = policy_to_bytes(SMALL, random_policy(SMALL).layers, observer)
    for array in observer_arrays(observer).values():
        damaged = bytearray(data)
        damaged[data.index(array.tobytes()) + 1] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(SpecError, match=r"the observer in .* is damaged"):
            load_controller(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gain": np.zeros((1, 2, 2))}, r"observer.gain has shape \(1, 2, 2\), but must have \(2, 2, 2\)"),
        ({"taps": np.zeros((2, 2))}, r"observer.taps has shape \(2, 2\), but must have \(2, 1\)"),
        ({"scale": np.array([1.0, 0.0])}, "observer.scale holds a value that is not positive"),
        ({"scale": np.array([1.0, np.nan])}, "observer.scale holds a value that is not finite"),
        ({"layers": ()}, "the observer has no layers"),
        ({"layers": ((np.zeros((1, 5)), np.zeros(1)),)}, r"observer.0.weight has shape \(1, 5\)"),
    ],
)
def test_an_observer_of_another_robot_is_refused(change, sentence):
    with pytest.raises(SpecError, match=sentence):
        NumpyObserver(SMALL, still(SMALL)._replace(**change), SETTINGS)
