"""A folder of numbered checkpoints, of which the newest few are kept.

checkpoints/000012.safetensors   a learner's whole state after episode 12 of a run, or after block 12 of work
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firsthand.errors import UserError
from firsthand.runs import atomic, packed
from firsthand.runs.packed import Arrays, DamagedFile

_NUMBERED = re.compile(r"(\d{6,})\.safetensors")


class Checkpoint(NamedTuple):
    """A checkpoint as it was read. `notes` has a sentence for each newer one that had to be skipped."""

    episode: int
    """Its number: of the episode, or of the block of work."""
    arrays: Arrays
    info: dict[str, Any]
    notes: list[str]


class CheckpointFolder:
    """The checkpoints in one folder. Writing is for whoever holds the lock around it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, number: int) -> Path:
        """Where the checkpoint of this number is, or would be."""
        return self.path / f"{number:06d}.safetensors"

    def numbers(self) -> list[int]:
        """The numbers of the stored checkpoints, in order, good or not."""
        return stored_numbers(self.path)

    def save(self, number: int, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any], *, keep: int) -> None:
        """Store a checkpoint, the newest or once more the newest, then remove all but the newest `keep`.

        The new one is durable before an old one goes.
        """
        atomic.write_bytes(self.file(number), packed.pack(arrays, info))
        atomic.remove(*(self.file(old) for old in self.numbers()[:-keep]))

    def load(self, number: int | None = None) -> Checkpoint | None:
        """The newest checkpoint whose SHA-256 is right, or the one of this number; None where there is none.

        Damaged ones are skipped, with a sentence each in `notes`; `UserError` where all of them are damaged.
        """
        damaged: dict[Path, str] = {}
        for at, path in self._to_try(number):
            try:
                arrays, info = packed.unpack(atomic.read_bytes(path))
            except DamagedFile as error:
                damaged[path] = str(error)
            except FileNotFoundError:
                continue  # The writer removed it just now, which it does only when there is a newer one.
            except OSError as error:
                damaged[path] = atomic.cause(error)
            else:
                notes = [f"{bad} is damaged ({why}); using {path} instead." for bad, why in damaged.items()]
                return Checkpoint(at, arrays, info, notes)
        if not damaged:
            return None
        reasons = "; ".join(f"{bad.name}: {why}" for bad, why in damaged.items())
        raise UserError(f"no checkpoint in {self.path} can be used ({reasons}).")

    def _to_try(self, number: int | None) -> Iterator[tuple[int, Path]]:
        """Newest first. When a reader is overtaken by the writer, the list is made once more."""
        if number is not None:
            yield number, self.file(number)
            return
        tried: set[int] = set()
        for _ in range(2):
            for at in reversed(self.numbers()):
                if at not in tried:
                    tried.add(at)
                    yield at, self.file(at)


def stored_numbers(folder: Path) -> list[int]:
    """The numbers of the files in a folder that are called `000012.safetensors`, in order."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {atomic.cause(error)}.") from error
    return sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))
