"""Resuming a run: what `firsthand train --resume` takes from the run's folder, and what must not differ from it."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..console import notify
from ..errors import UserError
from ..robots.address import is_address
from ..robots.description import ROBOT_DESCRIPTION, RobotDescription
from ..robots.registry import NamedRobot, find_robot
from ..robots.user_file import absolute_name, robot_file_notes, short_name
from ..runs import RunFolder, atomic, provenance
from ..training import TrainingConfig, preset
from ..training.bases import Base
from .options import given_settings

if TYPE_CHECKING:
    from .train import Train


def open_run(
    given: "Train", path: Path, found: NamedRobot
) -> tuple[RunFolder, TrainingConfig, NamedRobot, Base | None]:
    """The run to resume, its configuration, robot and base, after checking that what was given fits it."""
    try:
        run = RunFolder.open(path, writer=True)
    except UserError as error:
        with atomic.reading(path):
            is_run = (path / "config.json").exists()
        if is_run:
            raise
        raise UserError(f"{str(error).removesuffix('.')}; leave out --resume to start a run there.") from None
    try:
        where = f"{path / 'config.json'}"
        stored = TrainingConfig.from_dict(run.config, where)
        if given.sensors is None and stored.sensors is not None:
            found = find_robot(given.name, sensors=stored.sensors)
        controller = None
        if stored.base is not None:
            controller = Base.of_run(run, stored.base, found.task.spec)
            found = controller.put_inside(found)
        before, now = RobotDescription.of_config(run.config, where), RobotDescription.of(found.task)
        same_name = short_name(found.name) == short_name(stored.robot)
        for note in robot_file_notes(before.file, found.file) if same_name else ():
            notify(note)
        done = max(run.checkpoints(), default=0)
        if given.episodes is not None and given.episodes < done:
            raise UserError(f"episodes is {given.episodes}, but {path} has {done} already; give at least as many.")
        _check_origin(given, path, stored)
        # Settings come from the run, not from today's presets: they may have changed since it was started.
        base = stored.settings if given.preset in (None, stored.preset) else preset(given.preset)
        wanted = dataclasses.replace(
            stored,
            robot=found.name,
            settings=base.with_changes(given_settings(given.settings)),
            episodes=max(stored.episodes, done) if given.episodes is None else given.episodes,
            payload_kg=stored.payload_kg if given.payload is None else given.payload,
            preset=given.preset or stored.preset,
            seed=stored.seed if given.seed is None else given.seed,
            sensors=given.sensors or stored.sensors,
        )
        # A robot file may move and change; what matters of it is in the control specification.
        may_move = same_name and (before.file is not None or is_address(found.name))
        robot, compared = now.as_dict(), ("control_spec", "trajectories")
        ignore = ["episodes", *(["robot"] if may_move else [])]
        ignore += [f"{ROBOT_DESCRIPTION}.{name}" for name in robot if name not in compared]
        run.check_same_config({**wanted.as_dict(), ROBOT_DESCRIPTION: robot}, ignore=ignore)
        for change in provenance.differences(run.provenance, provenance.collect()):
            notify(f"Note: {change} The run goes on, but not bit for bit as it would have.")
    except BaseException:
        run.close()
        raise
    return run, wanted, found, controller


def _check_origin(given: "Train", path: Path, stored: TrainingConfig) -> None:
    """What a run started from cannot change; giving the same again is fine."""
    before = stored.init_from
    same_init = (
        before is not None
        and given.init_from is not None
        and (before.path == str(given.init_from.resolve()) and before.parts == (given.init or "both"))
    )
    if given.init_from is not None and not same_init:
        was = f"from the {before.parts} of {before.path}" if before is not None else "from no other run"
        raise UserError(f"{path} was started {was}; leave out --init-from when resuming it.")
    named = stored.base
    if given.base is not None and (named is None or absolute_name(given.base) != named.name):
        was = "without a base" if named is None else f"with the base {named.name}"
        raise UserError(f"{path} was started {was}; leave out --base when resuming it.")
    if given.base_mode is not None and (named is None or given.base_mode != named.mode):
        raise UserError(f"{path} was started with another base mode; leave out --base-mode when resuming it.")
    if given.data and [log.path for log in stored.data] != [str(log.resolve()) for log in given.data]:
        was = ", ".join(log.path for log in stored.data) or "no logs"
        raise UserError(f"{path} was started with {was} as --data; leave out --data when resuming it.")


def resume_command(config: TrainingConfig, run: RunFolder) -> str:
    """What to type to go on: to be copied, so that it also works with a blank in the folder's name."""
    words = ["firsthand", "train", config.robot, "--out", str(run.path), "--resume"]
    if config.episodes != run.config["episodes"]:  # config.json says how many were asked for first
        words += ["--episodes", str(config.episodes)]
    return shlex.join(words)
