"""`firsthand check`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Check:
    """Print a table of errors and doubts in a robot's task before the robot moves. Moves nothing."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """The robot: my_robot.py:task, or one that comes with firsthand."""

    def run(self) -> int:
        """Print the table. Exit code 2 if something is wrong; doubts are left to the user."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        from ..robots.preflight import Verdict, check_robot
        from ..robots.registry import find_robot

        findings = check_robot(find_robot(self.robot, approve=True))
        colours = {Verdict.OK: "green", Verdict.NOTE: "", Verdict.DOUBTFUL: "yellow", Verdict.WRONG: "red"}
        table = Table(title=self.robot, box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "", "found"):
            table.add_column(heading, overflow="fold")
        for row in findings:
            table.add_row(row.what, Text(row.verdict.value, style=colours[row.verdict]), Text(row.text))
        Console().print(table)
        wrong = sum(row.verdict is Verdict.WRONG for row in findings)
        doubtful = sum(row.verdict is Verdict.DOUBTFUL for row in findings)
        if wrong:
            print(f"{wrong} wrong, {doubtful} doubtful. Put right what is wrong before the robot moves.")
            return 2
        print(f"Nothing wrong, {doubtful} doubtful. Next: firsthand train {self.robot}")
        return 0
