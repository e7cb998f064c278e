"""The machine as the loop sees it: behind the watchdog process, which this side starts, talks to and replaces.

When the watchdog dies or hangs, the loop kills it and brings the machine to neutral with a connection of its own; the
machine's own command timeout, where it has one, is the last line behind both.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import time
from typing import Any

import numpy as np

from .child_process import module_command
from .command_check import CommandLimits
from .machine import MachineError, find_machine, load_machine, make_machine
from .machine_lock import MachineLock, lock_machine
from .spec import ControlSpec, SpecError
from .timing import since_boot
from .watchdog import (
    DESCRIBE,
    FAILED,
    HEAD,
    HOLD,
    INPUTS,
    LIMIT,
    MAX_PACKET,
    READ,
    RESET,
    RESUME,
    TRIPPED,
    WRITE,
    check_timeout,
)

STARTUP_S = 120.0
"""How long a machine may take to start: one that is a simulation may have to compile first."""
KILL_S = 0.05
"""A killed process that is not gone after this hangs in the kernel: neutral does not wait for it."""
RETRY_S = 1.0
"""How often a connection to the machine is tried again where the watchdog is lost and none could be made."""

log = logging.getLogger("firsthand-onboard")


class WatchedMachine:
    """The machine as the loop sees it: everything goes through the watchdog process."""

    def __init__(
        self,
        name: str,
        options: dict[str, str],
        *,
        timeout_s: float | None = None,
        period_s: float | None = None,
    ) -> None:
        check_timeout(timeout_s)
        self.name, self.options = name, options
        self._wanted_timeout, self._period = timeout_s, period_s
        self._lost = False
        self._direct: Any = None
        self._standby: Any = None
        self._try_at, self._logged = 0.0, ""
        self._number = 0
        self._priority = 0
        self._limits: CommandLimits | None = None
        self._lock: MachineLock | None = None
        self._read_at = 0.0
        self.start()

    def start(self) -> None:
        """Start the watchdog process; the machine is in neutral when this returns."""
        if self._lost and self.process.poll() is None:
            raise MachineError(f"the lost watchdog, process {self.process.pid}, cannot be ended")
        self._close_direct()
        self._release()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*module_command("firsthand_onboard.watchdog"), "--fd", str(theirs.fileno())]
        command += ["--machine", self.name]
        if self._wanted_timeout is not None:
            command += ["--timeout", str(self._wanted_timeout)]
        if self._period is not None:
            command += ["--period", str(self._period)]
        for key, value in self.options.items():
            command += ["--machine-option", f"{key}={value}"]
        try:  # a session of its own: Ctrl-C in the terminal must not take it away from the loop
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        except OSError as error:
            raise MachineError(f"the watchdog did not start: {error}") from None
        finally:
            theirs.close()
        self._channel = ours
        self._lost = False
        self.patience_s = STARTUP_S
        try:
            described = json.loads(self._ask(DESCRIBE))
        except (MachineError, OSError) as error:
            self._kill()
            raise MachineError(f"the machine {self.name!r} did not start: {error}") from None
        self.spec = ControlSpec.from_json(described["spec"]) if described["spec"] else None
        self.neutral_command = described["neutral"]
        self.directions = described["directions"]
        self.stopping, self.command_kind = described["stopping"], described["command_kind"]
        self.homing = described["homing"]
        """JSON, or None."""
        self.lock_step = described["lock_step"]
        self.can_reset, self.simulated = described["can_reset"], described["simulated"]
        self.has_inputs = described["has_inputs"]
        self.timeout_s = described["timeout_s"]
        self.patience_s = STARTUP_S if self.lock_step else self.timeout_s
        """A watchdog that answers later than this hangs."""
        self.prefer(self._priority)
        if self._limits is not None:
            self.limit(self._limits)
        if not self.lock_step:
            self._prepare()

    def _prepare(self) -> None:
        """What neutral needs when the watchdog is lost, as far as it can be had now: imports, a second connection."""
        try:
            standby = getattr(find_machine(self.name), "standby", None)
            if standby is not None and self._standby is None:
                self._standby = make_machine(standby, self.name, self.options)
        except (SpecError, MachineError) as error:
            self.close()
            raise MachineError(f"the machine {self.name!r} did not start in the loop's process: {error}") from None

    def prefer(self, priority: int) -> None:
        """Let the watchdog process run with this SCHED_FIFO priority; where that is not permitted, say so."""
        self._priority = priority
        if priority > 0:
            try:
                os.sched_setscheduler(self.process.pid, os.SCHED_FIFO, os.sched_param(priority))
            except (OSError, AttributeError) as error:
                log.warning("SCHED_FIFO priority %d is not permitted for the watchdog: %s", priority, error)

    def read(self) -> np.ndarray:
        """What the machine measures; `MachineError` when the watchdog has taken over or is gone."""
        self._read_at = since_boot()
        return self._ask_measurement(READ)

    def write(self, command: np.ndarray) -> None:
        """Hand a command to the watchdog, with the time of the measurement that it was made from."""
        self._send(WRITE, np.concatenate([[self._read_at], np.asarray(command, float)]))

    def limit(self, limits: CommandLimits) -> None:
        """Let the watchdog check every command against these limits."""
        self._limits = limits
        self._ask(LIMIT, limits.pack())

    def hindrance(self) -> str:
        """Why the machine must not move now: its emergency stop or its enabling switch; empty where it may."""
        return self._ask(INPUTS).decode() if self.has_inputs else ""

    def neutral(self) -> None:
        """Neutral, and a sign of life. Never raises: it is what is called when everything else has failed."""
        if self._lost:
            self._neutral_from_here()
            return
        with contextlib.suppress(MachineError):  # then it is in neutral already
            self._send(HOLD)

    def resume(self) -> None:
        """The operator has acknowledged: take commands again, with a new watchdog if the old one is gone."""
        if self._lost or self.process.poll() is not None:
            self.start()
        self._send(RESUME)

    def reset(self, position: np.ndarray) -> np.ndarray:
        """Put a simulation at rest in a configuration; what it measures there."""
        return self._ask_measurement(RESET, position)

    def rescue(self) -> None:
        """The watchdog is lost: end it, and bring the machine to neutral from here."""
        if self._lost:
            return
        self._lost, self._try_at = True, 0.0
        self._kill()
        self._channel.close()
        self._neutral_from_here()
        with contextlib.suppress(MachineError, SpecError):
            self._lock = lock_machine(self.name, self.options)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _kill(self) -> None:
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_S)

    def _neutral_from_here(self) -> None:
        """If this fails too, the machine's own timeout is left; it is tried again with the next neutral."""
        try:
            if self._direct is None and time.monotonic() >= self._try_at:
                self._direct = self._standby or load_machine(self.name, self.options)
            if self._direct is not None:
                self._direct.neutral()
        except Exception as error:  # a driver may raise anything
            if self._direct is None:
                self._try_at = time.monotonic() + RETRY_S
            if str(error) != self._logged:
                log.error("the watchdog is lost, and neutral from here failed: %s", error)
            self._logged = str(error)

    def close(self) -> None:
        """Neutral, and the end of the watchdog."""
        if self._lost:
            self.neutral()
            self._close_direct()
            self._release()
        else:
            self._end()
        if self._standby is not None:
            with contextlib.suppress(Exception):
                self._standby.close()
            self._standby = None

    def _end(self) -> None:
        self._channel.close()  # the watchdog sees it, goes to neutral and ends
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self._kill()

    def _close_direct(self) -> None:
        if self._direct is not None and self._direct is not self._standby:
            with contextlib.suppress(Exception):
                self._direct.close()
        self._direct = None

    def _send(self, kind: int, values: Any = ()) -> None:
        if self._lost:
            raise MachineError("the watchdog is lost")
        self._number += 1
        try:
            self._channel.settimeout(self.patience_s)
            self._channel.send(HEAD.pack(kind, self._number) + np.asarray(values, "<f8").tobytes())
        except OSError:
            self.rescue()
            raise MachineError("the watchdog is lost") from None

    def _ask_measurement(self, kind: int, values: Any = ()) -> np.ndarray:
        content = self._ask(kind, values)
        if len(content) % 8:
            raise MachineError(f"the watchdog answered {len(content)} bytes, which are not numbers")
        return np.frombuffer(content, "<f8").copy()

    def _ask(self, kind: int, values: Any = ()) -> bytes:
        self._send(kind, values)
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                self._channel.settimeout(max(deadline - time.monotonic(), 1e-4))
                data = self._channel.recv(MAX_PACKET)
            except TimeoutError:
                data = b""
            except OSError:
                data = b""
            if not data:
                ended = self.process.poll()
                self.rescue()
                raise MachineError("the watchdog is lost" if ended is not None else "the watchdog does not answer")
            answer, number = HEAD.unpack_from(data)
            if number != self._number:
                continue
            if answer == FAILED:
                raise MachineError(data[HEAD.size :].decode(errors="replace"))
            if answer == TRIPPED:
                raise MachineError(f"no command came for {1000 * self.timeout_s:.0f} ms, and the watchdog took over")
            return data[HEAD.size :]
