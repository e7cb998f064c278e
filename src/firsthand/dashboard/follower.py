"""Follows one run on disk, whichever process writes it: reads what is new and keeps what the page draws. No JAX."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..control import files
from ..control.files import Event, Status
from ..control.machine import FleetWatch, Watch, watch_machines
from ..errors import UserError
from ..runs import RunFolder, atomic
from .metrics import MetricsReader
from .motion import Motion, load_motion
from .run_info import RunInfo

SILENT_S = 5.0
"""A trainer whose status has not changed for this long counts as gone."""


class RunFollower:
    """One run, as far as it is on disk. `poll` reads what is new; everything else answers from memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: RunInfo | None = None
        self.metrics = MetricsReader(path / "metrics.jsonl")
        self.events: list[Event] = []
        self.status: Status | None = None
        self.kept_checkpoints: list[int] = []
        """The episodes after which a person had a checkpoint kept."""
        self.problem = ""
        """Why the run cannot be shown, if it cannot."""
        self.version = 0
        """Counts up when there is something new to draw."""
        self.watch: Watch | FleetWatch | None = None
        """Looks at the machine while there is no trainer to do it."""
        self._events_size = -1
        self._beat: tuple[str, int] | None = None
        self._last_beat_at = -math.inf
        self._polled_once = False

    @property
    def planned_episodes(self) -> int:
        """How many episodes there will be."""
        configured = self.info.episodes if self.info is not None else 0
        return max(configured, self.status.episodes if self.status is not None else 0, self.metrics.episodes)

    @property
    def alive(self) -> bool:
        """Whether a trainer is at work: its status changes."""
        heard = time.monotonic() - self._last_beat_at < SILENT_S
        return self.status is not None and not self.status.ended and heard

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
            self._read_events()
            self.kept_checkpoints = _numbered_files(self.path / "kept")
            self._read_status()
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

    def _read_events(self) -> None:
        try:
            size = (files.folder_of(self.path) / files.EVENTS).stat().st_size
        except FileNotFoundError:
            size = -1
        if size != self._events_size:
            self._events_size = size
            self.events = files.read_events(self.path)
            self.version += 1

    def _read_status(self) -> None:
        status = files.read_status(self.path)
        if status is None:
            return
        beat = (status.session, status.beat)
        if self._beat is not None and beat != self._beat:
            self._last_beat_at = time.monotonic()
        self._beat, self.status = beat, status

    def _watch_machine(self) -> None:
        """Connect to the machine when no trainer does. The first poll cannot tell yet whether there is one."""
        address = None if self.info is None else self.info.address
        if self.watch is None and address is not None and not self.alive and self._polled_once:
            self.watch = watch_machines(address)
            self.watch.start()
        elif self.watch is not None and self.alive:
            self.watch.close()
            self.watch = None
        self._polled_once = True


def _numbered_files(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[:-12]) for name in names if name.endswith(".safetensors") and name[:-12].isdigit())
