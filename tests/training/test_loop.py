"""The loop on a tiny plant: what it leaves, what it refuses, and that it is the same every time."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from firsthand.agent import Agent, Settings
from firsthand.errors import UserError
from firsthand.models import Policy
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import EpisodeRecord, SimulatedRobot
from firsthand.runs import RunFolder, packed
from firsthand.runs.pytrees import to_arrays
from firsthand.standstill import WINDOW
from firsthand.tasks import Task, excavator_task
from firsthand.tasks.goals import Track
from firsthand.training import (
    Callback,
    FolderRecorder,
    MemoryRecorder,
    Trainer,
    TrainingConfig,
    TrainingStopped,
    learning,
    preset,
)
from firsthand.training.display import TrainingDisplay
from firsthand.training.health import Health
from firsthand.training.learning import Learner
from probe_runs import EPISODES, FAST, SMALL

SETTINGS = {"paper": preset("paper").with_changes(SMALL), "fast": FAST}
SETTINGS["refined"] = FAST.with_changes({"trust_region.radius": 0.5})
"""The widest trust region: refinement from the second episode on."""

every = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def config(settings: Settings, seed: int = 0) -> TrainingConfig:
    """The robot's name is not used: the trainer is given a robot."""
    return TrainingConfig("excavator", "fast", settings, EPISODES, seed=seed)


def long_config() -> TrainingConfig:
    """Long enough for any standstill."""
    return dataclasses.replace(config(SETTINGS["paper"]), episodes=2 * WINDOW)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", {}, provenance={}) as folder:
        yield folder


def numbers(tree: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in to_arrays(tree).items()}


@every
def test_what_an_episode_leaves(settings: Settings, task: Task, run: RunFolder) -> None:
    trainer = Trainer(SimulatedRobot(ScalarPlant(), task), config(settings), FolderRecorder(run))
    for _ in range(4):
        trainer.run_episode()
    lines = run.read_metrics()
    assert [line["episode"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        for name in (
            *("robot_time_s", "tracking_error", "rms_error", "max_error", "controller_loss", "model_loss"),
            *("gradient_norm", "step_norm", "update_time_s"),
        ):
            assert line[name] >= 0
        assert line["robot_time_s"] == pytest.approx(line["episode"] * 6 * 20 * 0.1)
        assert line["tracking_error"] <= line["rms_error"] <= line["max_error"]
        assert line["update_accepted"] is True
    assert run.episodes() == [1, 2, 3, 4]
    assert run.checkpoints()[-1] == 4
    assert (
        numbers(trainer.state).items()
        <= {
            name.removeprefix("learner."): array.tobytes() for name, array in run.load_checkpoint().arrays.items()
        }.items()
    )
    assert int(trainer.learner.buffer.size) == 4 * 6 * 20
    for line in lines[1:]:
        for name in ("forecast_error", "forecast_error_ratio", "one_step_error_ratio", "closed_loop_growth"):
            assert line[name] >= 0
        assert line["innovation_size_channel"] in task.spec.layout.measured


@every
def test_looking_at_its_health_changes_nothing_of_a_run(
    settings: Settings, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = Trainer(SimulatedRobot(ScalarPlant(), task), config(settings))
    found = [looked_at.run_episode() for _ in range(3)]
    unknown = Health(*[jnp.asarray(jnp.nan)] * len(Health._fields))  # pyright: ignore[reportCallIssue]
    unknown = unknown._replace(innovation_size=jnp.full(1, jnp.nan), velocity_delay=jnp.zeros(0), follows=jnp.zeros(0))
    monkeypatch.setattr(learning, "diagnose", lambda *_: unknown)
    plain = Trainer(SimulatedRobot(ScalarPlant(), task), config(settings))
    for summary in found:
        assert plain.run_episode().metrics["tracking_error"] == summary.metrics["tracking_error"]
    assert numbers(plain.state) == numbers(looked_at.state)


@pytest.mark.parametrize("lost", ["later", "damaged"])
def test_the_kept_policy_is_one_of_the_episodes_that_stay(lost: str, task: Task, run: RunFolder) -> None:
    """Killed after the kept policy was written and before the checkpoint, or the file is damaged."""
    trainer = Trainer(SimulatedRobot(ScalarPlant(), task), config(SETTINGS["paper"]), FolderRecorder(run))
    for _ in range(3):
        trainer.run_episode()
    kept, before = run.load_best(), trainer.recorder.kept
    assert kept is not None
    assert before is not None
    if lost == "later":
        weights = {name: array + 1 for name, array in kept[0].items()}
        run.save_best(weights, {"episode": 4, "tracking_error": 0.0})
    else:
        (run.path / "best.safetensors").write_bytes(b"no policy")
    again = Trainer(SimulatedRobot(ScalarPlant(), task), config(SETTINGS["paper"]), FolderRecorder(run))
    again.resume()
    restored = run.load_best()
    assert restored is not None
    assert restored[1] == kept[1]
    after = again.recorder.kept
    assert after is not None
    assert after[1:] == pytest.approx(before[1:])
    assert numbers(after.policy) == numbers(before.policy)
    assert {n: a.tobytes() for n, a in restored[0].items()} == {n: a.tobytes() for n, a in kept[0].items()}


@every
def test_the_same_seed_gives_the_same_run_and_another_another(settings: Settings, task: Task) -> None:
    def train(seed: int) -> dict[str, bytes]:
        trainer = Trainer(SimulatedRobot(ScalarPlant(), task, seed=seed), config(settings, seed))
        trainer.run_episode()
        trainer.run_episode()
        return numbers({"state": trainer.state, "data": trainer.learner.buffer.states})

    first, other = train(1), train(2)
    assert train(1) == first
    assert {name for name in first if first[name] == other[name]} <= {
        # Counters, and biases of the right size that have not moved.
        name
        for name in first
        if any(part in name for part in ("refused", "count", "radius", "bias", "expected", "refinement", "estimation"))
    }


@every
def test_nothing_is_compiled_after_the_first_episode(settings: Settings, task: Task, compilations) -> None:
    trainer = Trainer(SimulatedRobot(ScalarPlant(), task), config(settings))
    trainer.run_episode()
    with compilations() as compiled:
        trainer.train()
    assert trainer.episode == EPISODES
    assert compiled.count == 0


def test_a_change_of_payload_reaches_the_plant_and_compiles_nothing(compilations) -> None:
    task = excavator_task(trajectories=2, steps=10, hidden=(8,))
    policy = Policy.random(task.spec, key=jax.random.key(0), last_gain=1.0)
    robot = SimulatedRobot(ExcavatorFlow(), task, loaded=ExcavatorFlow().with_payload)
    goals = task.sample_goals(np.random.default_rng(0), robot.measured(), 2)
    start = robot.snapshot()

    def episode() -> np.ndarray:
        robot.restore(start)
        return robot.run_episode(policy, goals).measured

    first = episode()
    with compilations() as compiled:
        robot.set_payload(300.0)
        second, third = episode(), episode()
        robot.set_payload(0.0)
        fourth = episode()
    assert compiled.count == 0
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, third)
    np.testing.assert_array_equal(first, fourth)


class BreakingPlant(ScalarPlant):
    """A `ScalarPlant` whose sensor can break."""

    broken: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)

    def measure(self, state, *, key):
        return jnp.where(self.broken > 0, jnp.nan, state)


class Break(Callback):
    """Breaks the sensor before an episode."""

    def __init__(self, robot: SimulatedRobot, at: int) -> None:
        self.robot, self.at = robot, at

    def before_episode(self, episode: int) -> None:
        if episode == self.at:
            self.robot.plant = eqx.tree_at(lambda plant: plant.broken, self.robot.plant, jnp.asarray(1.0))


class Distorted(SimulatedRobot):
    """Reports something else than what happened."""

    distort: Callable[[EpisodeRecord], EpisodeRecord] = staticmethod(lambda record: record)

    def run_episode(self, *arguments: Any) -> EpisodeRecord:
        return self.distort(super().run_episode(*arguments))


def check_stopped(trainer: Trainer, run: RunFolder) -> None:
    """Two good episodes, then only bad ones: the third of these stops the run, and nothing of them is learned."""
    trainer.run_episode()
    trainer.run_episode()
    good = numbers({"policy": trainer.state.policy, "dynamics": trainer.state.dynamics})
    for refused in (1, 2):
        summary = trainer.run_episode()
        assert summary.metrics["update_accepted"] is False
        assert summary.metrics["refused_updates"] == refused
        assert numbers({"policy": trainer.state.policy, "dynamics": trainer.state.dynamics}) == good
    with pytest.raises(TrainingStopped, match="3 updates in a row were refused"):
        trainer.run_episode()
    assert [line["update_accepted"] for line in run.read_metrics()] == [True, True, False, False, False]
    kept = run.load_checkpoint()
    assert kept.episode == 5
    stored = {name: array.tobytes() for name, array in kept.arrays.items()}
    assert {f"learner.{name}": value for name, value in good.items()}.items() <= stored.items()


@every
def test_a_robot_that_measures_nothing_any_more_stops_the_run(settings: Settings, task: Task, run: RunFolder) -> None:
    robot = SimulatedRobot(BreakingPlant(), task)
    check_stopped(Trainer(robot, config(settings), FolderRecorder(run), callbacks=(Break(robot, at=3),)), run)


@every
def test_data_that_blows_up_the_model_stops_the_run(
    settings: Settings, task: Task, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = Distorted(ScalarPlant(), task)

    class Spoil(Callback):
        def before_episode(self, episode: int) -> None:
            if episode == 3:
                # Finite, so that it passes for a measurement, and too large to be squared.
                robot.distort = lambda record: dataclasses.replace(record, measured=record.measured + np.float32(1e30))

    display = TrainingDisplay(config(settings), run.path)
    check_stopped(Trainer(robot, config(settings), FolderRecorder(run), callbacks=(Spoil(), display)), run)
    said = capsys.readouterr().err
    for episode, refused in ((3, 1), (4, 2), (5, 3)):
        assert f"episode {episode}: the update was refused" in said
        assert f"({refused} refused so far)" in said
    assert "episode 2: " not in said


class DeafPlant(ScalarPlant):
    """Commands have no effect."""

    def step(self, state: Any, command: Any, *, key: Any) -> Any:
        return super().step(state, 0.0 * command, key=key)


def test_commands_without_effect_stop_the_run_and_say_so(task: Task, run: RunFolder) -> None:
    trainer = Trainer(SimulatedRobot(DeafPlant(), task), long_config(), FolderRecorder(run))
    with pytest.raises(TrainingStopped, match=r"no visible effect.* firsthand inspect"):
        trainer.train()
    assert trainer.episode == WINDOW
    assert run.checkpoints()[-1] == WINDOW


def test_a_saturated_policy_stops_the_run_unless_told_to_keep_going(task: Task) -> None:
    told: list[str] = []

    class Listens(Callback):
        def notify(self, text: str) -> None:
            told.append(text)

    def saturated(keep_going: bool) -> Trainer:
        trainer = Trainer(
            SimulatedRobot(ScalarPlant(), task), long_config(), callbacks=(Listens(),), keep_going=keep_going
        )
        weight, bias = trainer.state.policy.layers[-1]
        policy = eqx.tree_at(lambda p: p.layers[-1], trainer.state.policy, (0 * weight, bias + 1e3))
        trainer.state = dataclasses.replace(trainer.state, policy=policy)
        return trainer

    with pytest.raises(
        TrainingStopped, match=r"gradient was zero in 3 updates.* 100 % of the commands stand at a limit"
    ):
        saturated(False).train()
    assert not told
    trainer = saturated(True)
    for _ in range(4):
        trainer.run_episode()
    assert len(told) == 1  # not again in every episode


def test_a_policy_is_not_proven_by_the_few_steps_that_a_bad_sensor_leaves(task: Task, run: RunFolder) -> None:
    def spoil(record: EpisodeRecord) -> EpisodeRecord:
        measured = record.measured.copy()
        measured[:, 6:] = 1e6  # finite, and far outside the scale
        return dataclasses.replace(record, measured=measured)

    robot = Distorted(ScalarPlant(), task)
    robot.distort = spoil
    trainer = Trainer(robot, config(SETTINGS["paper"]), FolderRecorder(run))
    summary = trainer.run_episode()
    assert summary.record.valid.all()
    assert summary.metrics["valid_share"] == pytest.approx(5 / 20)
    assert np.isfinite(summary.metrics["tracking_error"])
    assert run.load_best() is None
    robot.distort = lambda record: record
    assert trainer.run_episode().metrics["valid_share"] == 1.0
    assert run.load_best() is not None


def test_a_good_update_ends_a_row_of_refused_ones(task: Task) -> None:
    # A cost that is not finite, though all data are: the gradient is to blame, not the model.
    broken = dataclasses.replace(task, cost=dataclasses.replace(task.cost, goal=Track(1e-30)))

    class BreaksTwice(Learner):
        def observe(self, *arguments: Any) -> Any:
            cost = broken.cost if trainer.episode in (1, 2) else task.cost
            self.agent = Agent(task.spec, cost, self.settings)
            return super().observe(*arguments)

    trainer = Trainer(SimulatedRobot(ScalarPlant(), task), config(SETTINGS["paper"]), learner=BreaksTwice)
    trainer.run_episode()
    for row in (1, 2):
        summary = trainer.run_episode()
        assert summary.metrics["update_accepted"] is False
        assert int(trainer.state.refused_in_a_row) == row
    summary = trainer.run_episode()
    assert summary.metrics["update_accepted"] is True
    assert int(trainer.state.refused_in_a_row) == 0
    assert int(trainer.state.refused) == 2


@every
@pytest.mark.parametrize(("name", "value"), [("measured", np.nan), ("measured", np.inf), ("commands", np.nan)])
def test_one_bad_sample_is_left_out_and_learning_goes_on(
    name: str, value: float, settings: Settings, task: Task
) -> None:
    def spoil(record: EpisodeRecord) -> EpisodeRecord:
        array = getattr(record, name).copy()
        array[1, 5] = value
        return dataclasses.replace(record, **{name: array})

    robot = Distorted(ScalarPlant(), task)
    robot.distort = spoil
    trainer = Trainer(robot, config(settings))
    before = numbers(trainer.state.policy)
    for episode in (1, 2):
        summary = trainer.run_episode()
        assert summary.metrics["update_accepted"] is True
        # The step to it and the step from it.
        assert int(trainer.learner.buffer.size) == episode * (6 * 20 - 2)
        assert np.isfinite(np.asarray(trainer.learner.buffer.states)).all()
        assert np.isfinite(np.asarray(trainer.learner.buffer.following)).all()
        measures = ("tracking_error", "rms_error", "max_error", "controller_loss", "cost", "model_loss")
        assert all(np.isfinite(summary.metrics[measure]) for measure in measures)
        after = numbers(trainer.state.policy)
        assert (after != before) == (summary.metrics["steps_taken"] > 0)
        assert episode > 1 or after != before
        before = after


def test_training_on_the_probe_learns(task: Task) -> None:
    trainer = Trainer(SimulatedRobot(ScalarPlant(), task), config(SETTINGS["fast"]))
    errors = [trainer.run_episode().metrics["tracking_error"] for _ in range(EPISODES)]
    assert np.mean(errors[-2:]) < 0.4 * errors[0]


def test_a_run_in_memory_keeps_what_a_run_in_a_folder_keeps(task: Task, run: RunFolder) -> None:
    made = [
        Trainer(SimulatedRobot(ScalarPlant(), task), config(SETTINGS["paper"]), recorder)
        for recorder in (MemoryRecorder(), FolderRecorder(run))
    ]
    for trainer in made:
        for _ in range(4):
            trainer.run_episode()
    memory, folder = (trainer.recorder for trainer in made)
    best = run.load_best()
    assert memory.kept is not None
    assert folder.kept is not None
    assert best is not None
    assert memory.kept[1:] == folder.kept[1:]
    assert memory.kept.episode == best[1]["episode"]
    assert named_bytes(memory.kept.policy.arrays()) == named_bytes(best[0])
    assert [row["tracking_error"] for row in memory.metrics()] == [row["tracking_error"] for row in folder.metrics()]
    for episode in (1, 4):
        assert numbers(memory.load_policy(episode, task.spec)) == numbers(folder.load_policy(episode, task.spec))
        ours, theirs = (recorder.load_record(episode, task.spec).measured for recorder in (memory, folder))
        np.testing.assert_array_equal(ours, theirs)
    arrays, info = run.load_episode(4)
    damaged = packed.pack({**arrays, "valid": arrays["valid"][:, :0]}, info)  # with the right checksum
    (run.path / "episodes" / "000004.safetensors").write_bytes(damaged)
    with pytest.raises(UserError, match=r"episode 4 of .* is damaged: "):
        made[1].resume()


def named_bytes(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def test_what_callbacks_see_cannot_be_changed(task: Task) -> None:
    class Meddle(Callback):
        def after_episode(self, summary: Any) -> None:
            with pytest.raises(TypeError):
                summary.metrics["tracking_error"] = 0.0
            with pytest.raises(dataclasses.FrozenInstanceError):
                summary.episode = 7
            seen.append(summary.episode)

    seen: list[int] = []
    Trainer(SimulatedRobot(ScalarPlant(), task), config(SETTINGS["paper"]), callbacks=(Meddle(),)).run_episode()
    assert seen == [1]
