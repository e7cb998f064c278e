"""One program per machine: the program that moves it holds a lock, which ends with the process in any case.

On Linux the lock is a socket in the abstract namespace: it needs no file, cannot be removed, and it is the same for
all users of a computer. Elsewhere it is a locked file in the folder for temporary files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from .machine import MachineError, find_machine


def machine_resource(name: str, options: dict[str, str]) -> str:
    """What machine it is that `module:Class` or `file.py:Class` reaches with these options.

    The class may say so itself (`resource(**options)`): two ways to write an address are one machine. Otherwise it is
    the class with its options.
    """
    resource = getattr(find_machine(name), "resource", None)
    if callable(resource):
        try:
            return str(resource(**options))
        except Exception as error:  # a driver may raise anything
            raise MachineError(f"the machine {name!r} does not say what it is: {error}") from None
    module, _, kind = name.rpartition(":")
    where = os.path.realpath(module) if module.endswith(".py") else module
    return json.dumps([where, kind, dict(sorted(options.items()))])


class MachineLock:
    """Exclusive for as long as this object lives and is not released; `MachineError` where somebody else has it."""

    def __init__(self, resource: str) -> None:
        key = "firsthand-" + hashlib.sha256(resource.encode()).hexdigest()[:32]
        self._held: Any = self._take_socket(key) if sys.platform == "linux" else self._take_file(key)
        if self._held is None:
            raise MachineError("another program on this computer already serves this machine: end it first")

    @staticmethod
    def _take_socket(key: str) -> socket.socket | None:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0{key}")
        except OSError:
            held.close()
            return None
        return held

    @staticmethod
    def _take_file(key: str) -> Any:
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            held = os.fdopen(os.open(Path(tempfile.gettempdir()) / f"{key}.lock", flags, 0o666), "r+")
        except OSError as error:
            raise MachineError(f"the machine cannot be locked: {error}") from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            return None
        return held

    def release(self) -> None:
        """Somebody else may have it."""
        if self._held is not None:
            with contextlib.suppress(OSError):
                self._held.close()
            self._held = None


def lock_machine(name: str, options: dict[str, str]) -> MachineLock:
    """The lock of the machine that this name and these options reach."""
    return MachineLock(machine_resource(name, options))
