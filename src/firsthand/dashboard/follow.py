"""Follows runs on disk, in this process or another's: reads what is new, keeps what the page draws. No JAX.

Nothing here trusts a name that comes from a browser: the page knows runs by keys of a dictionary that this module
made from what was given on the command line.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.spec import SpecError

from ..control import files
from ..control.files import Event, Status
from ..control.machine import Watch, address_of
from ..drawing import body_points, path_points, plane_of
from ..errors import UserError
from ..runs import RunFolder, atomic
from ..units import METRES, Unit, unit_of

COLUMNS = (
    "episode",
    "robot_time_s",
    "tracking_error",
    "controller_loss",
    "model_loss",
    "prediction_error",
    "closed_loop_growth",
    "gradient_norm",
    "step_norm",
    "policy_steps",
    "refused_updates",
    "limit_hits",
    "update_time_s",
)
"""Fields of metrics.jsonl that the page shows."""
SILENT_S = 5.0
"""A trainer that has not been heard of for so long counts as gone."""
MOST_RUNS = 64
"""More runs in a folder are not offered."""
CHUNK = 8 << 20
"""At most so many bytes of metrics are read in one go."""


@dataclass(frozen=True)
class About:
    """What a run's configuration says, as far as the page needs it."""

    robot: str
    preset: str
    seed: int
    episodes: int
    payload: str
    unit: Unit
    spec: ControlSpec
    step_bound: float
    """η/(2√ε), which no policy step exceeds."""
    address: str | None
    """Where its machine is, if it has one."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> "About":
        """From config.json; `UserError` when this version cannot read it."""
        try:
            hyper = config["hyper"]
            payload = float(config.get("payload_kg", 0.0))
            return About(
                robot=str(config["robot"]),
                preset=str(config["preset"]),
                seed=int(config["seed"]),
                episodes=int(config["episodes"]),
                payload=f"{payload:g} kg" if payload else "",
                unit=unit_of(str(config.get("unit", METRES.name))),
                spec=ControlSpec.from_json(json.dumps(config["control_spec"])),
                step_bound=float(hyper["eta"]) / (2 * math.sqrt(float(hyper["epsilon"]))),
                address=address_of(str(config["robot"])),
            )
        except (KeyError, TypeError, ValueError, SpecError, ZeroDivisionError) as error:
            if "recording" in config:
                raise UserError("this is a recording, not a training run: there is no learning to watch.") from None
            raise UserError(f"config.json was written by another version of firsthand ({error!r}).") from None


@dataclass(frozen=True)
class Motion:
    """One trajectory, ready to be drawn."""

    episode: int
    trajectory: int
    """From 1."""
    trajectories: int
    period_s: float
    reference: np.ndarray
    """`(steps, 2)`."""
    actual: np.ndarray
    """`(steps, 2)`."""
    body: np.ndarray | None
    """`(steps, points, 2)`, base to tip."""
    commands: np.ndarray
    """`(steps, commands)`, as applied."""
    free: np.ndarray
    """`(steps, commands)`: where the command was the policy's own, not the safety gate's."""
    error: float
    """Mean distance from the reference, in the unit of the files."""


class RunFollower:
    """One run, as far as it is on disk. `poll` reads what is new; the rest are answers from memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: About | None = None
        self.problem = ""
        """Why the run cannot be shown, if it cannot."""
        self.columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
        self.events: list[Event] = []
        self.status: Status | None = None
        self.kept: list[int] = []
        self.damaged = 0
        """Lines of metrics.jsonl that are none."""
        self.version = 0
        """Counts up when there is something new to draw."""
        self.watch: Watch | None = None
        """Looks at the machine while there is no trainer that does."""
        self._offset, self._inode = 0, -1
        self._events_size = -1
        self._beat: tuple[str, int] | None = None
        self._heard = -math.inf
        self._settled = False

    # What the page asks.

    @property
    def episodes(self) -> int:
        """How many there are."""
        return len(self.columns["episode"])

    @property
    def planned(self) -> int:
        """How many there will be."""
        first = self.about.episodes if self.about is not None else 0
        return max(first, self.status.episodes if self.status is not None else 0, self.episodes)

    @property
    def alive(self) -> bool:
        """Whether a trainer is at work: its status changes."""
        heard = time.monotonic() - self._heard < SILENT_S
        return self.status is not None and not self.status.ended and heard

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """How the machine is: from its trainer, or, where there is none, asked from here; None for other robots."""
        if self.alive and self.status is not None:
            return self.status.machine
        return None if self.watch is None else self.watch.seen

    def column(self, name: str) -> np.ndarray:
        """One field of all episodes; NaN where it is not known."""
        return np.asarray(self.columns[name], float)

    def last(self, name: str) -> float:
        """Its newest value."""
        return self.columns[name][-1] if self.columns[name] else math.nan

    def best_episode(self) -> int | None:
        """The episode with the smallest error so far."""
        error = self.column("tracking_error")
        return None if not np.isfinite(error).any() else int(self.columns["episode"][int(np.nanargmin(error))])

    def motion(self, episode: int | None = None, trajectory: int | None = None) -> Motion | None:
        """A trajectory of an episode, both from 1; by default the last of the newest. None where there is none."""
        if self.about is None or not self.episodes:
            return None
        number = int(self.columns["episode"][-1]) if episode is None else episode
        try:
            arrays = _episode(self.path, number, self._stamp(number))
        except UserError:
            return None
        return _motion(self.about, arrays, number, trajectory)

    # Reading.

    def poll(self) -> None:
        """Read what is new. Whatever is wrong with the folder becomes `problem`; the machine is looked at even so."""
        problem = ""
        try:
            self._read_config()
            self._read_metrics()
            self._read_events()
            self.kept = _numbers(self.path / "kept")
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
        if self.about is not None:
            return
        if not (self.path / "config.json").exists():
            raise UserError(f"{self.path} holds no run yet; this page waits for it to start.")
        self.about = About.of(RunFolder.open(self.path).config)
        self.version += 1

    def _read_metrics(self) -> None:
        path = self.path / "metrics.jsonl"
        try:
            handle = path.open("rb")
        except FileNotFoundError:
            self._forget()
            return
        with handle:
            stat = os.fstat(handle.fileno())
            if stat.st_ino != self._inode or stat.st_size < self._offset:
                self._forget()
                self._inode = stat.st_ino
            while True:
                handle.seek(self._offset)
                data = handle.read(CHUNK)
                whole = data.rfind(b"\n") + 1
                if not whole:
                    return
                for line in data[:whole].splitlines():
                    self._add(line)
                self._offset += whole
                self.version += 1

    def _forget(self) -> None:
        """The run was resumed from an earlier episode: the file is another one."""
        if self._offset:
            self.version += 1
        self._offset, self._inode, self.damaged = 0, -1, 0
        self.columns = {name: [] for name in COLUMNS}

    def _add(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            int(row["episode"])
        except (ValueError, KeyError, TypeError):
            self.damaged += 1
            return
        for name, values in self.columns.items():
            value = row.get(name)
            values.append(float(value) if isinstance(value, int | float) else math.nan)

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
            self._heard = time.monotonic()
        self._beat, self.status = beat, status

    def _watch_machine(self) -> None:
        address = None if self.about is None else self.about.address
        if self.watch is None and address is not None and not self.alive and self._settled:
            self.watch = Watch(address)
            self.watch.start()
        elif self.watch is not None and self.alive:
            self.watch.close()
            self.watch = None
        self._settled = True

    def _stamp(self, episode: int) -> int:
        """Tells a file from another one of the same name, after a resume."""
        try:
            return (self.path / "episodes" / f"{episode:06d}.safetensors").stat().st_mtime_ns
        except OSError:
            return 0


@lru_cache(maxsize=16)
def _episode(path: Path, episode: int, stamp: int) -> dict[str, np.ndarray]:
    return RunFolder.open(path).load_episode(episode)[0]


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[:-12]) for name in names if name.endswith(".safetensors") and name[:-12].isdigit())


def _motion(about: About, arrays: Mapping[str, np.ndarray], episode: int, trajectory: int | None) -> Motion | None:
    spec, valid = about.spec, arrays["valid"]
    count = len(valid)
    moved = np.flatnonzero(valid.any(axis=1))
    if not len(moved):
        return None
    index = int(moved[-1]) if trajectory is None else min(max(trajectory, 1), count) - 1
    steps = max(int(valid[index].sum()), 1)
    measured = arrays["measured"][index, :steps].astype(float)
    reference = plane_of(spec, arrays["references"][index, :steps].astype(float))
    actual = path_points(spec, measured)
    return Motion(
        episode=episode,
        trajectory=index + 1,
        trajectories=count,
        period_s=spec.period_s,
        reference=reference,
        actual=actual,
        body=body_points(spec, measured),
        commands=arrays["commands"][index, :steps].astype(float),
        free=arrays["free"][index, :steps].astype(bool),
        error=float(np.mean(_distance(spec, arrays, index, steps))),
    )


def _distance(spec: ControlSpec, arrays: Mapping[str, np.ndarray], index: int, steps: int) -> np.ndarray:
    output = np.asarray(tracked_output(spec, arrays["measured"][index, :steps].astype(float)))
    return np.linalg.norm(output - arrays["references"][index, :steps], axis=-1)


class Runs:
    """The runs that were given, by the names that the page knows them by."""

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
        """Look for new runs, and read what is new in each. What goes wrong becomes a `problem`, until it is over."""
        self.problem = ""
        for path in self._found():
            if not any(follower.path == path for follower in self.followers.values()):
                self.followers[self._name(path)] = RunFollower(path)
        for follower in self.followers.values():
            follower.poll()

    def _found(self) -> list[Path]:
        found = []
        for path in self.paths:
            try:
                inside = [] if (path / "config.json").exists() else _runs_in(path)
            except OSError as error:
                self.problem = f"cannot look for runs in {path}: {atomic.cause(error)}."
                if self.followers:
                    continue
                inside = []
            found += inside or [path.resolve()]
        return found[:MOST_RUNS]

    def _name(self, path: Path) -> str:
        name, parent = path.name or str(path), path.parent
        while name in self.followers and parent.name:
            name, parent = f"{parent.name}/{name}", parent.parent
        return name


def _runs_in(folder: Path) -> list[Path]:
    """The runs directly inside a folder; a link that leads out of it is none."""
    inside = folder.resolve()
    if not inside.is_dir():
        return []
    found = []
    for entry in sorted(inside.iterdir()):
        path = entry.resolve()
        if path.parent == inside and (path / "config.json").is_file():
            found.append(path)
    return found
