"""The preconditioned step against the dense solve, and its three bounds on whatever data there are."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from firsthand.models import Policy
from firsthand.optim.preconditioner import conjugate_gradients, preconditioned_step
from firsthand.optim.rollout import Rollout

STEPS, TRAJECTORIES, COMMANDS = 4, 3, 2
ETA, EPSILON = 0.5, 0.05


def random_policy(spec, seed: int, dtype: type = np.float32) -> Policy:
    rng = np.random.default_rng(seed)
    sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
    layers = tuple(
        (
            jnp.asarray((rng.normal(size=(after, before)) / before**0.5).astype(dtype)),
            jnp.asarray(np.zeros(after, dtype)),
        )
        for before, after in itertools.pairwise(sizes)
    )
    return Policy(layers, spec)


def random_rollout(
    spec, seed: int, *, scale: float = 1.0, dtype: type = np.float32, trajectories=TRAJECTORIES
) -> Rollout:
    rng = np.random.default_rng(seed)
    shape = (trajectories, STEPS)
    return Rollout(
        states=jnp.asarray((scale * rng.normal(size=(trajectories, STEPS + 1, spec.layout.size))).astype(dtype)),
        commands=jnp.asarray(rng.uniform(-1, 1, (*shape, COMMANDS)).astype(dtype)),
        previews=jnp.asarray(rng.normal(size=(*shape, 1 + len(spec.preview), spec.num_outputs)).astype(dtype)),
        free=jnp.asarray(rng.random((*shape, COMMANDS)) < 0.9),
        valid=jnp.asarray(np.arange(STEPS) < np.array([STEPS, STEPS, 2])[np.arange(trajectories) % 3][:, None]),
    )


def as_gradient(policy: Policy, flat) -> Policy:
    return ravel_pytree(policy)[1](jnp.asarray(flat))


@eqx.filter_jit
def command_slopes(policy: Policy, rollout: Rollout):
    """∂u/∂φ at every step, by reverse mode."""
    flat, unravel = ravel_pytree(policy)
    one = jax.jacrev(lambda phi, state, preview: unravel(phi)(state, preview))
    each = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)), in_axes=(None, 0, 0)))
    return each(flat, rollout.states[:, :-1], rollout.previews)


def dense_jacobian(policy: Policy, rollout: Rollout) -> np.ndarray:
    """J, n_φ × (commands of all trajectories): sum over steps, mean over trajectories, zero where nothing passes."""
    passes = np.asarray(rollout.free) & np.asarray(rollout.valid)[..., None]
    slopes = np.where(passes[..., None], np.asarray(command_slopes(policy, rollout), np.float64), 0.0)
    return slopes.reshape(-1, slopes.shape[-1]).T / np.sqrt(rollout.states.shape[0])


@eqx.filter_jit
def compiled_step(policy, gradient, rollout, eta, alpha, epsilon, iterations, tolerance):
    return preconditioned_step(
        policy,
        gradient,
        rollout,
        eta=eta,
        alpha=alpha,
        epsilon=epsilon,
        iterations=iterations,
        tolerance=tolerance,
    )


def take_step(policy, flat_gradient, rollout, *, alpha=0.01, epsilon=EPSILON, iterations=30, tolerance=1e-2):
    """Δφ as numpy, and the report."""
    gradient = as_gradient(policy, flat_gradient)
    new, report = compiled_step(policy, gradient, rollout, ETA, alpha, epsilon, iterations, tolerance)
    return np.asarray(ravel_pytree(new)[0]) - np.asarray(ravel_pytree(policy)[0]), jax.tree.map(np.asarray, report)


@pytest.mark.parametrize("size", [1e-2, 1.0, 30.0])
def test_the_converged_step_is_the_dense_one(float64, toy_spec, size):
    policy = random_policy(toy_spec, 0, np.float64)
    rollout = random_rollout(toy_spec, 1, dtype=np.float64)
    nabla = size * np.random.default_rng(2).normal(size=ravel_pytree(policy)[0].size)
    alpha = 0.3
    delta, report = take_step(policy, nabla, rollout, alpha=alpha, iterations=500, tolerance=1e-13)

    J = dense_jacobian(policy, rollout)
    assert np.linalg.matrix_rank(J) > 10  # the commands' term has a say
    matrix = np.outer(nabla, nabla) + alpha * J @ J.T + EPSILON * np.eye(nabla.size)
    expected = -ETA * np.linalg.solve(matrix, nabla)
    assert np.linalg.norm(delta - expected) <= 1e-5 * np.linalg.norm(expected)
    assert np.linalg.norm(expected + ETA * nabla / (EPSILON + nabla @ nabla)) > 0.05 * np.linalg.norm(expected)
    assert report.accepted
    np.testing.assert_allclose(report.gradient_norm, np.linalg.norm(nabla), rtol=1e-10)
    np.testing.assert_allclose(report.step_norm, np.linalg.norm(expected), rtol=1e-5)
    np.testing.assert_allclose(report.command_step_norm, np.linalg.norm(J.T @ expected), rtol=1e-5)
    np.testing.assert_allclose(report.predicted_decrease, -nabla @ expected, rtol=1e-5)


@pytest.fixture(scope="module")
def policy32(toy_spec):
    return random_policy(toy_spec, 3)


@pytest.mark.parametrize(("alpha", "iterations"), [(0.01, 30), (10.0, 3), (0.0, 30)])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    gradient_scale=st.floats(-6.0, 6.0),
    state_scale=st.floats(-2.0, 2.0),
    towards_commands=st.booleans(),
)
def test_the_three_bounds_hold_for_truncated_solves(
    toy_spec, policy32, alpha, iterations, seed, gradient_scale, state_scale, towards_commands
):
    """With gradients of any size, also ones that lie in the range of J, where the commands' term is largest."""
    rollout = random_rollout(toy_spec, seed, scale=10.0**state_scale)
    J = dense_jacobian(policy32, rollout)
    rng = np.random.default_rng(seed)
    nabla = J @ rng.normal(size=J.shape[1]) if towards_commands else rng.normal(size=J.shape[0])
    nabla = (10.0**gradient_scale * nabla / max(np.linalg.norm(nabla), 1e-30)).astype(np.float32)
    delta, report = take_step(policy32, nabla, rollout, alpha=alpha, iterations=iterations)
    assert report.accepted
    assert report.iterations <= iterations

    rounding = 1e-5  # φ + Δφ − φ in float32
    assert np.linalg.norm(delta) <= ETA / (2 * np.sqrt(EPSILON)) * 1.001 + rounding
    if alpha > 0:
        assert np.linalg.norm(J.T @ delta) <= ETA / (2 * np.sqrt(alpha)) * 1.001 + rounding * np.linalg.norm(J, 2)
    decrease = -nabla.astype(np.float64) @ delta
    slack = 1e-3 * ETA + 1e-6 * float(np.linalg.norm(nabla))
    assert -slack <= decrease < ETA + slack


def test_the_longest_step_without_a_commands_term(toy_spec, policy32):
    """With α = 0 the step is η|∇|/(ε + |∇|²), greatest at |∇| = √ε: there it is the bound η/(2√ε) itself."""
    rollout = random_rollout(toy_spec, 0)
    direction = np.random.default_rng(0).normal(size=ravel_pytree(policy32)[0].size)
    direction /= np.linalg.norm(direction)
    lengths = []
    for norm in (0.5 * EPSILON**0.5, EPSILON**0.5, 2.0 * EPSILON**0.5):
        delta, report = take_step(policy32, (norm * direction).astype(np.float32), rollout, alpha=0.0)
        assert report.accepted
        np.testing.assert_allclose(np.linalg.norm(delta), ETA * norm / (EPSILON + norm**2), rtol=1e-5)
        np.testing.assert_allclose(delta / np.linalg.norm(delta), -direction, atol=1e-5)
        lengths.append(float(report.step_norm))
    assert lengths[1] == pytest.approx(ETA / (2 * EPSILON**0.5), rel=1e-5)
    assert max(lengths[0], lengths[2]) < 0.9 * lengths[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_gradient_that_is_not_finite_is_refused(toy_spec, policy32, bad, everywhere):
    nabla = np.ones(ravel_pytree(policy32)[0].size, np.float32)
    nabla[slice(None) if everywhere else 7] = bad
    delta, report = take_step(policy32, nabla, random_rollout(toy_spec, 0))
    np.testing.assert_array_equal(delta, 0.0)
    assert not report.accepted
    assert report.step_norm == report.command_step_norm == report.predicted_decrease == 0.0
    assert not np.isfinite(report.gradient_norm)


def test_a_rollout_that_is_not_finite_is_refused(toy_spec, policy32):
    rollout = random_rollout(toy_spec, 0)
    states = np.array(rollout.states)
    states[1, 2, 3] = np.nan
    broken = eqx.tree_at(lambda r: r.states, rollout, jnp.asarray(states))
    delta, report = take_step(policy32, np.ones(ravel_pytree(policy32)[0].size, np.float32), broken)
    np.testing.assert_array_equal(delta, 0.0)
    assert not report.accepted


def test_a_gradient_whose_square_overflows_is_refused_or_bounded(toy_spec, policy32):
    nabla = np.full(ravel_pytree(policy32)[0].size, 1e30, np.float32)
    delta, report = take_step(policy32, nabla, random_rollout(toy_spec, 0))
    assert np.all(np.isfinite(delta))
    assert np.linalg.norm(delta) <= ETA / (2 * EPSILON**0.5) * 1.001
    assert report.accepted or not np.any(delta)


def test_no_gradient_no_step(toy_spec, policy32):
    delta, report = take_step(
        policy32, np.zeros(ravel_pytree(policy32)[0].size, np.float32), random_rollout(toy_spec, 0)
    )
    np.testing.assert_array_equal(delta, 0.0)
    assert report.accepted
    assert report.iterations == 0
    assert report.predicted_decrease == 0.0


def test_the_mean_over_trajectories_makes_duplicates_count_for_nothing(float64, toy_spec):
    """J carries 1/√N: the same trajectories twice, with the same mean gradient, give the same step."""
    policy = random_policy(toy_spec, 0, np.float64)
    rollout = random_rollout(toy_spec, 1, dtype=np.float64)
    twice = jax.tree.map(lambda a: jnp.asarray(np.concatenate([a, a])), rollout)
    nabla = np.random.default_rng(2).normal(size=ravel_pytree(policy)[0].size)
    once, _ = take_step(policy, nabla, rollout, alpha=0.3, iterations=500, tolerance=1e-13)
    again, _ = take_step(policy, nabla, twice, alpha=0.3, iterations=500, tolerance=1e-13)
    assert np.linalg.norm(again - once) <= 1e-9 * np.linalg.norm(once)


@pytest.mark.parametrize(("scale", "stride"), [((2.0, 0.5), 1), (1.0, 2)])
def test_the_units_of_commands_and_a_stride_against_the_dense_solve(float64, toy_spec, scale, stride):
    """J counts commands in units of their scale; with a stride s every s-th step enters J Jᵀ s times as heavy."""
    policy = random_policy(toy_spec, 0, np.float64)
    rollout = random_rollout(toy_spec, 1, dtype=np.float64)
    nabla = np.random.default_rng(2).normal(size=ravel_pytree(policy)[0].size)
    alpha = 0.3

    @eqx.filter_jit
    def step(policy, gradient, rollout):
        return preconditioned_step(
            policy,
            gradient,
            rollout,
            eta=ETA,
            alpha=alpha,
            epsilon=EPSILON,
            iterations=500,
            tolerance=1e-13,
            stride=stride,
            command_scale=scale if isinstance(scale, float) else jnp.asarray(scale),
        )

    new, report = step(policy, as_gradient(policy, nabla), rollout)
    J = dense_jacobian(policy, rollout).reshape(nabla.size, TRAJECTORIES, STEPS, COMMANDS)
    J = (np.sqrt(stride) * J[:, :, ::stride] / np.asarray(scale)).reshape(nabla.size, -1)
    matrix = np.outer(nabla, nabla) + alpha * J @ J.T + EPSILON * np.eye(nabla.size)
    expected = -ETA * np.linalg.solve(matrix, nabla)
    delta = np.asarray(ravel_pytree(new)[0]) - np.asarray(ravel_pytree(policy)[0])
    assert np.linalg.norm(delta - expected) <= 1e-5 * np.linalg.norm(expected)
    np.testing.assert_allclose(report.command_step_norm, np.linalg.norm(J.T @ expected), rtol=1e-5)


def test_gated_and_padded_steps_do_not_hold_the_policy_back(float64, toy_spec):
    """Commands that the gate made, or that never were, are not in J; what stands in the padding does not matter."""
    policy = random_policy(toy_spec, 0, np.float64)
    rollout = random_rollout(toy_spec, 1, dtype=np.float64)
    states = np.array(rollout.states)
    states[2, 2:] *= 30.0  # the third trajectory has two steps
    padded = eqx.tree_at(lambda r: r.states, rollout, jnp.asarray(states))
    nabla = np.random.default_rng(2).normal(size=ravel_pytree(policy)[0].size)
    settings = {"alpha": 0.3, "iterations": 500, "tolerance": 1e-13}
    np.testing.assert_allclose(
        take_step(policy, nabla, padded, **settings)[0], take_step(policy, nabla, rollout, **settings)[0], rtol=1e-9
    )
    gated = eqx.tree_at(lambda r: r.free, rollout, jnp.asarray(np.zeros(rollout.free.shape, bool)))
    alone, report = take_step(policy, nabla, gated, **settings)
    np.testing.assert_allclose(alone, -ETA * nabla / (EPSILON + nabla @ nabla), rtol=1e-9)
    assert report.command_step_norm == 0.0


@jax.jit
def _solve_to_rounding(matrix, right):
    return conjugate_gradients(lambda v: matrix @ v, right, iterations=100, tolerance=1e-12)


@pytest.mark.parametrize("size", [1, 12])
def test_conjugate_gradients_against_a_direct_solve(float64, size):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, size))
    matrix, right = root @ root.T + 0.5 * np.eye(size), rng.normal(size=size)
    w, residual, count = _solve_to_rounding(matrix, right)
    np.testing.assert_allclose(w, np.linalg.solve(matrix, right), rtol=1e-9, atol=1e-11)
    assert residual <= 1e-12
    # In exact arithmetic as many iterations as unknowns suffice.
    assert 1 <= count <= size + 8


def test_conjugate_gradients_need_one_iteration_per_distinct_eigenvalue(float64):
    eigenvalues = np.array([1.0, 1.0, 1.0, 5.0, 5.0, 9.0])
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    matrix, right = rotation @ np.diag(eigenvalues) @ rotation.T, np.arange(1.0, 7.0)
    w, _, count = _solve_to_rounding(matrix, right)
    assert count == 3
    np.testing.assert_allclose(matrix @ w, right, rtol=1e-9)


@pytest.mark.parametrize("tolerance", [0.5, 1e-2])
def test_conjugate_gradients_stop_by_the_residual_and_not_later(float64, tolerance):
    rng = np.random.default_rng(4)
    root = rng.normal(size=(40, 40))
    matrix, right = root @ root.T / 40 + 0.01 * np.eye(40), rng.normal(size=40)

    def solve(iterations, tolerance):
        return conjugate_gradients(
            lambda v: jnp.asarray(matrix) @ v, jnp.asarray(right), iterations=iterations, tolerance=tolerance
        )

    def true_residual(w):
        return np.linalg.norm(matrix @ np.asarray(w) - right) / np.linalg.norm(right)

    w, residual, count = solve(200, tolerance)
    assert residual <= tolerance
    np.testing.assert_allclose(residual, true_residual(w), rtol=1e-6)
    assert count > 2
    before, _, count_before = solve(int(count) - 1, tolerance)
    assert count_before == count - 1
    assert true_residual(before) > tolerance


def test_every_iterate_is_the_galerkin_projection(float64):
    """wᵀ M w = rightᵀ w after any number of iterations: on this rest the step's bounds."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(20, 20))
    matrix, right = root @ root.T + 0.1 * np.eye(20), rng.normal(size=20)
    for iterations in (1, 2, 7):
        w, _, count = conjugate_gradients(
            lambda v: jnp.asarray(matrix) @ v, jnp.asarray(right), iterations=iterations, tolerance=1e-12
        )
        assert count == iterations
        w = np.asarray(w)
        np.testing.assert_allclose(w @ matrix @ w, right @ w, rtol=1e-9)
