"""Commands of `firsthand-lab`, found through its entry points: nothing here imports it by name."""

from importlib.metadata import entry_points
from typing import Any

from ..errors import UserError

GROUP = "firsthand.commands"
LABORATORY = ("experiment", "compare")
"""Commands that the laboratory adds."""
INSTALL = "pip install -c constraints.txt -e lab"


def laboratory_commands() -> dict[str, Any]:
    """The commands of the laboratory by name; empty where it is not installed."""
    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}


def laboratory_hint() -> str:
    """A sentence for `firsthand --help` that says how to get the laboratory; empty where it is installed."""
    if entry_points(group=GROUP):
        return ""
    return f"{' and '.join(LABORATORY)} are part of firsthand-lab, which is not installed ({INSTALL})."


def check_laboratory(arguments: list[str]) -> None:
    """Raise `UserError` where a command of the laboratory is asked for and it is not installed."""
    if arguments[:1] and arguments[0] in LABORATORY and not entry_points(group=GROUP):
        raise UserError(
            f"`firsthand {arguments[0]}` is part of firsthand-lab, which is not installed; install it with: {INSTALL}"
        )
