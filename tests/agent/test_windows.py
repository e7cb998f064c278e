"""Windows of the buffer, the loss over them, and what they are for: Jacobians that noise does not attenuate."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import windows as module
from firsthand.agent.buffer import Buffer, ImaginedStarts, append, append_rows
from firsthand.agent.corrected_model import imagined_errors, make_rollout_inputs
from firsthand.agent.model_learning import initial_optimizer, learn_model, rescale
from firsthand.agent.settings import Settings
from firsthand.agent.windows import Windows
from firsthand.models import Dynamics
from firsthand.optim.rollout import Rollout
from firsthand_onboard.features import initial_state, next_state

# A program each, instead of one per operation.
draw_windows, find_continuations = eqx.filter_jit(module.draw_windows), eqx.filter_jit(module.find_continuations)
find_sound, error_scales = eqx.filter_jit(module.find_sound), eqx.filter_jit(module.error_scales)
multi_step_loss, noise_share = eqx.filter_jit(module.multi_step_loss), eqx.filter_jit(module.noise_share)
noise_blend, pseudo_huber = eqx.filter_jit(module.noise_blend), eqx.filter_jit(module.pseudo_huber)

A, B = 0.9, 0.2
"""The probe's velocity: v⁺ = A v + B u₋₁."""


@pytest.fixture(scope="module")
def spec(make_probe_task):
    return make_probe_task(
        measured=2, command_memory=2, steps=10, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    ).spec


def sequence(spec, steps: int, noise: float, seed: int = 0):
    """Transitions of the probe in a row, its velocity measured with noise."""
    rng = np.random.default_rng(seed)
    measured, p, v, last = [], 0.0, 0.0, 0.0
    commands = rng.uniform(-1.0, 1.0, steps)
    for k in range(steps + 1):
        measured.append((p, v + noise * rng.standard_normal()))
        after = A * v + B * last
        p, v = p + 0.1 * (v + after) / 2, after
        last = commands[k] if k < steps else 0.0
    measured = np.asarray(measured, np.float32)
    state, states = initial_state(spec.layout, measured[0], np.zeros(1, np.float32)), []
    for k in range(steps):
        states.append(state)
        state = next_state(spec.layout, state, np.asarray([commands[k]], np.float32), measured[k + 1])
    return np.stack(states), commands[:, None].astype(np.float32), measured[1:]


def fill(spec, *sequences) -> Buffer:
    buffer = Buffer.empty(sum(len(s[0]) for s in sequences), spec.layout.size, 1, 2)
    for rows in sequences:
        buffer = append_rows(buffer, *rows)
    return buffer


def test_a_row_continues_unless_a_gap_lies_behind_it(spec):
    buffer = fill(spec, sequence(spec, 5, 0.1, seed=1), sequence(spec, 4, 0.1, seed=2))
    follows = np.asarray(find_continuations(buffer))
    assert follows[:9].tolist() == [True] * 4 + [False] + [True] * 3 + [False]
    assert not follows[9:].any()  # rows that are not in use


def test_windows_end_at_gaps_and_hold_what_was_measured(spec):
    buffer = fill(spec, sequence(spec, 5, 0.1, seed=1), sequence(spec, 6, 0.1, seed=2))
    windows = draw_windows(buffer, find_continuations(buffer), find_sound(buffer), 96, 4, key=jax.random.key(0))
    states, following = np.asarray(buffer.states), np.asarray(buffer.following)
    seen = set()
    for start, commands, targets, counts in zip(*map(np.asarray, windows), strict=True):
        row = int(np.flatnonzero((states[:11] == start).all(axis=1))[0])
        seen.add(row)
        length = min(4, 5 - row) if row < 5 else min(4, 11 - row)
        assert counts.tolist() == [k < length for k in range(4)]
        np.testing.assert_array_equal(targets[:length], following[row : row + length])
        np.testing.assert_array_equal(commands[:length], np.asarray(buffer.commands)[row : row + length])
    assert seen == set(range(11))


def test_the_multi_step_loss_equals_a_case_worked_by_hand():
    windows = Windows(
        jnp.asarray([[1.0], [5.0]]),
        jnp.asarray([[[1.0], [2.0]], [[0.0], [0.0]]]),
        jnp.asarray([[[2.5], [6.0]], [[3.0], [100.0]]]),
        jnp.asarray([[True, True], [True, False]]),
    )
    # x̂ is 0.5 + 1 = 1.5, then 0.75 + 2 = 2.75; the second window's is 2.5, and its second row lies behind a gap.
    errors = np.asarray([1.5 - 2.5, 2.75 - 6.0, 2.5 - 3.0]) / 0.5
    expected = np.mean(4.0 * (np.sqrt(1 + (errors / 2.0) ** 2) - 1))
    loss = multi_step_loss(lambda x, u: 0.5 * x + u, windows, jnp.asarray([0.5]), 2.0)
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_the_robust_loss_is_quadratic_for_small_and_linear_for_large_errors():
    assert float(pseudo_huber(jnp.asarray(0.1), 3.0)) == pytest.approx(0.1**2 / 2, rel=1e-3)
    assert float(pseudo_huber(jnp.asarray(1e4), 3.0)) == pytest.approx(3.0 * 1e4, rel=1e-3)


SETTINGS = Settings().with_changes(
    {"model.steps": 1500, "model.rate": 3e-3, "model.rate_end": 0.05, "model.hidden": (16,), "model.windows": 16}
)


def learned(spec, buffer, horizon: int) -> Dynamics:
    settings = SETTINGS.with_changes({"model.horizon": horizon})
    model = Dynamics.random(spec, (16,), key=jax.random.key(0))
    model, _, report = learn_model(model, initial_optimizer(model, settings), buffer, settings, key=jax.random.key(1))
    assert bool(report.accepted)
    return model


def test_fewer_steps_than_rescalings_are_taken_all_the_same(spec):
    settings = SETTINGS.with_changes({"model.horizon": 4, "model.steps": 2, "model.rescalings": 3})
    model = Dynamics.random(spec, (16,), key=jax.random.key(0))
    optimizer = initial_optimizer(model, settings)
    after, optimizer, report = learn_model(
        model, optimizer, fill(spec, sequence(spec, 200, 0.1)), settings, key=jax.random.key(1)
    )
    assert bool(report.accepted)
    assert np.isfinite(float(report.loss))
    assert [int(count) for count in jax.tree.leaves(optimizer) if count.ndim == 0] == [2]  # Adam's own
    assert not np.array_equal(after.layers[0][0], model.layers[0][0])


def newest_episode(spec, rows) -> Rollout:
    """A sequence as one trajectory."""
    states, commands, following = rows
    last = next_state(spec.layout, states[-1], commands[-1], following[-1])
    return Rollout.from_arrays(jnp.asarray(np.stack([*states, last])[None]), jnp.asarray(commands[None]))


def test_the_newest_episode_is_judged_before_the_model_learns_from_it(spec):
    # With scales at their floor and roll-outs alone, the loss can be worked out window by window.
    settings = SETTINGS.with_changes(
        {"model.horizon": 4, "model.steps": 30, "model.min_change_scale": 1.0, "model.noise_share": 1e-6}
    )
    spec = dataclasses.replace(spec, scales=dataclasses.replace(spec.scales, change_scale=(1.0, 1.0)))
    newest = sequence(spec, 60, 0.1, seed=1)
    rollout, sound = newest_episode(spec, newest), np.ones((1, 60), bool)
    sound[0, 10] = False
    model = Dynamics.random(spec, (16,), key=jax.random.key(0))

    def learn(newest: Rollout):
        buffer = append(fill(spec, sequence(spec, 200, 0.1)), newest, jnp.asarray(sound))
        args = (model, initial_optimizer(model, settings), buffer, settings)
        return learn_model(*args, newest=newest, key=jax.random.key(1))[2], buffer

    report, buffer = learn(rollout)
    step, (states, commands, following) = eqx.filter_jit(rescale(model, buffer, settings)), newest
    errors = []
    for first in range(0, 60, 8):
        state = states[first]
        for k in range(first, min(first + 4, 60)):
            state = step(state, commands[k])
            errors += [] if k == 10 else [(np.asarray(state)[:2] - following[k]) / np.asarray(spec.scales.change_scale)]
    expected = np.mean(settings.model.huber**2 * (np.sqrt(1 + (np.asarray(errors) / settings.model.huber) ** 2) - 1))
    assert float(report.held_out) == pytest.approx(expected, rel=1e-4)

    report, _ = learn(eqx.tree_at(lambda r: r.valid, rollout, jnp.zeros_like(rollout.valid)))  # nothing was measured
    assert np.isfinite(float(report.loss))
    assert np.isnan(float(report.held_out))


def slopes(model: Dynamics, buffer: Buffer) -> np.ndarray:
    """∂v⁺/∂v and ∂v⁺/∂u₋₁, as the mean over visited states."""
    rows = buffer.states[:400]
    jacobians = eqx.filter_jit(eqx.filter_vmap(jax.jacfwd(lambda x: model(x, jnp.zeros(1)))))(rows)
    return np.asarray(jacobians[:, 1]).mean(axis=0)[[1, 2]]


def test_roll_outs_learn_the_slopes_that_noise_hides_from_one_step_predictions(spec):
    buffer = fill(spec, sequence(spec, 4000, noise=0.1))
    truth = np.asarray([A, B])
    one_step, windows = (slopes(learned(spec, buffer, horizon), buffer) for horizon in (1, 12))
    off = [np.linalg.norm(found - truth) / np.linalg.norm(truth) for found in (one_step, windows)]
    assert off[1] < 0.08, (one_step, windows)
    assert off[0] > 2 * off[1], (one_step, windows)


def test_the_share_that_cannot_be_predicted_tells_noise_from_exact_sensors(spec):
    shares = []
    for noise in (0.0, 0.25):
        buffer = fill(spec, sequence(spec, 1500, noise=noise))
        model = learned(spec, buffer, 12)
        states, commands, following = (np.asarray(a)[:1500] for a in (buffer.states, buffer.commands, buffer.following))
        predictions = np.asarray(jax.jit(jax.vmap(model))(states, commands))[:, :2]
        scales = error_scales(jnp.asarray(predictions - following), model, SETTINGS)
        shares.append(float(noise_share(scales, model)))
    assert shares[0] < SETTINGS.model.noise_share < shares[1]


def test_imagined_trajectories_meet_the_measured_disturbances_shifted_in_time():
    measured = jnp.arange(24.0).reshape(2, 6, 2)
    errors = np.asarray(imagined_errors(measured, 5, 1))
    for i in range(5):
        np.testing.assert_array_equal(errors[i], np.roll(np.asarray(measured[i % 2]), (1 + i) * 37 % 6, axis=0))
    assert not np.asarray(imagined_errors(measured, 5, 0)).any()


def test_what_is_missed_counts_as_noise_from_a_third_of_the_share_on():
    share = SETTINGS.model.noise_share
    found = [float(noise_blend(jnp.asarray(part * share), SETTINGS)) for part in (0.1, 1 / 3, 2 / 3, 1.0, 5.0)]
    np.testing.assert_allclose(found, [0.0, 0.0, 0.5, 1.0, 1.0], atol=1e-6)


def test_imagined_trajectories_meet_no_more_of_the_errors_than_their_share(toy_spec):
    dynamics = Dynamics.random(toy_spec, (4,), key=jax.random.key(0))
    rng = np.random.default_rng(0)
    states, commands = rng.normal(size=(2, 7, toy_spec.layout.size)), rng.normal(size=(2, 6, 2))
    previews = jnp.asarray(rng.normal(size=(2, 6, 3, 2)), jnp.float32)
    rollout = Rollout.from_arrays(
        jnp.asarray(states, jnp.float32), jnp.asarray(commands, jnp.float32), previews=previews
    )
    starts = ImaginedStarts(rollout.states[:, 0], rollout.previews)
    whole = make_rollout_inputs(dynamics, rollout, starts, 1).errors
    half = dataclasses.replace(starts, disturbance=jnp.asarray([0.5, 0.0]))
    found = make_rollout_inputs(dynamics, rollout, half, 1).errors
    np.testing.assert_array_equal(found[:2], whole[:2])  # the measured trajectories keep theirs
    np.testing.assert_allclose(found[2], 0.5 * whole[2])
    assert np.any(np.asarray(whole[3]))
    assert not np.any(np.asarray(found[3]))
