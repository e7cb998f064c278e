"""What `import firsthand as fh` does in one call: train, evaluate, read a run, export its policy."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .agent.settings import Settings
from .controllers.bases import find_base
from .errors import UserError
from .evaluation import Evaluation
from .evaluation import evaluate as evaluate_policy
from .export import write_export
from .models import Controller, Policy
from .robots import AbstractRobot
from .robots.description import ROBOT_DESCRIPTION
from .robots.registry import find_robot
from .robots.source import RobotSource
from .runs import RunFolder, provenance
from .tasks.box import check_goals
from .training import Callback, FolderRecorder, MemoryRecorder, Trainer, TrainingConfig, TrainingStopped
from .training import preset as find_preset
from .training.base_guard import BaseGuard
from .training.bases import BASE_EXCITATION, Base
from .training.origin import BaseMode
from .training.parts import AbstractRecorder, NoSupervisor
from .training.presets import EPISODES
from .training.prior import Prior
from .training.run import Run


@dataclass(frozen=True)
class RunResult:
    """What `train` has made."""

    metrics: list[dict[str, Any]]
    """One entry per episode, as in metrics.jsonl; docs/metrics.md explains each field."""
    policy: Controller
    """The newest policy, with its observer where it has one: the last update's, which has not run on the robot yet."""
    kept_policy: Controller | None
    """The best policy that the robot has proven; None if no episode has proven one."""
    kept_episode: int | None
    """The episode that proved it, counted from 1."""
    settings: Settings
    """The agent's settings."""
    robot: AbstractRobot
    """The robot, where training left it."""
    path: Path | None
    """The run folder; None for a run that was kept in memory only."""

    def evaluate(self, policy: Policy | Controller | None = None, *, speed: float | None = None) -> Evaluation:
        """Follow the task's evaluation references; see `firsthand.evaluate`.

        Args:
            policy: the kept policy by default, or the newest where none is kept.
            speed: along the references; by default the task's own.
        """
        chosen = policy if policy is not None else self.kept_policy
        return evaluate_policy(self.robot, self.policy if chosen is None else chosen, speed=speed)


def train(
    robot: str | RobotSource | AbstractRobot,
    preset: str = "fast",
    *,
    episodes: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    payload_kg: float = 0.0,
    sensors: str | None = None,
    callbacks: Sequence[Callback] = (),
    keep_going: bool = False,
    base: str | None = None,
    base_mode: BaseMode = "add",
) -> RunResult:
    """Train a controller on a robot, from random weights or on top of a controller that is there.

    For machines that move something real use `firsthand train`: it asks for approval, widens the command range step by
    step and stops on Ctrl-C.

    Args:
        robot: a name such as "excavator" or "my_robot.py:task", a `GymnasiumTask`, or a `Robot`.
        preset: "fast", "paper" or "paper-exact"; see `PRESETS`.
        episodes: how many; by default the preset's own number.
        seed: of everything random. The same seed gives the same run.
        out: a new folder for the run, which `load_run` and the command line read. By default nothing is written.
        settings: changes to the preset, such as `{"model.steps": 300}`, or complete `Settings`.
        payload_kg: load at the tool, for robots that carry one.
        sensors: what a built-in robot is seen through, such as "real"; by default its own. See docs/sensors.md.
        callbacks: told before and after each episode.
        keep_going: go on where learning has stopped; otherwise `UserError` says why it has.
        base: the controller to learn on top of: "pi", "reference", "my_robot.py:controller" (the file is run), a run's
            folder or an exported policy. See docs/start_from_your_controller.md.
        base_mode: "add" to add the learned part to the base's command, "target" to move the target that it follows.

    Returns:
        Metrics, the newest and the kept policy, and `evaluate()`.
    """
    named = find_preset(preset)
    if base is not None:
        named = named.with_changes({"excitation.amplitude": BASE_EXCITATION.get(base_mode, 0.0)})
    chosen = settings if isinstance(settings, Settings) else named.with_changes(settings or {})
    count = EPISODES[preset] if episodes is None else episodes
    under: Base | None = None
    if base is not None:
        if not isinstance(robot, str):
            raise UserError(f"base is {base!r}, but only a robot that is given by its name can be trained on a base.")
        found = find_robot(robot, approve=True, sensors=sensors)
        under = find_base(base, base_mode, found, payload_kg=payload_kg, seed=seed)
        found = under.put_inside(found)
        body = found.make(payload_kg=payload_kg, seed=seed)
        config = TrainingConfig(found.name, preset, chosen, count, seed, payload_kg, sensors, base=under.origin)
    else:
        body, config = _prepare(robot, preset, chosen, count, seed, payload_kg, sensors)
    prior, supervisor = Prior().on_base(under, body.task.spec), None
    config = dataclasses.replace(config, data=prior.logs)
    if under is not None:
        supervisor = BaseGuard(body.task.spec, NoSupervisor(), prior.base_settings)
    if body.hardware:
        raise UserError(f"{config.robot} moves something real; train it with: firsthand train {config.robot}")
    with contextlib.ExitStack() as stack:
        recorder: AbstractRecorder = MemoryRecorder()
        if out is not None:
            stored = {**config.as_dict(), ROBOT_DESCRIPTION: body.description().as_dict()}
            recorder = FolderRecorder(
                stack.enter_context(RunFolder.create(out, stored, provenance=provenance.collect(), data=prior.files()))
            )
        trainer = Trainer(
            body, config, recorder, callbacks=callbacks, prior=prior, supervisor=supervisor, keep_going=keep_going
        )
        try:
            trainer.train()
        except TrainingStopped as stopped:
            raise UserError(f"{stopped} keep_going=True continues anyway.") from stopped
    kept = recorder.kept
    return RunResult(
        metrics=recorder.metrics(),
        policy=trainer.state.controller,
        kept_policy=None if kept is None else kept.policy,
        kept_episode=None if kept is None else kept.episode,
        settings=chosen,
        robot=body,
        path=None if out is None else Path(out),
    )


def make_robot(name: str, *, payload_kg: float = 0.0, seed: int = 0, sensors: str | None = None) -> AbstractRobot:
    """A robot by name, standing at home.

    Args:
        name: such as "excavator", "soft-arm", "my_robot.py:task" (the file is run) or "tcp/host:port".
        payload_kg: load at the tool, for robots that carry one.
        seed: of what is random in a simulated robot.
        sensors: what a built-in robot is seen through; by default its own.

    Returns:
        The robot; what is known about it is its `.task`.
    """
    return find_robot(name, approve=True, sensors=sensors).make(payload_kg=payload_kg, seed=seed)


def _prepare(
    robot: str | RobotSource | AbstractRobot,
    preset: str,
    settings: Settings,
    episodes: int,
    seed: int,
    payload_kg: float,
    sensors: str | None,
) -> tuple[AbstractRobot, TrainingConfig]:
    """The robot itself, and the run as data."""
    if sensors is not None and not isinstance(robot, str):
        raise UserError(f"sensors is {sensors!r}, but only a robot that is given by its name has sensors by name.")
    if isinstance(robot, str):
        found = find_robot(robot, approve=True, sensors=sensors)
        name, body = found.name, found.make(payload_kg=payload_kg, seed=seed)
    elif isinstance(robot, AbstractRobot):
        name, body = robot.task.name, robot
    else:
        task = robot.make_task()
        name, body = task.name, robot.make_robot(task, payload_kg=payload_kg, seed=seed)
    check_goals(body.task)
    return body, TrainingConfig(name, preset, settings, episodes, seed, payload_kg, sensors)


def evaluate(
    run: RunResult | Run | AbstractRobot, policy: Policy | Controller | None = None, *, speed: float | None = None
) -> Evaluation:
    """Follow the task's fixed evaluation references, from rest.

    Args:
        run: what `train` or `load_run` returned, or a robot. Of a run that was read, the robot is built.
        policy: what follows; by default the run's kept policy. A robot needs one.
        speed: along the references; by default the task's own.

    Returns:
        The metrics of each reference, and together as `.overall`.
    """
    if isinstance(run, RunResult):
        return run.evaluate(policy, speed=speed)
    if isinstance(run, Run):
        with contextlib.closing(run.make_robot(run.find_robot())) as robot:
            chosen = run.runnable(run.kept_policy()) if policy is None else policy
            return evaluate_policy(robot, chosen, speed=speed)
    if policy is None:
        raise UserError("To evaluate on a robot, give the policy, too: evaluate(robot, policy).")
    return evaluate_policy(run, policy, speed=speed)


def load_run(path: str | Path) -> Run:
    """Read a run folder, finished or still going on. Neither the robot nor its file is needed.

    Args:
        path: the folder that `firsthand train --out` or `train(out=…)` has written.

    Returns:
        The run: `.metrics()`, `.kept_policy()`, `.newest_policy()`, `.policy(episode)`, `.record(episode)`.
    """
    return Run.open(path)


def export_policy(
    run: str | Path, format: str = "safetensors", out: str | Path | None = None, *, episode: int | None = None
) -> list[Path]:
    """Write a run's policy for another program.

    Args:
        run: the run's folder.
        format: "c", "onnx" or "safetensors"; "mcap" and "lerobot" write what the robot did.
        out: the folder to write into; by default `export` in the run's own.
        episode: whose policy; by default the kept one.

    Returns:
        The files written.
    """
    return write_export(Path(run), format, None if out is None else Path(out), episode)
