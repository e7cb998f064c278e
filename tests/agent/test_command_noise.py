"""Commands in a dead band: found, and left, where the gradient alone never leaves it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand import optim
from firsthand.agent.buffer import ImaginedStarts
from firsthand.agent.command_noise import (
    FARTHEST,
    CommandEffects,
    CommandNoise,
    Saturated,
    disturb_commands,
    find_effects,
)
from firsthand.agent.corrected_model import make_rollout_inputs
from firsthand.agent.improvement import improve_policy
from firsthand.models import Policy
from firsthand.optim.gradient import mean_cost
from firsthand.robots.base import preview_indices
from firsthand.training.presets import preset

STEPS, BAND, GAIN = 32, 0.4, 0.3


@pytest.fixture(scope="module")
def task(make_probe_task):
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=STEPS,
        preview=(1, 2, 4),
        command_limit=1.0,
        length_scale=0.3,
        change_weight=1e-3,
    )


def valve(band: float):
    """A cylinder behind a valve: x⁺ = x + g · (what of the command is beyond the dead band)."""

    def dynamics(state, command):
        flow = jnp.sign(command) * jnp.maximum(jnp.abs(command) - band, 0.0)
        return jnp.concat([state[:1] + GAIN * flow, command])

    return dynamics


def drive(task, level: float) -> optim.Rollout:
    """Measured trajectories with a constant command."""
    starts = jnp.zeros((4, task.spec.layout.size))
    previews = jnp.zeros((4, STEPS, 4, 1))
    return optim.roll_out(lambda x, r: jnp.full(1, level), valve(BAND), starts, previews=previews)


@pytest.mark.parametrize(
    ("band", "level", "expected"),
    [(0.0, 0.0, 0.0), (BAND, 0.0, 1.0), (BAND, 0.3, 1.0), (BAND, 0.7, 0.0), (BAND, -0.7, 0.0)],
)
def test_a_dead_band_is_found_where_the_commands_are(task, band: float, level: float, expected: float) -> None:
    found = find_effects(task.spec, valve(band), drive(task, level), preset("fast")).dead_bands
    np.testing.assert_allclose(found, [expected], atol=1e-3)


@pytest.mark.parametrize("gain", [0.05, 0.3, 3.0])
def test_offsets_reach_as_far_as_a_reference_may_ask_for(task, gain: float) -> None:
    """A change δ held for n steps moves x⁺ = x + g u by n g δ: to be `FARTHEST` times what a reference does."""
    settings = preset("fast")
    steps, scales = settings.model.horizon, task.spec.scales
    usual = min(scales.measured_scale[0], steps * scales.change_scale[0])
    expected = FARTHEST * usual / (steps * gain)

    def dynamics(state, command):
        return jnp.concat([state[:1] + gain * command, command])

    reach = float(find_effects(task.spec, dynamics, drive(task, 0.0), settings).reach[0])
    assert reach == pytest.approx(expected if expected < 1 else np.inf, rel=0.01)


def test_where_nothing_was_measured_there_are_no_offsets(task) -> None:
    rollout = drive(task, 0.0)
    unseen = dataclasses.replace(rollout, valid=jnp.zeros_like(rollout.valid))
    np.testing.assert_array_equal(find_effects(task.spec, valve(BAND), unseen, preset("fast")).reach, [0.0])


def test_beyond_its_limits_a_command_changes_nothing(task) -> None:
    model, state = Saturated(valve(0.0), task.spec), jnp.zeros(task.spec.layout.size)
    np.testing.assert_allclose(model(state, jnp.asarray([3.0])), model(state, jnp.asarray([1.0])))
    assert float(jax.jacobian(model, 1)(state, jnp.asarray([3.0]))[0, 0]) == 0


def following(task, count: int, seed: int) -> tuple[jax.Array, jax.Array]:
    """Starts, and constant references up to 0.8 away from them."""
    rng = np.random.default_rng(seed)
    references = np.repeat(rng.uniform(-0.8, 0.8, (count, 1, 1)), STEPS + max(task.spec.preview), axis=1)
    previews = jnp.asarray(references[:, preview_indices(task.spec, STEPS)], jnp.float32)
    return jnp.zeros((count, task.spec.layout.size)), previews


def test_only_imagined_trajectories_are_disturbed_and_more_so_in_a_dead_band(task) -> None:
    policy = Policy.random(task.spec, key=jax.random.key(0), last_gain=0.01)
    starts, previews = following(task, 4, 0)
    rollout = optim.roll_out(policy, valve(BAND), starts, previews=previews)
    inputs = make_rollout_inputs(valve(BAND), rollout, ImaginedStarts(*following(task, 200, 1)))

    def spread(dead_band: float, need: float, reach: float = np.inf) -> float:
        noise = CommandNoise(jax.random.key(3), jnp.asarray(need))
        effects = CommandEffects(jnp.asarray([dead_band]), jnp.asarray([reach]))
        offsets = disturb_commands(inputs, policy, 4, effects, preset("fast"), noise).offsets
        assert offsets is not None
        assert (offsets[:4] == 0).all()
        return float(jnp.std(offsets[4:]))

    amplitude = preset("fast").imagination.command_noise
    assert spread(0.0, 1.0) == pytest.approx(float(amplitude) / np.sqrt(3), rel=0.15)
    assert spread(1.0, 1.0) == pytest.approx(2 * spread(0.0, 1.0))
    assert spread(1.0, 0.1) == pytest.approx(0.1 * spread(1.0, 1.0))
    assert spread(1.0, 1.0, reach=amplitude / 4) == pytest.approx(spread(0.0, 1.0) / 4)


def test_a_policy_leaves_the_dead_band_with_noise_and_not_without(task) -> None:
    """The model is the plant, so that nothing but the dead band stands between the policy and its goals."""
    dynamics, settings = valve(BAND), preset("fast")

    @eqx.filter_jit
    def cost_of(policy, starts, previews):
        return mean_cost(task.cost, optim.roll_out(policy, dynamics, starts, previews=previews))

    def learn(noisy: bool) -> float:
        policy = Policy.random(task.spec, key=jax.random.key(1), last_gain=0.01)
        for episode in range(6):
            starts, previews = following(task, 8, episode)
            rollout = optim.roll_out(policy, dynamics, starts, previews=previews)
            imagined = ImaginedStarts(*following(task, 24, 100 + episode))
            noise = CommandNoise(jax.random.key(episode), jnp.asarray(1.0)) if noisy else None
            policy, _ = improve_policy(policy, dynamics, task.cost, rollout, imagined, 0.5, settings, noise=noise)
        return float(cost_of(policy, *following(task, 50, 1000)))

    unmoved = float(cost_of(Policy.random(task.spec, key=jax.random.key(1), last_gain=0.0), *following(task, 50, 1000)))
    assert learn(noisy=False) > 0.9 * unmoved
    assert learn(noisy=True) < 0.3 * unmoved
