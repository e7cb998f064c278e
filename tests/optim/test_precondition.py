"""The step as an Optax transformation, and policies of several kinds."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from firsthand.optim import (
    PreconditionState,
    Rollout,
    closed_loop_gradient,
    precondition,
    preconditioned_step,
    roll_out,
)

STEP: dict[str, Any] = {"eta": 0.4, "alpha": 0.05, "epsilon": 0.1, "iterations": 7, "tolerance": 1e-3, "stride": 2}


def dynamics(state, command):
    return state @ jnp.array([[1.0, 0.0], [0.2, 0.9]]) + jnp.concat([jnp.zeros(1), 0.3 * command])


def cost(state, command, _reference):
    return state @ state + 0.1 * command @ command


def apply(params, state, preview):
    return jnp.tanh(params["gain"] @ state + params["offset"])


class Feedback(eqx.Module):
    gain: jax.Array
    offset: jax.Array

    def __call__(self, state, preview):
        return apply({"gain": self.gain, "offset": self.offset}, state, preview)


PARAMS: dict[str, Any] = {"gain": jnp.array([[-0.3, 0.2]]), "offset": jnp.array([0.1])}


@pytest.fixture(scope="module")
def rollout() -> Rollout:
    starts = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    return roll_out(Feedback(**PARAMS), dynamics, starts, steps=8)


def gradient_at(policy, rollout):
    return closed_loop_gradient(policy, dynamics, cost, rollout)


@pytest.mark.parametrize("kind", ["module", "params and apply"])
def test_applied_updates_are_the_preconditioned_step(rollout, kind):
    if kind == "module":
        policy = params = cast(Any, Feedback(**PARAMS))
        transformation, gradient = precondition(**STEP), gradient_at(policy, rollout)
    else:
        params, policy = PARAMS, jax.tree_util.Partial(apply, PARAMS)
        transformation = precondition(apply, **STEP)
        gradient = gradient_at(policy, rollout).args[0]
    expected, report = preconditioned_step(policy, gradient, rollout, **STEP)
    state = transformation.init(params)
    updates, state = transformation.update(gradient, state, params, rollout=rollout)
    new = optax.apply_updates(params, updates)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    assert isinstance(state, PreconditionState)
    for found, wanted, before in zip(*(jax.tree.leaves(tree) for tree in (new, expected, params)), strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert np.any(np.asarray(found) != np.asarray(before))
    jax.tree.map(np.testing.assert_array_equal, state.report, report)
    assert int(state.count) == 1


def test_in_a_chain_under_jit_with_a_schedule(rollout):
    """The state keeps its structure, so that it can be scanned over; η follows its schedule."""
    policy: Any = Feedback(**PARAMS)
    schedule = optax.piecewise_constant_schedule(0.4, {1: 0.5})
    transformation = optax.chain(precondition(**{**STEP, "eta": schedule}), optax.scale(0.5))
    gradient = gradient_at(policy, rollout)

    def step(state, _):
        updates, state = transformation.update(gradient, state, policy, rollout=rollout)
        return state, updates

    _, updates = jax.jit(lambda state: jax.lax.scan(step, state, None, length=2))(transformation.init(policy))
    first, _ = preconditioned_step(policy, gradient, rollout, **STEP)
    np.testing.assert_allclose(updates.gain[0], 0.5 * (first.gain - policy.gain), rtol=1e-4)
    np.testing.assert_allclose(updates.gain[1], 0.5 * updates.gain[0], rtol=1e-5)


def test_a_refused_step_changes_nothing_and_says_so(rollout):
    policy: Any = Feedback(**PARAMS)
    transformation = precondition(**STEP)
    bad = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), policy)
    updates, state = transformation.update(bad, transformation.init(policy), policy, rollout=rollout)
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_array_equal(leaf, 0.0)
    assert isinstance(state, PreconditionState)
    assert not bool(state.report.accepted)


def test_without_parameters_one_sentence_says_what_is_missing(rollout):
    transformation = precondition(**STEP)
    state = transformation.init(PARAMS)
    with pytest.raises(ValueError, match="needs the parameters"):
        transformation.update(PARAMS, state, rollout=rollout)
    with pytest.raises(ValueError, match="no floating-point arrays"):
        gradient_at(lambda state, preview: -state[:1], rollout)


def test_numpy_parameters_are_parameters(rollout):
    plain = Feedback(np.asarray(PARAMS["gain"]), np.asarray(PARAMS["offset"]))  # pyright: ignore[reportArgumentType]
    jax.tree.map(np.testing.assert_array_equal, gradient_at(plain, rollout), gradient_at(Feedback(**PARAMS), rollout))


def test_a_rollout_asks_for_what_is_to_be_followed_or_how_long(rollout):
    with pytest.raises(ValueError, match="exactly one"):
        roll_out(Feedback(**PARAMS), dynamics, rollout.states[:, 0])
    measured = Rollout.from_arrays(rollout.states, rollout.commands)
    jax.tree.map(np.testing.assert_array_equal, measured, rollout)
