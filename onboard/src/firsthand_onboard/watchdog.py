"""The watchdog: a second small process that owns the machine.

The loop hands every command to it through a socket. When commands stop coming while the machine moves, when the loop
hangs, or when it dies, the watchdog brings the machine to neutral and refuses commands until it is told to go on. When
the watchdog itself dies or hangs, the loop kills it and brings the machine to neutral with a connection of its own; the
machine's own command timeout, where it has one, is the last line behind both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import numpy as np

from .homing import Homing
from .machine import MachineError, can_reset, check_machine, find_machine, load_machine, make_machine
from .spec import ControlSpec, SpecError

READ, WRITE, HOLD, RESUME, RESET, DESCRIBE = range(1, 7)
ANSWER, TRIPPED, FAILED = range(7, 10)
HEAD = struct.Struct("<BQ")
MAX_PACKET = 200_000
STARTUP_S = 120.0
"""A machine that is a simulation may have to compile first."""
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.002, 10.0
KILL_S = 0.05
"""A killed process that is not gone after this hangs in the kernel: neutral does not wait for it."""
RETRY_S = 1.0
"""How often a connection to the machine is tried again where the watchdog is lost and none could be made."""

log = logging.getLogger("firsthand-onboard")


def timeout_for(period_s: float, lock_step: bool) -> float:
    """How long commands may stay away; in lock-step, where time stands still, 30 s.

    Two periods, but at least 20 ms; for machines slower than 25 Hz 80 ms, or one and a half periods if that is longer.
    """
    if lock_step:
        return 30.0
    return max(2.0 * period_s, 0.02) if period_s <= 0.04 else max(1.5 * period_s, 0.08)


def check_timeout(timeout_s: float | None) -> None:
    """Raise `SpecError` for a time after which the watchdog would trip at once, or far too late."""
    if timeout_s is not None and not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        raise SpecError(f"watchdog is {timeout_s} s, but must lie between {MIN_TIMEOUT_S:g} and {MAX_TIMEOUT_S:g} s")


def declared_homing(machine: Any) -> str | None:
    """The `homing` that a machine declares, as JSON; None where it declares none."""
    homing = getattr(machine, "homing", None)
    if homing is None or isinstance(homing, str):
        return homing
    return homing.to_json() if isinstance(homing, Homing) else json.dumps(homing, default=lambda v: v.tolist())


def declared_directions(machine: Any) -> list[tuple[int, int]] | None:
    """The `directions` that a machine declares, as plain numbers; None where it declares none."""
    directions = getattr(machine, "directions", None)
    return None if directions is None else [(int(joint), int(sign)) for joint, sign in directions]


class Watchdog:
    """The process that owns the machine."""

    def __init__(
        self, machine: Any, channel: socket.socket, timeout_s: float | None, period_s: float | None = None
    ) -> None:
        self.machine, self.channel = machine, channel
        lock_step = bool(getattr(machine, "lock_step", False))
        spec = getattr(machine, "spec", None)
        period = period_s if period_s is not None else float(spec.period_s if spec else 0.04)
        self.timeout_s = timeout_for(period, lock_step) if timeout_s is None else timeout_s
        self.moving, self.tripped = False, False
        self.heard = time.monotonic()
        self.failure = ""
        self.stopping = False

    def run(self) -> None:
        """Until the loop is gone or SIGTERM comes; the machine is left in neutral."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stop)
        try:
            self._neutral()
            self._listen()
        finally:  # whatever a driver does, also sys.exit
            self._neutral()
            with contextlib.suppress(Exception):
                self.machine.close()

    def _listen(self) -> None:
        while not self.stopping:
            left = self.heard + self.timeout_s - time.monotonic()
            self.channel.settimeout(max(left, 1e-4) if self.moving else self.timeout_s)
            try:
                data = self.channel.recv(MAX_PACKET)
            except TimeoutError:
                data = None
            except OSError:
                break
            if data == b"":
                break
            if data is None or (self.moving and time.monotonic() - self.heard > self.timeout_s):
                if self.moving:
                    self.tripped, self.moving = True, False
                self._neutral()  # again and again: the machine may have a timeout of its own
            if data is not None:
                self.handle(data)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def handle(self, data: bytes) -> None:
        """One packet of the loop."""
        kind, number = HEAD.unpack_from(data)
        values = np.frombuffer(data, "<f8", offset=HEAD.size)
        if kind == READ:
            self._answer(number, self._call(self._read))
        elif kind == WRITE:
            if not self.tripped:
                self.moving = True
                self._call(self.machine.write, values.astype(np.float32))
                self.heard = time.monotonic()
        elif kind == HOLD:
            self.moving, self.heard = False, time.monotonic()
            self._neutral()
        elif kind == RESUME:
            self.tripped, self.failure, self.heard = False, "", time.monotonic()
        elif kind == RESET:
            self.moving = False
            self._call(self._reset, values)
            self._answer(number, self._call(self._read))
        elif kind == DESCRIBE:
            self._answer(number, self._call(self._describe))

    def _reset(self, position: np.ndarray) -> None:
        if not can_reset(self.machine):
            raise MachineError("only a simulated machine can be put somewhere")
        self.machine.reset(position)

    def _read(self) -> bytes:
        return np.asarray(self.machine.read(), "<f8").tobytes()

    def _describe(self) -> bytes:
        self._read()  # the first may take long: now there is time
        spec = getattr(self.machine, "spec", None)
        neutral = getattr(self.machine, "neutral_command", None)
        described = {
            "spec": None if spec is None else spec.to_json(),
            "neutral": None if neutral is None else np.asarray(neutral, float).tolist(),
            "directions": declared_directions(self.machine),
            "homing": declared_homing(self.machine),
            "lock_step": bool(getattr(self.machine, "lock_step", False)),
            "can_reset": can_reset(self.machine),
            "timeout_s": self.timeout_s,
        }
        return json.dumps(described).encode()

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # a driver may raise anything; the loop is told, and the machine stops
            self.failure = f"{type(error).__name__}: {error}"[:500]
            self.tripped, self.moving = True, False
            self._neutral()
            return None

    def _neutral(self) -> None:
        try:
            self.machine.neutral()
        except Exception as error:
            self.failure = f"neutral failed, {type(error).__name__}: {error}"[:500]
            self.tripped = True

    def _answer(self, number: int, content: bytes | None) -> None:
        with contextlib.suppress(OSError):
            if self.failure:
                self.channel.send(HEAD.pack(FAILED, number) + self.failure.encode())
            else:
                kind = TRIPPED if self.tripped else ANSWER
                self.channel.send(HEAD.pack(kind, number) + (content or b""))


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
        self._try_at, self._said = 0.0, ""
        self._number = 0
        self._priority = 0
        self.start()

    def start(self) -> None:
        """Start the watchdog process; the machine is in neutral when this returns."""
        if self._lost and self.process.poll() is None:
            raise MachineError(f"the lost watchdog, process {self.process.pid}, cannot be ended")
        self._close_direct()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "firsthand_onboard.watchdog", "--fd", str(theirs.fileno())]
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
        self.homing = described["homing"]
        """JSON, or None."""
        self.lock_step = described["lock_step"]
        self.can_reset = described["can_reset"]
        self.timeout_s = described["timeout_s"]
        self.patience_s = STARTUP_S if self.lock_step else self.timeout_s
        """A watchdog that answers later than this hangs."""
        self.prefer(self._priority)
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
        return self._measured(READ)

    def write(self, command: np.ndarray) -> None:
        """Hand a command to the watchdog."""
        self._send(WRITE, command)

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
        return self._measured(RESET, position)

    def rescue(self) -> None:
        """The watchdog is lost: end it, and bring the machine to neutral from here."""
        if self._lost:
            return
        self._lost, self._try_at = True, 0.0
        self._kill()
        self._channel.close()
        self._neutral_from_here()

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
            if str(error) != self._said:
                log.error("the watchdog is lost, and neutral from here failed: %s", error)
            self._said = str(error)

    def close(self) -> None:
        """Neutral, and the end of the watchdog."""
        if self._lost:
            self.neutral()
            self._close_direct()
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

    def _measured(self, kind: int, values: Any = ()) -> np.ndarray:
        return np.frombuffer(self._ask(kind, values), "<f8").copy()

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


def key_value(text: str) -> tuple[str, str]:
    """`key=value` of a command line."""
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def main() -> None:
    """The watchdog process; started by `WatchedMachine`."""
    parser = argparse.ArgumentParser(prog="firsthand_onboard.watchdog")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--machine-option", type=key_value, action="append", default=[])
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--period", type=float)
    arguments = parser.parse_args()
    channel = socket.socket(fileno=arguments.fd)
    try:
        machine = load_machine(arguments.machine, dict(arguments.machine_option))
        check_machine(machine, arguments.machine)
    except Exception as error:
        with contextlib.suppress(OSError):  # an unread question would reset the channel before the answer is read
            channel.settimeout(5.0)
            channel.recv(MAX_PACKET)
        channel.send(HEAD.pack(FAILED, 1) + f"{type(error).__name__}: {error}"[:500].encode())
        os._exit(1)
    Watchdog(machine, channel, arguments.timeout, arguments.period).run()


if __name__ == "__main__":
    main()
