"""The real-time iteration, on a linear plant whose optimum is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from firsthand.plants.linear_quadratic import augmented_system, solve_tracking
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand_lab.baselines.neural_mpc import controller as controllers
from firsthand_lab.baselines.neural_mpc.iteration import horizon_cost, improve_plan
from firsthand_lab.baselines.pid import follow_episode
from firsthand_lab.baselines.view import RobotView

DELAY, LENGTH, CHANGE, HORIZON = 2, 0.3, 0.02, 20


@pytest.fixture(scope="module")
def system():
    return augmented_system(DelayedDoubleIntegrator(delay=DELAY), DELAY)


@pytest.fixture(scope="module")
def task(make_probe_task):
    return make_probe_task(
        measured=2,
        command_memory=DELAY,
        steps=40,
        preview=tuple(range(1, HORIZON + 1)),
        command_limit=1.0,
        length_scale=LENGTH,
        change_weight=CHANGE,
    )


@pytest.fixture(autouse=True)
def in_double_precision():
    with jax.enable_x64(True):
        yield


def setting(system, task):
    A, B = jnp.asarray(system.A), jnp.asarray(system.B)
    rng = np.random.default_rng(0)
    start = np.array([0.1, -0.2, 0.3, 0.1])
    reference = 0.1 + 0.3 * np.cumsum(0.2 * rng.standard_normal((HORIZON + 1, 1)), axis=0)
    return (lambda x, u: A @ x + B @ u), task.cost.residuals, jnp.asarray(start), jnp.asarray(reference)


def test_one_step_on_a_linear_plant_is_the_optimum(system, task):
    dynamics, residuals, start, reference = setting(system, task)
    wide = jnp.full(1, 1e6)
    plan = jnp.asarray(np.random.default_rng(1).normal(0.0, 0.5, (HORIZON, 1)))
    step = jax.jit(lambda p: improve_plan(dynamics, residuals, start, reference, p, low=-wide, high=wide, damping=0.0))
    found = step(plan)
    # The recursion over one step more, whose command changes nothing any more.
    best = solve_tracking(system, np.asarray(reference), length_scale=LENGTH, change_weight=CHANGE)
    x, commands = np.asarray(start), []
    for k in range(HORIZON):
        commands.append(best.command(k, x))
        x = system.A @ x + system.B @ commands[-1]
    np.testing.assert_allclose(found, np.stack(commands), atol=1e-8)
    assert float(horizon_cost(dynamics, residuals, start, reference, found)) == pytest.approx(
        (HORIZON + 1) * best.cost(np.asarray(start))
    )


def test_with_limits_it_comes_to_the_answer_of_another_solver(system, task):
    dynamics, residuals, start, reference = setting(system, task)
    limit, plan = jnp.full(1, 0.4), jnp.zeros((HORIZON, 1))

    @jax.jit
    def cost(flat):
        return horizon_cost(dynamics, residuals, start, reference, jnp.asarray(flat).reshape(HORIZON, 1))

    slope = jax.jit(jax.grad(cost))
    wanted = scipy.optimize.minimize(
        lambda v: float(cost(v)),
        np.zeros(HORIZON),
        jac=lambda v: np.asarray(slope(v)),
        bounds=[(-0.4, 0.4)] * HORIZON,
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-10},
    )
    step = jax.jit(
        lambda p: improve_plan(dynamics, residuals, start, reference, p, low=-limit, high=limit, damping=1e-9)
    )
    for _ in range(15):
        plan = step(plan)
    assert float(jnp.abs(plan).max()) <= 0.4
    assert (np.abs(np.abs(wanted.x) - 0.4) < 1e-6).any()  # the limit matters
    assert float(cost(plan)) == pytest.approx(wanted.fun, rel=1e-4)


def test_a_step_is_never_worse_than_none(system, task):
    _, residuals, start, reference = setting(system, task)

    def wild(x, u):
        return x + jnp.sin(20 * x) + 5 * jnp.cos(30 * u[0])

    plan, limit = jnp.full((HORIZON, 1), 0.1), jnp.ones(1)
    before = horizon_cost(wild, residuals, start, reference, plan)
    step = jax.jit(lambda p: improve_plan(wild, residuals, start, reference, p, low=-limit, high=limit, damping=1e-6))
    after = step(plan)
    assert float(horizon_cost(wild, residuals, start, reference, after)) <= float(before)


def test_where_no_cost_is_finite_the_plan_stays(system, task):
    """Residuals whose squares are too large for a number: the step itself is finite, the cost of everything is not."""
    dynamics, residuals, start, reference = setting(system, task)

    def huge(x, u, r):
        return residuals(x, u, r) + 1e200

    plan, limit = jnp.full((HORIZON, 1), 0.1), jnp.ones(1)
    step = jax.jit(lambda p: improve_plan(dynamics, huge, start, reference, p, low=-limit, high=limit, damping=1e-6))
    np.testing.assert_array_equal(step(plan), plan)


def test_with_a_true_model_the_loop_is_nearly_optimal(system, task, monkeypatch):
    """Once per period, from what a policy sees, beside a controller that knows the whole reference."""
    A, B = (jnp.asarray(m, jnp.float32) for m in (system.A, system.B))

    class Exact:
        spec = task.spec

        def __call__(self, x, u):
            return A @ x + B @ u

    exact = Exact()
    monkeypatch.setattr(
        controllers,
        "_improve",
        jax.jit(
            lambda dynamics, cost, x, r, plans, n: jax.vmap(
                lambda a, b, c: improve_plan(
                    exact, task.cost.residuals, a, b, c, low=-jnp.ones(1), high=jnp.ones(1), damping=1e-6
                )
            )(x, r, plans),
            static_argnums=(0, 1),
        ),
    )
    with jax.enable_x64(False):
        view = RobotView(DelayedDoubleIntegrator(delay=DELAY), task, seed=0)
        follow_episode(view, controllers.NeuralController(task, exact, None, 1.0))  # pyright: ignore
    reached, best = 0.0, 0.0
    for record in view.records:
        start, target = record.starts[0].astype(float), record.references[0, : task.steps].astype(float)
        errors = (record.measured[0, :-1, :1] - target) / LENGTH
        commands = np.concatenate([start[2:3][None], record.commands[0]])
        reached += np.mean(errors**2) + CHANGE * np.mean(np.diff(commands[:, 0]) ** 2)
        best += solve_tracking(system, target, length_scale=LENGTH, change_weight=CHANGE).cost(start)
    assert 0.99 * best < reached < 1.15 * best
