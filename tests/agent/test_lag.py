"""Late commands in refinement: what a lag does, and that a policy made with it bears a robot that is later."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agent.test_improvement import (
    ALPHA,
    best_cost,
    cost_of,
    delayed_task,
    displaced,
    measured_rollout,
    random_policy,
    scalar_task,
    true_model,
)
from firsthand.agent.buffer import ImaginedStarts
from firsthand.agent.corrected_model import LatePolicy, draw_lags, make_rollout_inputs, predict_rollout
from firsthand.agent.refinement import Refinement, refine_on_model
from firsthand.agent.settings import Settings
from firsthand.optim.rollout import roll_out
from firsthand.plants.linear_quadratic import augmented_system
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant
from firsthand.robots.base import preview_indices
from firsthand_onboard.features import last_command

__all__ = ["delayed_task", "scalar_task"]


@pytest.fixture(scope="module")
def scalar(scalar_task):
    model = true_model(augmented_system(ScalarPlant(), 1), scalar_task.spec)
    policy = random_policy(scalar_task.spec, key=jax.random.key(0))
    rollout, _, _ = measured_rollout(policy, model, scalar_task)
    return policy, model, rollout


def test_a_late_command_is_the_filter_of_the_policys(scalar) -> None:
    policy, model, rollout = scalar
    late = LatePolicy(policy, jnp.asarray([0.6]))
    found = roll_out(late, model, rollout.states[:1, 0], previews=rollout.previews[:1])
    layout = policy.spec.layout
    sent = np.asarray(last_command(layout, rollout.states[0, 0]))
    for k in range(5):
        wanted = np.asarray(policy(found.states[0, k], rollout.previews[0, k]))
        sent = 0.4 * wanted + 0.6 * sent
        np.testing.assert_allclose(found.commands[0, k], sent, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(last_command(layout, found.states[0, k + 1]), sent, rtol=1e-4, atol=1e-6)


def test_measured_trajectories_are_never_late(scalar) -> None:
    policy, model, rollout = scalar
    imagined = ImaginedStarts(rollout.states[:3, 0], rollout.previews[:3])
    calm = make_rollout_inputs(model, rollout, imagined)
    count = rollout.states.shape[0]
    lags = draw_lags(policy, count, 3, 0.5, key=jax.random.key(1))
    late, prompt = (predict_rollout(policy, model, inputs) for inputs in (calm._replace(lags=lags), calm))
    np.testing.assert_allclose(late.states[:count], prompt.states[:count], rtol=1e-5, atol=1e-6)
    assert np.abs(late.commands[count:] - prompt.commands[count:]).max() > 1e-3


def test_lags_are_drawn_between_a_lead_and_the_largest(scalar) -> None:
    lags = np.asarray(draw_lags(scalar[0], 2, 2000, 0.6, key=jax.random.key(0)))
    np.testing.assert_array_equal(lags[:2], 0.0)
    assert lags[2:].min() == pytest.approx(-0.3, abs=0.01)
    assert lags[2:].max() == pytest.approx(0.6, abs=0.01)


def test_a_policy_made_with_lags_bears_a_robot_that_is_later_than_its_model(delayed_task) -> None:
    """The model is right but for a lag; what the margin costs where there is no lag is small."""
    task, plant = delayed_task, DelayedDoubleIntegrator(gain=2.0, delay=2)
    system = augmented_system(plant, task.spec.layout.command_memory)
    model = true_model(system, task.spec)
    policy = random_policy(task.spec, key=jax.random.key(0))
    rollout, starts, references = measured_rollout(policy, model, task)
    more, wanted = displaced(task, 16, seed=5)
    previews = wanted[:, preview_indices(task.spec, rollout.commands.shape[1])]
    imagined = ImaginedStarts(jnp.asarray(more, jnp.float32), jnp.asarray(previews, jnp.float32))
    shared = {
        "policy_step.alpha": ALPHA,
        "imagination.trajectories": 1,
        "refinement.steps": 12,
        "refinement.batch": 16,
        "refinement.damping": 1e-4,
    }

    @eqx.filter_jit
    def refined(lag: float):
        settings = Settings().with_changes({**shared, "refinement.lag": lag})
        batches = jax.tree.map(lambda a: jnp.tile(a, (13, *[1] * (a.ndim - 1))), imagined)
        return refine_on_model(
            policy,
            model,
            task.cost,
            rollout,
            batches,
            jnp.asarray(10.0),
            Refinement.initial(policy, settings),
            settings,
            key=jax.random.key(2),
        )[0]

    def cost(controller) -> float:
        return float(cost_of(task.cost, roll_out(controller, model, rollout.states[:, 0], previews=rollout.previews)))

    prompt, margin = refined(0.0), refined(0.7)
    late = jnp.full(task.spec.layout.num_commands, 0.7)
    assert cost(LatePolicy(margin, late)) < 0.8 * cost(LatePolicy(prompt, late))
    assert cost(margin) < 1.1 * best_cost(system, starts, references)
