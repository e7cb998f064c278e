"""Files that are either the old one or the new one, whatever happens in between.

A file is written under a temporary name in the same folder, flushed to the disk, and renamed over the old
one; then the folder itself is flushed, because a rename is durable only when the folder is.
"""

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firsthand.errors import UserError
from firsthand.runs import plain

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")

_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process or file system allows",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "the folder it belongs in does not exist",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EISDIR: "a folder has that name",
    errno.EIO: "the disk reports an input/output error",
}


def cause(error: OSError) -> str:
    """What went wrong, in words for the person who has to put it right."""
    if error.errno == errno.ENOENT and error.filename and Path(os.fsdecode(error.filename)).parent.is_dir():
        return "it is not there"
    if error.errno in _CAUSES:
        return _CAUSES[error.errno]
    return error.strerror or str(error)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """While looking at `path`: one sentence where the system does not allow it, or the name cannot be one."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {cause(error)}.") from error


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`. When this returns, it is on the disk; when it raises, `path` is as it was."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            # Not mkstemp: its files are for the owner alone, and a run is often read by colleagues.
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                write_all(handle, data)
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)
        except BaseException:
            _remove_quietly(temporary)
            raise
        sync(path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {cause(error)}.") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`write_bytes` for text, as UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """`write_bytes` for plain values, as JSON that any reader accepts: ±∞ and NaN become text (see `plain`)."""
    write_text(path, json.dumps(plain.values(value, nonfinite="text"), indent=2, allow_nan=False) + "\n")


def write_all(handle: int, data: bytes) -> None:
    """Write every byte; one `os.write` may take only a part, for example when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and its parents, durably. One that is already there is fine."""
    path = Path(path)
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync(folder.parent)
    except FileExistsError as error:
        raise UserError(f"cannot make the folder {path}: a file has that name.") from error
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {cause(error)}.") from error


def remove(*paths: Path, durably: bool = False) -> None:
    """Remove files of one folder, in order. One that is already gone is fine.

    Without `durably` a file may be back after a power failure, which is harmless where files are only tidied.
    """
    for path in paths:
        try:
            path.unlink(missing_ok=True)
            if durably and path == paths[-1]:
                sync(path.parent)
        except OSError as error:
            raise UserError(f"cannot remove {path}: {cause(error)}.") from error


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot flush a folder; there, the rename is as durable as they make it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is what an interrupted `write_bytes` leaves behind."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporary_files(folder: str | os.PathLike[str]) -> None:
    """Remove what killed processes left behind. Only for a folder that nobody else writes to."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {cause(error)}.") from error
    remove(*(Path(folder) / name for name in names if is_temporary(name)))


def _remove_quietly(path: Path) -> None:
    """The error that led here is the one to report, not a second one."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
