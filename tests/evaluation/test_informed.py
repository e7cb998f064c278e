"""The informed oracle: exact derivatives along the loop, and the known optimum of a linear plant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from firsthand.evaluation.informed import (
    Chains,
    InformedPolicy,
    Loop,
    compiled_follow,
    follow,
    follow_shapes,
    held_out_errors,
    improve,
    linearise_loop,
)
from firsthand.models import Policy
from firsthand.plants.linear_quadratic import augmented_system, preview_policy_cost
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant

LENGTH, CHANGE, LIMIT = 0.3, 5.0, 4.0


@pytest.fixture(scope="module")
def loop(make_probe_task) -> Loop:
    task = make_probe_task(
        measured=1,
        command_memory=1,
        steps=40,
        preview=(1, 2, 3),
        hidden=(8, 8),
        command_limit=LIMIT,
        length_scale=LENGTH,
        change_weight=CHANGE,
    )
    return Loop.of(ScalarPlant(), task)


def first_policy(loop: Loop) -> InformedPolicy:
    return InformedPolicy.of(Policy.random(loop.task.spec, key=jax.random.key(1), last_gain=0.3), loop.size)


def test_new_inputs_change_nothing_at_first(loop):
    policy = Policy.random(loop.task.spec, key=jax.random.key(1))
    register, preview = jnp.asarray([0.4, -0.2]), jnp.asarray([[0.5], [0.6], [0.7], [0.8]])
    seen = loop.seen(jnp.asarray([0.4]), register)
    np.testing.assert_array_equal(InformedPolicy.of(policy, loop.size)(seen, preview), policy(register, preview))


def test_products_with_the_jacobian_equal_derivatives_of_the_whole_run(make_probe_task):
    """Against forward mode through every step at once, on a plant with hidden states (the delay line)."""
    sizes = {"command_limit": LIMIT, "length_scale": LENGTH, "change_weight": CHANGE, "hidden": (6, 6)}
    task = make_probe_task(measured=2, command_memory=1, steps=12, preview=(1, 2), **sizes)
    loop = Loop.of(DelayedDoubleIntegrator(delay=2), task).standardise(np.random.default_rng(0).normal(size=(9, 4)))
    policy = first_policy(loop)
    weight, bias = policy.layers[0]
    more = 0.3 * jax.random.normal(jax.random.key(5), weight.shape)
    policy = InformedPolicy(((weight + more, bias), *policy.layers[1:]), policy.spec)
    batch = Chains(loop, 3, seed=0).draw(0)
    flat, unravel = ravel_pytree(policy)
    problem, _ = linearise_loop(loop, policy, batch)

    def residuals(phi):
        followed = follow(loop, unravel(phi), batch)
        each = jax.vmap(jax.vmap(loop.task.cost.residuals))(
            followed.registers[:, :-1], followed.commands, followed.previews[:, :, 0]
        )
        return problem.weights * each

    direction = jax.random.normal(jax.random.key(2), flat.shape)
    value, expected = jax.jvp(residuals, (flat,), (direction,))
    np.testing.assert_allclose(problem.push(direction), expected, atol=1e-5 * float(jnp.abs(expected).max()))
    np.testing.assert_allclose(problem.value, jnp.sum(value**2), rtol=1e-5)
    slope = jax.grad(lambda phi: 0.5 * jnp.sum(residuals(phi) ** 2))(flat)
    np.testing.assert_allclose(problem.slope, slope, atol=1e-5 * float(jnp.abs(slope).max()))


def test_it_reaches_what_the_best_policy_of_its_class_costs(loop):
    policy, chains = first_policy(loop), Chains(loop, 16, seed=0)
    direction = jnp.zeros_like(ravel_pytree(policy)[0])
    for number in range(25):
        found = improve(loop, policy, chains.draw(number), jnp.asarray(1e-4), 0.5 * direction, 20)
        if found.after < found.before:
            policy, direction = found.policy, found.direction
        chains.advance(found.followed.ends, restart=0.2)

    batch = Chains(loop, 20, seed=9).draw(0)  # each from rest at home
    followed = compiled_follow(loop, policy, batch)
    system, weights = augmented_system(loop.plant, 1), {"length_scale": LENGTH, "change_weight": CHANGE / LIMIT**2}
    cost = jax.vmap(jax.vmap(loop.task.cost))(followed.registers[:, :-1], followed.commands, followed.previews[:, :, 0])
    best = [
        preview_policy_cost(system, np.asarray(points[:40], float), np.zeros(2), preview=3, **weights)
        for points in batch.points
    ]
    assert float(cost.mean()) <= 1.05 * np.mean(best)
    errors = held_out_errors(loop, policy, chains=4, length=3)
    assert len(errors) == 12
    assert max(errors) < LENGTH
    assert follow_shapes(loop, policy).overall.mean_error < LENGTH


def test_chains_go_on_where_they_ended_and_start_anew_where_they_broke(loop):
    chains = Chains(loop, 2, seed=0)
    chains.advance((jnp.asarray([[0.7], [jnp.nan]]), jnp.asarray([[0.7, 0.1], [jnp.nan, 0.0]])))
    home = np.asarray(loop.task.home)
    np.testing.assert_allclose(chains.states[:, 0], [0.7, home[0]], rtol=1e-6)
    points = np.asarray(chains.draw(1).points)
    np.testing.assert_allclose(points[:, 0, 0], [0.7, home[0]], atol=1e-6)
