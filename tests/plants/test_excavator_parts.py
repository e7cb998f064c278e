"""The excavator's parts against answers found another way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from firsthand.plants.excavator.geometry import (
    BODIES,
    BOOM_LENGTH,
    BOOM_PIVOT,
    DIPPER_ALONG,
    DIPPER_PERPENDICULAR,
    GRAVITY,
    PAYLOAD_ALONG,
    PAYLOAD_PERPENDICULAR,
    POSITION_HIGH,
    POSITION_LOW,
    REFERENCE_POSE,
    REFERENCE_TIP,
    Body,
    forward_kinematics,
)
from firsthand.plants.excavator.hydraulics import (
    RELIEF_RAMP,
    advance_spool,
    delayed_command,
    supply_pressure,
    valve_gain,
)
from firsthand.plants.excavator.linkage import ARM_SIGNS, cylinder_lengths, moment_arms
from firsthand.plants.excavator.loads import (
    coriolis_torque,
    gravity_torque,
    mass_diagonal,
    mass_matrix,
    potential_energy,
)
from firsthand.plants.excavator.parameters import BAR, PERIOD_S, ExcavatorParameters

P = ExcavatorParameters()


@jax.jit
def supply(demand, start, ramp):
    return supply_pressure(demand, start, ramp, P)


def kg(value):
    return jnp.asarray(value, float)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def poses(count, seed=0):
    return jnp.asarray(np.random.default_rng(seed).uniform(POSITION_LOW, POSITION_HIGH, (count, 4)))


def bodies(payload):
    return [*BODIES, Body("payload", payload, "tool", PAYLOAD_ALONG, PAYLOAD_PERPENDICULAR, 0.0)]


def place(body, q):
    """Position and absolute angle of a body's centre of mass, straight from the definition of the chain."""
    a1, a2, a3 = q[0], q[0] + q[1], q[0] + q[1] + q[3]

    def turn(a, along, perpendicular):
        c, s = jnp.cos(a), jnp.sin(a)
        return jnp.stack([c * along + s * perpendicular, -s * along + c * perpendicular])

    dipper = jnp.asarray(BOOM_PIVOT) + turn(a1, BOOM_LENGTH, 0.0)
    tool = dipper + turn(a2, DIPPER_ALONG + q[2], DIPPER_PERPENDICULAR)
    x, z = body.along, body.perpendicular
    return {
        "boom": (jnp.asarray(BOOM_PIVOT) + turn(a1, x, z), a1),
        "dipper": (dipper + turn(a2, x, z), a2),
        "telescope": (dipper + turn(a2, x + q[2], z), a2),
        "tool": (tool + turn(a3, x, z), a3),
    }[body.link]


def test_forward_kinematics_meets_the_check_point():
    np.testing.assert_allclose(forward_kinematics(jnp.asarray(REFERENCE_POSE)), REFERENCE_TIP, atol=5e-4)


@pytest.mark.parametrize("payload", [0.0, 900.0])
def test_gravity_is_the_slope_of_the_potential_energy(payload):
    h = 1e-6
    for q in poses(5):
        difference = [
            (potential_energy(q + h * e, kg(payload)) - potential_energy(q - h * e, kg(payload))) / (2 * h)
            for e in np.eye(4)
        ]
        np.testing.assert_allclose(gravity_torque(q, kg(payload)), difference, rtol=1e-6, atol=1e-3)


def test_potential_energy_is_the_sum_over_the_bodies():
    def summed(q):
        return sum(GRAVITY * b.mass * place(b, q)[0][1] for b in bodies(300.0))

    first, second = poses(2)
    expected = summed(second) - summed(first)
    found = potential_energy(second, kg(300.0)) - potential_energy(first, kg(300.0))
    assert float(found) == pytest.approx(float(expected), rel=1e-9)


def test_mass_matrix_is_the_sum_over_the_bodies():
    for q in poses(3):
        expected = np.zeros((4, 4))
        for body in bodies(600.0):
            jacobian = jax.jit(jax.jacfwd(lambda q, body=body: place(body, q)[0]))(q)
            turning = jax.jit(jax.jacfwd(lambda q, body=body: place(body, q)[1]))(q)
            expected += body.mass * np.asarray(jacobian.T @ jacobian) + body.inertia * np.outer(turning, turning)
        matrix = mass_matrix(q, kg(600.0))
        np.testing.assert_allclose(matrix.dense(), expected, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(matrix.inverse() @ expected, np.eye(4), atol=1e-9)
        np.testing.assert_allclose(mass_diagonal(q, kg(600.0)), np.diag(expected), rtol=1e-9)
        assert np.linalg.eigvalsh(expected).min() > 0


def test_coriolis_torque_does_no_work_beyond_the_change_of_inertia():
    """q̇ᵀ c(q, q̇) = ½ q̇ᵀ Ṁ q̇, and c is quadratic in the velocity."""
    q, dq = poses(1)[0], jnp.array([0.4, -0.7, 0.3, 1.1])
    _, rate = jax.jvp(lambda q: mass_matrix(q, kg(300.0)).dense(), (q,), (dq,))
    force = coriolis_torque(q, dq, kg(300.0))
    assert float(dq @ force) == pytest.approx(float(0.5 * dq @ rate @ dq), rel=1e-9)
    np.testing.assert_allclose(coriolis_torque(q, 2 * dq, kg(300.0)), 4 * force, rtol=1e-9)


def test_moment_arms_are_the_slopes_of_the_cylinder_lengths():
    for q in poses(20):
        np.testing.assert_allclose(moment_arms(q), np.diag(jax.jit(jax.jacfwd(cylinder_lengths))(q)), rtol=1e-9)
        np.testing.assert_array_equal(np.sign(moment_arms(q)), ARM_SIGNS)


def flow_sum(s, demand, start, ramp):
    relief = P.pump_flow * np.clip((s - P.relief) / RELIEF_RAMP, 0, 1)
    return np.sum(demand * np.clip((s - start) / ramp, 0, 1)) + relief - P.pump_flow


def test_supply_pressure_is_the_root_a_bracketing_solver_finds():
    rng = np.random.default_rng(0)
    for _ in range(50):
        demand = rng.uniform(0.1, 2, 4) * P.pump_flow
        start, ramp = rng.uniform(0, 300, 4) * BAR, rng.uniform(20, 100, 4) * BAR
        expected = brentq(flow_sum, 0.0, P.relief + RELIEF_RAMP, args=(demand, start, ramp), xtol=1e-6)
        assert float(supply(demand, start, ramp)) == pytest.approx(expected, abs=1.0)


def test_supply_pressure_is_differentiated_at_the_root():
    tangent_of = jax.jit(lambda at, along: jax.jvp(supply, at, along))
    rng = np.random.default_rng(1)
    for _ in range(20):
        arguments = (
            rng.uniform(0.3, 2, 4) * P.pump_flow,
            rng.uniform(0, 250, 4) * BAR,
            rng.uniform(20, 100, 4) * BAR,
        )
        arguments = tuple(map(jnp.asarray, arguments))
        directions = tuple(rng.normal(size=4) * jnp.mean(a) for a in arguments)
        _, tangent = tangent_of(arguments, directions)
        h = 1e-6
        up, down = (supply(*(a + sign * h * d for a, d in zip(arguments, directions, strict=True))) for sign in (1, -1))
        assert float(tangent) == pytest.approx(float((up - down) / (2 * h)), rel=1e-5, abs=1.0)


def test_the_highest_load_starves_first():
    demand = np.full(4, 0.5 * P.pump_flow)
    start, ramp = np.array([50, 100, 150, 200]) * BAR, np.full(4, 20 * BAR)
    pressure = float(supply(demand, start, ramp))
    served = np.clip((pressure - start) / ramp, 0, 1)
    np.testing.assert_allclose(served, [1, 1, 0, 0], atol=1e-6)


def test_delayed_command_is_the_average_of_what_arrives():
    commands = np.array([[4.0] * 4, [3.0] * 4, [2.0] * 4, [1.0] * 4])
    dt = PERIOD_S / 4
    for i in range(4):
        seen = delayed_command(jnp.asarray(commands), i * dt, (i + 1) * dt, P)
        time = (i + (np.arange(2000) + 0.5) / 2000) * dt
        for joint, dead in enumerate(P.dead_time_s):
            age = np.clip(np.ceil((dead - time) / PERIOD_S), 0, 3).astype(int)
            assert float(seen[joint]) == pytest.approx(commands[age, joint].mean(), abs=2e-3)


def test_a_spool_opens_more_slowly_than_it_closes():
    opening = advance_spool(jnp.zeros(4), jnp.ones(4), 0.01, P)
    closing = 1 - advance_spool(jnp.ones(4), jnp.zeros(4), 0.01, P)
    assert (np.asarray(opening) < 0.7 * np.asarray(closing)).all()


def test_valve_gain_has_a_dead_band_and_a_convex_start():
    spool = np.linspace(0, 1, 201)
    gain = np.asarray(jax.jit(jax.vmap(lambda s: valve_gain(s * jnp.ones(4), jnp.asarray(1.0), P)))(spool))
    assert (gain[spool < min(P.dead_band)] == 0).all()
    assert (np.diff(gain, axis=0) >= 0).all()
    np.testing.assert_allclose(gain[-1], 1.0)
    start = gain[(spool > max(P.dead_band)) & (spool < 0.13)]
    assert (np.diff(start, 2, axis=0) > 0).all()
