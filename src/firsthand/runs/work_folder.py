"""`WorkFolder`: what a work session leaves on disk, so that the next one goes on where it ended.

    work.json           format version, whose work it is, SHA-256; written once
    work.jsonl          a line per block of work, with a checksum; append-only
    checkpoints/000120.safetensors   everything that was learned, after block 120; the newest few
    blocks/000121.safetensors        what the machine did in the blocks since the oldest of these checkpoints
    operator.json       whether the operator has taken the base back
    control/            requests and status of the session, as a run has them for its trainer
    lock                held by the session that writes

A session writes each block when it is done, then its line; and a checkpoint when an update is adopted. The learner is
deterministic: the newest checkpoint and the blocks after it give what was learned, bit for bit.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firsthand.errors import UserError
from firsthand.runs import atomic, packed
from firsthand.runs.atomic import MetricsFile, WriterLock
from firsthand.runs.checkpoints import Checkpoint, CheckpointFolder, stored_numbers
from firsthand.runs.packed import Arrays, DamagedFile

FORMAT = 1
NAME = "work"
"""The folder's name inside its run, unless the user chooses another place."""
MAX_ABOUT_BYTES = 1 << 20
KEPT_CHECKPOINTS = 3
BEGIN_ANEW = "give another folder, or resume=False, which begins anew and keeps this one under another name"
REMOVE_OPERATOR = "remove it if the learned part may take part"
_FOLDERS = ("checkpoints", "blocks")
_ABOUT, _LINES, _OPERATOR = "work.json", "work.jsonl", "operator.json"


class WorkInfo(NamedTuple):
    """Whose work a folder holds."""

    run: str
    """Identity of the run that the work began with: `RunFolder.identity`."""
    spec: str
    """The robot's control specification, as JSON."""
    block_trajectories: int
    """Trajectories in a block of work."""
    block_s: float
    """Their length in seconds."""
    on_base: bool
    """Whether the learned part stands on a base that can drive alone."""
    address: str
    """Of the machine with which the work began."""
    begun_utc: str


class StoredBlock(NamedTuple):
    """A block of work as it was read."""

    number: int
    arrays: Arrays
    info: dict[str, Any]
    damage: str
    """Why it cannot be read; empty where it can."""


class WorkFolder:
    """What the sessions of one run's work leave on disk; for the one session that writes. `close` it."""

    def __init__(self, path: Path, info: WorkInfo, lock: WriterLock) -> None:
        self.path, self.info = path, info
        self.lines = MetricsFile(path / _LINES, counter="block", without="Curves then lack its block.")
        """`work.jsonl`."""
        self._checkpoints, self._lock = CheckpointFolder(path / "checkpoints"), lock

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], info: WorkInfo, *, resume: bool = True
    ) -> tuple["WorkFolder", Path | None]:
        """Go on with the work in a folder, or begin there.

        Without `resume` earlier work is set aside under another name, which is returned, too.
        """
        path = Path(path)
        _check_usable(path)
        atomic.make_folder(path)
        lock = WriterLock(path / "lock")
        lock.acquire()
        try:
            aside = None
            if (path / _ABOUT).exists() and not resume:
                aside = _set_aside(path)
                lock.release()
                atomic.make_folder(path)
                lock = WriterLock(path / "lock")
                lock.acquire()
            _check_usable(path)
            if not (path / _ABOUT).exists():
                _make(path, info)
            stored = read_info(path)
            _check_same(path, stored, info)
            for folder in (path, *(path / name for name in _FOLDERS)):
                atomic.remove_temporary_files(folder)
            return cls(path, stored, lock), aside
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Let another session go on."""
        self._lock.release()

    # Blocks.

    def save_block(self, block: int, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Store what the machine did in a block."""
        atomic.write_bytes(self._block_file(block), packed.pack(arrays, info))

    def blocks(self, after: int) -> Iterator[StoredBlock]:
        """The stored blocks after this one, in order."""
        for number in stored_numbers(self.path / "blocks"):
            if number > after:
                try:
                    yield StoredBlock(number, *packed.unpack(atomic.read_bytes(self._block_file(number))), damage="")
                except DamagedFile as error:
                    yield StoredBlock(number, {}, {}, str(error))
                except OSError as error:
                    yield StoredBlock(number, {}, {}, atomic.cause(error))

    # Checkpoints.

    @property
    def newest_checkpoint(self) -> int:
        """The block of the newest checkpoint, good or not; 0 where there is none."""
        return max(self._checkpoints.numbers(), default=0)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint whose SHA-256 is right; None before the first one."""
        try:
            return self._checkpoints.load()
        except UserError as error:
            raise UserError(f"{str(error).removesuffix('.')}; {BEGIN_ANEW}.") from None

    def save_checkpoint(self, block: int, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Store all that was learned, then remove old checkpoints, and blocks that none of the kept ones needs."""
        self._checkpoints.save(block, arrays, info, keep=KEPT_CHECKPOINTS)
        kept = self._checkpoints.numbers()
        if len(kept) == KEPT_CHECKPOINTS:
            stored = stored_numbers(self.path / "blocks")
            atomic.remove(*(self._block_file(number) for number in stored if number <= kept[0]))

    # The operator.

    @property
    def base_alone(self) -> bool:
        """Whether the operator has taken the base back, in this session or in an earlier one."""
        path = self.path / _OPERATOR
        try:
            content = _read_signed(path, REMOVE_OPERATOR)
        except FileNotFoundError:
            return False
        if not isinstance(content.get("base_alone"), bool):
            raise UserError(f"{path} is damaged: 'base_alone' must be true or false; {REMOVE_OPERATOR}.")
        return content["base_alone"]

    @base_alone.setter
    def base_alone(self, alone: bool) -> None:
        atomic.write_signed_json(self.path / _OPERATOR, {"base_alone": alone})

    def _block_file(self, block: int) -> Path:
        return self.path / "blocks" / f"{block:06d}.safetensors"


def read_info(path: Path) -> WorkInfo:
    """Whose work a folder holds; `UserError` where that cannot be read."""
    file = path / _ABOUT
    try:
        content = _read_signed(file, BEGIN_ANEW)
    except FileNotFoundError:
        raise UserError(f"{path} holds no work: it has no {_ABOUT}.") from None
    if content.get("format") != FORMAT:
        raise UserError(
            f"{file} has the format {content.get('format')!r}, and this version of firsthand reads {FORMAT}; "
            "use the version that wrote it."
        )
    with atomic.using(str(file)):
        return WorkInfo(
            run=str(content["run"]),
            spec=str(content["spec"]),
            block_trajectories=int(content["block_trajectories"]),
            block_s=float(content["block_s"]),
            on_base=bool(content["on_base"]),
            address=str(content["address"]),
            begun_utc=str(content["begun_utc"]),
        )


def _read_signed(file: Path, remedy: str) -> dict[str, Any]:
    """A JSON object with its SHA-256; `FileNotFoundError` where there is none."""
    try:
        data = atomic.read_bytes(file, MAX_ABOUT_BYTES)
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        packed.check_json(data, content)
        return content
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from None
    except packed.WrongChecksum as error:
        raise UserError(f"{file} is damaged or was changed: {error}; {remedy}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{file} is damaged: it is not a JSON object; {remedy}.") from None


def _make(path: Path, info: WorkInfo) -> None:
    for name in _FOLDERS:
        atomic.make_own_folder(path / name)
    # Last, because it is what makes the folder one of work.
    atomic.write_signed_json(path / _ABOUT, {"format": FORMAT, **info._asdict()})


def _check_usable(path: Path) -> None:
    """Refuse a place where work would mix with something else."""
    try:
        if path.is_file():
            raise UserError(f"{path} is a file, and must be a folder.")
        if not path.is_dir() or (path / _ABOUT).exists():
            return
        for entry in path.iterdir():
            left_over = entry.name == "lock" or atomic.is_temporary(entry.name)
            empty = entry.name in _FOLDERS and entry.is_dir() and not any(entry.iterdir())
            if not (left_over or empty):
                raise UserError(
                    f"{path} is not empty and holds no work: it has {entry.name}, and no {_ABOUT}; give another folder."
                )
    except OSError as error:
        raise UserError(f"cannot read the folder {path}: {atomic.cause(error)}.") from error


def _check_same(path: Path, stored: WorkInfo, now: WorkInfo) -> None:
    if stored.run != now.run:
        raise UserError(
            f"{path} holds the work of another run, whose config.json has the SHA-256 {stored.run[:12]}…, and here it "
            f"is {now.run[:12]}…; {BEGIN_ANEW}."
        )
    if stored.block_trajectories != now.block_trajectories:
        raise UserError(
            f"{path} has blocks of {stored.block_trajectories} trajectories, and this version makes blocks of "
            f"{now.block_trajectories}; {BEGIN_ANEW}."
        )


def _set_aside(path: Path) -> Path:
    """Rename a folder to the first name that is free."""
    number = 1
    while (aside := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    try:
        os.rename(path, aside)
        atomic.sync(path.parent)
    except OSError as error:
        raise UserError(f"cannot rename {path} to {aside}: {atomic.cause(error)}.") from error
    return aside
