"""Gauss–Newton steps against the dense formula, and their bounds, on a system and a policy of the test's own."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from firsthand.optim import (
    Rollout,
    closed_loop_gradient,
    gauss_newton_step,
    linearise,
    mean_cost,
    roll_out,
    step_residuals,
    trajectory_weights,
)

STEPS, TRAJECTORIES = 6, 3
ALPHA, EPSILON = 0.02, 0.1
SCALE = np.array([1.0, 1.5])


class Network(eqx.Module):
    """A policy with one hidden layer and a number that is not a parameter."""

    inner: jax.Array
    outer: jax.Array
    gain: float

    def __call__(self, state, preview):
        return self.gain * self.outer @ jnp.tanh(self.inner @ jnp.concat([state, preview.ravel()]))


def dynamics(state, command):
    """Four states, two commands; not linear."""
    return 0.9 * state + 0.1 * jnp.sin(state[::-1]) + 0.3 * jnp.concat([command, jnp.tanh(command * state[:2])])


def residuals(state, command, reference):
    return jnp.concat([state[:2] - reference, 0.3 * command, 0.2 * jnp.tanh(state[2:] * command)])


def cost(state, command, reference):
    return jnp.sum(residuals(state, command, reference) ** 2)


class Problem(eqx.Module):
    """A policy, and what is predicted: from where, along what, with which errors and gates."""

    policy: Network
    starts: jax.Array
    previews: jax.Array
    errors: jax.Array
    applied: jax.Array
    free: jax.Array
    valid: jax.Array

    def predict(self, policy) -> Rollout:
        return roll_out(
            policy,
            dynamics,
            self.starts,
            previews=self.previews,
            errors=self.errors,
            applied=self.applied,
            free=self.free,
            valid=self.valid,
        )


def make_problem(dtype: Any = np.float64) -> Problem:
    """Gaps in two trajectories, a gate that was active in them, and one trajectory far from its reference."""
    rng = np.random.default_rng(0)

    def draw(*shape, scale=1.0):
        return jnp.asarray((scale * rng.normal(size=shape)).astype(dtype))

    valid, free = np.ones((TRAJECTORIES, STEPS), bool), np.ones((TRAJECTORIES, STEPS, 2), bool)
    valid[1, 2:4], valid[2, 5:], free[1, 1, 0], free[2, 3, :] = False, False, False, False
    previews = draw(TRAJECTORIES, STEPS, 3, 2).at[0].add(6.0)
    return Problem(
        Network(draw(5, 10, scale=0.4), draw(2, 5, scale=0.4), 0.8),
        draw(TRAJECTORIES, 4),
        previews,
        draw(TRAJECTORIES, STEPS, 4, scale=0.1),
        draw(TRAJECTORIES, STEPS, 2),
        jnp.asarray(free),
        jnp.asarray(valid),
    )


@eqx.filter_jit
def one_step(problem: Problem, begin, damping, iterations=400, outlier=1.5):
    at = linearise(problem.policy, problem.predict, residuals, outlier=outlier)
    step = gauss_newton_step(
        problem.policy,
        at,
        damping=damping,
        alpha=ALPHA,
        epsilon=EPSILON,
        begin=begin,
        iterations=iterations,
        tolerance=1e-12,
        command_scale=jnp.asarray(SCALE, problem.starts.dtype),
    )
    return (*step, at.value, at.slope)


def flat_of(policy):
    return ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))[0]


def dense(problem: Problem, weights):
    """r, R and J of the whole batch as matrices, by forward differentiation of the whole rollout."""
    parameters, static = eqx.partition(problem.policy, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)

    def everything(phi):
        data = problem.predict(eqx.combine(unravel(phi), static))
        each = jax.vmap(jax.vmap(residuals))(data.states[:, :-1], data.commands, data.references)
        return (weights * jnp.where(problem.valid[..., None], each, 0.0)).ravel()

    data = problem.predict(problem.policy)
    passes = problem.free & problem.valid[..., None]

    def commands(phi):
        current = eqx.combine(unravel(phi), static)
        return (passes * jax.vmap(jax.vmap(current))(data.states[:, :-1], data.previews) / SCALE).ravel()

    rows = np.asarray(everything(flat))
    wide, u = (np.asarray(jax.jit(jax.jacfwd(f))(flat)) for f in (everything, commands))
    return rows, wide, u / np.sqrt(TRAJECTORIES)


@pytest.mark.parametrize("warm", [False, True], ids=["from zero", "from another solution"])
def test_the_converged_step_is_the_dense_one(float64, warm):
    """(RᵀR + λ(εI + αJJᵀ)) Δφ = −Rᵀr, with gaps, gates and a trajectory that weighs less."""
    problem, damping = make_problem(), 0.3
    flat = flat_of(problem.policy)
    begin = jnp.asarray(np.random.default_rng(1).normal(size=flat.size)) if warm else None
    new, w, report, value, slope = one_step(problem, begin, jnp.asarray(damping))
    each = step_residuals(residuals, problem.predict(problem.policy))
    weights = np.asarray(trajectory_weights(each, problem.valid, 1.5))
    assert weights[0, 0, 0] < 0.7 * weights[1, 0, 0]
    rows, wide, u = dense(problem, weights)
    matrix = wide.T @ wide + damping * (EPSILON * np.eye(flat.size) + ALPHA * u.T @ u)
    expected = np.linalg.solve(matrix, wide.T @ rows)
    assert report.accepted
    assert float(value) == pytest.approx(rows @ rows, rel=1e-10)
    np.testing.assert_allclose(slope, wide.T @ rows, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(w, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(flat_of(new), flat - expected, rtol=1e-6, atol=1e-9)
    assert new.gain == problem.policy.gain
    assert float(report.predicted_decrease) == pytest.approx(rows @ wide @ expected, rel=1e-6)
    assert float(report.gradient_norm) == pytest.approx(2 * np.linalg.norm(wide.T @ rows), rel=1e-8)
    assert float(report.command_step_norm) == pytest.approx(np.linalg.norm(u @ expected), rel=1e-6)


@pytest.mark.parametrize("outlier", [None, 0.0])
def test_with_equal_weights_it_is_the_mean_cost_and_its_gradient(float64, outlier):
    """Also with gaps and gates. The gradient is the one that preconditioned steps take along the same trajectories."""
    problem = make_problem()

    @eqx.filter_jit
    def both():
        at = linearise(problem.policy, problem.predict, residuals, outlier=outlier)
        gradient = closed_loop_gradient(problem.policy, dynamics, cost, at.rollout, chained=True)
        return at.value, at.slope, mean_cost(cost, at.rollout), gradient

    value, slope, mean, gradient = both()
    assert float(value) == pytest.approx(float(mean), rel=1e-10)
    np.testing.assert_allclose(2 * slope, ravel_pytree(gradient)[0], rtol=1e-8, atol=1e-12)


@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    damping=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
)
@example(seed=0, size=1e3, damping=1e-6)
def test_the_bounds_hold_wherever_a_short_solve_begins(seed, size, damping):
    """In float32, after two conjugate gradients from a random direction of any length."""
    problem = make_problem(np.float32)
    begin = jnp.asarray(size * np.random.default_rng(seed).normal(size=flat_of(problem.policy).size), jnp.float32)
    _, w, report, value, _ = one_step(problem, begin, jnp.asarray(damping, jnp.float32), 2)
    assert report.accepted
    slack = 1.001
    assert float(jnp.linalg.norm(w)) <= slack * np.sqrt(float(value) / (damping * EPSILON))
    assert float(report.command_step_norm) <= slack * np.sqrt(float(value) / (damping * ALPHA))
    assert 0 <= float(report.predicted_decrease) <= slack * float(value)


def test_a_step_that_is_not_finite_is_refused(float64):
    problem = make_problem()
    begin = jnp.full_like(flat_of(problem.policy), jnp.nan)
    new, w, report, _, _ = one_step(problem, begin, jnp.asarray(1.0))
    assert not report.accepted
    np.testing.assert_array_equal(flat_of(new), flat_of(problem.policy))
    np.testing.assert_array_equal(w, 0.0)


def test_a_trajectory_that_is_not_finite_refuses_the_step(float64):
    problem = make_problem()
    broken = dataclasses.replace(problem, starts=problem.starts.at[1].set(jnp.nan))
    _, w, report, _, _ = one_step(broken, None, jnp.asarray(1.0))
    assert not report.accepted
    np.testing.assert_array_equal(w, 0.0)


def test_weights_by_hand(float64):
    """Costs 1 (with a gap), 2 and 30, and one of which nothing counts: the median is 2, so 30 is cut to 3 · 2."""
    each = jnp.asarray(np.sqrt([[1.0, 0.0], [2.0, 2.0], [30.0, 30.0], [0.0, 0.0]])[..., None])
    valid = jnp.asarray([[True, False], [True, True], [True, True], [False, False]])
    weights = np.asarray(trajectory_weights(each, valid, 3.0)).ravel()
    share = np.array([1.0, 1.0, 0.2, 0.0])
    np.testing.assert_allclose(weights, np.sqrt(share / (1 + 2 + 0.4)), rtol=1e-12)
    equal = np.asarray(trajectory_weights(each, valid, 0.0)).ravel()
    np.testing.assert_allclose(equal, np.sqrt(np.array([1.0, 1.0, 1.0, 0.0]) / 5), rtol=1e-12)
