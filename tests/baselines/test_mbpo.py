"""Branches of MBPO: with a true model they are what the robot itself does."""

import jax.numpy as jnp
import numpy as np

from firsthand.plants.linear_quadratic import augmented_system
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand_lab.baselines.mbpo import Branches
from firsthand_lab.baselines.neural_mpc.learner import joined
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
    branches.add(joined(view.records))
    found = branches.imagine(lambda x, u: A @ x + B @ u, act, 40, 4, np.random.default_rng(0))
    rows = np.concatenate([found[n].reshape(len(found["rewards"]), -1) for n in found], axis=1)
    assert len(rows) == 160
    everything = np.stack(measured)
    # Every imagined transition is one that was measured: same observation, action, reward and next observation.
    apart = np.abs(rows[:, None] - everything[None]) / (1.0 + np.abs(everything[None]))
    np.testing.assert_allclose(apart.max(axis=2).min(axis=1), 0.0, atol=1e-4)
