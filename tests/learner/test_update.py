"""The trust region's radius from one episode to the next."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.learner.hyperparameters import Hyperparameters
from firsthand.learner.state import LearnerState
from firsthand.learner.update import adapted_radius
from firsthand_onboard import PolicyShape

HYPER = Hyperparameters(radius=0.1, radius_most=0.4, model_hidden=(2,))


@pytest.fixture(scope="module")
def state(toy_spec):
    return LearnerState.random(dataclasses.replace(toy_spec, policy=PolicyShape((2,))), HYPER, seed=0)


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
    assert float(adapted_radius(now, jnp.asarray(measured), HYPER)) == pytest.approx(after, rel=1e-6)


def test_the_first_episode_keeps_the_first_radius(state):
    assert float(state.radius) == pytest.approx(0.1)
    assert float(adapted_radius(state, jnp.asarray(1.0), HYPER)) == pytest.approx(0.1)
