"""The soft arm against the facts, against the plant's contract and against rough treatment."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.plants import check_plant
from firsthand.plants.soft_arm import SoftArm, SoftArmParameters
from firsthand.plants.soft_arm.characterize import RUNS, characterize, fit_creep, respond
from firsthand.plants.soft_arm.geometry import bends_of_ends, segment_ends, straight

KEY = jax.random.key(0)
LENGTH = SoftArmParameters().length_m
HOME = jnp.asarray(straight(LENGTH))
QUIET = SoftArm(position_noise=jnp.zeros(()))
RESET = jax.jit(lambda position: QUIET.reset(position))
ENDS = jax.jit(lambda bends: segment_ends(bends, LENGTH))


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in characterize(SoftArm())}


def test_every_response_lies_where_the_facts_say(rows):
    missed = [f"{r.name}: {r.measured:.3g} {r.unit}, not in {r.low:.3g} to {r.high:.3g}" for r in rows.values()]
    missed = [text for text, row in zip(missed, rows.values(), strict=True) if not row.ok]
    assert not missed, "\n".join(missed)
    assert len(rows) > 20


def test_a_load_that_is_too_heavy_makes_it_lean_further_in_open_loop(rows):
    empty = rows["open loop, circles of 80 to 120 mm, empty"].measured
    assert rows["open loop, the same with 50 g at the tip"].measured > 3 * empty


def test_rough_commands_leave_it_finite_taut_or_slack_and_above_its_foot():
    rng = np.random.default_rng(1)
    commands = rng.choice([-1.0, 1.0], (RUNS, 60, 6)).repeat(5, axis=1)
    response = respond(SoftArm(), commands, np.full(RUNS, 0.1))
    assert all(np.isfinite(part).all() for part in response)
    assert response.tension.min() >= 0.0
    assert np.abs(response.slip).max() < 1.0
    bend = np.linalg.norm(response.bends.reshape(RUNS, -1, 3, 2), axis=-1)
    assert bend.max() < 1.6
    assert response.ends[..., 8].min() > 0.1


def test_commands_are_clipped():
    one, three = (respond(SoftArm(), np.full((1, 60, 6), u), np.zeros(1)).bends for u in (1.0, 3.0))
    np.testing.assert_array_equal(one, three)


def test_constant_commands_hold_what_reset_promises():
    """Reset to a bent arm, then command the motors to stay: it stays."""
    bends = jnp.asarray([0.2, 0.1, -0.1, 0.25, 0.15, -0.2])
    ends = ENDS(bends).reshape(9)
    state = RESET(ends)
    np.testing.assert_allclose(state.bends, bends, atol=1e-5)

    @jax.jit
    def later(state):
        command = QUIET.holding_command(bends)
        after = jax.lax.fori_loop(0, 60, lambda _, s: QUIET.step(s, command, key=KEY), state)
        return command, after, QUIET.measure(after, key=KEY)

    command, after, measured = later(state)
    assert float(jnp.abs(command).max()) < 1.0
    np.testing.assert_allclose(after.bends, bends, atol=2e-4)
    np.testing.assert_allclose(measured, ends, atol=2e-4)


def test_upright_the_motors_are_at_zero():
    state = RESET(HOME)
    np.testing.assert_allclose(state.motors, 0.0, atol=1e-6)
    np.testing.assert_allclose(state.bends, 0.0, atol=1e-6)


def test_a_payload_and_a_noise_cost_no_compilation():
    traces = []

    @eqx.filter_jit
    def run(plant):
        traces.append(None)
        command = jnp.asarray([0.3, 0.0, 0.0, 0.0, 0.3, 0.0])
        return jax.lax.fori_loop(0, 100, lambda _, s: plant.step(s, command, key=KEY), plant.reset(HOME)).bends

    tip = {kg: np.asarray(ENDS(run(SoftArm().with_payload(kg))))[2] for kg in (0.0, 0.05, 0.1)}
    run(SoftArm(position_noise=jnp.asarray(0.001)))
    assert len(traces) == 1
    # Gravity pulls a loaded arm that leans further out and down.
    away = {kg: np.linalg.norm(place[:2]) for kg, place in tip.items()}
    assert away[0.0] < away[0.05] < away[0.1]
    assert tip[0.1][2] < tip[0.0][2]


def test_twice_the_integration_steps_change_little():
    rng = np.random.default_rng(2)
    commands = jnp.asarray(rng.uniform(-1, 1, (12, 6)).repeat(10, axis=0))

    def end(substeps):
        plant = SoftArm(substeps=substeps)
        run = jax.jit(
            lambda u: jax.lax.scan(lambda s, c: (plant.step(s, c, key=KEY), s.bends), plant.reset(HOME), u)[1]
        )
        return np.asarray(run(commands))

    coarse, fine = end(10), end(20)
    assert np.abs(coarse - fine).max() < 0.05
    assert np.sqrt(np.mean((coarse - fine) ** 2)) < 0.01


def test_contract():
    report = check_plant(QUIET, positions=HOME[None], key=KEY, num_points=6, num_directions=2, several_steps=4)
    assert report.derivative_dtype == "float64"
    assert report.kink_fraction <= 0.05


def test_an_arm_that_would_buckle_is_refused():
    weak = dataclasses.replace(SoftArmParameters(), cable_stiffness=100.0, thickness_m=0.002)
    with pytest.raises(ValueError, match="buckles"):
        SoftArm(parameters=weak).step(RESET(HOME), jnp.zeros(6), key=KEY)


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
