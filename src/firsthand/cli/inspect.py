"""`firsthand inspect`."""

import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from ..errors import UserError
from ..interrupt import Interrupt

_Number = Annotated[float, arg(metavar="X")]


@dataclass(frozen=True)
class Inspect:
    """Push a robot gently and report dead time, dead band, gain, settling, noise and coupling; propose settings."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """The robot: excavator, excavator-realistic, soft-arm, my_robot.py:task."""
    minutes: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """Approximate robot time; by default as much as all channels need, a few minutes."""
    amplitude: _Number = 0.5
    """The largest push, as a share of half the command range; pushes grow up to it step by step."""
    authority: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """For a robot across the network: share of the command range that its gate lets through; by default 0.5."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the order and signs of the pushes, and of a simulated robot's randomness."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder for the results; by default inspections/ROBOT."""

    def run(self) -> int:
        """Push, report, write. Exit code 130 after Ctrl-C; findings until then are reported, too."""
        from ..console import notify
        from ..inspection import InspectionSettings, conclude, excite, write_inspection
        from ..inspection.plan import make_plan, usual_minutes
        from ..robots.onboard import set_authority
        from ..robots.registry import find_robot
        from ..robots.user_file import short_name

        settings = InspectionSettings(1.0 if self.minutes is None else self.minutes, self.amplitude, self.seed)
        found = find_robot(self.robot, approve=True)
        task = found.task
        if self.minutes is None:
            settings = replace(settings, minutes=usual_minutes(task.spec))
        plan = make_plan(settings, task.spec)
        folder = self.out or Path("inspections") / short_name(self.robot)
        _check_writable(folder)
        robot = found.make(seed=self.seed)
        set_authority(robot, self.authority)
        if self.amplitude > (given := robot.authority):
            raise UserError(
                f"amplitude is {self.amplitude:g}, but the robot may use only {given:g} of its range; give --authority."
            )
        with closing(robot):
            check_goes_on(robot)
            notify(
                f"Inspecting {self.robot}: {task.spec.layout.num_commands} channels, pushes up to {self.amplitude:g} "
                f"of half the command range, about {settings.minutes:g} min of robot time. Ctrl-C stops."
            )
            with Interrupt() as interrupt, _Bar(task.spec.period_s, plan.total) as bar:
                recording = excite(robot, settings, progress=bar.show, stop=interrupt.pressed)
        if not recording.pushes:
            notify(
                f"Stopped before the first push ({recording.stopped}); the robot is neutral, and nothing is written."
            )
            return 130
        inspection = replace(conclude(self.robot, task.spec, settings, recording), file=_file_of(found))
        _print(inspection)
        print(f"Written: {write_inspection(inspection, folder)}")
        if interrupt.pressed():
            notify("Stopped by Ctrl-C; the robot was left neutral.")
            return 130
        if recording.stopped:
            raise UserError(f"the inspection ended early: {recording.stopped.removesuffix('.')}.")
        return 0


def _file_of(found: Any) -> tuple[str, str] | None:
    """The user's file that a proposal can be pasted into, and the name of the task in it."""
    from ..robots.gymnasium import GymnasiumTask
    from ..robots.user_file import is_robot_file, split

    if not is_robot_file(found.name) or not isinstance(found.source, GymnasiumTask):
        return None
    path, attribute = split(found.name)
    if not attribute:
        return None
    is_function = re.search(rf"^def {re.escape(attribute)}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.name, f"{attribute}()" if is_function else attribute


def check_goes_on(robot: Any) -> None:
    """Raise `UserError` for a robot that goes to neutral between two calls: its pushes would be interrupted."""
    if robot.neutral_between_motions:
        raise UserError(
            "The machine runs in real time and is neutral between the pieces of a push: dead time "
            "and gain would come out wrong; inspect works in lock-step only, `firsthand simulator record` in real time."
        )


def _check_writable(folder: Path) -> None:
    """Check before the robot moves that the result can be written."""
    from ..runs import atomic

    atomic.make_folder(folder)
    probe = folder / ".writable"
    atomic.write_text(probe, "")
    atomic.remove(probe)


class _Bar:
    """Progress with robot time left; a line per channel where there is no terminal."""

    def __init__(self, period_s: float, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        from ..console import console

        self.period_s, self.shown = period_s, ""
        self.progress = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
        )
        self.live = console.is_terminal
        self.bar = self.progress.add_task("starting", total=total, left="")

    def __enter__(self) -> "_Bar":
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.progress.stop()

    def show(self, done: int, total: int, doing: str) -> None:
        """Show how many control periods are done, and what the robot does now."""
        from ..console import notify

        minutes, seconds = divmod(round((total - done) * self.period_s), 60)
        left = f"{minutes}:{seconds:02} of robot time left"
        if self.live:
            self.progress.update(self.bar, completed=done, description=doing, left=left)
        elif doing.split(":")[0] != self.shown:
            self.shown = doing.split(":")[0]
            notify(f"{self.shown} · {left}")


def _print(inspection: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..inspection.summary import STOPPING_NOTE, STRENGTH, TIMES, comparison, strength, times

    console = Console()
    tables = (
        (f"{inspection.robot}, control period {inspection.spec.period_s:g} s", TIMES, times(inspection), 2),
        ("", STRENGTH, strength(inspection), 1),
    )
    for title, headings, rows, words in tables:
        table = Table(title=title or None, box=SIMPLE_HEAD, pad_edge=False)
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="left" if i < words else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    for note in inspection.findings.notes:
        console.print(Text(note, style="yellow"))
    if inspection.proposal is None or inspection.advice is None:
        if not any(channel.responds for channel in inspection.findings.channels):
            console.print("No channel responds, so no settings are proposed.")
        return
    table = Table(title="Settings", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("field", "now", "proposed"):
        table.add_column(heading, overflow="fold")
    for row in comparison(inspection):
        table.add_row(*map(Text, row))
    console.print(table)
    for field, why in inspection.proposal.reasons.items():
        console.print(Text.assemble((field, "bold"), f": {why}"))
    where, code = inspection.advice
    console.print(f"\n{where}\n", highlight=False)
    print(code)
    print()
    if inspection.stopping is not None:
        console.print(f"{STOPPING_NOTE}\n")
        print(f"stopping = {inspection.stopping}\n")
