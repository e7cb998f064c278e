"""One writer per run. The lock belongs to the open file, so it dies with the process that holds it."""

import errno
import fcntl
import os
from pathlib import Path

from firsthand.errors import UserError
from firsthand.runs import atomic


class WriterLock:
    """An exclusive `flock` on a file that also says which process holds it.

    The file stays when the lock is released: removing it would let a second process lock a new file of the
    same name while a third still waits on the old one.
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
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(f"cannot open {self._path}: {atomic.cause(error)}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            atomic.write_all(handle, f"{os.getpid()}\n".encode())
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                who = f"process {holder}" if holder.isdigit() else "another process"
                raise UserError(
                    f"{self._path.parent} is being written by {who}; wait for it to end, or stop it."
                ) from error
            raise UserError(f"cannot lock {self._path}: {atomic.cause(error)}.") from error
        self._handle = handle

    def release(self) -> None:
        """Give the lock back. Releasing what is not held is fine."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
