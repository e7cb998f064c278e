"""The excavator against the facts, against finite differences and against rough treatment."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.plants.excavator import PAYLOADS, ExcavatorFlow, ExcavatorParameters, ExcavatorPressure
from firsthand.plants.excavator.characterize import RUNS, characterize, respond
from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW, REFERENCE_POSE
from firsthand.plants.excavator.loads import kinetic_energy, potential_energy

PLANTS = [ExcavatorFlow, ExcavatorPressure]
KEY = jax.random.key(0)
POSE = jnp.asarray(REFERENCE_POSE)
START = np.asarray(REFERENCE_POSE)[None]


def constant(command, steps):
    return np.tile(np.asarray(command, float), (1, steps, 1))


@pytest.fixture(scope="module", params=PLANTS)
def rows(request):
    return characterize(request.param())


def test_every_response_lies_where_the_facts_say(rows):
    missed = [f"{r.name}: {r.measured:.3g} {r.unit}, not in {r.low:.3g} to {r.high:.3g}" for r in rows if not r.ok]
    assert not missed, "\n".join(missed)
    assert len(rows) > 90


@pytest.mark.parametrize("plant_type", PLANTS)
def test_interface(plant_type):
    plant = plant_type()
    state = plant.reset(POSE)
    measured = plant.measure(state, key=KEY)
    assert (plant.period_s, plant.num_commands, plant.num_measured) == (0.04, 4, 8)
    np.testing.assert_allclose(measured, [*REFERENCE_POSE, 0, 0, 0, 0], atol=1e-6)
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("plant_type", PLANTS)
def test_at_rest_it_stays(plant_type):
    out = respond(plant_type().with_payload(600.0), START, np.zeros((1, 60, 4)))[0]
    np.testing.assert_allclose(out[:, :4], np.tile(POSE, (60, 1)), atol=2e-4)
    np.testing.assert_allclose(out[:, 4:], 0.0, atol=2e-3)


@pytest.mark.parametrize("plant_type", PLANTS)
def test_rough_commands_leave_it_finite_and_inside_its_range(plant_type):
    # 250 steps in each of 40 runs: 10 000 control periods of commands that jump between -1 and 1.
    rng = np.random.default_rng(1)
    held = rng.integers(1, 25, (RUNS, 250, 4)).cumsum(1) < 250
    sign = rng.choice([-1.0, 1.0], (RUNS, 250, 4))
    index = np.minimum(held.sum(1, keepdims=True), np.arange(250)[None, :, None] // rng.integers(1, 25, (RUNS, 1, 4)))
    commands = np.take_along_axis(sign, index, 1)
    starts = rng.uniform(POSITION_LOW, POSITION_HIGH, (RUNS, 4))
    out = respond(plant_type().with_payload(900.0), starts, commands)
    assert np.isfinite(out).all()
    assert (out[..., :4] > np.asarray(POSITION_LOW) - 0.03).all()
    assert (out[..., :4] < np.asarray(POSITION_HIGH) + 0.03).all()
    assert np.abs(out[..., 4:]).max() < 8.0


@pytest.mark.parametrize("plant_type", PLANTS)
def test_commands_are_clipped(plant_type):
    one, three = (respond(plant_type(), START, constant([0, u, 0, 0], 20)) for u in (1.0, 3.0))
    np.testing.assert_allclose(one, three, atol=1e-6)


@pytest.mark.parametrize("plant_type", PLANTS)
def test_nothing_moves_during_the_dead_time(plant_type):
    plant = plant_type()
    out = respond(plant, START, constant([1, 1, 1, 1], 20))[0]
    quiet = np.asarray(plant.parameters.dead_time_s) >= 0.04
    np.testing.assert_allclose(out[0, 4:][quiet], 0.0, atol=2e-3)
    assert (np.abs(out[-1, 4:]) > 0.01).any()


@pytest.mark.parametrize("plant_type", PLANTS)
def test_a_payload_matters_and_costs_no_compilation(plant_type):
    traces = []

    @eqx.filter_jit
    def run(plant):
        traces.append(None)
        state = plant.reset(POSE)
        command = jnp.array([0.4, 0.4, 0.4, 0.4])
        return jax.lax.fori_loop(0, 20, lambda _, s: plant.step(s, command, key=KEY), state).velocity

    velocity = {name: np.asarray(run(plant_type().with_payload(kg))) for name, kg in PAYLOADS.items()}
    run(plant_type())
    run(plant_type(payload_kg=100, warming_rate=0.1))
    assert len(traces) == 1
    # A heavier boom is the last to be served, so it starves more.
    assert abs(velocity["large"][0]) < 0.8 * abs(velocity["empty"][0])


@pytest.mark.parametrize("plant_type", PLANTS)
def test_oil_temperature_drifts_only_when_told(plant_type):
    step = eqx.filter_jit(lambda plant, state: plant.step(state, jnp.zeros(4), key=KEY))
    steady = plant_type(oil_temperature_c=20.0)
    assert float(step(steady, steady.reset(POSE)).oil_temperature_c) == 20.0
    warming = plant_type(oil_temperature_c=20.0, warming_rate=0.01)
    assert float(step(warming, warming.reset(POSE)).oil_temperature_c) == pytest.approx(20.0 + 0.04 * 0.01 * 55)


@pytest.mark.parametrize("plant_type", PLANTS)
def test_cold_oil_is_slower(plant_type):
    cold, warm = (
        respond(plant_type(oil_temperature_c=t), START, constant([0, 0, 0, 0.3], 20))[0, -1, 7] for t in (15.0, 60.0)
    )
    assert 0.6 < cold / warm < 0.95


@pytest.mark.parametrize("plant_type", PLANTS)
def test_derivatives_agree_with_finite_differences(plant_type):
    with jax.enable_x64(True):
        plant = plant_type()
        flat, unravel = jax.flatten_util.ravel_pytree(plant.reset(jnp.asarray(REFERENCE_POSE)))

        @jax.jit
        def step(x, u):
            return jax.flatten_util.ravel_pytree(plant.step(unravel(x), u, key=KEY))[0]

        directional = jax.jit(lambda x, u, v, w: jax.jvp(step, (x, u), (v, w)))
        rng = np.random.default_rng(0)
        u, errors = np.zeros(4), []
        for _ in range(60):
            # Large commands on all joints: the pump runs out, so the implicit derivative is in play.
            u = np.clip(0.8 * u + 0.5 * rng.normal(size=4), -0.98, 0.98)
            v, w, h = rng.normal(size=flat.shape), rng.normal(size=4), 1e-6
            following, tangent = directional(flat, u, v, w)
            difference = (step(flat + h * v, u + h * w) - step(flat - h * v, u - h * w)) / (2 * h)
            errors.append(float(jnp.abs(tangent - difference).max() / (1 + jnp.abs(tangent).max())))
            flat = following
        # A step may fall on a kink (a spool passing its centre, a consumer just starving), so not every one.
        assert np.quantile(errors, 0.9) < 1e-6
        for start in (REFERENCE_POSE, POSITION_LOW, POSITION_HIGH):
            for u in (0.0, 1.0, -1.0):
                flat = jax.flatten_util.ravel_pytree(plant.reset(jnp.asarray(start)))[0]
                assert np.isfinite(directional(flat, np.full(4, u), v, w)[1]).all()


def test_reverse_mode_is_finite_where_functions_have_corners():
    plant = ExcavatorFlow()

    @jax.jit
    @jax.grad
    def gradient(command, state):
        state = plant.step(state, command, key=KEY)
        return jnp.sum(state.position**2) + jnp.sum(state.velocity**2) + jnp.sum(state.spool**2)

    for start in (REFERENCE_POSE, POSITION_LOW, POSITION_HIGH):
        for spool in (0.0, 0.05, 1.0, -1.0):
            state = plant.reset(jnp.asarray(start))._replace(spool=jnp.full(4, spool))
            assert np.isfinite(gradient(jnp.zeros(4), state)).all()


@eqx.filter_jit
def trajectory(plant, state, commands):
    """The states after each command."""

    def step(state, command):
        state = plant.step(state, command, key=KEY)
        return state, state

    return jax.lax.scan(step, state, commands)[1]


def test_the_pressure_model_creates_no_energy():
    """With the valves shut and the arm pushed, the swing never exceeds the push and dies out."""
    plant = ExcavatorPressure()
    state = plant.reset(POSE)._replace(velocity=jnp.array([0.2, -0.2, 0.1, 0.3]))
    states = trajectory(plant, state, jnp.zeros((150, 4)))
    before = kinetic_energy(state.position, state.velocity, plant.payload_kg)
    kinetic = jax.jit(jax.vmap(kinetic_energy, (0, 0, None)))(states.position, states.velocity, plant.payload_kg)
    assert kinetic.max() < 1.01 * before
    assert kinetic[-25:].max() < 0.01 * before
    height = potential_energy(states.position[-1], plant.payload_kg) - potential_energy(POSE, plant.payload_kg)
    assert abs(height) < before


def test_the_pressure_model_stays_between_vacuum_and_port_relief():
    plant = ExcavatorPressure().with_payload(900.0)
    commands = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], (30, 4)).repeat(5, 0)
    states = trajectory(plant, plant.reset(POSE), jnp.asarray(commands))
    pressure = np.stack([states.bore, states.rod])
    assert pressure.min() > -15.0
    assert pressure.max() < plant.chambers.shock / 1e5 + 40.0


def test_wrong_parameters_are_refused():
    with pytest.raises(ValueError, match="dead_time_s"):
        ExcavatorParameters(dead_time_s=(0.5, 0.05, 0.05, 0.05))
    with pytest.raises(ValueError, match="rod_m"):
        ExcavatorParameters(rod_m=(0.2, 0.07, 0.05, 0.06))
