"""Files that are either the old one or the new one, whatever happens in between.

A file is written under a temporary name in the same folder, flushed to the disk, and renamed over the old
one; then the folder itself is flushed, because a rename is durable only when the folder is.

`MetricsFile` grows by whole lines, and `WriterLock` keeps a second writer out.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from firsthand.errors import UserError
from firsthand.runs import packed

MAX_EPISODE = 10**9
LARGEST = 1 << 30
"""Larger files of runs and simulators are not read."""
NUMBERS = frozenset(
    [
        "robot_time_s",
        "tracking_error",
        "measured_tracking_error",
        "rms_error",
        "max_error",
        "controller_loss",
        "model_loss",
        "held_out_loss",
        "gradient_norm",
        "step_norm",
        "update_time_s",
        "prediction_error",
        "closed_loop_growth",
        "innovation_size",
        "innovation_correlation",
        "one_step_error_ratio",
        "forecast_error_ratio",
        "steps_taken",
        "refused_updates",
        "limit_hits",
        "valid_share",
        "authority",
        "velocity_delay",
        "command_change",
        "chatter",
    ]
)
"""Fields of metrics.jsonl that must be a number or null."""
WITHOUT_EPISODE = (
    "Curves then lack its episode, and a resumed run no longer counts it in the guard's usual error and in what proves "
    "the kept policy."
)

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
    if error.errno in _CAUSES and not isinstance(error, TooLarge):
        return _CAUSES[error.errno]
    return error.strerror or str(error)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """While looking at `path`: one sentence where the system does not allow it, or the name cannot be one."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {cause(error)}.") from error


def open_to_read(path: str | os.PathLike[str]) -> BufferedReader:
    """An ordinary file; `OSError` for everything else: a pipe would be waited for, a device never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise _not_a_file(path, stat.S_ISDIR(mode))
    return os.fdopen(handle, "rb")


class TooLarge(OSError):
    """A file that nothing here has written: a few bytes on a disk can be a file of any size."""


def read_bytes(path: str | os.PathLike[str], limit: int | None = LARGEST) -> bytes:
    """The content of an ordinary file; `limit` is the largest size in bytes that makes sense. `TooLarge` above that."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise TooLarge(errno.EFBIG, f"it has {size} bytes, and at most {limit} make sense", path)
        return file.read()


def open_to_change(path: str | os.PathLike[str], flags: int) -> int:
    """A handle of an ordinary file that is changed in place, and made if it is not there; `OSError` for anything else.

    A stranger may have made the folder and put a link there, and its target must not be changed.
    """
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_a_file(path) from None
        raise
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(handle)
        raise _not_a_file(path)
    return handle


def _not_a_file(path: str | os.PathLike[str], folder: bool = False) -> OSError:
    if folder:
        return OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return OSError(errno.EINVAL, "it is a link, a pipe or a device, and must be an ordinary file", path)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o666) -> None:
    """Write `data` to `path`. When this returns, it is on the disk; when it raises, `path` is as it was.

    `mode` are the permissions of a new file, from which the umask takes away.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            # Not mkstemp: its files are for the owner alone, and a run is often read by colleagues.
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
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


def write_json(path: str | os.PathLike[str], value: Any, *, mode: int = 0o666) -> None:
    """`write_bytes` for plain values, as JSON that any reader accepts: ±∞ and NaN become text."""
    text = json.dumps(packed.plain_values(value, nonfinite="text"), indent=2, allow_nan=False) + "\n"
    write_bytes(path, text.encode("utf-8"), mode=mode)


def write_signed_json(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """`write_json` with a SHA-256 in the file."""
    write_bytes(path, packed.signed_json(packed.plain_values(value, nonfinite="text")))


def write_all(handle: int, data: bytes) -> None:
    """Write every byte; one `os.write` may take only a part, for example when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def make_own_folder(path: str | os.PathLike[str]) -> None:
    """`make_folder` for a folder inside a run: a link in its place is refused, because what it leads to is not ours."""
    if Path(path).is_symlink():
        raise UserError(f"{path} is a link, and must be a folder of its own; remove the link.")
    make_folder(path)


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
    """Remove what killed processes left behind. Only for a folder without another writer."""
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


def _is_number(value: Any) -> bool:
    """Whether a field of metrics.jsonl is null or a number that fits into a float."""
    if value is None or isinstance(value, bool):
        return True
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


@contextlib.contextmanager
def using(where: str) -> Iterator[None]:
    """While using what a file holds: one sentence where something is missing in it or not as it should be."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{where} is damaged: {error} is missing.") from None
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(f"{where} is damaged: {text.removesuffix('.')}.") from None


class MetricsFile:
    """`metrics.jsonl`: one JSON object per line and episode, appended; `work.jsonl`, with a line per block.

    A line counts when its newline is there. What follows the last newline was torn off by a crash.
    """

    def __init__(self, path: Path, *, counter: str = "episode", without: str = WITHOUT_EPISODE) -> None:
        """`counter` is the field that numbers the lines; `without` says what is lost where one is removed."""
        self.path, self.counter, self.without = path, counter, without

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add a line and flush it to the disk. ±∞ and NaN are stored as null, which JSON can hold.

        When the disk is full the file is left as it was.
        """
        if not isinstance(metrics.get(self.counter), int):
            raise ValueError(f"metrics need the field {self.counter!r}, an int")
        line = packed.signed_line(packed.plain_values(metrics, nonfinite="null")) + b"\n"
        try:
            handle = open_to_change(self.path, os.O_RDWR | os.O_APPEND)
            try:
                size = self._drop_torn_tail(handle)
                try:
                    write_all(handle, line)
                    os.fsync(handle)
                except BaseException:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
            if size == 0:
                sync(self.path.parent)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {cause(error)}.") from error

    def read(self) -> list[dict[str, Any]]:
        """Every whole line, oldest first; an empty list when nothing was written yet."""
        return [metrics for _, metrics in self._lines(self._data())]

    def truncate(self, after_episode: int) -> None:
        """Drop the lines of later episodes, and a torn tail, in one step that cannot be seen half done."""
        data = self._data()
        kept = b"".join(line for line, metrics in self._lines(data) if metrics[self.counter] <= after_episode)
        if kept != data:
            write_bytes(self.path, kept)

    def _data(self) -> bytes:
        try:
            return read_bytes(self.path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {cause(error)}.") from error

    def _lines(self, data: bytes) -> list[tuple[bytes, dict[str, Any]]]:
        *lines, tail = data.split(b"\n")
        if packed.has_checksum(tail[:-1]):  # not torn off: a whole line whose newline was changed
            lines.append(tail)
        parsed = []
        for number, line in enumerate(lines, start=1):
            try:
                metrics = packed.read_line(line)
                count = metrics.get(self.counter)
                valid = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < MAX_EPISODE
                valid &= all(_is_number(metrics[name]) for name in NUMBERS & set(metrics))
                valid &= all(_is_number(value) for value in metrics.values() if isinstance(value, int))
            except ValueError:
                metrics, valid = {}, False
            if not valid:
                raise UserError(f"line {number} of {self.path} is damaged; remove that line. {self.without}")
            parsed.append((line + b"\n", metrics))
        return parsed

    @staticmethod
    def _drop_torn_tail(handle: int) -> int:
        """Cut what follows the last newline, so that the next line starts on its own. Returns the size."""
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            size = os.pread(handle, size, 0).rfind(b"\n") + 1
            os.ftruncate(handle, size)
        return size


class WriterLock:
    """One writer per run: an exclusive `flock` on a file that also says which process holds it.

    The lock belongs to the open file, so it dies with the process that holds it. The file stays when the lock is
    released: removing it would let a second process lock a new file of the same name while a third still waits on the
    old one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._handle is not None

    def acquire(self) -> None:
        """Take the lock, or say at once who has it. Taking it twice is fine."""
        if self.held:
            return
        try:
            handle = open_to_change(self._path, os.O_RDWR)
        except OSError as error:
            raise UserError(f"cannot open {self._path}: {cause(error)}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            write_all(handle, f"{os.getpid()}\n".encode())
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                who = f"process {holder}" if holder.isdigit() else "another process"
                raise UserError(
                    f"{self._path.parent} is being written by {who}; wait for it to end, or stop it."
                ) from error
            raise UserError(f"cannot lock {self._path}: {cause(error)}.") from error
        self._handle = handle

    def release(self) -> None:
        """Give the lock back. Releasing what is not held is fine."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
