"""Each effect that keeps the soft arm from repeating itself, against an answer found another way."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.soft_arm import ArmEffects, SoftArm, SoftArmParameters
from firsthand.plants.soft_arm.cables import tensions
from firsthand.plants.soft_arm.geometry import marked_points, segment_ends, straight
from firsthand.plants.soft_arm.parameters import PERIOD_S
from firsthand.robots.registry import find_robot

P = SoftArmParameters()
HOME = jnp.asarray(straight(P.length_m))
COMMAND = jnp.full(6, 0.2)
IMPERFECT = SoftArm(effects=ArmEffects())
KEYS = jax.random.split(jax.random.key(0), 256)


@jax.jit
def many(state, keys):
    """One step of as many imperfect arms as there are keys."""
    return jax.vmap(lambda key: IMPERFECT.step(state, COMMAND, key=key))(keys)


@pytest.fixture(scope="module")
def rest():
    return IMPERFECT.reset(HOME)


@pytest.fixture(scope="module")
def first(rest):
    return many(rest, KEYS)


def test_markers_turn_with_the_end_plates():
    """All segments bent by θ about the same axis: the plates are turned by θ, 2θ, 3θ in one plane."""
    theta = 0.3
    bends = jnp.asarray([theta, 0.0] * 3)
    offsets = ((0.01, 0.0), (0.0, 0.02), (0.03, -0.01))
    away = np.asarray(marked_points(bends, 0.3, offsets) - segment_ends(bends, 0.3))
    turned = theta * np.arange(1, 4)
    across, along = np.asarray(offsets).T
    expected = np.stack([across * np.cos(turned), along, -across * np.sin(turned)], axis=1)
    np.testing.assert_allclose(away, expected, atol=1e-6)


def test_upright_the_markers_stand_beside_the_ends(rest):
    seen = np.asarray(IMPERFECT.measure(rest, key=KEYS[0]) - HOME).reshape(3, 3)
    np.testing.assert_allclose(seen, np.c_[np.asarray(P.markers_m), np.zeros(3)], atol=1e-6)
    exact = SoftArm().measure(rest, key=KEYS[0])
    np.testing.assert_allclose(exact, HOME, atol=1e-6)


def test_friction_is_drawn_anew_after_a_reset_and_then_wanders(rest, first):
    drawn = np.asarray(jax.vmap(IMPERFECT.friction)(first)) / P.friction
    assert np.log(drawn).std() == pytest.approx(P.friction_spread, rel=0.05)
    assert np.median(drawn) == pytest.approx(1.0, rel=0.05)
    one = jax.tree.map(lambda leaf: leaf[0], first)
    later = np.asarray(many(one, KEYS).roughness)
    keep = np.exp(-PERIOD_S / P.friction_s)
    np.testing.assert_allclose(later.mean(axis=0), keep * np.asarray(one.roughness), atol=0.005)
    assert later.std(axis=0).mean() == pytest.approx(np.sqrt(1 - keep**2), rel=0.05)


def test_pretension_drifts_from_its_nominal_value(rest, first):
    nominal = np.asarray(IMPERFECT.pretension(rest))
    np.testing.assert_array_equal(nominal, np.full(9, P.pretension_n, nominal.dtype))
    keep = np.exp(-PERIOD_S / P.pretension_s)
    spread = P.pretension_n * P.pretension_spread * np.sqrt(1 - keep**2)
    assert np.asarray(jax.vmap(IMPERFECT.pretension)(first)).std() == pytest.approx(spread, rel=0.05)


def test_more_pretension_is_as_if_the_motor_had_drawn_in_cable():
    bends, extra = jnp.asarray([0.1, 0.2, -0.1, 0.0, 0.3, 0.1]), jnp.linspace(-1.0, 1.0, 9)
    motors = 0.01 * jnp.ones(9)
    tight = tensions(bends, motors, P, P.pretension_n + extra)
    np.testing.assert_allclose(tight, tensions(bends, motors + extra / P.cable_stiffness, P), rtol=1e-4)


def test_the_same_key_gives_the_same_run_and_another_one_another(rest, first):
    again = many(rest, KEYS)
    np.testing.assert_array_equal(first.bends, again.bends)
    ends = np.asarray(jax.vmap(lambda s: segment_ends(s.bends, P.length_m))(first))
    assert ends.std(axis=0).max() > 1e-7


def test_without_effects_nothing_depends_on_the_key(rest):
    step = jax.jit(lambda key: SoftArm().step(rest, COMMAND, key=key))
    for one, other in zip(step(KEYS[0]), step(KEYS[1]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_effects_are_switched_by_name():
    def effects(name):
        plant: Any = find_robot(name, sensors="exact").make().plant
        return plant.effects

    assert effects("soft-arm") == ArmEffects()
    assert effects("soft-arm:none") == ArmEffects.none()
    assert effects("soft-arm:no-marker") == ArmEffects(marker=False)
    with pytest.raises(UserError, match=r"no effect 'pretention'.*pretension"):
        find_robot("soft-arm:pretention")
