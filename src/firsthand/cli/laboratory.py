"""Commands of `firsthand-lab`, found through its entry points: nothing of it is imported by name."""

from importlib.metadata import entry_points
from typing import Any

from ..errors import UserError

GROUP = "firsthand.commands"
LABORATORY = ("experiment", "compare")
"""Commands that the laboratory adds."""


def laboratory_commands() -> dict[str, Any]:
    """The commands of the laboratory by name; none where it is not installed."""
    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}


def check_laboratory(arguments: list[str]) -> None:
    """Raise `UserError` where a command of the laboratory is asked for and it is not installed."""
    if arguments[:1] and arguments[0] in LABORATORY and arguments[0] not in laboratory_commands():
        raise UserError(
            f"`firsthand {arguments[0]}` is part of firsthand-lab, which is not installed; install it with: "
            "pip install -c constraints.txt -e lab"
        )
