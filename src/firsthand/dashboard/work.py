"""Follows the work of a run on disk: the blocks, the session that writes them, and what happened."""

from pathlib import Path

from ..control.machine import address_of
from ..errors import UserError
from ..runs.work_folder import WorkInfo, read_info
from .control_reader import ControlReader
from .metrics import LineReader

COLUMNS = ("block", "error", "true_error", "context", "authority", "base_alone", "taken_back", "updates")
"""Fields of work.jsonl that the page shows."""


class WorkFollower:
    """The work in one folder. `poll` reads what is new; everything else answers from memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why the work cannot be shown, if it cannot."""
        self._begin()

    def _begin(self) -> None:
        self.info: WorkInfo | None = None
        """None while there is no work."""
        self.blocks = LineReader(self.path / "work.jsonl", COLUMNS)
        self.control = ControlReader(self.path)

    @property
    def alive(self) -> bool:
        """Whether a session is at work."""
        return self.control.alive

    @property
    def address(self) -> str | None:
        """Of the machine that works, or has worked last; None while there is no work."""
        status = self.control.status
        if self.info is not None and status is not None and status.work is not None:
            return address_of(str(status.work["address"]))
        return None if self.info is None else address_of(self.info.address)

    def poll(self) -> bool:
        """Read what is new; whether there is something new to draw."""
        if not (self.path / "work.json").exists():
            if self.info is None:
                return False
            self._begin()  # it was set aside
            return True
        try:
            self.problem = ""
            begins = self.info is None
            self.info = read_info(self.path)
            changed = self.blocks.read() or begins
            changed |= self.control.read_events()
            self.control.read_status()
            return changed
        except UserError as error:
            self.problem = str(error)
            return False

    def trouble(self) -> list[str]:
        """What is wrong with it, a sentence each."""
        texts, status = [self.problem] if self.problem else [], self.control.status
        if status is not None and status.state == "failed":
            texts.append(f"Work ended: {status.message}")
        if status is not None and not self.alive and not status.ended:
            where = f"process {status.pid} on {status.host}"
            texts.append(f"No sign of the work session ({where}): it was ended, or cannot be seen from here.")
        if self.blocks.damaged_lines:
            texts.append(f"{self.blocks.damaged_lines} lines of work.jsonl are damaged and left out.")
        return texts
