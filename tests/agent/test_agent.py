"""The agent's one call: the same as its parts, for one seed or several, with and without learning the model."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import Agent, AgentState, Experience, append, update_model, update_policy
from firsthand.agent.agent import imagine_rollout
from firsthand.agent.buffer import ImaginedStarts
from firsthand.agent.model_learning import ModelReport, prediction_error
from firsthand.agent.settings import Settings
from firsthand.agent.trees import stack_trees, take_member
from firsthand.optim.rollout import Rollout
from firsthand.plants.probes import ScalarPlant
from firsthand.robots.simulated import SimulatedRobot
from firsthand.training.learning import as_rollout

SETTINGS = Settings().with_changes(
    {"model.hidden": (4,), "model.steps": 5, "model.batch": 16, "policy_step.steps": 2, "imagination.trajectories": 2}
)
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def scalar_task(make_probe_task):
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=12,
        preview=(1, 2),
        command_limit=2.0,
        length_scale=1.0,
        change_weight=0.01,
        trajectories=3,
    )


@pytest.fixture(scope="module")
def agent(scalar_task) -> Agent:
    return Agent(scalar_task.spec, scalar_task.cost, SETTINGS)


@pytest.fixture(scope="module")
def experiences(agent, scalar_task) -> list[Experience]:
    """One episode of the probe per seed, with two imagined starts taken from it."""
    return [measure(agent, scalar_task, seed) for seed in SEEDS]


def measure(agent: Agent, task, seed: int) -> Experience:
    robot = SimulatedRobot(ScalarPlant(), task, seed=seed)
    goals = task.sample_goals(np.random.default_rng(seed), robot.measured(), task.trajectories)
    rollout = as_rollout(task.spec, robot.run_episode(agent.init(seed, 1).learner.policy, goals))
    return Experience(rollout, starts_of(rollout))


def starts_of(rollout: Rollout) -> ImaginedStarts:
    return ImaginedStarts(rollout.states[:2, 0], rollout.previews[:2])


def new_state(agent: Agent, experience: Experience, seed: int = 0) -> AgentState:
    assert experience.rollout is not None
    return agent.init(seed, experience.rollout.valid.size)


def leaves(tree) -> list[np.ndarray]:
    """Every array, random keys as their data."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    keys = [jnp.issubdtype(a.dtype, jax.dtypes.prng_key) for a in arrays]
    return [np.asarray(jax.random.key_data(a) if key else a) for a, key in zip(arrays, keys, strict=True)]


def assert_close(found, expected, **tolerance) -> None:
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def test_observe_is_append_then_model_then_policy(agent, experiences):
    experience = experiences[0]
    found, update = agent.observe(new_state(agent, experience), experience)

    state = new_state(agent, experience)
    error = prediction_error(state.learner.dynamics, experience.rollout)
    buffer = append(state.buffer, experience.rollout)
    learner, model = update_model(state.learner, buffer, experience.rollout, SETTINGS)
    learner, policy = update_policy(learner, agent.cost, experience.rollout, experience.imagined, model, SETTINGS)
    assert_close(found, AgentState(learner, buffer), rtol=0)
    assert_close(update, (error, model, policy, experience.rollout), rtol=0)
    assert int(found.buffer.size) == experience.rollout.valid.sum()
    assert bool(update.policy.step.accepted)
    changed = zip(leaves(found.learner.policy), leaves(state.learner.policy), strict=True)
    assert any(np.any(a != b) for a, b in changed)


def test_two_seeds_side_by_side_learn_what_each_learns_alone(agent, experiences):
    alone = [
        agent.observe(new_state(agent, experience, seed), experience)
        for seed, experience in zip(SEEDS, experiences, strict=True)
    ]
    states = stack_trees([new_state(agent, e, seed) for seed, e in zip(SEEDS, experiences, strict=True)])
    together = eqx.filter_vmap(agent.observe)(states, stack_trees(experiences))
    for i, expected in enumerate(alone):
        assert_close(take_member(together, i), expected, rtol=2e-3, atol=1e-5)
    assert np.any(leaves(alone[0][0].learner.policy)[0] != leaves(alone[1][0].learner.policy)[0])


def test_without_learning_the_model_stays_and_the_data_is_kept(agent, experiences):
    experience = experiences[0]
    before = new_state(agent, experience)
    model = before.learner.dynamics
    after, update = agent.observe(new_state(agent, experience), experience, learn_model=False)
    assert_close(after.learner.dynamics, model, rtol=0)
    assert int(after.buffer.size) == experience.rollout.valid.sum()
    assert np.isnan(update.model.loss)
    assert np.isfinite(update.prediction_error)


@pytest.mark.parametrize("measured", [True, False], ids=["after an episode", "on the model alone"])
def test_practice_improves_the_policy_along_trajectories_of_the_model(agent, experiences, measured):
    experience = experiences[0]
    practice = dataclasses.replace(
        experience, rollout=experience.rollout if measured else None, practice=starts_of(experience.rollout)
    )
    state = new_state(agent, experience)
    after, update = agent.observe(state, practice, learn_model=False)

    learner = new_state(agent, experience).learner
    rollout = imagine_rollout(learner.policy, learner.dynamics, practice.practice)
    unchanged = ModelReport(jnp.asarray(jnp.nan), jnp.asarray(True))
    expected, report = update_policy(learner, agent.cost, rollout, practice.imagined, unchanged, SETTINGS)
    assert_close(after.learner, expected, rtol=0)
    assert_close(update.policy, report, rtol=0)
    assert int(after.buffer.size) == (experience.rollout.valid.sum() if measured else 0)
    assert np.isfinite(update.prediction_error) == measured


def test_an_experience_without_anything_to_learn_from_is_refused(agent, experiences):
    with pytest.raises(ValueError, match="needs a rollout or starts"):
        agent.observe(new_state(agent, experiences[0]), Experience(None))
