"""Reads files from untrusted sources: only ordinary ones, of a sensible size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_ordinary(path: str | Path, limit: int) -> bytes:
    """The content of an ordinary file; a pipe would be waited for, a device never end. `OSError` for anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
        if about.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {about.st_size} bytes, and at most {limit} make sense", str(path))
        return file.read(limit)
