"""The runs that the page offers.

Nothing here trusts a name that comes from a browser: the page knows runs by the keys of a dictionary that this module
made from the folders given on the command line.
"""

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..runs import atomic
from .follower import RunFollower

MAX_RUNS = 64
"""At most this many runs of a folder are offered."""


class RunList:
    """The runs in the given folders, by the names that the page knows them by."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [Path(path) for path in paths]
        for path in self.paths:
            if path.exists() and not path.is_dir():
                raise UserError(f"{path} is a file, not the folder of a run.")
            if not path.resolve().parent.is_dir():
                raise UserError(f"{path} does not exist, and neither does the folder that it would be in.")
        self.followers: dict[str, RunFollower] = {}
        self.problem = ""
        """Why new runs cannot be looked for, if they cannot."""
        self.poll()

    def poll(self) -> None:
        """Look for new runs, and read what is new in each. What goes wrong is in `problem` until it is over."""
        self.problem = ""
        for path in self._find_runs():
            if not any(follower.path == path for follower in self.followers.values()):
                self.followers[self._unique_name(path)] = RunFollower(path)
        for follower in self.followers.values():
            follower.poll()

    def _find_runs(self) -> list[Path]:
        found = []
        for path in self.paths:
            try:
                inside = [] if (path / "config.json").exists() else _runs_inside(path)
            except OSError as error:
                self.problem = f"cannot look for runs in {path}: {atomic.cause(error)}."
                if self.followers:
                    continue
                inside = []
            found += inside or [path.resolve()]
        return found[:MAX_RUNS]

    def _unique_name(self, path: Path) -> str:
        name, parent = path.name or str(path), path.parent
        while name in self.followers and parent.name:
            name, parent = f"{parent.name}/{name}", parent.parent
        return name


def _runs_inside(folder: Path) -> list[Path]:
    """The runs directly inside a folder, without links that lead out of it."""
    inside = folder.resolve()
    if not inside.is_dir():
        return []
    found = []
    for entry in sorted(inside.iterdir()):
        path = entry.resolve()
        if path.parent == inside and (path / "config.json").is_file():
            found.append(path)
    return found
