from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import EpisodeRecord, SimulatedRobot
from firsthand.runs.pytrees import from_arrays, to_arrays
from firsthand.training import Trainer, TrainingConfig, learning
from firsthand.training.learning import draw_imagined_starts
from firsthand.training.presets import preset
from firsthand_lab.experiments import files, together
from firsthand_lab.experiments.learning import Log, Setup
from firsthand_lab.experiments.together import Together

EPISODES, SEEDS = 2, (0, 3)
SMALL = {"model.hidden": (8, 8), "model.steps": 10, "model.batch": 16, "policy_step.cg_iterations": 3}
SETTINGS = preset("paper").with_changes(SMALL)


@pytest.fixture(scope="module")
def task(make_probe_task):
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=20,
        preview=(1, 2, 3),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
        hidden=(8,),
        trajectories=2,
    )


@pytest.fixture(scope="module")
def curves(task):
    group = Together(ScalarPlant(), task, SETTINGS, SEEDS, episodes=EPISODES)
    return [group.run_episode() for _ in range(EPISODES)], group


def test_each_seed_learns_what_it_would_learn_alone(task, curves):
    for i, seed in enumerate(SEEDS):
        config = replace(TrainingConfig.of("excavator", "paper", episodes=EPISODES, seed=seed), settings=SETTINGS)
        trainer = Trainer(SimulatedRobot(ScalarPlant(), task, seed=seed), config)
        for episode in range(EPISODES):
            alone = trainer.run_episode().metrics
            for name in ("tracking_error", "cost", "model_loss", "gradient_norm", "prediction_error"):
                np.testing.assert_allclose(curves[0][episode][name][i], alone[name], rtol=1e-3, err_msg=name)


def test_a_snapshot_goes_on_as_if_nothing_had_happened(task, curves):
    again = Together(ScalarPlant(), task, SETTINGS, SEEDS, episodes=EPISODES)
    again.run_episode()
    kept = to_arrays(again.snapshot())
    other = Together(ScalarPlant(), task, SETTINGS, SEEDS, episodes=EPISODES)
    other.restore(from_arrays(other.snapshot(), kept))
    np.testing.assert_array_equal(other.run_episode()["cost"], curves[0][1]["cost"])


def test_every_true_step_counts_whatever_the_learner_believes(task, curves, monkeypatch):
    """As in the Trainer. Otherwise the error would leave out other steps with every learner."""
    prepare = learning.prepare_experience

    def blinded(task, settings, buffer, record, rng, **options):
        measured = record.measured.copy()
        measured[0, 3:8] = np.nan  # the learner alone sees this
        return prepare(task, settings, buffer, replace(record, measured=measured), rng, **options)

    monkeypatch.setattr(together, "prepare_experience", blinded)
    group = Together(ScalarPlant(), task, SETTINGS, SEEDS, episodes=EPISODES)
    np.testing.assert_array_equal(group.run_episode()["tracking_error"], curves[0][0]["tracking_error"])


def test_the_true_paths_of_shapes_are_kept(task, tmp_path):
    """Not what the sensors showed: the true errors stand beside them."""
    reference = task.evaluation(task.evaluation_speed)[0]
    steps, layout = len(reference.points), task.spec.layout
    measured, truth = np.full((1, steps + 1, 1), 0.3, np.float32), np.full((1, steps + 1, 1), 0.1, np.float32)
    beyond = np.concatenate([reference.points, np.repeat(reference.points[-1:], task.spec.preview[-1], axis=0)])
    commands = np.zeros((1, steps, 1), np.float32)
    record = EpisodeRecord.complete(np.zeros((1, layout.size)), measured, commands, beyond[None], truth)
    one = SimpleNamespace(spec=task.spec, evaluation_speed=0.5, evaluation=lambda speed: (reference,))
    Log(tmp_path, Setup()).keep_shapes(1, SimpleNamespace(task=one, follow=lambda: [(record,)]))
    arrays, _ = files.read_arrays(tmp_path / "paths" / "000001.safetensors")
    np.testing.assert_array_equal(arrays[f"0.{reference.name}.path"], truth[0, :-1])


def test_a_seed_without_a_sound_start_does_not_change_the_others(task, monkeypatch):
    """Alone it would go on without imagined trajectories, and the others with them."""
    sound = draw_imagined_starts
    starts = iter([True, True, False, False])  # of each seed: for the policy's steps, and for refinement
    monkeypatch.setattr(learning, "draw_imagined_starts", lambda *a: sound(*a) if next(starts) else None)
    group = Together(
        ScalarPlant(), task, SETTINGS.with_changes({"imagination.trajectories": 2}), SEEDS, episodes=EPISODES
    )
    with pytest.raises(UserError, match="episode 1 of seed 3 no trajectory had a sound start"):
        group.run_episode()


@pytest.mark.slow
def test_refinement_is_the_trainers(task):
    """From the second episode on, where something was predicted: seeds one after the other, and the same numbers."""
    fast: dict[str, Any] = {
        "policy_step.steps": 2,
        "imagination.trajectories": 2,
        "refinement.steps": 1,
        "refinement.batch": 2,
        "refinement.max_cost": 1e6,
        "refinement.max_overfit": 1e6,
        "observer.use": 0,
    }
    fast["trust_region.radius"] = 0.5
    settings = preset("fast").with_changes(
        {"model.hidden": (8, 8), "model.steps": 10, "model.batch": 16, "policy_step.cg_iterations": 3, **fast}
    )
    group = Together(ScalarPlant(), task, settings, SEEDS, episodes=2)
    config = TrainingConfig("excavator", "fast", settings, 2, seed=SEEDS[1])
    trainer = Trainer(SimulatedRobot(ScalarPlant(), task, seed=SEEDS[1]), config)
    for _ in range(2):
        group.run_episode()
        metrics = trainer.run_episode().metrics
    assert metrics["refined"]
    for mine, theirs in zip(jax.tree.leaves(group.policy(1)), jax.tree.leaves(trainer.state.policy), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_more_episodes_than_announced_are_refused(curves):
    curves[1].run_episode()
    with pytest.raises(ValueError, match="episodes"):
        curves[1].run_episode()
