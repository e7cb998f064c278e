"""`firsthand simulator record` and `firsthand simulator fit`."""

import dataclasses
import json
import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg, subcommand

from ..errors import UserError

LONGEST_MINUTES = 10_000.0
HEAVIEST_KG = 2000.0
MAX_ROWS = 8
"""Logs that get a row each in the table."""


@dataclass(frozen=True)
class Record:
    """Move a robot at random within its limits, between places and around them, and keep the log."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """The robot, as for train."""
    out: Annotated[Path, arg(metavar="FOLDER", help_behavior_hint="")]
    """Folder of the recording."""
    minutes: Annotated[float, arg(metavar="X")] = 100.0
    """Robot time."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the motion."""
    payload: Annotated[float, arg(metavar="X")] = 0.0
    """Load at the tool in kg."""
    authority: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """For a robot across the network: share of the command range that its gate lets through; by default 0.5."""

    def run(self) -> int:
        """Record, episode by episode: what is written stays when it is interrupted."""
        if not 0 < self.minutes <= LONGEST_MINUTES:  # NaN is not inside either
            raise UserError(f"minutes is {self.minutes}, but must lie between 0 and {LONGEST_MINUTES:.0f}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")
        if not 0 <= self.payload <= HEAVIEST_KG:
            raise UserError(f"payload is {self.payload} kg, but must lie between 0 and {HEAVIEST_KG:.0f}.")
        from ..runs import atomic

        with atomic.reading(self.out):
            if (self.out / "config.json").exists():
                raise UserError(f"{self.out} already holds a run or a recording; give another --out.")
        from ..robots.description import ROBOT_DESCRIPTION
        from ..robots.onboard import set_authority
        from ..robots.registry import find_robot
        from ..runs import RunFolder, provenance
        from ..simulators import record

        found = find_robot(self.robot, approve=True)
        robot = found.make(payload_kg=self.payload, seed=self.seed)
        set_authority(robot, self.authority)
        config = {
            "robot": found.name,
            "recording": {"minutes": self.minutes, "seed": self.seed, "payload_kg": self.payload},
            ROBOT_DESCRIPTION: robot.description().as_dict(),
        }
        with (
            closing(robot),
            RunFolder.create(self.out, config, provenance=provenance.collect()) as run,
            _progress("recording") as bar,
        ):
            line = bar.add_task("recording", total=self.minutes, status="")

            def show(minutes: float) -> None:
                bar.update(line, completed=minutes, status=f"{minutes:.0f} min of robot time")

            for number, episode in enumerate(record(robot, self.minutes, seed=self.seed, progress=show), start=1):
                run.save_episode(number, episode.arrays(), {"episode": number})
        print(f"Recording: {self.out}. Fit a simulator to it with: firsthand simulator fit {self.out} --out SIM")
        return 0


@dataclass(frozen=True)
class Fit:
    """Fit an ensemble of networks to logs of a robot, and judge it on held-out data."""

    logs: Annotated[Positional[tuple[Path, ...]], arg(metavar="LOG...", help_behavior_hint="")]
    """Run folders, recordings, rosbag2s, LeRobot datasets, CSV, MCAP or .npz files of one robot, or folders of such
    files."""
    out: Annotated[Path, arg(metavar="SIM", help_behavior_hint="")]
    """Folder of the simulator."""
    robot: Annotated[str | None, arg(metavar="ROBOT", help_behavior_hint="")] = None
    """The robot that was logged, or a .toml file that describes it; needed when no log is a run folder."""
    hold_out: Annotated[tuple[Path, ...], arg(metavar="LOG...", help_behavior_hint="")] = ()
    """Logs of other kinds of motion, for judging only, each by itself."""
    topics: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A .toml file that says which topic of a bag, or which feature of a dataset, holds what."""
    members: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Networks in the ensemble; by default 4."""
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Adam steps per network on windows of four control periods; by default 1000."""
    rollout_steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Adam steps per network on the simulator's prediction error over one second; by default 6000."""
    beyond: Literal["ignore", "slow", "stop"] = "ignore"
    """What the simulator does where its networks disagree, because the log says little: nothing, or it moves slowly
    or stops, so that a policy gains nothing there."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the weights and batches."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the errors as one JSON object instead of a table."""

    def run(self) -> int:
        """Read, fit, judge, write."""
        if not self.logs:
            raise UserError(
                "simulator fit needs at least one log: a run folder, a bag, a dataset, a .csv, .mcap or .npz file."
            )
        names = ("steps", "rollout_steps", "members")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        from ..logs import check_columns, read_log
        from ..simulators import FitSettings, fit, fit_linear, open_loop
        from ..simulators.data import split
        from ..simulators.folder import check_free, save

        FitSettings(seed=self.seed, **given)
        check_free(self.out)
        robot, description, logged = _robot_of(self.logs) if self.robot is None else _named_robot(self.robot)
        spec, columns = description.spec, None if logged is None else logged.columns
        settings = FitSettings(seed=self.seed, free=() if logged is None else logged.free_entries, **given)
        logs = [check_columns(spec, read_log(path, spec, columns, self.topics)) for path in self.logs]
        others = [read_log(path, spec, columns, self.topics) for path in self.hold_out]
        _print_logs([*logs, *others])
        learned, held = split([series for log in logs for series in log.series], spec.period_s)
        with _progress("fitting") as bar:
            lines: dict[str, Any] = {}

            def show(phase: str, done: int, total: int, loss: float) -> None:
                if phase not in lines:
                    lines[phase] = bar.add_task(phase, total=total, status="")
                bar.update(lines[phase], description=phase, completed=done, status=f"loss {loss:.4f}")

            plant = fit(spec, learned, settings, progress=show)
        plant = dataclasses.replace(plant, beyond=self.beyond)
        linear = fit_linear(spec, learned)
        accuracy = {"held out": open_loop(plant, held, linear)}
        for path, log in zip(self.hold_out, others, strict=True):
            accuracy[path.stem] = open_loop(plant, log.series, linear)
        data = [
            {
                "path": str(Path(log.path).resolve()),
                "sha256": log.sha256,
                "rows": log.usable,
                "refused": dict(log.refused),
                "note": log.note,
            }
            for log in logs
        ]
        save(
            self.out,
            plant,
            robot=robot,
            description=description,
            data=data,
            settings=settings,
            accuracy=accuracy,
            logged_robot=logged,
        )
        minutes = sum(log.usable for log in logs) * spec.period_s / 60
        if self.json:
            judged = {kind: [one.as_dict() for one in found] for kind, found in accuracy.items()}
            print(json.dumps({"minutes": minutes, "accuracy": judged}, indent=2))
        else:
            for kind, found in accuracy.items():
                _print_accuracy(robot, minutes, kind, found)
            print(f"Simulator: {self.out}. Train on it with: firsthand train {self.out}")
        return 0


@dataclass(frozen=True)
class Simulator:
    """Record a robot, and learn a simulator from the log."""

    command: Annotated[Record, subcommand("record")] | Annotated[Fit, subcommand("fit")]

    def run(self) -> int:
        """Run the chosen command."""
        return self.command.run()


def _named_robot(name: str) -> tuple[str, Any, Any]:
    """The robot's name as it is kept, its description, and what a .toml file says of it."""
    from ..robots.description import RobotDescription
    from ..robots.logged_robot import LoggedRobot
    from ..robots.registry import LearnedBuiltIn, find_robot

    found = find_robot(name, approve=True)
    source = found.source
    if isinstance(source, LearnedBuiltIn) and source.logged is not None:
        source = source.logged()
    if isinstance(source, LoggedRobot):
        return found.name, RobotDescription.of(source.make_task(), kind="machine"), source
    return found.name, found.make().description(), None


def _robot_of(logs: tuple[Path, ...]) -> tuple[str, Any, None]:
    """Name and description of the robot of the first run folder among the logs; the robot itself is not needed."""
    from ..robots.description import RobotDescription
    from ..runs import RunFolder, atomic

    for path in logs:
        with atomic.reading(path):
            if not path.exists():
                raise UserError(f"{path} does not exist.")
            is_folder = path.is_dir()
        if is_folder and (path / "config.json").exists():
            config = RunFolder.open(path).config
            if isinstance(robot := config.get("robot"), str):
                return robot, RobotDescription.of_config(config, str(path / "config.json")), None
    raise UserError(
        f"{logs[0]} does not say which robot it is of; give --robot: a name, my_robot.py:task, or a .toml file."
    )


def _progress(name: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))


def _print_logs(logs: list[Any]) -> None:
    """The accepted part of each log, and the reasons for the rest."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Learning from", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("log", overflow="fold")
    for heading in ("rows\ntaken", "rows\nrefused"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why")
    for log in logs[:MAX_ROWS]:
        reasons = [f"{count}: {reason}" for reason, count in log.refused.most_common()]
        why = "\n".join([*reasons, *([log.note] if log.note else [])])
        table.add_row(escape(log.path), str(log.usable), str(log.refused.total()), escape(why))
    if rest := logs[MAX_ROWS:]:
        refused = sum(log.refused.total() for log in rest)
        table.add_row(f"{len(rest)} more", str(sum(log.usable for log in rest)), str(refused), "")
    Console(stderr=True).print(table)


def _print_accuracy(robot: str, minutes: float, kind: str, accuracy: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not accuracy:
        console.print(f"{kind}: too short to judge the simulator on.")
        return
    where = "held-out data" if kind == "held out" else escape(kind)
    title = f"Simulator of {robot} from {minutes:.0f} min: root mean square error on {where}"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("after", "", "simulator", "linear\nmodel", "constant\nvelocity", "standing\nstill"):
        table.add_column(heading, justify="left" if heading in ("after", "") else "right", no_wrap=True)
    for one in accuracy:
        straight = one.linear or (math.nan,) * len(one.names)
        rows = zip(one.names, one.simulator, straight, one.constant_velocity, one.standing_still, strict=True)
        for i, (name, *errors) in enumerate(rows):
            when = f"{one.seconds:g} s" if i == 0 else ""
            table.add_row(when, name, *(f"{error:.4f}" if math.isfinite(error) else "–" for error in errors))
        table.add_row("", "disagreement over usual", f"{one.doubt:.2f}")
        table.add_section()
    console.print(table)
