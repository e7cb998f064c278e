"""The watchdog: a second small process that owns the machine.

The loop hands every command to it through a socket (`watched.py`). When commands stop coming while the machine moves,
when the loop hangs, or when it dies, the watchdog brings the machine to neutral and refuses commands until it is told
to go on. It looks at every command itself (`command_check.py`), and at the emergency stop and the enabling switch where
the machine has them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import struct
from typing import Any

import numpy as np

from .command_check import CommandCheck, CommandLimits
from .gate_limits import whole_pairs
from .homing import Homing
from .machine import MachineError, can_reset, check_machine, check_row, is_simulated, load_machine
from .machine_lock import lock_machine
from .spec import SpecError
from .timing import lock_memory, since_boot

READ, WRITE, HOLD, RESUME, RESET, DESCRIBE = range(1, 7)
ANSWER, TRIPPED, FAILED = range(7, 10)
LIMIT, INPUTS = range(10, 12)
"""Packets: the loop's, and the watchdog's answers."""
INPUT_S = 0.01
"""How often the emergency stop and the enabling switch are looked at."""
PRESSED = "the emergency stop is pressed"
RELEASED = "the enabling switch is not held"
HEAD = struct.Struct("<BQ")
"""The kind of a packet and its number; an answer has the number of its question."""
MAX_PACKET = 200_000
"""Bytes of the longest packet."""
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.002, 10.0


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
    if directions is None:
        return None
    try:
        return whole_pairs(directions)
    except SpecError as error:
        raise MachineError(str(error)) from None


def declared_stopping(machine: Any) -> dict[str, Any] | None:
    """The `stopping` that a machine declares, as plain numbers; None where it declares none."""
    stopping = getattr(machine, "stopping", None)
    if stopping is None:
        return None
    if not isinstance(stopping, dict):
        raise MachineError(f"stopping is {stopping!r}, but must be a dict with fields such as lag_s")
    return {str(name): np.asarray(value).tolist() for name, value in dict(stopping).items()}


def declared_command_kind(machine: Any) -> str | None:
    """The `command_kind` that a machine declares; None where it declares none."""
    kind = getattr(machine, "command_kind", None)
    return None if kind is None else str(kind)


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
        self.heard = since_boot()
        self.failure = ""
        self.stopping = False
        self.lock_step = lock_step
        self.check = CommandCheck(None, lock_step=lock_step)
        self._emergency_stop = getattr(machine, "emergency_stop", None)
        self._enabling_switch = getattr(machine, "enabling_switch", None)
        self._has_inputs = self._emergency_stop is not None or self._enabling_switch is not None
        self._rested = 0.0

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
            left = self.heard + self.timeout_s - since_boot()
            wait = max(left, 1e-4) if self.moving else self.timeout_s
            self.channel.settimeout(min(wait, INPUT_S) if self._has_inputs else wait)
            try:
                data = self.channel.recv(MAX_PACKET)
            except TimeoutError:
                data = None
            except OSError:
                break
            if data == b"":
                break
            now = since_boot()
            if self.moving and now - self.heard > self.timeout_s:
                self.tripped, self.moving = True, False
                self._neutral()
            elif not self.moving and data is None and now - self._rested >= self.timeout_s:
                self._neutral()  # again and again: the machine may have a timeout of its own
            if self._has_inputs and not self.failure:
                self._obey_inputs()
            if data is not None:
                try:
                    self.handle(data)
                except (struct.error, ValueError, IndexError) as error:
                    self._trip(f"the loop sent the watchdog something that is not a packet: {error}")

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def handle(self, data: bytes) -> None:
        """One packet of the loop."""
        kind, number = HEAD.unpack_from(data)
        values = np.frombuffer(data, "<f8", offset=HEAD.size)
        if kind == READ:
            self._answer(number, self._call(self._read))
        elif kind == WRITE:
            self._write(values)
        elif kind == HOLD:
            self.moving, self.heard = False, since_boot()
            self._neutral()
        elif kind == RESUME:
            self.tripped, self.failure, self.heard = False, "", since_boot()
            self._obey_inputs()
        elif kind == LIMIT:
            self._limit(values)
            self._answer(number, b"")
        elif kind == INPUTS:
            self._answer(number, self._hindrance(moves=True).encode(errors="replace"))
        elif kind == RESET:
            self.moving = False
            self._call(self._reset, values)
            self._answer(number, self._call(self._read))
        elif kind == DESCRIBE:
            self._answer(number, self._call(self._describe))
        else:
            raise ValueError(f"kind {kind} is unknown")

    def _limit(self, values: np.ndarray) -> None:
        """Once: a loop that has gone wrong must not widen them."""
        limits, told = CommandLimits.unpack(values), self.check.limits
        if told is not None and not np.array_equal(told.pack(), limits.pack()):
            self._trip("the loop told the watchdog other limits than before")
            return
        self.check = CommandCheck(limits, lock_step=self.lock_step)
        self.check.rest(since_boot())

    def _write(self, values: np.ndarray) -> None:
        """The first value is when the measurement was taken, the others are the command made from it."""
        if self.tripped:
            return
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
            now, command = since_boot(), values[1:].astype(np.float32)
        why = self._hindrance(moves=True)
        if not why and (refused := self.check.refuse(command.astype(float), float(values[0]), now)):
            why = f"the watchdog refused {refused}"
        if why:
            self._trip(why)
            return
        self.moving, self.heard = True, now  # not after it: this process may be stopped in the driver for long
        self._call(self.machine.write, command)

    def _hindrance(self, *, moves: bool) -> str:
        """What the emergency stop and the enabling switch say; whatever they do not clearly say counts as a stop."""
        if self._emergency_stop is not None and not self._is(self._emergency_stop, False):
            return PRESSED
        if moves and self._enabling_switch is not None and not self._is(self._enabling_switch, True):
            return RELEASED
        return ""

    @staticmethod
    def _is(read: Any, wanted: bool) -> bool:
        try:
            value = read()
        except Exception:  # a broken input is an open one
            return False
        return isinstance(value, (bool, np.bool_)) and bool(value) is wanted

    def _obey_inputs(self) -> None:
        if why := self._hindrance(moves=self.moving):
            self._trip(why)

    def _trip(self, why: str) -> None:
        self.failure, self.tripped, self.moving = why[:500], True, False
        self._neutral()

    def _reset(self, position: np.ndarray) -> None:
        if not can_reset(self.machine):
            raise MachineError("only a simulated machine can be put somewhere")
        self.machine.reset(position)

    def _read(self) -> bytes:
        values = check_row(self.machine.read())
        if values.nbytes > MAX_PACKET - HEAD.size:
            most = (MAX_PACKET - HEAD.size) // 8
            raise MachineError(f"the machine measures {values.size} values, but at most {most} can be passed on")
        return values.tobytes()

    def _describe(self) -> bytes:
        self._read()  # the first may take long: now there is time
        spec = getattr(self.machine, "spec", None)
        neutral = getattr(self.machine, "neutral_command", None)
        described = {
            "spec": None if spec is None else spec.to_json(),
            "neutral": None if neutral is None else np.asarray(neutral, float).tolist(),
            "directions": declared_directions(self.machine),
            "stopping": declared_stopping(self.machine),
            "command_kind": declared_command_kind(self.machine),
            "homing": declared_homing(self.machine),
            "lock_step": bool(getattr(self.machine, "lock_step", False)),
            "can_reset": can_reset(self.machine),
            "has_inputs": self._has_inputs,
            "simulated": is_simulated(self.machine),
            "timeout_s": self.timeout_s,
        }
        content = json.dumps(described).encode()
        if len(content) > MAX_PACKET - HEAD.size:
            raise MachineError(f"the machine describes itself in {len(content)} bytes, which cannot be passed on")
        return content

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # a driver may raise anything; the loop is told, and the machine stops
            self.failure = f"{type(error).__name__}: {error}"[:500]
            self.tripped, self.moving = True, False
            self._neutral()
            return None

    def _neutral(self) -> None:
        self._rested = since_boot()
        self.check.rest(self._rested)
        try:
            self.machine.neutral()
        except Exception as error:
            self.failure = f"neutral failed, {type(error).__name__}: {error}"[:500]
            self.tripped = True

    def _answer(self, number: int, content: bytes | None) -> None:
        with contextlib.suppress(OSError):
            if self.failure:
                self.channel.send(HEAD.pack(FAILED, number) + self.failure.encode(errors="replace"))
            else:
                kind = TRIPPED if self.tripped else ANSWER
                self.channel.send(HEAD.pack(kind, number) + (content or b""))


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
    lock_memory()  # the loop says where that is not permitted
    try:
        lock = lock_machine(arguments.machine, dict(arguments.machine_option))
        machine = load_machine(arguments.machine, dict(arguments.machine_option))
        check_machine(machine, arguments.machine)
    except Exception as error:
        with contextlib.suppress(OSError):  # an unread question would reset the channel before the answer is read
            channel.settimeout(5.0)
            channel.recv(MAX_PACKET)
        channel.send(HEAD.pack(FAILED, 1) + f"{type(error).__name__}: {error}"[:500].encode(errors="replace"))
        os._exit(1)
    Watchdog(machine, channel, arguments.timeout, arguments.period).run()
    lock.release()


if __name__ == "__main__":
    main()
