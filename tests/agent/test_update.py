"""The trust region's radius from one episode to the next."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.agent import does_generalise
from firsthand.agent.model_learning import ModelReport
from firsthand.agent.settings import Settings
from firsthand.agent.state import LearnerState
from firsthand.agent.update import adapt_radius, is_refinement_due, update_policy
from firsthand.optim.rollout import Rollout
from firsthand.tasks.cost import tracking_cost
from firsthand_onboard import PolicyShape

SETTINGS = Settings().with_changes({"trust_region.radius": 0.1, "trust_region.max_radius": 0.4, "model.hidden": (2,)})


@pytest.fixture(scope="module")
def state(toy_spec):
    return LearnerState.random(dataclasses.replace(toy_spec, policy=PolicyShape((2,))), SETTINGS, seed=0)


@pytest.mark.parametrize(
    ("before", "expected", "measured", "after"),
    [
        (0.1, 1.0, 0.8, 0.15),  # better than predicted
        (0.1, 1.0, 1.4, 0.15),  # about as predicted
        (0.1, 1.0, 2.0, 0.1),
        (0.1, 1.0, 4.0, 0.05),  # much worse
        (0.3, 1.0, 1.0, 0.4),  # not beyond the most
        (0.04, 1.0, 9.0, 0.03),  # not below three tenths of the first
        (0.2, np.nan, 1.0, 0.2),  # nothing was predicted
        (0.2, 1.0, np.nan, 0.2),  # nothing was measured
        (0.2, 0.0, 1.0, 0.2),
    ],
)
def test_the_radius_follows_how_the_last_prediction_came_true(state, before, expected, measured, after):
    now = eqx.tree_at(
        lambda s: (s.radius, s.expected_cost), state, (jnp.asarray(before), jnp.asarray(expected, jnp.float32))
    )
    assert float(adapt_radius(now, jnp.asarray(measured), SETTINGS)) == pytest.approx(after, rel=1e-6)


def test_the_first_episode_keeps_the_first_radius(state):
    assert float(state.radius) == pytest.approx(0.1)
    assert float(adapt_radius(state, jnp.asarray(1.0), SETTINGS)) == pytest.approx(0.1)


def test_an_episode_of_which_nothing_was_seen_does_not_widen_the_radius(state, toy_spec):
    """Its cost is a mean over no steps, zero, which would be better than any prediction."""
    size, points, outputs = toy_spec.layout.size, 1 + len(toy_spec.preview), toy_spec.num_outputs
    rollout = Rollout(
        states=jnp.zeros((1, 3, size)),
        commands=jnp.zeros((1, 2, toy_spec.layout.num_commands)),
        previews=jnp.zeros((1, 2, points, outputs)),
        free=jnp.ones((1, 2, toy_spec.layout.num_commands), bool),
        valid=jnp.zeros((1, 2), bool),
    )
    expecting = eqx.tree_at(lambda s: s.expected_cost, state, jnp.asarray(1.0, jnp.float32))
    refused = ModelReport(jnp.asarray(jnp.nan), jnp.asarray(False))
    cost = tracking_cost(toy_spec, length_scale=1.0)
    after, _ = update_policy(expecting, cost, rollout, None, refused, SETTINGS)
    assert float(after.radius) == pytest.approx(0.1)
    assert int(after.refused) == 1


def test_refinement_is_due_for_a_good_policy_and_after_progress():
    refinement = SETTINGS.refinement
    good, bad = 0.5 * refinement.max_cost, 20 * refinement.max_cost
    assert bool(is_refinement_due(jnp.asarray(good), jnp.asarray(good), SETTINGS))
    assert not bool(is_refinement_due(jnp.asarray(bad), jnp.asarray(bad), SETTINGS))
    assert bool(is_refinement_due(jnp.asarray(bad), jnp.asarray(2 * bad / refinement.progress), SETTINGS))
    assert not bool(is_refinement_due(jnp.asarray(jnp.nan), jnp.asarray(1e9), SETTINGS))


def test_a_model_generalises_unless_new_episodes_are_predicted_much_worse_than_fitted():
    limit, share = SETTINGS.refinement.max_overfit, SETTINGS.model.noise_share
    assert not bool(does_generalise(jnp.asarray(2.2 * limit * share), jnp.asarray(2 * share), SETTINGS))
    assert bool(does_generalise(jnp.asarray(1.8 * limit * share), jnp.asarray(2 * share), SETTINGS))
    assert bool(does_generalise(jnp.asarray(0.9 * share), jnp.asarray(1e-6), SETTINGS))
    assert not bool(does_generalise(jnp.asarray(jnp.nan), jnp.asarray(1.0), SETTINGS))
