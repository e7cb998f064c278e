"""What is usual, when an episode is a surprise, and the way back to the last proven policy."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.model_learning import ModelReport
from firsthand.agent.settings import Settings
from firsthand.agent.state import LearnerState
from firsthand.agent.track_record import TrackRecord, change_length, is_surprise, typical_cost, update_record
from firsthand.agent.update import update_policy
from firsthand.errors import UserError
from firsthand.optim import roll_out
from firsthand.tasks.cost import tracking_cost
from firsthand_onboard import PolicyShape

SETTINGS = Settings().with_changes(
    {
        "model.hidden": (2,),
        "policy_step.judged": 1,
        "policy_step.retries": 8,
        "policy_step.length_memory": 0.5,
        "rollback.factor": 4.0,
        "rollback.memory": 0.5,
    }
)
LEARNED = ModelReport(jnp.asarray(0.1), jnp.asarray(True))
UNKNOWN = jnp.asarray(jnp.nan)


@pytest.fixture(scope="module")
def state(toy_spec) -> LearnerState:
    return LearnerState.random(dataclasses.replace(toy_spec, policy=PolicyShape((2,))), SETTINGS, seed=0)


def moved(policy, by: float):
    """A policy each of whose parameters is that much larger."""
    return jax.tree.map(lambda leaf: leaf + by if eqx.is_inexact_array(leaf) else leaf, policy)


def assert_same(policy, other) -> None:
    for a, b in zip(jax.tree.leaves(policy), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def record_of(policy, cost: float, length: float = 1.0) -> TrackRecord:
    return TrackRecord(policy, jnp.asarray(cost, jnp.float32), jnp.asarray(length, jnp.float32))


@pytest.mark.parametrize(
    ("usual", "typical", "expected", "surprise"),
    [
        (1.0, 4.1, 1.0, True),
        (1.0, 3.9, 1.0, False),
        (1.0, 4.1, np.nan, False),  # nothing was predicted for this policy: it was brought back, or put in place
        (np.nan, 4.1, 1.0, False),  # the first episode
        (1.0, np.nan, 1.0, False),  # nothing was measured
    ],
)
def test_what_is_a_surprise(state, usual, typical, expected, surprise):
    record, numbers = record_of(state.policy, usual), (jnp.asarray(typical), jnp.asarray(expected))
    assert bool(is_surprise(record, *numbers, SETTINGS)) == surprise
    assert not is_surprise(record, *numbers, SETTINGS.with_changes({"rollback.factor": 0.0}))


def test_what_is_usual_is_a_geometric_mean(state):
    first, second = state.policy, moved(state.policy, 0.1)
    length = float(change_length(first, second))
    assert length == pytest.approx(0.1 * sum(leaf.size for leaf in jax.tree.leaves(first)) ** 0.5, rel=1e-5)
    numbers = (jnp.asarray(4.0), jnp.asarray(1.0), jnp.asarray(False))
    after = update_record(record_of(first, 1.0, 4 * length), first, second, *numbers, SETTINGS)
    assert float(after.usual_cost) == pytest.approx(2.0)
    assert float(after.usual_length) == pytest.approx(2 * length)
    # An update that changed nothing says nothing about lengths.
    stood = update_record(record_of(first, 1.0, 4 * length), first, first, *numbers, SETTINGS)
    assert float(stood.usual_length) == pytest.approx(4 * length)


@pytest.mark.parametrize(("typical", "proves"), [(0.9, True), (1.1, False)])
def test_an_episode_no_worse_than_usual_proves_its_policy(state, typical, proves):
    ran = moved(state.policy, 0.1)
    record, numbers = record_of(state.policy, 1.0), (jnp.asarray(typical), jnp.asarray(1.0), jnp.asarray(False))
    after = update_record(record, ran, moved(ran, 0.1), *numbers, SETTINGS)
    assert_same(after.proven, ran if proves else state.policy)


def test_where_nothing_was_predicted_the_record_begins_anew(state):
    """After a roll-back the robot may have changed: what it costs now is usual from here on."""
    ran = moved(state.policy, 0.1)
    after = update_record(
        record_of(state.policy, 1.0), ran, ran, jnp.asarray(50.0), UNKNOWN, jnp.asarray(False), SETTINGS
    )
    assert float(after.usual_cost) == pytest.approx(50.0)
    assert_same(after.proven, ran)


@pytest.fixture(scope="module")
def episode(state, toy_spec):
    """Four trajectories of the model itself under the learner's policy, and their cost."""
    rng = np.random.default_rng(0)
    starts = jnp.asarray(rng.normal(size=(4, toy_spec.layout.size)), jnp.float32)
    previews = jnp.asarray(rng.normal(size=(4, 6, 3, 2)), jnp.float32)
    return tracking_cost(toy_spec, length_scale=1.0, change_weight=0.05), roll_out(
        state.policy, state.dynamics, starts, previews=previews
    )


def test_one_odd_trajectory_is_no_bad_episode(episode):
    cost, rollout = episode
    usual = float(typical_cost(cost, rollout, SETTINGS))
    far = rollout.previews.at[0].add(100.0)
    odd = float(typical_cost(cost, dataclasses.replace(rollout, previews=far), SETTINGS))
    assert usual < odd < 3 * usual
    bad = dataclasses.replace(rollout, previews=rollout.previews + 100.0)
    assert float(typical_cost(cost, bad, SETTINGS)) > 100 * usual
    nothing = dataclasses.replace(rollout, valid=jnp.zeros_like(rollout.valid))
    assert np.isnan(typical_cost(cost, nothing, SETTINGS))


def test_a_surprise_brings_the_proven_policy_back_and_only_once(state, episode):
    cost, rollout = episode
    typical, proven = float(typical_cost(cost, rollout, SETTINGS)), moved(state.policy, 0.1)

    def after(usual: float, settings: Settings = SETTINGS):
        now = dataclasses.replace(
            state, record=record_of(proven, usual, 100.0), expected_cost=jnp.asarray(usual, jnp.float32)
        )
        return update_policy(now, cost, rollout, None, LEARNED, settings)

    back, report = after(typical / 5)
    assert report.rolled_back
    assert int(report.steps_taken) == 0
    assert_same(back.policy, proven)
    assert np.isnan(back.expected_cost)
    assert_same(back.record.proven, proven)
    assert float(back.record.usual_cost) == pytest.approx(typical / 5)
    # The episode of the policy that was brought back is as bad: that is now usual, and learning goes on.
    again, report = update_policy(back, cost, rollout, None, LEARNED, SETTINGS)
    assert not report.rolled_back
    assert float(again.record.usual_cost) == pytest.approx(typical)
    assert np.isfinite(again.expected_cost)
    # No surprise, or none wanted: the policy takes its step.
    for other, settings in ((typical / 3, SETTINGS), (typical / 5, SETTINGS.with_changes({"rollback.factor": 0.0}))):
        went, report = after(other, settings)
        assert not report.rolled_back
        assert int(report.steps_taken) == 1
        assert float(change_length(state.policy, went.policy)) > 0


@pytest.mark.parametrize("name", ["policy_step.length_factor", "rollback.factor"])
def test_what_needs_judged_steps_says_so(name):
    with pytest.raises(UserError) as error:
        Settings().with_changes({name: 3.0})
    assert str(error.value) == f"{name} is 3.0, but needs judged steps: policy_step.judged 1, or {name} 0."
    Settings().with_changes({name: 3.0, "policy_step.judged": 1})
    Settings().with_changes({name: 3.0, "policy_step.steps": 2})
