"""Learning the model: a plant it can learn exactly, what is refused, and that nothing recompiles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.buffer import Buffer
from firsthand.agent.model_learning import (
    initial_optimizer,
    learn_model,
    one_step_loss,
    prediction_error,
    rescale,
)
from firsthand.agent.settings import Settings
from firsthand.models import Dynamics, predicted_entries
from firsthand.optim.rollout import Rollout

PERIOD = 0.1
SETTINGS = Settings().with_changes(
    {
        "model.steps": 2000,
        "model.rate": 5e-3,
        "model.batch": 64,
        "model.batch_share": 0.1,
        "model.max_batch": 256,
        "model.hidden": (16,),
    }
)


@pytest.fixture(scope="module")
def spec(make_probe_task):
    """Position and velocity measured: the network predicts the change of velocity, the rest is known."""
    return make_probe_task(
        measured=2,
        command_memory=2,
        steps=10,
        preview=(1,),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
    ).spec


def linear_buffer(spec, count: int, capacity: int = 1024, seed: int = 0) -> Buffer:
    """Transitions of v⁺ = 0.9 v − 0.3 p + 0.2 u₋₁, with positions by the trapezoidal rule."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-1.0, 1.0, (capacity, spec.layout.size)).astype(np.float32)
    commands = rng.uniform(-1.0, 1.0, (capacity, 1)).astype(np.float32)
    p, v, last = states[:, 0], states[:, 1], states[:, 2]
    after = 0.9 * v - 0.3 * p + 0.2 * last
    following = np.stack([p + PERIOD * (v + after) / 2, after], axis=1).astype(np.float32)
    return make_buffer(states, commands, following, count)


def make_buffer(states, commands, following, count: int) -> Buffer:
    """A buffer with these arrays, of which `count` rows are in use."""
    squares = np.sum((following - states[:, : following.shape[1]])[:count] ** 2, axis=0)
    states, commands, following, squares = (
        jnp.asarray(np.asarray(part, np.float32)) for part in (states, commands, following, squares)
    )
    rows, used = jnp.arange(len(states), dtype=jnp.int32), jnp.asarray(count, jnp.int32)
    return Buffer(states, commands, following, squares, used, rows, used)


@pytest.fixture(scope="module")
def model(spec):
    return Dynamics.random(spec, SETTINGS.model.hidden, key=jax.random.key(0))


@pytest.fixture(scope="module")
def learned(spec, model):
    """The model after 2000 Adam steps on 800 transitions; compiles `learn_model` for the tests below."""
    return learn_model(
        model, initial_optimizer(model, SETTINGS), linear_buffer(spec, 800), SETTINGS, key=jax.random.key(1)
    )


@eqx.filter_jit
def predict(dynamics, states, commands):
    return jax.jit(jax.vmap(dynamics))(states, commands)


loss = eqx.filter_jit(one_step_loss)
predicted_change = eqx.filter_jit(Dynamics.change)
rescaled = eqx.filter_jit(rescale)


def assert_same_bits(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_linear_plant_is_learned(spec, model, learned):
    dynamics, _, report = learned
    fresh = linear_buffer(spec, 1024, seed=9)
    parts = fresh.states, fresh.commands, fresh.following
    at_first = float(loss(rescaled(model, fresh, SETTINGS), *parts))
    assert 0.5 < at_first < 2.0  # the loss of knowing nothing, in units of the changes seen
    assert report.accepted
    assert float(report.loss) < 1e-3
    assert float(loss(dynamics, *parts)) < 2e-3
    predicted = np.asarray(predict(dynamics, fresh.states, fresh.commands))
    np.testing.assert_allclose(predicted[:, :2], fresh.following, atol=0.05)
    # The registers are known, not learned.
    np.testing.assert_array_equal(predicted[:, 2], fresh.commands[:, 0])
    np.testing.assert_array_equal(predicted[:, 3], fresh.states[:, 2])


def test_the_jacobian_of_the_learned_model_is_the_plants(learned):
    """What the policy gradient lives on: ∂v⁺/∂(p, v, u₋₁, u₋₂) = (−0.3, 0.9, 0.2, 0), and nothing of u itself."""
    dynamics, _, _ = learned
    points = jnp.asarray(np.random.default_rng(0).uniform(-0.7, 0.7, (50, 5)).astype(np.float32))
    slopes = jax.jit(jax.vmap(jax.jacfwd(lambda z: dynamics(z[:4], z[4:])[1])))(points)
    np.testing.assert_allclose(np.mean(np.asarray(slopes), axis=0), [-0.3, 0.9, 0.2, 0.0, 0.0], atol=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("part", ["states", "following"])
def test_a_transition_that_is_not_finite_is_refused(spec, learned, bad, part):
    dynamics, optimizer, _ = learned
    buffer = linear_buffer(spec, 800)
    values = {name: np.array(getattr(buffer, name)) for name in ("states", "commands", "following")}
    values[part][17, 1] = bad
    broken = make_buffer(**values, count=800)
    after, after_optimizer, report = learn_model(dynamics, optimizer, broken, SETTINGS, key=jax.random.key(2))
    assert not report.accepted
    assert_same_bits((after, after_optimizer), (dynamics, optimizer))


def test_what_is_not_finite_beyond_the_rows_in_use_does_no_harm(spec, learned):
    dynamics, optimizer, _ = learned
    buffer = linear_buffer(spec, 800)
    values = np.array(buffer.following)
    values[800:] = np.nan
    fine = eqx.tree_at(lambda b: b.following, buffer, jnp.asarray(values))
    _, _, report = learn_model(dynamics, optimizer, fine, SETTINGS, key=jax.random.key(2))
    assert report.accepted


def test_the_same_key_gives_the_same_bits(spec, model, learned):
    again = learn_model(
        model, initial_optimizer(model, SETTINGS), linear_buffer(spec, 800), SETTINGS, key=jax.random.key(1)
    )
    assert_same_bits(again, learned)


def test_the_batch_grows_with_the_buffer_without_recompiling(spec, model, compilations):
    """At 10 % of the buffer in blocks of 64: 1000 rows give one block, 4000 and all beyond 2560 give four.

    How many transitions were averaged is read off the scatter of the loss over keys, which falls with their number.
    """
    settings = Settings().with_changes(
        {"model.steps": 1, "model.batch": 64, "model.batch_share": 0.1, "model.max_batch": 256, "model.hidden": (16,)}
    )
    optimizer = initial_optimizer(model, settings)
    keys = [jax.random.key(seed) for seed in range(150)]
    buffers = {count: linear_buffer(spec, count, capacity=8192) for count in (1000, 4000, 8000)}

    def scatter(buffer):
        return np.var([float(learn_model(model, optimizer, buffer, settings, key=k)[2].loss) for k in keys])

    learn_model(model, optimizer, buffers[1000], settings, key=keys[0])
    with compilations() as compiled:
        one, four, most = (scatter(buffers[count]) for count in (1000, 4000, 8000))
    assert compiled.count == 0
    assert 2.5 < one / four < 6.5
    assert 0.6 < four / most < 1.6


def test_rescaling_keeps_the_function(float64, spec):
    rng = np.random.default_rng(0)
    model = Dynamics.random(spec, (7, 6), key=jax.random.key(3))
    states, commands = jnp.asarray(rng.normal(size=(20, 4))), jnp.asarray(rng.normal(size=(20, 1)))
    other = model.with_change_scale(jnp.asarray([37.5]))
    np.testing.assert_array_equal(other.change_scale, [37.5])
    np.testing.assert_allclose(
        predict(other, states, commands), predict(model, states, commands), rtol=1e-13, atol=1e-14
    )


def test_the_change_scale_is_the_size_of_the_changes_seen(spec, model):
    buffer = linear_buffer(spec, 300)
    change = np.asarray(buffer.following - buffer.states[:, :2])[:300, 1]
    scaled = rescaled(model, buffer, SETTINGS)
    np.testing.assert_allclose(scaled.change_scale, [np.sqrt(np.mean(change**2))], rtol=1e-5)
    np.testing.assert_allclose(
        predict(scaled, buffer.states, buffer.commands), predict(model, buffer.states, buffer.commands), atol=1e-6
    )


def test_a_channel_that_has_not_moved_keeps_a_sane_scale(spec, model):
    buffer = linear_buffer(spec, 300)
    states, commands = np.asarray(buffer.states), np.asarray(buffer.commands)
    still = make_buffer(states, commands, states[:, :2], 300)
    declared = spec.scales.change_scale[1]
    np.testing.assert_allclose(rescaled(model, still, SETTINGS).change_scale, [0.02 * declared], rtol=1e-6)
    nothing = make_buffer(states, commands, np.asarray(buffer.following), 0)
    np.testing.assert_allclose(rescaled(model, nothing, SETTINGS).change_scale, [0.02 * declared], rtol=1e-6)


def test_the_loss_by_hand(spec, model):
    """One transition, error 0.3 in the change of velocity, scale 0.1: the loss is 9. The position is not in it."""
    state, command = jnp.asarray([[0.2, 0.5, 0.1, 0.0]]), jnp.asarray([[0.4]])
    predicted = float(predicted_change(model, state[0], command[0])[0])
    following = jnp.asarray([[77.0, 0.5 + predicted - 0.3]])
    np.testing.assert_allclose(loss(model, state, command, following), 9.0, rtol=1e-4)


def test_the_prediction_error_counts_valid_steps_only(spec, model):
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2, 4, 4)).astype(np.float32)
    commands = rng.normal(size=(2, 3, 1)).astype(np.float32)
    valid = np.array([[True, True, True], [True, False, False]])
    rollout = Rollout(
        states=jnp.asarray(states),
        commands=jnp.asarray(commands),
        previews=jnp.asarray(np.zeros((2, 3, 2, 1), np.float32)),
        free=jnp.asarray(np.ones((2, 3, 1), bool)),
        valid=jnp.asarray(valid),
    )
    happened = [(0, 0), (0, 1), (0, 2), (1, 0)]
    before = np.stack([states[i, k] for i, k in happened])
    after = np.stack([states[i, k + 1, :2] for i, k in happened])
    applied = np.stack([commands[i, k] for i, k in happened])
    expected = loss(model, jnp.asarray(before), jnp.asarray(applied), jnp.asarray(after))
    np.testing.assert_allclose(prediction_error(model, rollout), expected, rtol=1e-5)
    nothing = eqx.tree_at(lambda r: r.valid, rollout, jnp.asarray(np.zeros((2, 3), bool)))
    assert np.isnan(prediction_error(model, nothing))


def test_the_model_integrates_velocities_by_the_trapezoidal_rule(spec, model):
    assert predicted_entries(spec) == (1,)
    state, command = jnp.asarray([0.3, 0.5, 0.1, -0.2]), jnp.asarray([0.7])
    after = np.asarray(model(state, command))
    change = float(predicted_change(model, state, command)[0])
    np.testing.assert_allclose(after, [0.3 + 0.1 * (0.5 + 0.5 * change), 0.5 + change, 0.7, 0.1], rtol=1e-5)


def test_no_steps_leave_the_function_alone(spec, model):
    settings = Settings().with_changes({"model.steps": 0})
    buffer = linear_buffer(spec, 300)
    after, _, report = learn_model(model, initial_optimizer(model, settings), buffer, settings, key=jax.random.key(0))
    assert report.accepted
    np.testing.assert_allclose(
        predict(after, buffer.states, buffer.commands), predict(model, buffer.states, buffer.commands), atol=1e-6
    )
