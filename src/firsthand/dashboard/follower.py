"""Follows one run on disk, whichever process writes it: reads what is new and keeps what the page draws. No JAX."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..control.files import Event, Status
from ..control.machine import FleetWatch, Watch, watch_machines
from ..errors import UserError
from ..runs import RunFolder, atomic
from ..runs.work_folder import NAME
from .control_reader import ControlReader
from .metrics import MetricsReader
from .motion import Motion, load_motion
from .run_info import RunInfo
from .work import WorkFollower


class RunFollower:
    """One run, as far as it is on disk. `poll` reads what is new; everything else answers from memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: RunInfo | None = None
        self.metrics = MetricsReader(path / "metrics.jsonl")
        self.control = ControlReader(path)
        self.work = WorkFollower(path / NAME)
        self.kept_checkpoints: list[int] = []
        """The episodes after which a person had a checkpoint kept."""
        self.problem = ""
        """Why the run cannot be shown, if it cannot."""
        self.version = 0
        """Counts up when there is something new to draw."""
        self.watch: Watch | FleetWatch | None = None
        """Looks at the machine while there is no trainer to do it."""
        self._watched: str | None = None
        """The address that it looks at."""
        self._polled_once = False

    @property
    def events(self) -> list[Event]:
        """What happened in training."""
        return self.control.events

    @property
    def status(self) -> Status | None:
        """The last report of a trainer."""
        return self.control.status

    @property
    def planned_episodes(self) -> int:
        """How many episodes there will be."""
        configured = self.info.episodes if self.info is not None else 0
        return max(configured, self.status.episodes if self.status is not None else 0, self.metrics.episodes)

    @property
    def alive(self) -> bool:
        """Whether a trainer is at work: its status changes."""
        return self.control.alive

    @property
    def address(self) -> str | None:
        """Where the machine is that works, or that the run was trained on; None for other robots."""
        trained_on = None if self.info is None else self.info.address
        return trained_on if self.alive else self.work.address or trained_on

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """The machine's state, from its trainer, or asked from here when there is none; None for other robots."""
        if self.alive and self.status is not None:
            return self.status.machine
        return None if self.watch is None else self.watch.seen

    def motion(self, episode: int | None = None, trajectory: int | None = None) -> Motion | None:
        """A trajectory of an episode, both from 1, by default the last of the newest; None when it does not exist."""
        if self.info is None or not self.metrics.episodes:
            return None
        number = int(self.metrics.last("episode")) if episode is None else episode
        return load_motion(self.path, self.info.spec, number, trajectory)

    def poll(self) -> None:
        """Read what is new. Whatever is wrong with the folder becomes `problem`; the machine is looked at even so."""
        problem = ""
        try:
            self._read_config()
            self.version += self.metrics.read()
            self.version += self.control.read_events()
            self.kept_checkpoints = _numbered_files(self.path / "kept")
            self.control.read_status()
            self.version += self.work.poll()
        except UserError as error:
            problem = str(error)
        except OSError as error:
            problem = f"cannot read {self.path}: {atomic.cause(error)}."
        except Exception as error:  # one run that is broken in a new way must not take the page with it
            problem = f"cannot read {self.path}: {error!r}."
        self._watch_machine()
        if problem != self.problem:
            self.problem = problem
            self.version += 1

    def _read_config(self) -> None:
        if self.info is not None:
            return
        if not (self.path / "config.json").exists():
            raise UserError(f"{self.path} holds no run yet; this page waits for it to start.")
        self.info = RunInfo.from_config(RunFolder.open(self.path).config)
        self.version += 1

    def _watch_machine(self) -> None:
        """Connect to the machine when no trainer does. The first poll cannot tell yet whether there is one."""
        wanted = None if self.alive or not self._polled_once else self.address
        if wanted != self._watched:
            if self.watch is not None:
                self.watch.close()
            self.watch = None if wanted is None else watch_machines(wanted)
            if self.watch is not None:
                self.watch.start()
            self._watched = wanted
        self._polled_once = True


def _numbered_files(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[:-12]) for name in names if name.endswith(".safetensors") and name[:-12].isdigit())
