"""Branches of MBPO: with a true model they are what the robot itself does."""

import jax.numpy as jnp
import numpy as np

from firsthand.plants.linear_quadratic import augmented_system
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand_lab.baselines.mbpo import Branches, Rounds
from firsthand_lab.baselines.neural_mpc.learner import join_records
from firsthand_lab.baselines.view import RobotView


def test_with_a_true_model_branches_are_what_the_robot_does(make_probe_task):
    delay = 2
    plant = DelayedDoubleIntegrator(delay=delay)
    task = make_probe_task(
        measured=2,
        command_memory=delay,
        steps=30,
        preview=(1, 2, 5),
        command_limit=2.0,
        length_scale=0.3,
        change_weight=0.02,
        trajectories=3,
    )

    def act(seen: np.ndarray) -> np.ndarray:
        return np.tanh(0.5 * seen[:, :1] - 0.3 * seen[:, 1:2] + 0.2)

    view, measured = RobotView(plant, task, seed=0), []
    while view.episode < 1:
        seen = view.begin()
        while not view.over:
            action = act(seen[None])[0]
            after, reward = view.step(action)
            measured.append(np.concatenate([seen, action, [reward], after]))
            seen = after
    system = augmented_system(plant, delay)
    A, B = (jnp.asarray(m, jnp.float32) for m in (system.A, system.B))
    branches = Branches(task)
    branches.add(join_records(view.records))
    found = branches.imagine(lambda x, u: A @ x + B @ u, act, 40, 4, np.random.default_rng(0))
    rows = np.concatenate([found[n].reshape(len(found["rewards"]), -1) for n in found], axis=1)
    assert len(rows) == 160
    everything = np.stack(measured)
    # Every imagined transition is one that was measured: same observation, action, reward and next observation.
    apart = np.abs(rows[:, None] - everything[None]) / (1.0 + np.abs(everything[None]))
    np.testing.assert_allclose(apart.max(axis=2).min(axis=1), 0.0, atol=1e-4)


def _round(rewards: list[float]) -> dict[str, np.ndarray]:
    column = np.asarray(rewards)
    return {"rewards": column, "observations": np.stack([column, -column], axis=1)}


def test_a_round_without_a_finite_branch_is_no_round():
    rounds = Rounds()
    rounds.remember(_round([]))
    assert not rounds.kept
    rounds.remember(_round([1.0, 2.0, 3.0]))
    rounds.remember(_round([]))
    rounds.remember(_round([4.0]))
    drawn = rounds.draw(400, np.random.default_rng(0))
    assert set(drawn["rewards"]) == {1.0, 2.0, 3.0, 4.0}
    np.testing.assert_array_equal(drawn["observations"][:, 1], -drawn["rewards"])


def test_a_model_that_runs_away_leaves_the_finite_branches(make_probe_task):
    plant = DelayedDoubleIntegrator(delay=1)
    task = make_probe_task(
        measured=2,
        command_memory=1,
        steps=10,
        preview=(1, 2),
        command_limit=2.0,
        length_scale=0.3,
        change_weight=0.02,
        trajectories=1,
    )
    view = RobotView(plant, task, seed=0)
    while view.episode < 1:
        view.begin()
        while not view.over:
            view.step(np.zeros(1))
    branches = Branches(task)
    branches.add(join_records(view.records))
    found = branches.imagine(
        lambda x, u: x + jnp.inf, lambda seen: np.zeros((len(seen), 1)), 20, 3, np.random.default_rng(0)
    )
    assert len(found["rewards"]) == 0
    assert found["observations"].shape == (0, view.observation_size)
