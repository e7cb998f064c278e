"""`firsthand train`."""

import contextlib
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from tyro.conf import Positional, arg

from ..errors import UserError
from .options import SettingsOptions, given_settings

# What is not given is None, so that resuming can tell; the help must not show that.
_Text = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
_Folder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
_Whole = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
_Number = Annotated[float | None, arg(metavar="X", help_behavior_hint="")]
_Switch = Annotated[bool, arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Train:
    """Learn a controller on a robot, from random weights."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """The robot: excavator, excavator-realistic (excavator-realistic:no-friction,no-swing leaves effects out),
    excavator-pressure, real-excavator, soft-arm, my_robot.py:task (a robot in a file of yours), the folder of a
    learned simulator, or tcp/host:port."""
    others: Annotated[Positional[tuple[str, ...]], arg(metavar="[ROBOT...]", help_behavior_hint="")] = ()
    """More machines of the same kind (tcp/host:port), which learn together with the first."""
    preset: _Text = None
    """fast (several policy steps per episode, the default), paper (the paper's algorithm with judged steps) or
    paper-exact (nothing judged)."""
    episodes: _Whole = None
    """Episodes in all; by default 40 with the fast preset and 200 with the others."""
    seed: _Whole = None
    """Seed of everything random; by default 0."""
    out: _Folder = None
    """Folder of the run; by default runs/ROBOT-PRESET-seedN, or runs/ROBOT-SENSORS-PRESET-seedN with --sensors."""
    resume: _Switch = False
    """Continue the run in --out where it stopped; options that are not given are taken from the run."""
    payload: _Number = None
    """Load at the tool in kg."""
    sensors: _Text = None
    """Simulated sensors of a built-in robot: exact, real (as in the log of a real machine) or strong."""
    init_from: _Folder = None
    """Begin with the model and the policy of this run, of a robot with the same control specification."""
    init: _Text = None
    """Parts to take over with --init-from: model, policy or both (the default)."""
    data: Annotated[tuple[Path, ...], arg(metavar="LOG...", help_behavior_hint="")] = ()
    """Logs to learn from before the first episode: run folders, rosbag2s, LeRobot datasets, .csv or .mcap files."""
    topics: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """With --data: a .toml file that says which topic of a bag, or which feature of a dataset, holds what."""
    base: _Text = None
    """Learn on top of this controller: pi (ours, identified first), my_robot.py:controller (a function of yours), a
    run's folder, an exported policy, or reference (the machine follows targets by itself)."""
    base_mode: _Text = None
    """How the learned part acts: add (to the base's command, the default) or target (it moves the base's target)."""
    authority: _Number = None
    """For a robot across the network: share of the command range at first, by default 0.5; caps a resumed run."""
    approve: _Text = None
    """Before each new policy: `ask` in the terminal, ask at the live `page`, or through a file (./FILE)."""
    dashboard: _Switch = False
    """Show the live page while training; see also: firsthand dashboard."""
    tensorboard: _Switch = False
    """Write TensorBoard event files to the run's folder, too."""
    track: Annotated[tuple[str, ...], arg(metavar="NAME...", help_behavior_hint="")] = ()
    """Send the metrics to experiment trackers, too: mlflow, wandb."""
    keep_going: _Switch = False
    """Continue although learning has stopped; otherwise the run ends there with the reason."""
    no_report: _Switch = False
    """Leave out the evaluation and the HTML report at the end."""
    settings: Annotated[SettingsOptions, arg(name="")] = field(default_factory=SettingsOptions)  # pyright: ignore[reportInvalidTypeForm]
    """Settings of the agent that differ from the preset's."""

    @property
    def name(self) -> str:
        """The robot's name; for several machines, their joint name."""
        from ..robots.address import join_addresses

        return join_addresses((self.robot, *self.others))

    def run(self) -> int:
        """Train, evaluate, report."""
        from ..robots.description import ROBOT_DESCRIPTION
        from ..robots.registry import find_robot
        from ..runs import RunFolder, provenance
        from ..runs.folder import check_free
        from ..training import TrainingConfig
        from ..training.approval import check_way_to_ask
        from ..training.prior import Prior, gather
        from .results import finish, print_advice, print_prior
        from .resuming import open_run

        if self.approve is not None:
            check_way_to_ask(self.approve)
        if self.dashboard:
            from ..dashboard import check_installed

            check_installed()
        if self.tensorboard:
            from ..training import tensorboard

            tensorboard.check_installed()
        if self.track:
            from ..training.trackers import check_tracker

            for name in self.track:
                check_tracker(name)
        # Also when resuming: a misspelt robot is reported before a missing folder.
        found = find_robot(self.name, approve=True, sensors=self.sensors)
        config = TrainingConfig.of(
            found.name,
            self.preset or "fast",
            episodes=self.episodes,
            seed=self.seed or 0,
            payload_kg=self.payload or 0.0,
            sensors=self.sensors,
            changes=self._changes(),
        )
        path = self.out or default_folder(config.robot, config.preset, config.seed, self.sensors)
        if self.init is not None and self.init_from is None:
            raise UserError(f"init is {self.init!r}, but there is no --init-from to take it from.")
        if self.base_mode is not None and self.base is None and not self.resume:
            raise UserError(f"base-mode is {self.base_mode!r}, but there is no --base.")
        if self.resume:
            run, config, found, base = open_run(self, path, found)
            check_base_alone(config.robot, base is not None)
            prior, made = Prior.of_run(run, config, base), None
        else:
            check_free(path)  # before a base is identified: that moves the robot
            check_base_alone(config.robot, self.base is not None)
            base = self._find_base(found, config)
            found = found if base is None else base.put_inside(found)
            prior = gather(found.task.spec, **self._origin()).on_base(base, found.task.spec)
            print_prior(prior)
            config = dataclasses.replace(
                config, init_from=prior.init, data=prior.logs, base=None if base is None else base.origin
            )
            made = self._robot(config, found)  # before there is a folder: what does not fit it leaves none behind
            stored = {**config.as_dict(), ROBOT_DESCRIPTION: made.description().as_dict()}
            run = RunFolder.create(path, stored, provenance=provenance.collect(), data=prior.files())
        with run:
            robot = made or self._robot(config, found)
            with contextlib.closing(robot):
                code = self._train(run, config, robot, prior)
            print_advice(run.read_metrics())
        if code == 0 and not self.no_report:
            finish(run.path, found)
        return code

    def _train(self, run: Any, config: Any, robot: Any, prior: Any) -> int:
        """The training itself; the exit code."""
        from ..console import notify
        from ..robots.base import EpisodeAbandoned
        from ..robots.environment import RobotFailed
        from ..training import FolderRecorder, Trainer, TrainingStopped
        from ..training.display import TrainingDisplay
        from ..training.live import LiveControl
        from ..training.stopping import StopOnInterrupt, StopRequest
        from .resuming import resume_command

        go_on, stop, recorder = resume_command(config, run), StopRequest(), FolderRecorder(run)
        control = LiveControl(recorder, robot, config, stop)
        display, events = TrainingDisplay(config, run.path, robot.task.score), self._events(recorder, config)
        supervisor = self._supervisor(robot, stop, control.ask, prior)
        watching = (control.progress, display, *events)
        trainer = Trainer(
            robot,
            config,
            recorder,
            supervisor=supervisor,
            control=control,
            callbacks=watching,
            prior=prior,
            stop=stop,
            keep_going=self.keep_going,
        )
        if not robot.task.cost.is_least_squares and config.settings.refines:
            notify("The task's cost is not a sum of squares, so the policy is not refined by Gauss–Newton steps.")
        if self.resume:
            for note in trainer.resume():
                notify(note)
            notify(f"{run.path} has {trainer.episode} of {config.episodes} episodes.")
        try:
            with contextlib.ExitStack() as around:
                around.enter_context(StopOnInterrupt(stop, robot, display, lambda: trainer.episode, go_on))
                for part in (display, self._page(run.path), *events, control.serving(trainer.episode)):
                    around.enter_context(part)
                trainer.train()
                with contextlib.suppress(EpisodeAbandoned):  # a stop does not wait for a robot that is away
                    robot.measured()  # a robot that failed in the last episode reports it now
        except RobotFailed as failed:
            raise UserError(
                f"{failed} What it did before is kept ({trainer.episode} episodes); continue with: {go_on}"
            ) from failed
        except TrainingStopped as stopped:
            notify(
                f"firsthand: {stopped}\nEverything is written ({trainer.episode} episodes). Continue anyway with: "
                f"{go_on} --keep-going"
            )
            return 1
        if stop.requested:
            notify(f"Stopped after episode {trainer.episode}; everything is written. Continue with: {go_on}")
            return 130
        for note in robot.notes():
            notify(note)
        return 0

    def _changes(self) -> dict[str, Any]:
        """Changes to the preset's settings: what is given, and a gentler excitation on top of a base."""
        given = dict(given_settings(self.settings))
        if self.base is None:
            return given
        from ..training.bases import BASE_EXCITATION

        gentle = BASE_EXCITATION.get(self.base_mode or "add")  # pyright: ignore[reportArgumentType]
        return ({} if gentle is None else {"excitation.amplitude": gentle}) | given

    def _find_base(self, found: Any, config: Any) -> Any:
        """The controller that the run learns on top of; None without --base."""
        if self.base is None:
            return None
        from ..console import notify
        from ..controllers.bases import find_base
        from ..training.origin import BaseMode

        base = find_base(
            self.base,
            cast(BaseMode, self.base_mode or "add"),
            found,
            payload_kg=config.payload_kg,
            seed=config.seed,
        )
        if base.origin.robot_time_s:
            notify(f"The base was identified in {base.origin.robot_time_s / 60:.1f} min of robot time.")
        return base

    def _origin(self) -> dict[str, Any]:
        """The starting point, as `gather` takes it."""
        if self.topics is not None and not self.data:
            raise UserError(f"topics is {self.topics}, but there is no --data that it could describe.")
        return {"init_from": self.init_from, "init": self.init or "both", "data": self.data, "topics": self.topics}

    def _robot(self, config: Any, found: Any) -> Any:
        """The robot, which must fit the options, and whose goals must lie inside its limits."""
        from ..tasks.box import check_goals

        check_goals(found.task)  # first: making a robot may move it
        robot = found.make(payload_kg=config.payload_kg, seed=config.seed)
        if self.authority is not None and not robot.has_authority:
            raise UserError(f"authority is for a robot across the network (tcp/host:port), not for {self.name}.")
        self._guard_settings()
        return robot

    def _guard_settings(self) -> Any:
        from ..training.judgement import GuardSettings

        return GuardSettings(authority=self.authority)

    def _supervisor(self, robot: Any, stop: Any, ask_at_page: Any, prior: Any) -> Any:
        """The supervisor of new policies: a guard for a machine, or if approval is asked for."""
        from ..training.approval import ask_by_file, ask_in_terminal
        from ..training.base_guard import BaseGuard
        from ..training.fleet_guard import FleetGuard
        from ..training.guard import Guard
        from ..training.parts import NoSupervisor

        if robot.members:
            return FleetGuard(robot, lambda machine: self._supervisor(machine, stop, ask_at_page, prior))

        def stopped() -> bool:
            return stop.requested

        if self.approve is None:
            guard = Guard(robot.task, self._guard_settings()) if robot.has_authority else NoSupervisor()
        elif self.approve == "page":
            guard = Guard(robot.task, self._guard_settings(), ask_at_page)
        else:
            approve = ask_in_terminal(stopped) if self.approve == "ask" else ask_by_file(Path(self.approve), stopped)
            guard = Guard(robot.task, self._guard_settings(), approve)
        if prior.base is None:
            return guard
        return BaseGuard(robot.task.spec, guard, prior.base_settings, gate_authority=self.authority)

    def _page(self, run: Path) -> Any:
        """The live page in a process of its own, if it was asked for."""
        if not self.dashboard:
            return contextlib.nullcontext()
        from ..console import notify
        from ..dashboard.child import page_process

        return page_process(run, notify)

    def _events(self, recorder: Any, config: Any) -> tuple[Any, ...]:
        """TensorBoard's event files and experiment trackers beside the metrics, where they were asked for."""
        found: list[Any] = []
        if self.tensorboard:
            from ..training.tensorboard import EventFiles

            found.append(EventFiles(recorder.run.path / "tensorboard", recorder.metrics))
        for name in self.track:
            from ..console import notify
            from ..training.trackers import SERVICES, Tracker

            folder = recorder.run.path
            found.append(Tracker(SERVICES[name](folder), folder.name, config.as_dict(), recorder.metrics, notify))
        return tuple(found)


def check_base_alone(robot: str, has_base: bool) -> None:
    """Raise `UserError` for several machines on a base: trials of the learned part are not divided among machines."""
    from ..robots.address import is_fleet

    if has_base and is_fleet(robot):
        raise UserError(
            "ROBOT names several machines, but only one learns on top of a base: name one, or leave --base."
        )


def default_folder(robot: str, preset: str, seed: int, sensors: str | None = None) -> Path:
    """Where a run goes unless told otherwise. Runs with other sensors than the robot's usual ones do not collide."""
    from ..robots.user_file import short_name

    name = short_name(robot) if sensors is None else f"{short_name(robot)}-{sensors}"
    return Path("runs") / f"{name}-{preset}-seed{seed}"
