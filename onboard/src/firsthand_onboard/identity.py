"""The identity of a machine: a key of its own, made when it is first served, and the name that follows from it.

An address says where a machine is today, not which one it is. A trainer's permissions hold for one machine only, so
every machine has a unique name that stays when its address changes. The key never leaves its file. At its first
connection a trainer gets a secret that is derived from the key, once. From then on the machine proves its identity with
that secret, which the name alone does not allow.
"""

from __future__ import annotations

import hashlib
import hmac
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


TAG = re.compile(r"[0-9a-f]{32}")
"""The form of a trainer's name towards one machine, and of a challenge."""
MAX_PAIRED = 4096


class MachineIdentity:
    """A machine's name, and how it proves that it is the one."""

    def __init__(self, path: Path) -> None:
        """From the key in this file; where there is none yet, or a damaged one, it is made.

        Where it cannot be kept, the machine has a new name each time, and what was earned on it is not recognised.
        """
        self._key, self._pairs = _read_or_make(path), path.with_name(path.name + ".met")
        self.name = hashlib.sha256(f"firsthand machine {self._key}".encode()).hexdigest()[:32]

    def meet(self, tag: str) -> str | None:
        """The secret for a trainer that calls itself so, once; None for one that has it, or is not a trainer."""
        if not TAG.fullmatch(tag):
            return None
        try:
            handle = os.open(self._pairs, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            with os.fdopen(handle, "r+", encoding="ascii", errors="replace") as file:
                known = file.read(MAX_PAIRED * 33).split()
                if tag in known or len(known) >= MAX_PAIRED:
                    return None
                file.write(f"{tag}\n")
                file.flush()
                os.fsync(handle)
        except (OSError, ValueError) as error:
            log.warning("the list of known trainers cannot be stored (%s): no new trainer is accepted", error)
            return None
        return self._secret(tag)

    def prove(self, tag: str, question: str) -> str | None:
        """The answer that only this machine can give to a trainer that calls itself so."""
        if not TAG.fullmatch(tag) or not TAG.fullmatch(question):
            return None
        return answer_of(self._secret(tag), question)

    def _secret(self, tag: str) -> str:
        return hmac.new(self._key.encode(), f"trainer {tag}".encode(), hashlib.sha256).hexdigest()


def answer_of(secret: str, question: str) -> str:
    """The answer of a machine with this secret."""
    return hmac.new(secret.encode(), question.encode(), hashlib.sha256).hexdigest()


def machine_identity(path: Path) -> str:
    """The name of the machine whose key is in this file."""
    return MachineIdentity(path).name


def _read_or_make(path: Path) -> str:
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
    return key


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
