"""The soft arm against the facts, against the plant's contract and against rough treatment."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.plants import check_plant
from firsthand.plants.soft_arm import ArmEffects, SoftArm, SoftArmParameters
from firsthand.plants.soft_arm.characterize import (
    RUNS,
    characterize,
    even_bends,
    fit_creep,
    holding_commands,
    respond,
)
from firsthand.plants.soft_arm.geometry import bends_of_ends, segment_ends, straight

KEY = jax.random.key(0)
LENGTH = SoftArmParameters().length_m
HOME = jnp.asarray(straight(LENGTH))
QUIET = SoftArm()
RESET = jax.jit(lambda position: QUIET.reset(position))
ENDS = jax.jit(lambda bends: segment_ends(bends, LENGTH))


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in characterize(SoftArm(effects=ArmEffects()))}


def test_every_response_lies_where_the_facts_say(rows):
    missed = [f"{r.name}: {r.measured:.3g} {r.unit}, not in {r.low:.3g} to {r.high:.3g}" for r in rows.values()]
    missed = [text for text, row in zip(missed, rows.values(), strict=True) if not row.ok]
    assert not missed, "\n".join(missed)
    assert len(rows) > 20


def test_a_load_that_is_too_heavy_makes_it_lean_further_in_open_loop(rows):
    empty = rows["open loop, circles of 80 to 120 mm, empty"].measured
    assert rows["open loop, the same with 50 g at the tip"].measured > 2 * empty


def test_rough_commands_leave_it_finite_taut_or_slack_and_above_its_foot():
    rng = np.random.default_rng(1)
    commands = rng.choice([-1.0, 1.0], (RUNS, 60, 6)).repeat(5, axis=1)
    response = respond(SoftArm(), commands, np.full(RUNS, 0.1))
    assert all(np.isfinite(part).all() for part in response)
    assert response.tension.min() >= 0.0
    assert np.abs(response.slip).max() <= 1.0
    bend = np.linalg.norm(response.bends.reshape(RUNS, -1, 3, 2), axis=-1)
    assert bend.max() < 1.6
    assert response.ends[..., 8].min() > 0.1


def test_commands_are_clipped():
    one, three = (respond(SoftArm(), np.full((1, 60, 6), u), np.zeros(1)).bends for u in (1.0, 3.0))
    np.testing.assert_array_equal(one, three)


def test_constant_commands_hold_what_reset_promises():
    """Reset to a bent arm, then command the motors to stay: it stays."""
    radius, angle = np.asarray([0.25]), np.asarray([0.7])
    command, bends = holding_commands(SoftArm(), radius, angle)[0], even_bends(SoftArm(), radius, angle)[0]
    state = RESET(ENDS(jnp.asarray(bends)).reshape(9))
    np.testing.assert_allclose(state.bends, bends, atol=1e-5)
    response = respond(SoftArm(), np.tile(command, (1, 60, 1)), np.zeros(1), state)
    np.testing.assert_allclose(response.bends[0], np.tile(bends, (60, 1)), atol=5e-4)
    np.testing.assert_allclose(np.linalg.norm(response.seen[0, -1, 6:8]), 0.25, atol=1e-3)


def test_upright_the_motors_are_at_zero():
    state = RESET(HOME)
    np.testing.assert_allclose(state.motors, 0.0, atol=1e-6)
    np.testing.assert_allclose(state.bends, 0.0, atol=1e-6)


def test_a_tip_load_pulls_a_leaning_arm_out_and_down():
    command = holding_commands(SoftArm(), np.asarray([0.15]), np.zeros(1))[0]
    tip = respond(SoftArm(), np.tile(command, (3, 120, 1)), np.asarray([0.0, 0.05, 0.1])).ends[:, -1, 6:]
    away = np.linalg.norm(tip[:, :2], axis=1)
    assert (np.diff(away) > 0.01).all()
    assert (np.diff(tip[:, 2]) < 0.0).all()
    loaded = SoftArm().with_payload(0.05)
    assert jax.tree.structure(loaded) == jax.tree.structure(SoftArm())  # so that nothing is compiled again
    assert float(loaded.payload_kg) == pytest.approx(0.05)


def test_twice_the_integration_steps_change_little():
    commands = np.random.default_rng(2).uniform(-1, 1, (RUNS, 12, 6)).repeat(10, axis=1)
    coarse, fine = (respond(SoftArm(substeps=n), commands, np.zeros(RUNS)).bends for n in (10, 20))
    assert np.sqrt(np.mean((coarse - fine) ** 2)) < 0.03 * np.sqrt(np.mean(fine**2))


@pytest.fixture
def hasty_compiler():
    """Code that is compiled quickly and runs slowly: a contract is many large functions that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_compiler")
@pytest.mark.parametrize(("effects", "rest"), [(ArmEffects.none(), 1e-3), (ArmEffects(), 5e-3)])
def test_contract(effects, rest):
    """Pretension that drifts moves the tip by a millimetre or so within the second that it is watched."""
    arm = SoftArm(effects=effects)
    report = check_plant(
        arm,
        rest_tolerance=rest,
        noise_free=effects == ArmEffects.none(),
        positions=HOME[None],
        key=KEY,
        num_points=6,
        num_directions=2,
        several_steps=4,
    )
    assert report.derivative_dtype == "float64"
    assert report.kink_fraction <= 0.05


def test_an_arm_that_would_buckle_is_refused():
    weak = dataclasses.replace(SoftArmParameters(), cable_stiffness=100.0, thickness_m=0.002)
    with pytest.raises(ValueError, match="buckles"):
        jax.eval_shape(lambda state: SoftArm(parameters=weak).step(state, jnp.zeros(6), key=KEY), RESET(HOME))


@pytest.mark.parametrize(
    ("change", "name"),
    [({"friction": -0.1}, "friction"), ({"creep_s": 0.0}, "creep_s"), ({"creep_share": 1.0}, "share")],
)
def test_wrong_parameters_are_refused(change, name):
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(SoftArmParameters(), **change)


def test_creep_is_found_where_it_is_known():
    time = 0.05 * np.arange(1, 601)
    share, tau = fit_creep(0.2 - 0.03 * np.exp(-time / 3.0))
    assert share == pytest.approx(0.15, rel=0.02)
    assert tau == pytest.approx(3.0, rel=0.02)


def test_bends_are_found_again_from_the_segment_ends():
    back = jax.jit(bends_of_ends)
    for bends in (np.zeros(6), np.asarray([0.3, -0.2, 0.0, 0.5, -0.4, 0.1]), np.full(6, 1e-4)):
        np.testing.assert_allclose(back(ENDS(jnp.asarray(bends))), bends, atol=2e-5)
