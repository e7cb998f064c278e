"""The parts of the soft arm against independent answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.soft_arm import SoftArmParameters
from firsthand.plants.soft_arm.body import inertia, point_masses, taut_stiffness, upright
from firsthand.plants.soft_arm.cables import cable_commands, cable_torques, next_slip, routing, tensions, wrap
from firsthand.plants.soft_arm.geometry import points
from firsthand.plants.soft_arm.parameters import MAX_PAYLOAD_KG
from firsthand.robots.registry import ROBOTS

P = SoftArmParameters()
BENDS = np.asarray([0.4, -0.3, 0.2, 0.5, -0.6, 0.1])
PLACES = jax.jit(lambda bends: points(bends, 0.3))
JACOBIAN = jax.jit(jax.jacfwd(PLACES))
INERTIA = jax.jit(lambda bends, load: inertia(bends, load, P))
WEIGHT = jax.jit(jax.jacfwd(lambda bends, load: inertia(bends, load, P).gravity))


def rotation(vector):
    """Rodrigues' formula."""
    angle = np.linalg.norm(vector)
    x, y, z = vector / angle
    k = np.asarray([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k


def walked(bends, length, pieces=2000):
    """Middles and ends, by walking along the centre line in small straight pieces."""
    foot, frame, found = np.zeros(3), np.eye(3), []
    for a, b in bends.reshape(3, 2):
        for i in range(pieces):
            share = (i + 0.5) / pieces
            foot = foot + frame @ rotation(share * np.asarray([-b, a, 0.0]))[:, 2] * length / pieces
            if i + 1 in (pieces // 2, pieces):
                found.append(foot)
        frame = frame @ rotation(np.asarray([-b, a, 0.0]))
    return np.stack(found)


def test_points_lie_on_the_arcs():
    np.testing.assert_allclose(PLACES(jnp.asarray(BENDS)), walked(BENDS, 0.3), atol=1e-6)


def test_values_and_derivatives_are_finite_and_right_when_straight():
    straight = jnp.zeros(6)
    jacobian = JACOBIAN(straight)
    # A segment bent by a small angle moves its end by half its length times the angle, and what is above by more.
    np.testing.assert_allclose(jacobian[1::2, 0, 0], [0.15, 0.45, 0.75], atol=1e-6)
    second = jax.jit(jax.jacfwd(jax.jacrev(PLACES)))(straight)
    assert np.isfinite(second).all()
    # z of the first end is L sin θ/θ = L (1 − θ²/6 + …).
    np.testing.assert_allclose(second[1, 2, 0, 0], -0.3 / 3, atol=1e-6)


def test_mass_matrix_and_gravity_come_from_the_points():
    bends, load = jnp.asarray(BENDS), jnp.asarray(0.05)
    jacobian, masses = np.asarray(JACOBIAN(bends)), np.asarray(point_masses(load, P))
    found = INERTIA(bends, load)
    np.testing.assert_allclose(found.mass, np.einsum("pxi,p,pxj->ij", jacobian, masses, jacobian), atol=1e-6)
    np.testing.assert_allclose(found.gravity, -9.81 * np.einsum("p,pi->i", masses, jacobian[:, 2]), atol=2e-6)
    assert float(masses.sum()) == pytest.approx(3 * (P.segment_kg + P.plate_kg) - P.segment_kg / 6 + 0.05)


def test_the_upright_arm_is_linearised_right():
    straight, empty = jnp.zeros(6), jnp.zeros(())
    np.testing.assert_allclose(upright(P).mass, INERTIA(straight, empty).mass, atol=1e-7)
    gravity = WEIGHT(straight, empty)
    np.testing.assert_allclose(upright(P).stiffness, taut_stiffness(P) - gravity, atol=1e-5)


def test_the_heaviest_load_allowed_does_not_buckle_the_arm_and_half_as_much_again_does():
    relaxed = taut_stiffness(P) - P.creep_share * P.helicoid_stiffness * np.eye(6)
    for load, stands in ((MAX_PAYLOAD_KG, True), (1.5 * MAX_PAYLOAD_KG, False)):
        net = relaxed - np.asarray(WEIGHT(jnp.zeros(6), jnp.asarray(load)))
        assert (np.linalg.eigvalsh(net).min() > 0.0) == stands
    with pytest.raises(UserError, match=r"payload is 1 kg, but the soft arm carries at most 0\.2 kg"):
        ROBOTS["soft-arm"].make_robot(ROBOTS["soft-arm"].make_task(), payload_kg=1.0, seed=0)


def test_cables_get_shorter_as_the_arm_bends():
    """The length of an offset curve, against G."""
    offset = P.radius_m * np.asarray([np.cos(np.deg2rad(150.0)), np.sin(np.deg2rad(150.0)), 0.0])
    foot, frame, path = np.zeros(3), np.eye(3), []
    for a, b in BENDS.reshape(3, 2):
        for share in np.linspace(0, 1, 800, endpoint=False):
            turned = frame @ rotation(np.asarray([-b, a, 0.0]) * max(share, 1e-9))
            path.append(foot + turned @ offset)
            foot = foot + turned[:, 2] * P.length_m / 800
        frame = frame @ rotation(np.asarray([-b, a, 0.0]))
    length = np.linalg.norm(np.diff(path, axis=0), axis=1).sum()
    assert 3 * P.length_m - length == pytest.approx((routing(P) @ BENDS)[6], abs=1e-3)


def test_the_third_cable_keeps_the_centre_line():
    wanted = np.asarray(cable_commands(jnp.asarray([0.3, -0.8, 1.0, 0.2, -0.5, -0.5]), P)).reshape(3, 3)
    np.testing.assert_allclose(wanted.sum(axis=1), 0.0, atol=1e-8)
    np.testing.assert_allclose(wanted[:, 0], np.asarray(P.travel_m) * [0.3, 1.0, -0.5], rtol=1e-6)


def test_tension_is_never_negative_and_pretension_when_straight():
    np.testing.assert_allclose(tensions(jnp.zeros(6), jnp.zeros(9), P), P.pretension_n, rtol=0.01)
    assert float(tensions(jnp.zeros(6), jnp.full(9, -0.1), P).min()) >= 0.0
    pulled = tensions(jnp.zeros(6), jnp.full(9, 0.02), P)
    np.testing.assert_allclose(pulled, P.pretension_n + 0.02 * P.cable_stiffness, rtol=0.01)


def test_without_friction_cables_do_the_work_that_they_are_given():
    """Torque = Gᵀ T, so that power at the bends equals power at the spools."""
    tension = jnp.linspace(1.0, 20.0, 9)
    torque = cable_torques(jnp.asarray(BENDS), tension, jnp.zeros(9), P)
    np.testing.assert_allclose(torque, routing(P).T @ np.asarray(tension), rtol=1e-5, atol=1e-7)


def test_a_sliding_cable_loses_tension_by_the_capstan_equation():
    tension = jnp.zeros(9).at[0].set(10.0)  # the lower segment's first cable, which points along x
    bends = jnp.asarray([0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    free, sliding = (cable_torques(bends, tension, jnp.full(9, z), P)[0] for z in (0.0, 1.0))
    assert float(sliding / free) == pytest.approx(np.exp(-P.friction * float(wrap(bends, P)[0])), rel=1e-5)
    assert float(wrap(bends, P)[0]) == pytest.approx(P.base_wrap_rad + 0.25, abs=1e-3)


def test_friction_has_a_hysteresis_and_dissipates():
    """There and back with one cable: the loop's area is work lost, and z saturates below 1."""
    rates = jnp.asarray([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    slip, seen = jnp.zeros(9), []
    advance = jax.jit(lambda slip, sign: next_slip(slip, sign * rates, 0.005, P))
    for sign in (1.0,) * 60 + (-1.0,) * 120 + (1.0,) * 120:
        slip = advance(slip, sign)
        seen.append(float(slip[0]))
    assert 0.95 < max(seen) < 1.0
    assert -1.0 < min(seen) < -0.95
    work = sum(z * s for z, s in zip(seen[60:], (-1.0,) * 120 + (1.0,) * 120, strict=True))
    assert work > 0.0


def test_damping_ratio_is_what_was_asked_for():
    for ratio in (0.3, 0.5):
        u = upright(dataclasses.replace(P, damping_ratio=ratio))
        flow = np.block(
            [
                [np.zeros((6, 6)), np.eye(6)],
                [-np.linalg.solve(u.mass, u.stiffness), -np.linalg.solve(u.mass, u.damping)],
            ]
        )
        values = np.linalg.eigvals(flow)
        np.testing.assert_allclose(-values.real / np.abs(values), ratio, rtol=1e-6)
