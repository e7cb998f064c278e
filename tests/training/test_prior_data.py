"""Starting from another run and from logs, on a tiny plant: what is taken, what is kept, that resuming is the same."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import Settings
from firsthand.errors import UserError
from firsthand.logs.csv_file import column_names
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import SimulatedRobot
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.runs import RunFolder
from firsthand.runs.pytrees import to_arrays
from firsthand.tasks import Task
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.origin import InitFrom, TakenLog
from firsthand.training.prior import Prior, gather, spread_stretches
from probe_runs import EPISODES, FAST

SETTINGS = FAST.with_changes({"model.rate": 1e-2})
ROWS = 895
DONE = 3
"""Most tests stop here."""


@pytest.fixture
def log(task: Task, tmp_path: Path) -> Path:
    """The scalar plant x⁺ = x + 0.1 u under random commands, and one row that no robot has measured."""
    rng = np.random.default_rng(0)
    commands = rng.uniform(-1, 1, 900)
    states = np.concatenate([[0.0], np.cumsum(0.1 * commands)])[:-1]
    lines = [f"{0.1 * k:.1f},{states[k]},{commands[k]}" for k in range(900)]
    lines[150] = "15.0,nan,0.0"
    path = tmp_path / "log.csv"
    path.write_text("\n".join([",".join(column_names(task.spec)), *lines]))
    return path


def start(task: Task, prior: Prior, path: Path, settings: Settings = SETTINGS) -> Trainer:
    """A new run, as `firsthand train` makes it; the robot's name is not used."""
    config = TrainingConfig("excavator", "fast", settings, EPISODES, init_from=prior.init, data=prior.logs)
    stored = {**config.as_dict(), ROBOT_DESCRIPTION: RobotDescription.of(task).as_dict()}
    run = RunFolder.create(path, stored, provenance={}, data=prior.files())
    return Trainer(SimulatedRobot(ScalarPlant(), task), config, FolderRecorder(run), prior=prior)


def resumed(task: Task, path: Path) -> Trainer:
    run = RunFolder.open(path, writer=True)
    config = TrainingConfig.from_dict(run.config)
    try:
        prior = Prior.of_run(run, config)
    except UserError:
        run.close()
        raise
    trainer = Trainer(SimulatedRobot(ScalarPlant(), task), config, FolderRecorder(run), prior=prior)
    trainer.resume()
    return trainer


def folder_of(trainer: Trainer) -> RunFolder:
    assert isinstance(trainer.recorder, FolderRecorder)
    return trainer.recorder.run


def numbers(trainer: Trainer) -> dict[str, bytes]:
    tree: Any = {"state": trainer.state, "buffer": trainer.learner.buffer, "robot": trainer.robot.snapshot()}
    return {name: array.tobytes() for name, array in to_arrays(tree).items()}


@pytest.mark.slow
def test_resuming_rebuilds_the_same_buffer_and_the_same_learner(task: Task, log: Path, tmp_path: Path) -> None:
    prior = gather(task.spec, data=[log])
    whole = start(task, prior, tmp_path / "whole")
    assert int(whole.learner.buffer.size) == prior.rows == ROWS
    for _ in range(DONE):
        whole.run_episode()
    assert int(whole.learner.buffer.size) == ROWS + DONE * 6 * 20

    parts = start(task, prior, tmp_path / "parts")
    log.unlink()  # what was taken is in the run folder
    folder_of(parts).close()
    before_any_checkpoint = resumed(task, tmp_path / "parts")
    before_any_checkpoint.run_episode()
    folder_of(before_any_checkpoint).close()
    rest = resumed(task, tmp_path / "parts")
    assert rest.episode == 1
    while rest.episode < DONE:
        rest.run_episode()
    assert numbers(rest) == numbers(whole)


def test_what_is_taken_and_what_is_refused_is_remembered(task: Task, log: Path, tmp_path: Path) -> None:
    prior = gather(task.spec, data=[log])
    (taken,) = prior.logs
    # One row is bad, two stretches begin without their last command and end without a successor.
    assert (taken.rows, taken.taken, sum(taken.refused.values())) == (900, 895, 5)
    trainer = start(task, prior, tmp_path / "run")
    stored = TrainingConfig.from_dict(folder_of(trainer).config)
    assert stored.data == (taken,)
    assert stored.data[0].path == str(log.resolve())
    buffer = trainer.learner.buffer
    x, u, y = (np.asarray(a[:ROWS]) for a in (buffer.states, buffer.commands, buffer.following))
    np.testing.assert_allclose(y[:, 0], x[:, 0] + 0.1 * u[:, 0], atol=1e-6)


def test_the_warm_start_teaches_the_model_and_the_policy(task: Task, log: Path) -> None:
    prior = gather(task.spec, data=[log])
    config = TrainingConfig("excavator", "fast", SETTINGS, EPISODES)
    plain = Trainer(SimulatedRobot(ScalarPlant(), task), config)
    with_data = Trainer(SimulatedRobot(ScalarPlant(), task), config, prior=prior)
    state = prior.warm_start(with_data.state, task, SETTINGS, seed=0)
    for command in (-0.8, 0.0, 0.8):  # x⁺ = x + 0.1 u, and the command before does not matter
        change = state.dynamics.change(jnp.asarray([0.3, 0.5]), jnp.asarray([command]))
        assert float(change[0]) == pytest.approx(0.1 * command, abs=0.02)
    first, second = plain.run_episode().metrics, with_data.run_episode().metrics
    assert second["tracking_error"] < 0.6 * first["tracking_error"]


def test_of_a_long_log_evenly_spaced_stretches_stay(task: Task, log: Path) -> None:
    prior = gather(task.spec, data=[log, log])
    assert prior.rows == 2 * ROWS
    buffer = prior.buffer(task, 0, SETTINGS.model.log_episodes * 6 * 20)
    assert int(buffer.size) == 10 * 6 * 20, "ten episodes' worth"
    states = np.concatenate([rows.states for rows in prior.taken])
    picked = np.asarray(buffer.states[:1200])
    np.testing.assert_array_equal(picked[[0, -1]], states[[0, -1]])
    at = spread_stretches(2 * ROWS, 1200)
    np.testing.assert_array_equal(picked, states[at])
    gaps = np.diff(at)
    assert (gaps == 1).sum() == 1200 - 12, "stretches of a hundred consecutive rows"
    assert np.ptp(gaps[gaps > 1]) <= 1, "evenly spaced"


def test_short_logs_stay_whole_and_no_row_is_taken_twice() -> None:
    assert spread_stretches(70, 100).tolist() == list(range(70))
    for rows, count in ((101, 100), (250, 199), (1000, 30)):
        found = spread_stretches(rows, count)
        assert len(set(found.tolist())) == len(found)
        assert len(found) <= count
        assert found.max() < rows


def source(task: Task, path: Path) -> Trainer:
    trainer = start(task, Prior(), path)
    trainer.run_episode()
    trainer.run_episode()
    folder_of(trainer).close()
    return trainer


@pytest.mark.parametrize("parts", ["model", "policy", "both"])
def test_another_runs_parts_are_taken_over(parts: Any, task: Task, tmp_path: Path) -> None:
    other = source(task, tmp_path / "other")
    prior = gather(task.spec, init_from=tmp_path / "other", init=parts)
    assert prior.init is not None
    assert (prior.init.episode, prior.init.path) == (2, str((tmp_path / "other").resolve()))
    trainer = start(task, prior, tmp_path / "run")
    fresh = Trainer(SimulatedRobot(ScalarPlant(), task), trainer.config)
    for part, taken in (
        ("dynamics", parts != "policy"),
        ("optimizer", parts != "policy"),
        ("policy", parts != "model"),
    ):
        expected = getattr((other if taken else fresh).state, part)
        ours, theirs = (to_arrays(tree) for tree in (getattr(trainer.state, part), expected))
        assert {n: a.tobytes() for n, a in ours.items()} == {n: a.tobytes() for n, a in theirs.items()}
    folder_of(trainer).close()
    shutil.rmtree(tmp_path / "other")  # the run needs it no more
    again = resumed(task, tmp_path / "run")
    assert numbers(again) == numbers(trainer)
    assert TrainingConfig.from_dict(folder_of(again).config).init_from == prior.init


def test_what_cannot_be_started_from(task: Task, log: Path, tmp_path: Path) -> None:
    source(task, tmp_path / "other")
    other_robot = dataclasses.replace(task.spec, preview=(1, 2, 4))
    with pytest.raises(UserError, match=r"its robot is another: preview is \[1, 2, 3\] there and \[1, 2, 4\] here"):
        gather(other_robot, init_from=tmp_path / "other")
    with pytest.raises(UserError, match="init is 'modle', but must be one of model, policy, both"):
        gather(task.spec, init_from=tmp_path / "other", init="modle")  # pyright: ignore[reportArgumentType]
    prior = gather(task.spec, init_from=tmp_path / "other")
    larger = SETTINGS.with_changes({"model.hidden": (17,)})
    with pytest.raises(UserError, match=r"the dynamics of .* does not fit this run's"):
        start(task, prior, tmp_path / "run", larger)
    RunFolder.create(tmp_path / "new", {ROBOT_DESCRIPTION: RobotDescription.of(task).as_dict()}, provenance={}).close()
    with pytest.raises(UserError, match="has no finished episode"):
        gather(task.spec, init_from=tmp_path / "new")
    log.write_text(log.read_text().replace(",0.", ",9.").replace(",-", ",9"))
    with pytest.raises(UserError, match=r"nothing in .* can be used"):
        gather(task.spec, data=[log])


def test_kept_data_that_was_changed_is_noticed(task: Task, log: Path, tmp_path: Path) -> None:
    trainer = start(task, gather(task.spec, data=[log]), tmp_path / "run")
    folder_of(trainer).close()
    file = tmp_path / "run" / "data" / "000001.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="which the run started from, is damaged"):
        resumed(task, tmp_path / "run")
    file.unlink()
    with pytest.raises(UserError, match="which the run started from"):
        resumed(task, tmp_path / "run")


def test_a_run_that_started_from_nothing_says_nothing_about_it() -> None:
    plain = TrainingConfig.of("excavator")
    assert not {"init_from", "data"} & set(plain.as_dict())
    log = TakenLog("a.csv", "0" * 64, 10, 8, {"why": 2}, "")
    full = dataclasses.replace(plain, init_from=InitFrom("run", 3, "0" * 64, "both"), data=(log,))
    assert TrainingConfig.from_dict(json.loads(json.dumps(full.as_dict()))) == full
