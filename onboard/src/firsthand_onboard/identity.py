"""Who a machine is: a key of its own, made when it is first served, and the name that follows from it.

An address says where a machine is today, not which one it is. What a trainer has learned to allow on one machine holds
on that one alone, so every machine has a name that stays when its address changes and that no other has. The key never
leaves its file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("firsthand-onboard")

_KEY = re.compile(r"[0-9a-f]{64}")
MAX_KEY_FILE = 256


def key_file(machine: str, options: Mapping[str, str]) -> Path:
    """Where the key of the machine that these arguments of `serve` name is kept: one file per machine."""
    module, _, name = machine.rpartition(":")
    known = f"{Path(module).resolve()}:{name}" if module.endswith(".py") else machine
    digest = hashlib.sha256(json.dumps([known, sorted(options.items())]).encode()).hexdigest()
    chosen = os.environ.get("XDG_STATE_HOME")
    state = Path(chosen) if chosen else Path(os.path.expanduser("~")) / ".local" / "state"
    return state / "firsthand-onboard" / "machines" / f"{digest[:16]}.key"


def machine_identity(path: Path) -> str:
    """The machine's name, from the key in this file; where there is none yet, or a damaged one, it is made.

    Where it cannot be kept, the machine has a new name each time, and what was earned on it is not recognised.
    """
    key = _read(path)
    if key is None:
        key = secrets.token_hex(32)
        try:
            _write(path, key)
            log.info("this machine's key was made: %s", path)
        except OSError as error:
            log.warning("this machine's key cannot be kept (%s): it will have another name next time", error)
        else:
            key = _read(path) or key  # somebody else may have been faster
    return hashlib.sha256(f"firsthand machine {key}".encode()).hexdigest()[:32]


def _read(path: Path) -> str | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.read(handle, MAX_KEY_FILE).decode("ascii").strip()
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("this machine's key in %s cannot be read (%s); a new one is made", path, error)
        return None
    if not _KEY.fullmatch(text):
        log.warning("this machine's key in %s is damaged; a new one is made", path)
        return None
    return text


def _write(path: Path, key: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, key.encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)
