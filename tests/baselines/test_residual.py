"""Backpropagation through time on a plant whose best controller is known, and the base under the policy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import ImaginedStarts
from firsthand.controllers.pi import Axis, Identification
from firsthand.models import Controller, Policy
from firsthand.plants.linear_quadratic import augmented_system, preview_policy_cost
from firsthand.plants.probes import ScalarPlant
from firsthand.training import preset
from firsthand.training.bases import Recorded, as_jax
from firsthand.training.prior import Prior
from firsthand_lab.baselines.ours import RobotController
from firsthand_lab.baselines.pid import follow_episode
from firsthand_lab.baselines.residual import ResidualLearner
from firsthand_lab.baselines.residual.backpropagation import improve_policy, model_cost, optimizer
from firsthand_lab.baselines.setup import plant_and_task
from firsthand_lab.baselines.view import RobotView
from firsthand_onboard.base_control import NO_LIMIT, BaseControl, PIBase
from firsthand_onboard.features import build_reference, initial_state

LENGTH, CHANGE, LIMIT = 0.3, 5.0, 4.0


@pytest.fixture(scope="module")
def task(make_probe_task):
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=20,
        preview=(1, 2, 3),
        command_limit=LIMIT,
        length_scale=LENGTH,
        change_weight=CHANGE,
    )


def imagine(task, count, seed):
    """Starts at rest, and references to random goals."""
    rng, spec = np.random.default_rng(seed), task.spec
    steps = np.arange(task.steps)[:, None] + np.asarray([0, *spec.preview])
    starts, previews, points = [], [], []
    for start in rng.uniform(-0.5, 0.5, (count, 1)).astype(np.float32):
        path = np.asarray(build_reference(spec, start, task.sample_goals(rng, start, 1)[0].astype(np.float32)))
        starts.append(initial_state(spec.layout, start, np.zeros(1, np.float32)))
        previews.append(path[steps])
        points.append(path[: task.steps])
    return ImaginedStarts(jnp.asarray(np.stack(starts)), jnp.asarray(np.stack(previews))), np.stack(points)


def test_with_a_true_model_the_policy_comes_near_the_best_of_its_class(task):
    system = augmented_system(ScalarPlant(), 1)
    A, B = (jnp.asarray(m, jnp.float32) for m in (system.A, system.B))
    policy = Policy.random(task.spec, key=jax.random.key(0), last_gain=0.1)
    moments = optimizer().init(policy.layers)  # pyright: ignore[reportArgumentType]
    learn, _ = imagine(task, 128, 0)
    model = lambda x, u: A @ x + B @ u  # noqa: E731
    policy, _, costs = improve_policy(
        policy, moments, model, task.cost, learn, steps=1500, batch=16, key=jax.random.key(1)
    )
    fresh, points = imagine(task, 64, 1)
    weights = {"length_scale": LENGTH, "change_weight": CHANGE / LIMIT**2}
    best = [
        preview_policy_cost(system, path.astype(float), np.asarray(x, float), preview=3, **weights)
        for x, path in zip(fresh.starts, points, strict=True)
    ]
    reached = float(model_cost(policy, model, task.cost, fresh))
    assert costs[0] > 5 * np.mean(best)
    assert reached < 1.15 * np.mean(best)


def test_before_anything_is_learned_the_commands_are_the_bases():
    """And the base remembers from one trajectory to the next, and begins anew for another robot."""
    plant, task = plant_and_task("excavator", tiny=True)
    joints = len(task.spec.layout.position)
    table = np.tile(np.asarray([[0.1, 1.0], [0.0, 0.5]]), (joints, 1, 1))
    one = np.ones(joints)
    base = PIBase(gain=2 * one, integral_s=2 * one, ahead_s=0.2 * one, sign=one, up=table, down=table)
    control = as_jax(BaseControl(base, 0.5, NO_LIMIT))
    policy = Policy.random(task.spec, key=jax.random.key(0), control=control)
    shown = []
    for controller in (RobotController(Controller(policy)), Plain(task.spec, base)):
        view = RobotView(plant, task, seed=0)
        follow_episode(view, controller)
        shown.append(np.concatenate([r.commands for r in view.records]))
    np.testing.assert_allclose(shown[0], shown[1], atol=1e-3)
    assert np.abs(shown[0]).max() > 0.1


def test_the_model_learns_from_the_identification_and_the_first_episode_is_the_bases(monkeypatch):
    """As ours on `--base pi`: the same pushes, and nothing excited after them."""
    _, task = plant_and_task("excavator", tiny=True)
    joints, rows = len(task.spec.layout.position), 40
    table = (np.asarray([0.1, 1.0]), np.asarray([0.0, 0.5]))
    axes = tuple(Axis(1.0, table, table, 0.1, 0.1) for _ in range(joints))
    measured = np.tile(np.concatenate([task.home, np.zeros(joints)]), (rows, 1))
    pushes = np.random.default_rng(0).uniform(-1.0, 1.0, (rows, joints))
    recorded = Recorded(measured, pushes, np.ones(rows - 1, bool))
    monkeypatch.setattr(
        "firsthand_lab.baselines.residual.learner.identify_axes",
        lambda *args, **options: Identification(axes, 60.0, 1.0, recorded),
    )
    learned_from = []
    monkeypatch.setattr(Prior, "warm_start", lambda self, state, *args, **options: learned_from.append(self) or state)
    settings = preset("fast").with_changes({"model.hidden": (8, 8), "observer.use": 0})
    learner = ResidualLearner(task, settings, seed=0, capacity=task.steps)
    learner.excite(SimpleNamespace(task=task))  # pyright: ignore[reportArgumentType] (nothing moves)
    assert learned_from[0].has_seen_motion
    stored = int(learner.buffer.size)
    assert 0 < stored < rows
    shown = np.asarray(learner.buffer.commands[:stored])
    assert all((np.abs(pushes - command).max(axis=1) < 1e-6).any() for command in shown)
    assert type(learner.make()) is type(learner.make_best()) is RobotController, "nothing is added to the commands"


class Plain:
    """The base alone, step by step."""

    def __init__(self, spec, base) -> None:
        self.spec, self.base, self.memory = spec, base, np.asarray(base.initial_memory(spec))

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        from firsthand_lab.baselines.observed import read_observation
        from firsthand_onboard.features import command_feature

        state, points = read_observation(self.spec, seen[0])
        if first[0]:
            self.memory = self.base.begin(self.spec, state, self.memory)
        command, self.memory = self.base.step(self.spec, state, points, self.memory)
        return np.asarray(command_feature(self.spec, command))[None]
