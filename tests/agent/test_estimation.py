"""The learned observer: against the Kalman filter, against the onboard one, and when it is used."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

from firsthand.agent import estimation, windows
from firsthand.agent.buffer import Buffer, append_rollout, append_rows
from firsthand.agent.estimation import (
    BURN_IN,
    Estimation,
    gain_mask,
    initial_observer,
    learn_candidates,
    learn_observer,
    observer_dynamics,
    split_observer,
)
from firsthand.agent.model_learning import ModelReport, adam, initial_optimizer, learn_model
from firsthand.agent.settings import Settings
from firsthand.models import Dynamics, Observer
from firsthand.optim.rollout import Rollout
from firsthand_onboard import NumpyObserver
from firsthand_onboard.features import initial_state, next_state

# A program each, instead of one per operation.
estimate_rollout = eqx.filter_jit(estimation.estimate_rollout)
estimate_states = eqx.filter_jit(estimation.estimate_states)
forecast_errors = eqx.filter_jit(estimation.forecast_errors)
innovation_error = eqx.filter_jit(estimation.innovation_error)
find_continuations = eqx.filter_jit(windows.find_continuations)
make_rollout: Any = eqx.filter_jit(Rollout.from_arrays)

PERIOD, A, B = 0.1, 0.9, 0.2
"""v⁺ = A v + B u + w; the position follows by the trapezoidal rule."""
PROCESS, POSITION, VELOCITY = 0.05, 0.02, 0.3
"""Standard deviations: of w, and of the noise in both measurements."""


@pytest.fixture(scope="module")
def spec(make_probe_task):
    return make_probe_task(
        measured=2, command_memory=1, steps=10, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    ).spec


def simulate(steps: int, seed: int, noise: float = 1.0):
    """True states (steps + 1, 2), measurements, and commands."""
    rng = np.random.default_rng(seed)
    commands = np.repeat(rng.uniform(-1.0, 1.0, -(-steps // 5)), 5)[:steps, None]
    truth = np.zeros((steps + 1, 2))
    for k in range(steps):
        p, v = truth[k]
        after = A * v + B * commands[k, 0] + noise * PROCESS * rng.standard_normal()
        truth[k + 1] = p + PERIOD * (v + after) / 2, after
    measured = truth + noise * rng.standard_normal(truth.shape) * (POSITION, VELOCITY)
    return truth, measured.astype(np.float32), commands.astype(np.float32)


def registers(spec, measured, commands) -> np.ndarray:
    states = [initial_state(spec.layout, measured[0], np.zeros(1, np.float32))]
    for k in range(len(commands)):
        states.append(next_state(spec.layout, states[-1], commands[k], measured[k + 1]))
    return np.stack(states)


def fill(spec, *runs) -> Buffer:
    buffer = Buffer.empty(sum(len(commands) for _, _, commands in runs), spec.layout.size, 1, 2)
    for _, measured, commands in runs:
        buffer = append_rows(buffer, registers(spec, measured, commands)[:-1], commands, measured[1:])
    return buffer


def as_rollout(spec, run, trajectories: int = 1) -> Rollout:
    """One run cut into trajectories that follow each other."""
    _, measured, commands = run
    states, steps = registers(spec, measured, commands), len(commands) // trajectories
    cut = np.stack([states[i * steps : (i + 1) * steps + 1] for i in range(trajectories)])
    return make_rollout(cut, commands[: trajectories * steps].reshape(-1, steps, 1))


SETTINGS = Settings().with_changes(
    {
        "model.steps": 3600,
        "model.rate": 3e-3,
        "model.rate_end": 0.02,
        "model.hidden": (8,),
        "model.horizon": 8,
        "observer.use": 1,
        "observer.closed": 16,
        "observer.windows": 64,
    }
)


QUICK = SETTINGS.with_changes(
    {"model.steps": 4, "model.horizon": 2, "observer.closed": 2, "observer.windows": 4, "observer.rival_share": 0.1}
)
"""Of which a tenth is less than one step."""


def learn(spec, buffer: Buffer, settings: Settings = SETTINGS) -> Observer:
    observer = initial_observer(Dynamics.random(spec, settings.model.hidden, key=jax.random.key(0)), settings)
    moments = adam(settings).init(split_observer(observer)[0])  # pyright: ignore[reportArgumentType] (a pytree)
    steps = jnp.asarray(settings.model.steps)
    jitted = jax.jit(learn_observer, static_argnames="settings")
    observer, _, loss, _ = jitted(
        observer, moments, buffer, find_continuations(buffer), steps, settings, key=jax.random.key(1)
    )
    assert np.isfinite(float(loss))
    return observer


@pytest.fixture(scope="module")
def learned(spec) -> Observer:
    """Learned from 10 000 noisy samples."""
    return learn(spec, fill(spec, simulate(10_000, seed=0)))


def kalman_gain() -> np.ndarray:
    """The steady-state filter of the true plant."""
    transition = np.asarray([[1.0, PERIOD * (1 + A) / 2], [0.0, A]])
    entry = np.asarray([[PERIOD / 2], [1.0]])
    noise = np.diag([POSITION**2, VELOCITY**2])
    predicted = solve_discrete_are(transition.T, np.eye(2), PROCESS**2 * entry @ entry.T, noise)
    return predicted @ np.linalg.inv(predicted + noise)


def test_the_learned_observer_estimates_about_as_well_as_the_kalman_filter(spec, learned):
    truth, measured, commands = simulate(4000, seed=7)
    rollout = estimate_rollout(learned, as_rollout(spec, (truth, measured, commands)))
    gain, estimate, optimal = kalman_gain(), measured[0].astype(float), []
    for k in range(len(commands)):
        after = A * estimate[1] + B * commands[k, 0]
        predicted = np.asarray([estimate[0] + PERIOD * (estimate[1] + after) / 2, after])
        estimate = predicted + gain @ (measured[k + 1] - predicted)
        optimal.append(estimate)
    unit = np.asarray([POSITION, VELOCITY])

    def error(estimates) -> float:
        return float(np.mean((((np.asarray(estimates) - truth[1:]) / unit) ** 2)[100:]))

    found, best = error(np.asarray(rollout.states)[0, 1:, :2]), error(optimal)
    assert error(measured[1:]) > 2 * best  # there is something to estimate
    assert found < 1.1 * best, (found, best)


def slopes(model: Dynamics, spec) -> np.ndarray:
    """A and B of the model, as means over states that were visited."""
    _, measured, commands = simulate(400, seed=3)
    states = jnp.asarray(registers(spec, measured, commands)[:-1])
    jacobians = jax.jit(jax.vmap(jax.jacfwd(lambda x, u: model(x, u)[1], argnums=(0, 1))))
    state, command = map(np.asarray, jacobians(states, commands))
    return np.asarray([state[:, 1].mean(), command[:, 0].mean()])


def test_its_model_has_the_plants_slopes_where_one_step_predictions_do_not(spec, learned):
    buffer = fill(spec, simulate(10_000, seed=0))
    settings = SETTINGS.with_changes({"model.horizon": 1})
    plain = Dynamics.random(spec, settings.model.hidden, key=jax.random.key(0))
    plain, _, _ = learn_model(plain, initial_optimizer(plain, settings), buffer, settings, key=jax.random.key(1))
    truth = np.asarray([A, B])
    off = [
        np.linalg.norm(slopes(model, spec) - truth) / np.linalg.norm(truth)
        for model in (observer_dynamics(learned), plain)
    ]
    assert off[0] < 0.05, off
    assert off[1] > 0.1, off


def check_outliers(spec, learned, seed: int, share: float) -> None:
    """This share of measurements is off by a hundred standard deviations; now and then several in a row."""
    truth, measured, commands = simulate(2000, seed=seed)
    rng = np.random.default_rng(seed)
    off = rng.random(measured.shape) < share
    off[500:504], off[900:910, 0] = True, True
    unit = np.asarray([POSITION, VELOCITY])
    spoiled = (measured + off * rng.choice([-100.0, 100.0], measured.shape) * unit).astype(np.float32)
    clean, found = (
        np.asarray(estimate_rollout(learned, as_rollout(spec, (truth, each, commands))).states)[0, 1:, :2]
        for each in (measured, spoiled)
    )
    errors = [np.sqrt(np.mean(((each - truth[1:]) / unit) ** 2, axis=1)) for each in (clean, found)]
    assert np.median(errors[1]) < 1.5 * np.median(errors[0])
    assert errors[1][1000:].max() < 10.0  # far below an outlier
    assert errors[1][960:].mean() < 3.0 * errors[0][960:].mean()  # also after ten in a row, at which it restarted


@pytest.mark.parametrize("seed", range(3))
def test_outliers_do_not_make_the_estimate_diverge(spec, learned, seed):
    check_outliers(spec, learned, seed, 0.05)


@pytest.mark.slow
def test_outliers_do_not_make_the_estimate_diverge_in_a_hundred_runs(spec, learned):
    for seed in range(100, 200):
        check_outliers(spec, learned, seed, 0.05 * (seed - 99) / 100)


def test_a_learned_gain_only_links_a_position_with_its_own_velocity(toy_spec, spec):
    assert gain_mask(spec)[0].tolist() == [[1, 1], [1, 1]]
    assert gain_mask(toy_spec).shape == (2, 2, 2)
    assert gain_mask(toy_spec)[1].tolist() == [[1, 0], [0, 1]]


def test_stored_data_are_estimated_as_the_robot_does_it(spec, learned):
    runs = [simulate(300, seed=11), simulate(70, seed=12)]
    buffer = fill(spec, *runs)
    states = np.asarray(estimate_states(learned, buffer, find_continuations(buffer)))
    expected = []
    for _, measured, commands in runs:
        onboard = NumpyObserver.of(spec, learned)
        onboard.begin(initial_state(spec.layout, measured[0], np.zeros(1, np.float32)))
        for k in range(len(commands)):
            expected.append(onboard.state.copy())
            onboard.observe(commands[k], measured[k + 1])
    expected = np.stack(expected)
    np.testing.assert_allclose(states[:128], expected[:128], atol=2e-5)  # the first segment has no burn-in
    np.testing.assert_allclose(states[300:370], expected[300:], atol=2e-5)  # nor has what follows a gap
    late = np.abs(states[128:300] - expected[128:300]).max()
    assert late < 0.02 * VELOCITY, (late, BURN_IN)  # what came before the burn-in is forgotten


def numbered_buffer(rows: int, capacity: int) -> Buffer:
    """A buffer of which only size and shapes matter."""
    return eqx.tree_at(lambda b: b.size, Buffer.empty(capacity, 1, 1, 1), jnp.asarray(rows, jnp.int32))


def test_of_many_data_the_newest_and_an_even_sample_are_estimated(monkeypatch):
    monkeypatch.setattr(estimation, "SEGMENTS_AT_ONCE", 4)
    monkeypatch.setattr(estimation, "MOST_SEGMENTS", 8)
    drawn = set()
    for seed in range(30):
        buffer = numbered_buffer(12 * 128 - 100, 2048)  # twelve segments, of the last of which 28 rows are in use
        segments = estimation.choose_segments(buffer, 100, key=jax.random.key(seed))
        first, second, *_ = chosen = segments.tolist()
        drawn.add(tuple(chosen))
        assert int(estimation.count_chosen(buffer, segments)) == 7 * 128 + 28
        places = jnp.asarray([0, 127, 128, 7 * 128 + 27])
        rows = np.asarray(estimation.chosen_rows(buffer, segments, places)).tolist()
        assert rows == [128 * first, 128 * first + 127, 128 * second, 11 * 128 + 27]
    # 100 rows lie in two segments at most; six of the other ten, (10 j + first) // 6 for a first of 0 to 9.
    assert all(chosen[6:] == (10, 11) for chosen in drawn)
    assert {(0, 1, 3, 5, 6, 8, 10, 11), (1, 3, 4, 6, 8, 9, 10, 11)} <= drawn
    assert {number for chosen in drawn for number in chosen} == set(range(12))

    few = numbered_buffer(8 * 128, 2048)
    segments = estimation.choose_segments(few, 100, key=jax.random.key(0))
    assert segments.tolist() == list(range(8))
    assert int(estimation.count_chosen(few, segments)) == 8 * 128
    large = estimation.choose_segments(numbered_buffer(12 * 128, 2048), 600, key=jax.random.key(0))
    assert large.tolist() == list(range(12))  # a large episode is no more than half of what is estimated


def test_the_observer_learns_only_from_what_was_estimated(spec, learned, monkeypatch):
    monkeypatch.setattr(estimation, "SEGMENTS_AT_ONCE", 2)
    monkeypatch.setattr(estimation, "MOST_SEGMENTS", 4)
    buffer, seen = fill(spec, simulate(1000, seed=16)), []
    follows = find_continuations(buffer)

    def poisoned(observer, buffer, continuations, segments):
        states = found(observer, buffer, continuations, segments)
        estimated = jnp.any(states != 0, axis=1)
        jax.debug.callback(lambda count: seen.append(int(count)), estimated.sum())
        return jnp.where(estimated[:, None], states, jnp.nan)

    found = estimation.estimate_states
    monkeypatch.setattr(estimation, "estimate_states", poisoned)
    moments = adam(QUICK).init(split_observer(learned)[0])  # pyright: ignore[reportArgumentType] (a pytree)

    @jax.jit  # a function of its own: what is compiled of `learn_observer` elsewhere knows nothing of the poison
    def learn(buffer, follows):
        return learn_observer(learned, moments, buffer, follows, jnp.asarray(30), QUICK, key=jax.random.key(1))

    after, _, loss, _ = learn(buffer, follows)
    jax.effects_barrier()
    assert np.isfinite(float(loss))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert seen == [4 * 128 - 24] * 3  # of the eight segments the last has 104 rows


def test_an_estimate_goes_on_from_one_trajectory_to_the_next(spec, learned):
    run = simulate(60, seed=13)
    whole = np.asarray(estimate_rollout(learned, as_rollout(spec, run)).states)[0]
    parts = np.asarray(estimate_rollout(learned, as_rollout(spec, run, trajectories=3)).states)
    for i in range(3):
        np.testing.assert_allclose(parts[i], whole[20 * i : 20 * i + 21], atol=1e-6)


def test_the_outcome_of_the_last_step_before_a_gap_is_the_estimate(spec, learned):
    rollout = as_rollout(spec, simulate(20, seed=14))
    valid = np.ones((1, 20), bool)
    valid[0, 10] = False
    cut = make_rollout(rollout.states, rollout.commands, valid=valid)
    whole, found = (np.asarray(estimate_rollout(learned, each).states)[0] for each in (rollout, cut))
    np.testing.assert_allclose(found[:11], whole[:11], atol=1e-6)  # x̂_10 is the outcome of step 9
    assert np.abs(found[12] - whole[12]).max() > 1e-4  # behind the gap the estimate began anew


def test_the_error_of_an_observers_model_is_that_of_its_predictions(spec, learned):
    """A small gain hides errors of the estimate's own changes, not those of predicted measurements."""
    rollout = as_rollout(spec, simulate(400, seed=15))
    deaf = dataclasses.replace(learned, parameters=learned.parameters._replace(gain=0 * learned.parameters.gain))
    exact = float(innovation_error(learned, rollout))
    assert float(innovation_error(deaf, rollout)) > exact > 0
    innovation = (VELOCITY**2 + PROCESS**2) / float(learned.parameters.change_scale[0]) ** 2
    assert 0.5 * innovation < exact < 2 * innovation  # about the noise of the velocity
    blind = make_rollout(rollout.states, rollout.commands, valid=np.zeros(rollout.valid.shape, bool))
    assert np.isnan(float(innovation_error(learned, blind)))


def test_the_newest_episode_is_judged_before_the_observer_learns_from_it(spec, learned):
    settings = SETTINGS.with_changes({"model.steps": 3, "model.min_change_scale": 1.0})  # scales are at their floor
    old, new = simulate(300, seed=31, noise=0.05), simulate(120, seed=32, noise=0.05)
    buffer, rollout = fill(spec, old, new), as_rollout(spec, new)
    follows = find_continuations(buffer)
    moments = adam(settings).init(split_observer(learned)[0])  # pyright: ignore[reportArgumentType] (a pytree)
    jitted = jax.jit(learn_observer, static_argnames="settings")
    rest = (buffer, follows, jnp.asarray(3), settings, rollout)
    *_, held_out = jitted(learned, moments, *rest, key=jax.random.key(1))

    states, first = estimate_states(learned, buffer, follows), jnp.asarray(300 + np.arange(0, 120, 8))
    length = settings.observer.closed + settings.model.horizon
    cut = jax.jit(windows.cut_windows, static_argnums=4)(buffer, states, follows, first, length)  # to the last row
    scale = jnp.asarray(spec.scales.change_scale)
    judged = Observer(learned.parameters._replace(scale=scale), learned.settings, learned.spec)
    loss = jax.jit(estimation.observed_loss, static_argnums=(2, 3))
    expected = loss(judged, cut, settings.observer.closed, settings.model.huber)
    assert float(held_out) == pytest.approx(float(expected), rel=1e-4)


def candidates(spec, noise: float, episodes: int = 4, *, late: bool = False) -> Estimation:
    settings = SETTINGS.with_changes({"model.steps": 600, "observer.windows": 16})
    model = Dynamics.random(spec, settings.model.hidden, key=jax.random.key(0))
    found, optimizer = Estimation.initial(model, settings), initial_optimizer(model, settings)
    buffer = Buffer.empty(episodes * 600, spec.layout.size, 1, 2)
    update = jax.jit(learn_candidates, static_argnames="settings")
    for i in range(episodes):
        truth, measured, commands = simulate(600, seed=20 + i, noise=noise)
        if late:
            measured[1:, 1] = measured[:-1, 1].copy()
        rollout = as_rollout(spec, (truth, measured, commands), trajectories=6)
        buffer = append_rollout(buffer, rollout)
        found, optimizer, report = update(found, optimizer, buffer, rollout, settings, key=jax.random.key(i))
        assert bool(report.accepted)
    return found


def test_the_observer_is_used_behind_noisy_sensors_and_not_behind_exact_ones(spec):
    noisy, exact = candidates(spec, 1.0), candidates(spec, 0.0)
    assert bool(noisy.active)
    assert float(noisy.advantage) < 0
    assert not bool(exact.active)
    assert float(exact.missed) < SETTINGS.model.noise_share < float(noisy.missed)
    assert int(exact.trials) == 1  # the first update cannot know it; then nothing is left to estimate
    # What the policy is given is the model of the one in use.
    for found, expected in ((noisy, observer_dynamics(noisy.observer)), (exact, exact.register_model)):
        for a, b in zip(jax.tree.leaves(found.dynamics), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)


def updated(spec, *, active: bool, spoilt: bool = False) -> tuple[Estimation, Estimation, ModelReport]:
    """Candidates that were tried often enough, before and after an update; whether the register's moments are NaN."""
    model = Dynamics.random(spec, QUICK.model.hidden, key=jax.random.key(0))
    rollout = as_rollout(spec, simulate(120, seed=5), trajectories=2)
    buffer = append_rollout(Buffer.empty(120, spec.layout.size, 1, 2), rollout)
    before = dataclasses.replace(
        Estimation.initial(model, QUICK),
        trials=jnp.asarray(QUICK.observer.trials, jnp.int32),
        active=jnp.asarray(active),
        advantage=jnp.asarray(-5.0 if active else 5.0),
    )
    optimizer = initial_optimizer(model, QUICK)
    if spoilt:
        optimizer = jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.ndim else leaf, optimizer)
    update = jax.jit(learn_candidates, static_argnames="settings")
    after, _, report = update(before, optimizer, buffer, rollout, QUICK, key=jax.random.key(1))
    assert bool(after.active) == active
    return before, after, report


def test_the_rival_of_the_one_in_use_takes_a_step_where_its_share_of_the_steps_is_less_than_one(spec):
    _, after, report = updated(spec, active=False)
    assert bool(report.accepted)
    assert adam_steps(after.optimizer) == 1


def test_a_register_that_is_not_finite_costs_only_itself_where_the_observer_is_in_use(spec):
    before, after, report = updated(spec, active=True, spoilt=True)
    assert bool(report.accepted)
    assert adam_steps(after.optimizer) == QUICK.model.rescalings  # as many steps in each round
    assert np.isfinite([float(report.loss), float(after.missed), float(after.slipped)]).all()
    same = before.register_model.with_change_scale(after.register_model.change_scale)
    for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(after.register_model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # as it was, in the units of the data
    _, _, report = updated(spec, active=False, spoilt=True)
    assert not bool(report.accepted)  # the policy would see it


def adam_steps(optimizer) -> int:
    """Adam's own count."""
    (count,) = (int(leaf) for leaf in jax.tree.leaves(optimizer) if leaf.ndim == 0)
    return count


def test_the_observer_is_compared_behind_late_velocities_without_noise(spec):
    late = candidates(spec, 0.0, episodes=2, late=True)
    assert float(late.slipped) > SETTINGS.observer.slip_share
    assert int(late.trials) > 0
    assert float(late.missed) < SETTINGS.model.noise_share  # one-step predictions do not show it


def test_register_and_observer_forecast_alike_before_anything_is_learned(spec):
    observer = initial_observer(Dynamics.random(spec, (8,), key=jax.random.key(0)), SETTINGS)
    rollout = as_rollout(spec, simulate(120, seed=5), trajectories=2)
    plain, estimated = forecast_errors(observer_dynamics(observer), observer, rollout, SETTINGS)
    assert float(plain) == pytest.approx(float(estimated), rel=1e-5)


def test_an_episode_without_a_valid_step_compares_nothing(spec):
    observer = initial_observer(Dynamics.random(spec, (8,), key=jax.random.key(0)), SETTINGS)
    rollout = as_rollout(spec, simulate(60, seed=5))
    blind = make_rollout(rollout.states, rollout.commands, valid=np.zeros(rollout.valid.shape, bool))
    assert all(
        np.isnan(float(error)) for error in forecast_errors(observer_dynamics(observer), observer, blind, SETTINGS)
    )
