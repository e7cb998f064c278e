"""The closed-loop gradient against the dense formula, finite differences, backpropagation through time and a hand."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from firsthand.models import Dynamics, Policy
from firsthand.optim.gradient import (
    closed_loop_gradient,
    command_sensitivities,
    damped_gradient,
    mean_cost,
    trajectory_cost,
)
from firsthand.optim.rollout import Rollout, predict_trajectory

STEPS, TRAJECTORIES = 6, 3
TOLERANCE = 1e-6


def bumpy_cost(state, command, reference):
    """A cost that depends on everything, with a mixed term in x and u."""
    error = state[:2] - reference
    return (
        error @ error
        + 0.3 * command @ command
        + 0.4 * state[0] * command[1]
        + 0.2 * jnp.sin(state @ jnp.arange(1.0, state.size + 1.0))
        + 0.1 * (command[0] - state[-1]) ** 2
    )


class Problem(eqx.Module):
    """A policy, a model and a rollout that the model did not make."""

    policy: Policy
    dynamics: Dynamics
    measured: Rollout


def random_layers(rng, *sizes):
    return tuple(
        (jnp.asarray(rng.normal(size=(after, before))) / before**0.5, jnp.asarray(0.1 * rng.normal(size=after)))
        for before, after in itertools.pairwise(sizes)
    )


@pytest.fixture(scope="module")
def problem(toy_spec):
    """Random networks, and arbitrary 'measured' trajectories that no model predicts."""
    rng = np.random.default_rng(3)
    size, commands = toy_spec.layout.size, toy_spec.layout.num_commands
    shape = (TRAJECTORIES, STEPS)
    with jax.enable_x64(True):
        policy = Policy(random_layers(rng, toy_spec.observation_size, 4, commands), toy_spec)
        dynamics = Dynamics(random_layers(rng, size + commands, 5, 2), jnp.asarray([0.5, 0.4]), toy_spec)
        measured = Rollout(
            states=jnp.asarray(rng.normal(size=(TRAJECTORIES, STEPS + 1, size))),
            commands=jnp.asarray(rng.uniform(-1.0, 1.0, (*shape, commands))),
            previews=jnp.asarray(rng.normal(size=(*shape, 1 + len(toy_spec.preview), toy_spec.num_outputs))),
            free=jnp.asarray(np.ones((*shape, commands), bool)),
            valid=jnp.asarray(np.ones(shape, bool)),
        )
        return Problem(policy, dynamics, measured)


@eqx.filter_jit
def imagined(problem: Problem) -> Rollout:
    """What the plant would do if it were the model."""
    measured = problem.measured
    states, commands = jax.vmap(
        lambda start, previews: predict_trajectory(
            problem.policy, problem.dynamics, start, previews, jnp.zeros((STEPS, start.size))
        )
    )(measured.states[:, 0], measured.previews)
    return Rollout(states, commands, measured.previews, measured.free, measured.valid)


@eqx.filter_jit
def jacobians(problem: Problem, rollout: Rollout):
    """A, B, ∂c/∂x, ∂c/∂u, K and ∂u/∂φ at every step, by forward mode."""
    flat, unravel = ravel_pytree(eqx.filter(problem.policy, eqx.is_array))
    static = eqx.filter(problem.policy, eqx.is_array, inverse=True)

    def command(phi, state, preview):
        return eqx.combine(unravel(phi), static)(state, preview)

    def at(state, applied, preview):
        return (
            *jax.jacfwd(problem.dynamics, argnums=(0, 1))(state, applied),
            *jax.jacfwd(bumpy_cost, argnums=(0, 1))(state, applied, preview[0]),
            *jax.jacfwd(command, argnums=(1, 0))(flat, state, preview),
        )

    return jax.jit(jax.vmap(jax.vmap(at)))(rollout.states[:, :-1], rollout.commands, rollout.previews)


def dense_gradient(problem: Problem, rollout: Rollout, discount: float = 1.0, *, chained: bool = False) -> np.ndarray:
    """Equation 6 with the terms in ∂g/∂u, by block matrices: a sum over trajectories, over the count of valid steps.

    A block of A or B at (k+1, k) maps step k to step k+1: below the diagonal. K is block diagonal, and a row of K and
    of ∂u/∂φ is zero where the command was not the policy's own. An invalid step has no blocks at all; on a chained
    trajectory it only has no cost.
    """
    every = jax.tree.map(np.asarray, jacobians(problem, rollout))
    parameters = every[-1].shape[-1]
    total = np.zeros(parameters)
    for i in range(rollout.states.shape[0]):
        h, n, m = STEPS, rollout.states.shape[-1], rollout.commands.shape[-1]
        A, B, K = np.zeros((h * n, h * n)), np.zeros((h * n, h * m)), np.zeros((h * m, h * n))
        g_x, g_u, du_dphi = np.zeros(h * n), np.zeros(h * m), np.zeros((h * m, parameters))
        for k in range(h):
            counts = bool(rollout.valid[i, k])
            if not (counts or chained):
                continue
            x, u = slice(k * n, (k + 1) * n), slice(k * m, (k + 1) * m)
            a, b, c_x, c_u, gain, slope = (jacobian[i, k] for jacobian in every)
            own = np.asarray(rollout.free[i, k], float)[:, None]
            if k + 1 < h:
                after = slice((k + 1) * n, (k + 2) * n)
                A[after, x], B[after, u] = a, b
            K[u, x], du_dphi[u], g_x[x], g_u[u] = own * gain, own * slope, counts * c_x, counts * c_u
        response = np.linalg.inv(np.eye(h * n) - discount * (A + B @ K)) @ B
        total += (g_x @ response + g_u @ (np.eye(h * m) + K @ response)) @ du_dphi
    return total / int(np.sum(np.asarray(rollout.valid)))


cost_of = eqx.filter_jit(mean_cost)
gradient_of = eqx.filter_jit(closed_loop_gradient)
sensitivities_of = eqx.filter_jit(command_sensitivities)


@eqx.filter_jit
def compiled_gradient(problem: Problem, rollout: Rollout, discount: float, chained: bool):
    policy, dynamics = problem.policy, problem.dynamics
    return ravel_pytree(closed_loop_gradient(policy, dynamics, bumpy_cost, rollout, discount, chained=chained))[0]


def flat_gradient(problem: Problem, rollout: Rollout, discount: float = 1.0, *, chained: bool = False) -> np.ndarray:
    """The code under test."""
    return np.asarray(compiled_gradient(problem, rollout, discount, chained))


def relative_error(found, expected) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_measured_states_that_no_model_predicts_against_the_dense_formula(float64, problem, discount):
    found = flat_gradient(problem, problem.measured, discount)
    assert found.dtype == np.float64
    assert relative_error(found, dense_gradient(problem, problem.measured, discount)) <= TOLERANCE


def test_the_gradient_is_taken_where_the_robot_was_not_where_the_model_would_have_gone(float64, problem):
    along_measured = flat_gradient(problem, problem.measured)
    along_model = flat_gradient(problem, imagined(problem))
    assert relative_error(along_model, along_measured) > 0.1


@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_gated_commands_and_cut_trajectories_against_the_dense_formula(float64, problem, discount):
    rng = np.random.default_rng(0)
    free = jnp.asarray(rng.random(problem.measured.free.shape) < 0.6)
    lengths = np.array([STEPS, 4, 1])
    valid = jnp.asarray(np.arange(STEPS) < lengths[:, None])
    # What stands in the padding must not matter, so it is large.
    states = problem.measured.states.at[1, 5:].mul(50.0).at[2, 2:].mul(-80.0)
    rollout = Rollout(states, problem.measured.commands, problem.measured.previews, free, valid)
    found = flat_gradient(problem, rollout, discount)
    assert relative_error(found, dense_gradient(problem, rollout, discount)) <= TOLERANCE
    assert relative_error(found, flat_gradient(problem, problem.measured, discount)) > 0.1


GAPS = np.array([[1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0]], bool)
"""Steps missing in the middle, at the start and at the end."""


def with_gaps(rollout: Rollout) -> Rollout:
    free = jnp.asarray(np.random.default_rng(4).random(rollout.free.shape) < 0.7)
    return eqx.tree_at(lambda r: (r.free, r.valid), rollout, (free, jnp.asarray(GAPS)))


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("chained", [False, True])
def test_gaps_in_mid_trajectory_against_the_dense_formula(float64, problem, discount, chained):
    rollout = with_gaps(problem.measured)
    expected = dense_gradient(problem, rollout, discount, chained=chained)
    assert relative_error(flat_gradient(problem, rollout, discount, chained=chained), expected) <= TOLERANCE
    assert relative_error(dense_gradient(problem, rollout, discount, chained=not chained), expected) > 0.1


def test_a_gap_worked_by_hand(float64):
    """As worked by hand below, without step 1. Measured: μ_2 = 0.4, μ_0 = 0.1, ∇ = (0.1 − 0.4)/2.

    Chained: λ_1 = 0.3·(−2.4) = −0.72, μ_1 = −0.2·2.4 = −0.48, μ_0 = 0.1 − 0.2·0.72 = −0.044,
    ∇ = (−0.044 − 2·0.48 − 0.4)/2.
    """
    rollout = eqx.tree_at(lambda r: r.valid, scalar_rollout(), jnp.asarray([[True, False, True]]))
    for chained, expected in ((False, -0.15), (True, -0.702)):
        gradient = gradient_of(Gain(jnp.asarray(-1.0)), scalar_dynamics, scalar_cost, rollout, chained=chained)
        np.testing.assert_allclose(gradient.k, expected, rtol=1e-12)


def test_on_the_model_the_gradient_across_gaps_is_that_of_the_mean_cost(float64, problem):
    """Finite differences of what `improve_on_model` judges: gated commands, residuals, and steps that do not count."""
    flat, unravel = ravel_pytree(eqx.filter(problem.policy, eqx.is_array))
    static = eqx.filter(problem.policy, eqx.is_array, inverse=True)
    measured = with_gaps(problem.measured)
    missed = jnp.asarray(0.1 * np.random.default_rng(5).normal(size=(TRAJECTORIES, STEPS, measured.states.shape[-1])))

    def run_with(phi):
        states, commands = jax.vmap(predict_trajectory, in_axes=(None, None, 0, 0, 0, 0, 0))(
            eqx.combine(unravel(phi), static),
            problem.dynamics,
            *(measured.states[:, 0], measured.previews, missed, measured.commands, measured.free),
        )
        return Rollout(states, commands, measured.previews, measured.free, measured.valid)

    directions = np.random.default_rng(1).normal(size=(50, flat.size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    step = 1e-5
    cost_at = jax.jit(jax.vmap(lambda phi: mean_cost(bumpy_cost, run_with(phi))))
    ends = cost_at(flat + step * np.concatenate([directions, -directions]))
    differences = np.asarray(ends[:50] - ends[50:]) / (2 * step)
    slopes = directions @ flat_gradient(problem, jax.jit(run_with)(flat), chained=True)
    assert relative_error(slopes, differences) <= TOLERANCE


def test_what_the_model_imagines_behind_the_last_counted_step_has_no_say(float64, problem):
    valid = jnp.asarray(np.arange(STEPS) < np.array([STEPS, 4, 1])[:, None])
    sound = eqx.tree_at(lambda r: r.valid, problem.measured, valid)
    states = sound.states.at[1, 5:].set(jnp.nan).at[2, 2:].set(jnp.inf)
    broken = eqx.tree_at(lambda r: r.states, sound, states)
    np.testing.assert_array_equal(
        sensitivities_of(problem.policy, problem.dynamics, bumpy_cost, one_of(broken, 1), chained=True),
        sensitivities_of(problem.policy, problem.dynamics, bumpy_cost, one_of(sound, 1), chained=True),
    )


def one_of(rollout: Rollout, i: int) -> Rollout:
    return jax.tree.map(lambda a: a[i], rollout)


def test_a_trajectory_that_was_gated_throughout_teaches_nothing(float64, problem):
    measured = problem.measured
    gated = eqx.tree_at(lambda r: r.free, measured, jnp.zeros_like(measured.free))
    np.testing.assert_array_equal(flat_gradient(problem, gated), 0.0)


def test_an_episode_without_one_valid_step_gives_zero_not_nan(float64, problem):
    nothing = eqx.tree_at(lambda r: r.valid, problem.measured, jnp.zeros_like(problem.measured.valid))
    np.testing.assert_array_equal(flat_gradient(problem, nothing), 0.0)
    assert float(cost_of(bumpy_cost, nothing)) == 0.0


def test_finite_differences_where_the_model_is_the_plant(float64, problem):
    flat, unravel = ravel_pytree(eqx.filter(problem.policy, eqx.is_array))
    static = eqx.filter(problem.policy, eqx.is_array, inverse=True)

    def cost_at(phi):
        moved = eqx.tree_at(lambda p: p.policy, problem, eqx.combine(unravel(phi), static))
        run = imagined(moved)
        costs = jax.vmap(jax.vmap(bumpy_cost))(run.states[:, :-1], run.commands, run.previews[:, :, 0])
        return costs.mean()

    rng = np.random.default_rng(1)
    directions = rng.normal(size=(50, flat.size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    step = 1e-5
    ends = jax.jit(jax.vmap(cost_at))(flat + step * np.concatenate([directions, -directions]))
    differences = np.asarray(ends[:50] - ends[50:]) / (2 * step)
    slopes = directions @ flat_gradient(problem, imagined(problem))
    assert np.min(np.abs(differences)) > 1e-4  # every direction says something
    assert relative_error(slopes, differences) <= TOLERANCE


def test_backpropagation_through_time_where_the_model_is_the_plant(float64, problem):
    def whole_cost(policy):
        def step(state, preview):
            command = policy(state, preview)
            return problem.dynamics(state, command), bumpy_cost(state, command, preview[0])

        def one(start, previews):
            return jax.lax.scan(step, start, previews)[1].mean()

        return jax.vmap(one)(problem.measured.states[:, 0], problem.measured.previews).mean()

    expected = ravel_pytree(eqx.filter_jit(eqx.filter_grad(whole_cost))(problem.policy))[0]
    assert relative_error(flat_gradient(problem, imagined(problem)), np.asarray(expected)) <= TOLERANCE


def test_the_scan_whose_values_are_measured_and_whose_derivatives_are_the_models(float64, problem):
    """The stop-gradient form of the design, with a gate."""
    free = jnp.asarray(np.random.default_rng(2).random(problem.measured.free.shape) < 0.7)
    rollout = eqx.tree_at(lambda r: r.free, problem.measured, free)

    def whole_cost(policy):
        def step(state, inputs):
            applied, following, preview, free = inputs
            wanted = policy(state, preview)
            command = applied + jnp.where(free, wanted - jax.lax.stop_gradient(wanted), 0.0)
            predicted = problem.dynamics(state, command)
            after = following + predicted - jax.lax.stop_gradient(predicted)
            return after, bumpy_cost(state, command, preview[0])

        def one(trajectory):
            inputs = (trajectory.commands, trajectory.states[1:], trajectory.previews, trajectory.free)
            return jax.lax.scan(step, trajectory.states[0], inputs)[1].mean()

        return jax.vmap(one)(rollout).mean()

    value, expected = eqx.filter_jit(eqx.filter_value_and_grad(whole_cost))(problem.policy)
    assert float(value) == pytest.approx(float(cost_of(bumpy_cost, rollout)), rel=1e-12)
    assert relative_error(flat_gradient(problem, rollout), np.asarray(ravel_pytree(expected)[0])) <= TOLERANCE


class Gain(eqx.Module):
    """u = k x."""

    k: jax.Array

    def __call__(self, state, preview):
        return self.k * state


def scalar_rollout() -> Rollout:
    """x = 1, 2, −1 with u = 0.5, −1, 2 applied; x_3 = 100 must not matter, for H steps have H costs."""
    return Rollout(
        states=jnp.asarray([[[1.0], [2.0], [-1.0], [100.0]]]),
        commands=jnp.asarray([[[0.5], [-1.0], [2.0]]]),
        previews=jnp.zeros((1, 3, 2, 1)),
        free=jnp.ones((1, 3, 1), bool),
        valid=jnp.ones((1, 3), bool),
    )


def scalar_dynamics(state, command):
    return 0.5 * state + 0.2 * command


def scalar_cost(state, command, reference):
    return (state[0] - reference[0]) ** 2 + 0.1 * command[0] ** 2


def test_a_case_worked_by_hand(float64):
    """x⁺ = x/2 + u/5, u = k x with k = −1, c = x² + u²/10: A + BK = 0.3, ∂c/∂x = 2x, ∂c/∂u = u/5, ∂u/∂k = x.

    μ_2 = 0.4                      λ_2 = −2 − 0.4 = −2.4
    μ_1 = −0.2 − 0.2·2.4 = −0.68   λ_1 = 4 + 0.2 − 0.3·2.4 = 3.48
    μ_0 = 0.1 + 0.2·3.48 = 0.796   ∇ = (0.796 − 2·0.68 − 0.4)/3 = −0.964/3
    """
    rollout, policy = scalar_rollout(), Gain(jnp.asarray(-1.0))
    one = jax.tree.map(lambda a: a[0], rollout)
    mu = sensitivities_of(policy, scalar_dynamics, scalar_cost, one)
    np.testing.assert_allclose(mu[:, 0], [0.796, -0.68, 0.4], rtol=1e-12)
    gradient = gradient_of(policy, scalar_dynamics, scalar_cost, rollout)
    np.testing.assert_allclose(gradient.k, -0.964 / 3, rtol=1e-12)
    # Σ x² = 6 and Σ u²/10 = 0.525.
    np.testing.assert_allclose(trajectory_cost(scalar_cost, one), 6.525, rtol=1e-12)
    np.testing.assert_allclose(cost_of(scalar_cost, rollout), 2.175, rtol=1e-12)


def test_a_discount_worked_by_hand(float64):
    """With γ = 0.5: λ_1 = 4.2 − 0.15·2.4 = 3.84, μ_0 = 0.868, ∇ = (0.868 − 1.36 − 0.4)/3. Only λ feels the discount."""
    gradient = gradient_of(Gain(jnp.asarray(-1.0)), scalar_dynamics, scalar_cost, scalar_rollout(), 0.5)
    np.testing.assert_allclose(gradient.k, -0.892 / 3, rtol=1e-12)


def test_a_gate_and_a_cut_worked_by_hand(float64):
    """Without the last step and with u_1 gated: λ_1 = 4 (no feedback), μ_0 = 0.1 + 0.2·4 = 0.9, ∇ = 0.9/2."""
    rollout = eqx.tree_at(
        lambda r: (r.free, r.valid),
        scalar_rollout(),
        (jnp.asarray([[[True], [False], [True]]]), jnp.asarray([[True, True, False]])),
    )
    gradient = gradient_of(Gain(jnp.asarray(-1.0)), scalar_dynamics, scalar_cost, rollout)
    np.testing.assert_allclose(gradient.k, 0.45, rtol=1e-12)
    np.testing.assert_allclose(cost_of(scalar_cost, rollout), (1.0 + 4.0 + 0.1 * 1.25) / 2, rtol=1e-12)


def test_the_gradient_is_the_mean_over_trajectories(float64, problem):
    measured = problem.measured
    each = []
    for i in range(TRAJECTORIES):
        copies = jax.tree.map(
            lambda a, i=i: jnp.asarray(np.repeat(np.asarray(a)[i : i + 1], TRAJECTORIES, 0)), measured
        )
        one = eqx.tree_at(lambda r: r.valid, copies, jnp.asarray(np.arange(TRAJECTORIES)[:, None] == [[0] * STEPS]))
        each.append(flat_gradient(problem, copies))
        # The same trajectory three times is no different from having it once.
        np.testing.assert_allclose(flat_gradient(problem, one), each[-1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(flat_gradient(problem, measured), np.mean(each, axis=0), rtol=1e-10, atol=1e-12)


def test_cut_trajectories_count_by_their_steps(float64, problem):
    """The mean is over the steps that happened: 6 and 2 of them weigh 3 : 1."""

    def lasting(*lengths):
        valid = np.arange(STEPS) < np.asarray(lengths)[:, None]
        return flat_gradient(problem, eqx.tree_at(lambda r: r.valid, problem.measured, jnp.asarray(valid)))

    expected = 0.75 * lasting(6, 0, 0) + 0.25 * lasting(0, 2, 0)
    np.testing.assert_allclose(lasting(6, 2, 0), expected, rtol=1e-10, atol=1e-12)


def test_a_trajectory_far_out_is_scaled_down_to_a_multiple_of_the_median(float64, problem):
    """μ of each trajectory is shortened to at most `outlier` times the median length; the others are untouched."""
    measured = problem.measured
    lengths, each = [], []
    for i in range(TRAJECTORIES):
        one = jax.tree.map(lambda a, i=i: a[i], measured)
        mu = sensitivities_of(problem.policy, problem.dynamics, bumpy_cost, one)
        lengths.append(float(np.linalg.norm(mu)))
        valid = np.zeros((TRAJECTORIES, STEPS), bool)
        valid[i] = True
        each.append(flat_gradient(problem, eqx.tree_at(lambda r: r.valid, measured, jnp.asarray(valid))))
    outlier = 0.5 * (1.0 + max(lengths) / np.median(lengths))  # the longest is cut, the others are not
    assert outlier > 1.01
    share = np.minimum(1.0, outlier * np.median(lengths) / np.asarray(lengths))
    assert np.sum(share < 1) == 1
    found = gradient_of(problem.policy, problem.dynamics, bumpy_cost, measured, 1.0, float(outlier))
    expected = share @ np.stack(each) / TRAJECTORIES
    assert relative_error(np.asarray(ravel_pytree(found)[0]), expected) <= TOLERANCE


def test_trajectories_without_a_valid_step_are_not_counted_in_that_median(float64, problem):
    valid = np.zeros((TRAJECTORIES, STEPS), bool)
    valid[0] = True
    alone = eqx.tree_at(lambda r: r.valid, problem.measured, jnp.asarray(valid))
    found = gradient_of(problem.policy, problem.dynamics, bumpy_cost, alone, 1.0, 2.0)
    expected = flat_gradient(problem, alone)
    assert np.abs(expected).max() > 0
    assert relative_error(np.asarray(ravel_pytree(found)[0]), expected) <= TOLERANCE


def unstable_dynamics(state, command):
    """With k = −1 the closed loop is 1.8: the gradient doubles, almost, with every step that it looks ahead."""
    return 2.0 * state + 0.2 * command


def test_an_exploding_gradient_is_taken_with_the_largest_discount_that_tames_it(float64):
    """γ, 0.92 γ, 0.92² γ, … in turn, at most six of them; the gradient is the ordinary one at the γ it reports."""
    rng = np.random.default_rng(0)
    steps, policy = 12, Gain(jnp.asarray(-1.0))
    rollout = Rollout(
        states=jnp.asarray(rng.uniform(0.5, 1.5, (1, steps + 1, 1))),
        commands=jnp.asarray(rng.uniform(0.5, 1.5, (1, steps, 1))),
        previews=jnp.asarray(np.zeros((1, steps, 2, 1))),
        free=jnp.asarray(np.ones((1, steps, 1), bool)),
        valid=jnp.asarray(np.ones((1, steps), bool)),
    )
    gammas = 0.95 * 0.92 ** np.arange(6)
    sizes = [abs(float(gradient_of(policy, unstable_dynamics, scalar_cost, rollout, jnp.asarray(g)).k)) for g in gammas]
    assert all(1.2 * after < before for before, after in itertools.pairwise(sizes))
    damped = eqx.filter_jit(damped_gradient)  # compiled for each limit: it is a setting
    for limit, expected in ((1.01 * sizes[0], 0), (1.01 * sizes[3], 3), (1e-9, 5)):
        gradient, gamma = damped(policy, unstable_dynamics, scalar_cost, rollout, discount=0.95, max_norm=float(limit))
        np.testing.assert_allclose(gamma, gammas[expected], rtol=1e-12)
        np.testing.assert_allclose(abs(float(gradient.k)), sizes[expected], rtol=1e-10)
