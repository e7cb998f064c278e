"""What is said about a run's health, each number against a known answer."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import LearnerState, Rollout
from firsthand.agent.buffer import Buffer, append
from firsthand.models import Dynamics, Observer
from firsthand.tasks import excavator_task
from firsthand.training import health, preset
from firsthand.training.health import Health, closed_loop_growth, diagnose
from firsthand.training.learning import find_worst, health_metrics

# A program each, instead of one per operation.
lag_one_correlation = eqx.filter_jit(health.lag_one_correlation)
make_rollout = eqx.filter_jit(Rollout.from_arrays)

STEPS = 300
SPEC = excavator_task(steps=60, trajectories=4, hidden=(4,)).spec
PERIOD = SPEC.period_s


# The closed loop.


def linear_loop(rng: np.random.Generator, basis: np.ndarray, largest: float, steps: int):
    """A policy and a model whose closed loop has these eigenvectors and this largest eigenvalue; and a rollout."""
    loop = basis @ np.diag([largest, 0.5, -0.3]) @ np.linalg.inv(basis)
    into, gain = rng.standard_normal((3, 1)), rng.standard_normal((1, 3))
    free = loop - into @ gain  # A, such that A + BK is the loop
    valid = np.ones((2, steps), bool)
    valid[1, 5:] = False  # cut short: the rest counts for nothing
    rollout = Rollout(
        states=jnp.asarray(rng.standard_normal((2, steps + 1, 3)), jnp.float32),
        commands=jnp.zeros((2, steps, 1)),
        previews=jnp.zeros((2, steps, 2, 1)),
        free=jnp.ones((2, steps, 1), bool),
        valid=jnp.asarray(valid),
    )

    def policy(x, r):
        return jnp.asarray(gain, jnp.float32) @ x

    def dynamics(x, u):
        return jnp.asarray(free, jnp.float32) @ x + jnp.asarray(into, jnp.float32) @ u

    return policy, dynamics, rollout


@pytest.mark.parametrize("largest", [0.9, 1.02])
def test_a_linear_loop_grows_with_its_spectral_radius(largest):
    rng = np.random.default_rng(0)
    growth = closed_loop_growth(*linear_loop(rng, rng.standard_normal((3, 3)), largest, STEPS))
    assert float(growth) == pytest.approx(largest, rel=0.02)


def test_the_transient_of_a_loop_does_not_count():
    # Nearly parallel eigenvectors: a deviation first grows a hundredfold, then dies out.
    rng = np.random.default_rng(1)
    basis = np.asarray([[1.0, 1.0, 0.0], [0.0, 0.003, 0.0], [0.0, 0.0, 1.0]])
    policy, dynamics, rollout = linear_loop(rng, basis, 0.97, 60)
    rollout = eqx.tree_at(lambda r: r.valid, rollout, jnp.ones_like(rollout.valid))
    assert float(closed_loop_growth(policy, dynamics, rollout)) == pytest.approx(0.97, abs=2e-3)
    deviation, sizes = np.asarray([0.0, 1.0, 0.0]), []
    for _ in range(60):
        deviation = np.asarray(dynamics(jnp.asarray(deviation), policy(jnp.asarray(deviation), None)))
        sizes.append(np.linalg.norm(deviation))
    assert max(sizes) > 50
    assert sizes[-1] ** (1 / 60) > 1.0  # what the norm over the whole trajectory would say of this stable loop


# Innovations.


def coloured(rng: np.random.Generator, coefficient: float, kind: str) -> np.ndarray:
    white = rng.standard_normal((10, 400, 1))
    if kind == "moving average":
        return white[:, 1:] + coefficient * white[:, :-1]
    values = [white[:, 0]]
    for k in range(1, 400):
        values.append(coefficient * values[-1] + white[:, k])
    return np.stack(values, axis=1)


@pytest.mark.parametrize(
    ("kind", "coefficient", "correlation"),
    [("autoregressive", 0.0, 0.0), ("autoregressive", 0.6, 0.6), ("moving average", -1.0, -0.5)],
)
def test_the_correlation_of_innovations_is_that_of_the_process(kind, coefficient, correlation):
    errors = coloured(np.random.default_rng(2), coefficient, kind)
    errors[3, 17], errors[:, 100] = 1e4, np.nan  # an outlier and a gap decide nothing
    found = lag_one_correlation(jnp.asarray(errors, jnp.float32))
    assert float(found[0]) == pytest.approx(correlation, abs=0.05)


def test_too_few_or_vanishing_innovations_have_no_correlation():
    assert np.isnan(lag_one_correlation(jnp.ones((1, 10, 2)))).all()
    assert np.isnan(lag_one_correlation(jnp.zeros((1, 100, 2)))).all()
    assert np.isnan(lag_one_correlation(jnp.full((1, 100, 2), jnp.nan))).all()


def test_the_worst_channel_is_named():
    assert find_worst(np.asarray([0.2, -0.7, np.nan]), ("a", "b", "c")) == (-0.7, "b")
    value, name = find_worst(np.asarray([np.nan]), ("a",))
    assert np.isnan(value)
    assert name == ""


# Predictions on new data against those on old data.


def motion(rng: np.random.Generator, size: float = 1.0, spec=SPEC, trajectories: int = 4, steps: int = 60) -> Rollout:
    """Trajectories whose measurements are random walks, with changes of this size."""
    layout = spec.layout
    walk = size * np.cumsum(rng.standard_normal((trajectories, steps + 1, layout.num_measured)), axis=1)
    states = np.zeros((trajectories, steps + 1, layout.size), np.float32)
    states[..., : layout.num_measured] = walk
    points = (trajectories, steps, 1 + len(spec.preview), spec.num_outputs)
    return make_rollout(
        jnp.asarray(states), jnp.zeros((trajectories, steps, layout.num_commands)), previews=jnp.zeros(points)
    )


def learner(spec, **changes) -> LearnerState:
    """A learner whose model predicts no change of what it predicts."""
    settings = preset("paper").with_changes({"model.hidden": (4,), **changes})
    state = LearnerState.random(spec, settings, seed=0)
    still = jax.tree.map(jnp.zeros_like, state.dynamics.layers)
    return state.with_dynamics(eqx.tree_at(lambda d: d.layers, state.dynamics, still), state.optimizer)


def look_at(state: LearnerState, earlier: list[Rollout], new: Rollout, sound=None) -> Health:
    layout = state.dynamics.spec.layout
    buffer = Buffer.empty(1024, layout.size, layout.num_commands, layout.num_measured)
    for rollout in (*earlier, new):
        buffer = append(buffer, rollout)
    sound = jnp.ones(new.valid.shape, bool) if sound is None else sound
    return diagnose(state, state, buffer, new, sound, new)


@pytest.mark.parametrize("observer", [0, 2])
def test_new_errors_are_compared_with_those_on_the_data_learned_from(toy_spec, observer):
    rng = np.random.default_rng(3)
    state = learner(toy_spec, **{"observer.use": observer})
    earlier = [motion(rng, 1.0, toy_spec) for _ in range(3)]
    same = look_at(state, earlier, motion(rng, 1.0, toy_spec))
    larger = look_at(state, earlier, motion(rng, 3.0, toy_spec))
    # The model predicts that nothing changes: its errors are the changes, and a random walk's are white.
    assert float(same.forecast_error) == pytest.approx(1.0, abs=1e-5)
    assert float(same.one_step_error_ratio) == pytest.approx(1.0, abs=0.15)
    assert float(larger.one_step_error_ratio) == pytest.approx(3.0, rel=0.15)
    assert float(larger.forecast_error_ratio) == pytest.approx(3.0, rel=0.35)
    assert np.asarray(same.innovation_size) == pytest.approx(1.0, abs=0.25)
    assert np.asarray(larger.innovation_size) == pytest.approx(3.0, rel=0.25)
    assert np.abs(np.asarray(same.innovation_correlation)).max() < 0.2


def test_nothing_is_compared_in_the_first_episode(toy_spec):
    found = look_at(learner(toy_spec), [], motion(np.random.default_rng(4), 1.0, toy_spec))
    assert np.isnan(found.forecast_error_ratio)
    assert np.isnan(found.one_step_error_ratio)
    assert float(found.forecast_error) == pytest.approx(1.0, abs=1e-5)


def test_what_is_not_sound_or_too_small_counts_for_nothing(toy_spec):
    rng = np.random.default_rng(5)
    state, earlier, new = learner(toy_spec), [motion(rng, 1.0, toy_spec)], motion(rng, 1.0, toy_spec)
    spiked = eqx.tree_at(lambda r: r.states, new, new.states.at[1, 30, 0].set(1e6))
    sound = np.ones(new.valid.shape, bool)
    sound[1, 28:33] = False
    plain, without = look_at(state, earlier, new), look_at(state, earlier, spiked, jnp.asarray(sound))
    assert float(without.one_step_error_ratio) == pytest.approx(float(plain.one_step_error_ratio), rel=0.05)
    assert float(without.forecast_error_ratio) == pytest.approx(float(plain.forecast_error_ratio), rel=0.1)
    small = look_at(state, [motion(rng, 1e-3, toy_spec)], motion(rng, 3e-3, toy_spec))
    assert np.isnan(small.innovation_correlation).all()
    assert np.asarray(small.innovation_size).max() < 1.0


def test_stretches_of_the_buffer_end_at_gaps_and_before_new_rows(toy_spec):
    rng = np.random.default_rng(6)
    layout = toy_spec.layout
    buffer = Buffer.empty(1024, layout.size, layout.num_commands, layout.num_measured)
    for _ in range(2):
        buffer = append(buffer, motion(rng, 1.0, toy_spec, trajectories=2))
    rows = jnp.asarray(120)
    cut, sound = health.cut_stretches(buffer, rows, 3, 60)
    valid = np.asarray(cut.valid)
    assert valid.sum(axis=1).tolist() == [59, 59, 60 - 1]  # one step of each is across a gap, or beyond the last row
    assert (np.asarray(sound) == valid).all()
    stored, states = np.asarray(buffer.states[:120]), np.asarray(cut.states)
    assert all((stored == row).all(axis=1).any() for row in states.reshape(-1, layout.size))


# Late velocities.


def smooth_motion(rng: np.random.Generator, *, delay: int = 0, lag: float = 0.0, noise: float = 0.0) -> Rollout:
    """Joints that move smoothly, with velocities that the sensor shows late, through a low-pass, with noise."""
    steps, joints, start = 250, len(SPEC.layout.velocity), 20
    times = PERIOD * np.arange(-start, steps + 1)
    phases, rates = rng.uniform(0, 6.0, (2, 3, joints, 4)), rng.uniform(1.0, 6.0, (3, joints, 4))
    angle = rates[..., None] * times + phases[0][..., None]
    position, velocity = np.sin(angle).sum(2), (rates[..., None] * np.cos(angle)).sum(2)
    shown = velocity.copy()
    for k in range(1, shown.shape[-1]):
        shown[..., k] = lag * shown[..., k - 1] + (1 - lag) * velocity[..., k]
    shown = np.roll(shown, delay, axis=-1) + noise * rng.standard_normal(shown.shape)
    states = np.zeros((3, steps + 1, SPEC.layout.size), np.float32)
    states[..., SPEC.layout.position] = np.moveaxis(position[..., start:], 1, -1)
    states[..., SPEC.layout.velocity] = np.moveaxis(shown[..., start:], 1, -1)
    return Rollout.from_arrays(jnp.asarray(states), jnp.zeros((3, steps, SPEC.layout.num_commands)))


@pytest.mark.parametrize(
    ("sensor", "delay", "tolerance"),
    [
        ({}, 0.0, 0.05),
        ({"noise": 0.5}, 0.0, 0.1),
        ({"delay": 1}, 1.0, 0.05),
        ({"delay": 2, "noise": 0.5}, 2.0, 0.1),
        ({"lag": 0.5}, 1.0, 0.1),  # ½/(1 − ½): the delay of a slow signal behind this filter
        ({"lag": 0.5, "delay": 1, "noise": 0.5}, 2.0, 0.15),
    ],
)
def test_a_late_velocity_sensor_is_found_by_its_delay(sensor, delay, tolerance):
    rollout = smooth_motion(np.random.default_rng(7), **sensor)
    found = health.velocity_delays(SPEC, rollout, jnp.ones(rollout.valid.shape, bool))
    assert np.asarray(found) == pytest.approx(delay, abs=tolerance)


def test_velocities_that_are_swapped_are_found():
    rollout = smooth_motion(np.random.default_rng(7), noise=0.5, delay=1)
    sound = jnp.ones(rollout.valid.shape, bool)
    assert (np.asarray(health.followed_positions(SPEC, rollout, sound)) == -1).all()
    swapped = dataclasses.replace(SPEC, layout=dataclasses.replace(SPEC.layout, velocity=(5, 4, *range(6, 8))))
    assert np.asarray(health.followed_positions(swapped, rollout, sound)).tolist() == [1, 0, -1, -1]
    noise = motion(np.random.default_rng(8))
    assert (np.asarray(health.followed_positions(SPEC, noise, noise.valid)) == -1).all()


def test_no_delay_is_claimed_without_motion_or_velocities(toy_spec):
    rng = np.random.default_rng(8)
    noise = motion(rng)  # velocities and positions that have nothing to do with each other
    assert np.isnan(health.velocity_delays(SPEC, noise, noise.valid)).all()
    still = jax.tree.map(jnp.zeros_like, noise)
    assert np.isnan(health.velocity_delays(SPEC, still, noise.valid)).all()
    short = motion(rng, steps=5)
    assert np.isnan(health.velocity_delays(SPEC, short, short.valid)).all()
    plain = motion(rng, spec=toy_spec)
    assert health.velocity_delays(toy_spec, plain, plain.valid).shape == (0,)


def test_the_delay_that_an_observer_has_learned_is_the_centre_of_its_taps(toy_spec):
    observer = Observer.register(Dynamics.random(SPEC, (4,), key=jax.random.key(0)))
    assert health.mean_delay(observer) == 0.0
    taps = np.zeros(observer.parameters.taps.shape)
    taps[0], taps[1], taps[2] = 0.25, 0.5, 0.25
    late = dataclasses.replace(observer, parameters=observer.parameters._replace(taps=taps))
    assert health.mean_delay(late) == pytest.approx(1.0)
    assert np.isnan(health.mean_delay(Observer.register(Dynamics.random(toy_spec, (4,), key=jax.random.key(0)))))


def test_metrics_name_channels():
    nothing = jnp.asarray(jnp.nan)
    size = jnp.ones(8).at[5].set(4.0)
    correlation = jnp.full(8, jnp.nan)
    delay = jnp.asarray([0.1, 1.1, jnp.nan, 0.6])
    follows = jnp.asarray([-1, 0, -1, -1])
    found = Health(nothing, size, correlation, nothing, nothing, nothing, delay, follows, nothing, nothing)
    line = health_metrics(SPEC, found)
    assert (line["innovation_size"], line["innovation_size_channel"]) == (4.0, SPEC.layout.measured[5])
    assert np.isnan(line["innovation_correlation"])
    assert line["innovation_correlation_channel"] == ""
    assert line["velocity_delay"] == pytest.approx(1.1)
    joints = [SPEC.layout.measured[i].removesuffix(".velocity") for i in SPEC.layout.velocity]
    assert line["late_velocities"] == f"{joints[1]}, {joints[3]}"
    assert line["swapped_velocities"] == f"{SPEC.layout.measured[5]} follows {joints[0]}, not {joints[1]}"
