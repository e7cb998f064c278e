"""Each effect of the realistic excavator against an answer found another way, and the machine as a whole."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.check import check_plant
from firsthand.plants.excavator import Effects, ExcavatorPressure, ExcavatorRealistic
from firsthand.plants.excavator.chambers import ChamberParameters
from firsthand.plants.excavator.characterize import characterize
from firsthand.plants.excavator.characterize_effects import (
    boom_force,
    effect_rows,
    hydraulic_power,
    probing_commands,
    run_machine,
)
from firsthand.plants.excavator.effects import EFFECT_NAMES, NO_EFFECTS, EffectSizes
from firsthand.plants.excavator.friction import coulomb_level, stribeck
from firsthand.plants.excavator.geometry import GRAVITY, REFERENCE_POSE
from firsthand.plants.excavator.hydraulics import valve_gain
from firsthand.plants.excavator.hysteresis import advance_plays, spool_target
from firsthand.plants.excavator.lifting import CanLift
from firsthand.plants.excavator.linkage import moment_arms
from firsthand.plants.excavator.load_sensing import advance_pump, pump_at_rest
from firsthand.plants.excavator.loads import gravity_torque, mass_matrix
from firsthand.plants.excavator.parameters import BAR, PRESSURE_MODEL, REALISTIC_MODEL
from firsthand.plants.excavator.realistic import base_spring
from firsthand.plants.excavator.swing import add_mass, advance_swing, gripper, hang
from firsthand.robots.registry import find_robot

KEY = jax.random.key(0)
POSE = jnp.asarray(REFERENCE_POSE)
SIZES = EffectSizes()
ALL = ExcavatorRealistic().at_work()


def only(*names, **fields):
    return ExcavatorRealistic(effects=Effects.only(*names), **fields)


def plant_of(name, **options) -> Any:
    return find_robot(name, **options).make().plant


@eqx.filter_jit
def trajectory(plant, state, commands, key):
    """The states after each command."""

    def step(state, inputs):
        state = plant.step(state, inputs[0], key=inputs[1])
        return state, state

    return jax.lax.scan(step, state, (commands, jax.random.split(key, len(commands))))[1]


@pytest.fixture(scope="module")
def probed():
    """The machine with all effects under the commands of `probing_commands`."""
    return run_machine(ALL, *probing_commands())


# The machine as a whole


@pytest.mark.slow
def test_every_response_lies_where_the_facts_say():
    rows = [*characterize(ALL.without("noise")), *effect_rows(ALL)]
    missed = [f"{r.name}: {r.measured:.3g} {r.unit}, not in {r.low:.3g} to {r.high:.3g}" for r in rows if not r.ok]
    assert not missed, "\n".join(missed)
    assert len(rows) > 100


def test_without_effects_it_is_the_pressure_model():
    commands = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (10, 4)).repeat(8, 0))
    plain = ExcavatorPressure().with_payload(600.0)
    bare = ExcavatorRealistic(parameters=PRESSURE_MODEL, effects=NO_EFFECTS).with_payload(600.0)
    expected = trajectory(plain, plain.reset(POSE), commands, KEY)
    found = trajectory(bare, bare.reset(POSE), commands, KEY)
    np.testing.assert_allclose(found.position, expected.position, atol=2e-5)
    np.testing.assert_allclose(found.velocity, expected.velocity, atol=2e-4)


@pytest.mark.slow
def test_derivatives_hold_with_every_effect():
    report = check_plant(
        ALL.with_payload(1000.0),
        positions=np.asarray(REFERENCE_POSE)[None],
        key=KEY,
        steps=40,
        noise_free=False,
        num_points=8,
        num_directions=2,
        several_steps=2,
    )
    assert report.derivative_dtype == "float64"
    assert report.rest_drift < 1e-3


def test_the_same_seed_gives_the_same_bits_and_a_restored_robot_goes_on_as_it_would_have():
    found = find_robot("excavator-realistic")
    commands = np.random.default_rng(0).uniform(-1, 1, (6, 4)).repeat(5, 0).astype(np.float32)
    robots: Any = [found.make(seed=seed) for seed in (3, 3, 3, 4)]
    one, other, fresh, different = robots
    for robot in (one, other):
        robot.play(commands)
    kept = one.snapshot()
    second = one.play(commands)
    fresh.restore(kept)
    for robot in (other, fresh):
        np.testing.assert_array_equal(robot.play(commands), second)
        for after, expected in zip(
            jax.tree.leaves(robot.snapshot()[0]), jax.tree.leaves(one.snapshot()[0]), strict=True
        ):
            np.testing.assert_array_equal(after, expected)
    different.play(commands)
    true = [robot.plant.truth(robot.snapshot()[0][0]) for robot in (other, different)]
    assert np.abs(true[0] - true[1]).max() > 1e-4


# Pump: power limit, lag, load-sensing line, engine


def settled(effects, supply, engine=1.0, demand=1.0, seconds=3.0):
    """Flow in l/min and sensed pressure in bar after some seconds in which the valves ask for `demand` of the pump."""
    asked, needed = jnp.full(4, demand * REALISTIC_MODEL.pump_flow / 4), jnp.full(4, supply * BAR)
    pump = pump_at_rest(REALISTIC_MODEL, SIZES)

    def step(_, pump):
        args = (asked, needed, jnp.asarray(supply * BAR), jnp.asarray(engine), 0.005)
        return advance_pump(pump, *args, REALISTIC_MODEL, effects, SIZES)

    return jax.lax.fori_loop(0, round(seconds / 0.005), step, pump)


def test_power_limits_the_flow_at_high_pressure():
    # 95 kW at 300 bar are 190 l/min; at 150 bar they would be 380, and the pump's own 233 hold.
    assert settled(Effects.only("power"), 300.0).flow == pytest.approx(190.0, rel=1e-3)
    assert settled(Effects.only("power"), 150.0).flow == pytest.approx(233.0, rel=1e-3)
    assert settled(NO_EFFECTS, 300.0).flow == pytest.approx(233.0, rel=1e-3)


def test_the_whole_machine_keeps_to_its_power(probed):
    power = hydraulic_power(probed)
    # Boom up, dipper out with 1500 kg, once the pump has come back: as much as there is, and no more.
    assert 0.97 * SIZES.power < power[1, 25:55].mean() < 1.03 * SIZES.power
    assert power[1, 25:55].max() < 1.05 * SIZES.power


def test_the_pump_takes_its_time():
    effects = Effects.only("pump")
    # A small step is first order, 63 % after the time constant; a full stroke takes longer.
    rest = float(pump_at_rest(REALISTIC_MODEL, SIZES).flow)
    small = float(settled(effects, 100.0, demand=0.1, seconds=SIZES.pump_s).flow) - rest
    assert small / 23.3 == pytest.approx(1 - np.exp(-1), abs=0.02)
    full = float(settled(effects, 100.0, seconds=SIZES.pump_s).flow) - rest
    assert full / (233.0 - rest) < 0.55
    # The load-sensing line passes on the load, less the margin, with its own time constant.
    assert settled(effects, 100.0, seconds=SIZES.line_s).sensed == pytest.approx(79.0 * (1 - np.exp(-1)), rel=1e-3)
    assert settled(effects, 100.0).sensed == pytest.approx(79.0, rel=1e-3)


def test_the_engine_carries_the_pump():
    effects = Effects.only("engine")
    assert settled(effects, 100.0, engine=1.03).flow == pytest.approx(1.03 * 233.0, rel=1e-3)


def test_the_margin_is_kept_above_the_highest_load(probed):
    # Boom up alone: what the pump keeps is the boom's load, threshold and ramp, as it was when the line passed it on.
    p, bore = REALISTIC_MODEL, probed.bore[8, 28:36, 0]
    needed = bore + (p.threshold_plus[0] + p.ramp_plus[0]) / BAR
    np.testing.assert_allclose(probed.supply[8, 28:36], needed, rtol=0.03)


# Valves: droop, hysteresis, dead band, noise, oil


def test_a_load_costs_a_valve_its_flow():
    plant = only("droop")
    commands = np.zeros((2, 60, 4))
    commands[:, :, 0] = 0.3
    states = run_machine(plant, np.asarray([0.0, 400.0]), commands)
    flow, load = states.flow[:, 30:40, 0].mean(1), states.bore[:, 30:40, 0].mean(1)
    expected = (1 - 0.10 * load[1] / 200) / (1 - 0.10 * load[0] / 200)
    assert flow[1] / flow[0] == pytest.approx(expected, rel=2e-3)
    assert load[1] - load[0] > 20.0


def test_the_hysteresis_loop_has_its_width_and_closes():
    def play(path):
        plays, out = jnp.zeros((3, 4)), []
        for command in path:
            plays = advance_plays(plays, jnp.full(4, command), 0.04)
            out.append(float(spool_target(plays, jnp.full(4, command))[0]))
        return np.asarray(out)

    up, down = np.linspace(0.0, 0.8, 41), np.linspace(0.8, 0.0, 41)
    loop = play([*up, *down])
    assert loop[41 + 20] - loop[20] == pytest.approx(0.04, abs=1e-4)
    # A small loop inside the large one ends where it began: the spool remembers where its input has turned.
    minor = play([*up, 0.6, 0.62, 0.6])
    assert minor[-1] == pytest.approx(minor[-3], abs=5e-4)
    assert minor[-2] - minor[-1] > 4e-3
    # Rate does not matter.
    assert play([0.0, 0.8, 0.4])[-1] == pytest.approx(loop[41 + 20], abs=1e-3)


def test_the_spool_rests_elsewhere_coming_from_above(probed):
    assert probed.spool[5, -1, 3] - probed.spool[5, 49, 3] == pytest.approx(0.04, abs=0.003)


@pytest.fixture(scope="module")
def drifted():
    """Noise and drift of 200 machines over 20 minutes, once a second: (machines, seconds)."""
    sizes = dataclasses.replace(SIZES, engine_s=30.0, deadband_s=600.0)
    plant = ExcavatorRealistic(sizes=sizes)
    state = plant.reset(POSE)

    @jax.jit
    @jax.vmap
    def run(key):
        def second(state, key):
            state, _ = jax.lax.scan(lambda s, k: (plant._drift(s, k), None), state, jax.random.split(key, 25))
            return state, (state.fluctuation[0], state.dead_band_shift[1], state.engine)

        return jax.lax.scan(second, state, jax.random.split(key, 1200))[1]

    return [np.asarray(part) for part in run(jax.random.split(KEY, 200))]


@pytest.mark.parametrize(("part", "time_s"), [(0, 0.2), (1, 600.0), (2, 30.0)])
def test_drift_has_its_size_and_its_time(drifted, part, time_s):
    values = drifted[part]
    # From zero, the variance of such a walk at time t is 1 - exp(-2 t / T).
    t = np.arange(1, 1201)
    expected = 1 - np.exp(-2 * t / time_s)
    for at in (30, 300, 1199):
        assert values[:, at].var() == pytest.approx(expected[at], rel=0.35)
    if time_s > 1.0:
        later = min(1199, 300 + round(time_s))
        correlation = np.corrcoef(values[:, 300], values[:, later])[0, 1]
        keep = np.exp(-(later - 300) / time_s)
        shape = keep * np.sqrt(expected[300] / expected[later])
        assert correlation == pytest.approx(shape, abs=0.17)


def test_flows_fluctuate_by_their_size():
    plant, commands = only("noise"), np.zeros((1, 100, 4))
    commands[:, :, 1] = 0.4
    flow = run_machine(plant, np.zeros(1), commands).flow[0, 30:70, 1]
    assert 0.008 < flow.std() / flow.mean() < 0.022


def test_a_wider_dead_band_lets_less_through():
    plant = only("deadband")
    state = plant.reset(POSE)._replace(spool=jnp.full(4, 0.12))
    narrow, wide = (
        plant._hold_slow(state._replace(dead_band_shift=jnp.full(4, shift))).demand for shift in (-2.0, 2.0)
    )
    dead = np.asarray(plant.parameters.dead_band)
    gains = [
        valve_gain(jnp.full(4, 0.12), jnp.asarray(np.maximum((dead + shift) / dead, 0.005 / dead)), plant.parameters)
        for shift in (-0.02, 0.02)
    ]
    np.testing.assert_allclose(wide / narrow, gains[1] / gains[0], rtol=1e-5)
    assert (wide < 0.7 * narrow).all()


def test_the_oil_warms_over_the_day_and_flows_better():
    plant = only("oil")
    state, hour = plant.reset(POSE), 25 * 3600
    warm = jax.lax.fori_loop(0, 8 * hour, lambda _, t: plant._warmer(t), state.oil_temperature_c)
    assert float(state.oil_temperature_c) == 30.0
    assert float(warm) == pytest.approx(75.0 - 45.0 * np.exp(-8 / 3), abs=0.2)
    state = state._replace(spool=jnp.full(4, 0.9))
    cold, hot = (plant._hold_slow(state._replace(oil_temperature_c=jnp.asarray(t))).demand for t in (30.0, 75.0))
    np.testing.assert_allclose(hot / cold, 1.10 / 0.92, rtol=0.03)  # and a dead band that is a little narrower
    steady = only()
    assert float(steady._warmer(steady.reset(POSE).oil_temperature_c)) == 50.0


# Cylinders


def test_friction_is_a_share_of_the_force_and_has_a_stribeck_peak():
    force, seals = jnp.asarray([1.5e5, 1e5, 1e4, 4e4]), jnp.asarray(ChamberParameters().coulomb)
    level = coulomb_level(force, seals, SIZES)
    np.testing.assert_allclose(level, np.asarray(seals) + 0.05 * np.hypot(force, seals), rtol=1e-6)
    share = np.asarray(level / force)[:2]
    assert (share > 0.05).all()
    assert (share < 0.10).all()
    speed = jnp.linspace(-0.2, 0.2, 4001)
    curve = stribeck(speed, jnp.ones(4001), SIZES)
    assert 1.3 < curve.force.max() < 1.5
    assert curve.force[-1] == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(curve.force, -curve.force[::-1], atol=1e-4)
    # The slope is that of the smoothed sign; the Stribeck part, which falls, is left out.
    assert curve.slope[2000] == pytest.approx(1.45 / 0.003, rel=1e-6)


def test_going_up_takes_more_force_than_going_down(probed):
    """The same pose, first rising and then sinking: the forces differ by twice the friction."""
    position, force = probed.position[6, :, 0], boom_force(ALL, probed)[6]
    rising = np.interp(-0.87, position[25:50][::-1], force[25:50][::-1])
    sinking = np.interp(-0.87, position[75:100], force[75:100])
    weight = float((gravity_torque(POSE, jnp.asarray(0.0)) / moment_arms(POSE))[0])
    assert 0.05 < (rising - sinking) / 2 / weight < 0.11


def test_friction_takes_energy_out_of_a_swing():
    """Pushed with its valves shut, the arm comes to rest sooner with friction than without."""
    push = jnp.array([0.05, -0.05, 0.02, 0.05])
    rms = []
    for plant in (only("friction"), only()):
        states = trajectory(plant, plant.reset(POSE)._replace(velocity=push), jnp.zeros((40, 4)), KEY)
        rms.append(float(jnp.sqrt(jnp.mean(states.velocity[10:, 0] ** 2))))
    assert rms[0] < 0.8 * rms[1]


# Gripper


def test_a_hanging_payload_weighs_as_much_as_a_fixed_one():
    hanging = hang(POSE, jnp.zeros(4), jnp.zeros(2), jnp.asarray(1000.0), SIZES)
    weight = gravity_torque(POSE, jnp.asarray(1000.0)) - gravity_torque(POSE, jnp.asarray(0.0))
    np.testing.assert_allclose(hanging.torque, weight, rtol=1e-4, atol=1.0)
    # It moves up and down with the gripper, but not along with it.
    mass = add_mass(mass_matrix(POSE, jnp.asarray(0.0)), hanging.direction, jnp.asarray(1000.0)).dense()
    vertical = jax.jit(jax.jacfwd(gripper))(POSE)[1]
    expected = mass_matrix(POSE, jnp.asarray(0.0)).dense() + 1000.0 * jnp.outer(vertical, vertical)
    np.testing.assert_allclose(mass, expected, rtol=1e-4, atol=1.0)


def test_the_payload_swings_at_its_frequency():
    swing, angles = jnp.asarray([0.1, 0.0]), []
    for _ in range(800):
        swing = advance_swing(swing, jnp.zeros(2), 0.01, SIZES)
        angles.append(float(swing[0]))
    hz, damping = ring(np.asarray(angles), 0.01)
    assert hz == pytest.approx(0.5, rel=0.02)
    assert damping == pytest.approx(SIZES.swing_damping, rel=0.1)


def test_a_gripper_that_accelerates_leaves_its_payload_behind():
    # Steadily accelerated by a the payload hangs back at the angle atan(a / g).
    swing = jnp.zeros(2)
    heavy = dataclasses.replace(SIZES, swing_damping=0.7)
    for _ in range(800):
        swing = advance_swing(swing, jnp.asarray([2.0, 0.0]), 0.01, heavy)
    assert float(swing[0]) == pytest.approx(-np.arctan(2.0 / GRAVITY), abs=1e-3)


def test_a_swinging_payload_shakes_the_arm():
    commands = np.zeros((2, 100, 4))
    commands[:, :20, 1] = 0.8
    swinging = run_machine(only("swing"), np.asarray([0.0, 1500.0]), commands)
    fixed = run_machine(only(), np.asarray([0.0, 1500.0]), commands)
    np.testing.assert_allclose(swinging.position[0], fixed.position[0], atol=2e-4)  # nothing in the gripper
    assert np.abs(swinging.swing[1, 30:, 0]).max() > 0.03
    assert swinging.velocity[1, 60:, 0].std() > 2 * fixed.velocity[1, 60:, 0].std()


# Base


def ring(values, dt):
    """Frequency in Hz and damping ratio of a decaying oscillation, from its peaks."""
    peaks = [i for i in range(1, len(values) - 1) if values[i - 1] < values[i] >= values[i + 1] and values[i] > 0]
    decay = np.log(values[peaks[0]] / values[peaks[-1]]) / (len(peaks) - 1)
    damping = decay / np.hypot(2 * np.pi, decay)
    period = dt * (peaks[-1] - peaks[0]) / (len(peaks) - 1)
    return 1 / period / np.sqrt(1 - damping**2), damping


def test_the_base_pitches_at_its_frequency():
    """With oil that hardly gives way the arm is one with the base, which then is a plain oscillator."""
    stiff = dataclasses.replace(ChamberParameters(), bulk_modulus=4e10, hose_ratio=(1e-3,) * 4)
    plant = only("base", chambers=stiff)
    rest = plant.reset(POSE)
    states = trajectory(plant, rest._replace(base=rest.base.at[1].set(0.02)), jnp.zeros((100, 4)), KEY)
    hz, damping = ring(np.asarray(states.base[:, 0] - rest.base[0]), 0.04)
    assert hz == pytest.approx(SIZES.base_hz, rel=0.05)
    assert damping == pytest.approx(SIZES.base_damping, abs=0.03)


def test_at_rest_the_base_carries_the_arm():
    rest = only("base").reset(POSE)
    weight = -gravity_torque(POSE.at[0].add(rest.base[0]), jnp.asarray(0.0))[0]
    assert float(rest.base[0]) == pytest.approx(float(weight) / base_spring(SIZES)[0], rel=1e-4)
    assert 0.005 < float(rest.base[0]) < 0.02


# What can be lifted, and bad input


def test_goals_stay_where_the_payload_can_be_lifted():
    found = find_robot("excavator-realistic")
    shares = []
    for kg in (400.0, 1000.0, 1500.0):
        task = found.make(payload_kg=kg).task
        goals = task.sample_goals(np.random.default_rng(0), np.asarray([*task.home, 0, 0, 0, 0.0]), 20)
        assert CanLift(kg)(goals).all()
        everywhere = found.task.sample_goals(np.random.default_rng(0), np.asarray([*task.home, 0, 0, 0, 0.0]), 100)
        shares.append(CanLift(kg)(everywhere).mean())
    assert shares[0] == 1.0
    assert shares[0] >= shares[1] > shares[2]


def test_the_largest_payload_can_be_lifted_where_it_should():
    """Full command raises the boom with 1500 kg from poses that `CanLift` allows."""
    found = find_robot("excavator-realistic").make(payload_kg=1500.0).task
    start = np.asarray([*found.home, 0, 0, 0, 0.0])
    poses = found.sample_goals(np.random.default_rng(1), start, 12)
    poses = poses[poses[:, 0] > -1.0]
    commands = np.zeros((len(poses), 60, 4))
    commands[:, :, 0] = 1.0
    states = run_machine(ALL, np.full(len(poses), 1500.0), commands, poses)
    assert (states.position[:, -1, 0] < poses[:, 0] - 0.05).all()


@pytest.mark.parametrize(
    ("kg", "sentence"),
    [(2000.0, "payload is 2000 kg, but the machine can lift at most 1[56].0 kg where its goals are")],
)
def test_a_payload_that_cannot_be_lifted_is_refused(kg, sentence):
    with pytest.raises(UserError, match=sentence):
        find_robot("excavator-realistic").make(payload_kg=kg)
    robot: Any = find_robot("excavator-realistic").make()
    with pytest.raises(UserError, match=sentence):
        robot.set_payload(kg)
    assert float(robot.plant.plant.payload_kg) == 0.0


def test_effects_are_switched_by_name():
    assert plant_of("excavator-realistic:no-friction,no-swing").plant.effects == Effects().without("friction", "swing")
    assert plant_of("excavator-realistic:base").plant.effects == Effects.only("base")
    assert plant_of("excavator-realistic:none").plant.effects == NO_EFFECTS
    assert set(EFFECT_NAMES) == {field.name for field in dataclasses.fields(Effects)}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("excavator-realistic:no-fricton", "there is no effect 'fricton' .did you mean 'friction'.*; known are power"),
        ("excavator-realistic:no-base,swing", "must be either all without some .no-base. or some alone .swing."),
        ("excavator-realistic:", "nothing follows the colon"),
        ("excavator:no-base", "excavator has no variants; these have: excavator-realistic"),
    ],
)
def test_wrong_effects_are_refused_in_one_sentence(name, sentence):
    with pytest.raises(UserError, match=sentence):
        find_robot(name)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"droop is -0\.1, but must be zero or positive"):
        EffectSizes(droop=-0.1)
    with pytest.raises(ValueError, match=r"line_s is 0\.0 s, but must be at least 0\.005"):
        EffectSizes(line_s=0.0)


def test_it_is_seen_through_real_sensors_unless_told_otherwise():
    assert float(plant_of("excavator-realistic").sensors.noise[4]) == pytest.approx(0.01)
    assert isinstance(plant_of("excavator-realistic", sensors="exact"), ExcavatorRealistic)
    variant = plant_of("excavator-realistic:no-base", sensors="strong")
    assert float(variant.sensors.noise[0]) == pytest.approx(5e-3)
