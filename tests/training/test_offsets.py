"""The difference of one machine, from data of machines whose difference is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.models import Controller, Dynamics, Policy
from firsthand.optim.rollout import Rollout
from firsthand.training.offsets import LARGEST, Offset, SeenEpisode, fit_offsets, with_offset
from firsthand_onboard.features import next_state
from firsthand_onboard.toy import toy_spec

SPEC = toy_spec(hidden=(8,))
TRUE = {0: ([0.06, -0.03], [0.01, 0.0]), 1: ([-0.06, 0.03], [-0.01, 0.0])}
"""Gain and bias of two machines; their mean is zero."""


@pytest.fixture(scope="module")
def model() -> Dynamics:
    """A model whose predictions depend on commands, as a trained one's do."""
    made = Dynamics.random(SPEC, (16,), key=jax.random.key(0))
    (weight, bias), (last, last_bias) = made.layers
    return dataclasses.replace(made, layers=((weight, bias), (5 * last, last_bias)))


def drive(
    model: Dynamics, machine: int, rng: np.random.Generator, trajectories: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """States and commands of a machine that is the model behind other commands."""
    gain, bias = (np.asarray(part) for part in TRUE[machine])
    states, commands = [], rng.uniform(-1, 1, (trajectories, steps, 2)).astype(np.float32)
    for trajectory in commands:
        felt = trajectory * (1 + gain) + bias
        state = np.zeros(SPEC.layout.size, np.float32)
        mine = [state]
        seen = np.concatenate([state[:4], np.tile(bias, 3)]).astype(np.float32)  # what the model would remember
        for k in range(steps):
            after = np.asarray(model(jnp.asarray(seen), jnp.asarray(felt[k], jnp.float32)))
            measured = after[:4] + 1e-4 * rng.standard_normal(4).astype(np.float32)
            seen = next_state(SPEC.layout, seen, felt[k].astype(np.float32), measured)
            state = next_state(SPEC.layout, state, trajectory[k], measured)
            mine.append(state)
        states.append(mine)
    return np.asarray(states, np.float32), commands


def test_gain_and_bias_of_each_machine_are_found(model):
    rng = np.random.default_rng(0)
    parts = [drive(model, machine, rng, 4, 60) for machine in TRUE]
    states, commands = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    rollout = Rollout.from_arrays(jnp.asarray(states), jnp.asarray(commands))
    seen = SeenEpisode(rollout, rollout.valid, np.repeat([0, 1], 4))
    found = fit_offsets(model, [seen])
    for machine, (gain, bias) in TRUE.items():
        np.testing.assert_allclose(found[machine].gain, gain, atol=0.015)
        np.testing.assert_allclose(found[machine].bias, bias, atol=0.01)


def test_a_machine_that_is_like_the_others_is_left_alone(model):
    rng = np.random.default_rng(1)
    states, commands = drive(model, 0, rng, 4, 40)
    rollout = Rollout.from_arrays(jnp.asarray(np.tile(states, (2, 1, 1))), jnp.asarray(np.tile(commands, (2, 1, 1))))
    found = fit_offsets(model, [SeenEpisode(rollout, rollout.valid, np.repeat([0, 1], 4))])
    for offset in found.values():
        assert np.abs(np.concatenate(offset)).max() < 1e-6
    assert fit_offsets(model, []) == {}


def test_a_machine_of_which_nothing_is_known_is_left_alone_and_changes_nothing(model):
    states, commands = drive(model, 0, np.random.default_rng(2), 4, 40)
    rollout = Rollout.from_arrays(jnp.asarray(states), jnp.asarray(commands))
    sound = rollout.valid.at[2:].set(False)
    found = fit_offsets(model, [SeenEpisode(rollout, sound, np.repeat([0, 1], 2))])
    assert set(found) == {0}
    np.testing.assert_array_equal(np.concatenate(found[0]), 0.0)  # the model has learned from it alone


def test_the_policy_of_a_machine_makes_up_for_its_difference():
    controller = Controller(Policy.random(SPEC, key=jax.random.key(1), last_gain=0.1))
    offset = Offset(np.asarray([0.05, -0.05]), np.asarray([0.02, 0.0]))
    fitted = with_offset(controller, offset)
    state, preview = jnp.full(SPEC.layout.size, 0.1), jnp.full((1 + len(SPEC.preview), 2), 0.1)
    wanted, sent = np.asarray(controller(state, preview)), np.asarray(fitted(state, preview))
    assert np.abs(wanted - sent).max() > 0.005
    np.testing.assert_allclose(sent * (1 + offset.gain) + offset.bias, wanted, atol=1e-3)
    assert LARGEST < 0.2  # no machine is changed beyond what a guard would notice
