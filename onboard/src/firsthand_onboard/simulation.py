"""A simulated machine in a process of its own, and the `Machine` that talks to it over UDP.

`serve_plant` plays the part of the hardware: it moves on by its own clock whether commands come or not, and takes its
own neutral when they stop (its command timeout). `UdpMachine` is what the onboard program uses, and a pattern for a
machine that is reached over UDP.

A packet is `kind, sequence number, numbers` (little endian: u8, u32, n × f64). The machine answers every READ, and in
lock-step every WRITE, with what it measures; a packet that is sent again is answered again but acts only once.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .machine import MachineError
from .spec import ControlSpec, SpecError

READ, WRITE, NEUTRAL, RESET, DESCRIBE, ANSWER = range(1, 7)
HEAD = struct.Struct("<BI")
MAX_PACKET = 65_000


class Plant(Protocol):
    """The physics of a simulated machine: no clock, no safety, no network."""

    spec: ControlSpec

    def reset(self, position: np.ndarray) -> None:
        """At rest in a configuration."""
        ...

    def step(self, command: np.ndarray) -> None:
        """One control period with a command held."""
        ...

    def measure(self) -> np.ndarray:
        """The measurement."""
        ...


def pack(kind: int, number: int, values: Any = ()) -> bytes:
    """One packet."""
    return HEAD.pack(kind, number & 0xFFFFFFFF) + np.asarray(values, "<f8").tobytes()


def unpack(data: bytes) -> tuple[int, int, np.ndarray] | None:
    """Kind, number and values of a packet; None for anything else."""
    if len(data) < HEAD.size or (len(data) - HEAD.size) % 8:
        return None
    kind, number = HEAD.unpack_from(data)
    return kind, number, np.frombuffer(data, "<f8", offset=HEAD.size)


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of `host:port`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise SpecError(f"the address is {text!r}, but must be given as host:port")
    return host, int(port)


class UdpMachine:
    """A machine behind UDP. In lock-step its time passes only in `write`."""

    def __init__(self, address: str, patience_s: float | str | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(parse_address(address))
        self._address = address
        self._number = 0
        self._patience = 2.0 if patience_s is None else float(patience_s)
        described = json.loads(self._ask(DESCRIBE, text=True))
        self.spec = ControlSpec.from_json(json.dumps(described["spec"]))
        self.neutral_command = np.asarray(described["neutral"], np.float32)
        self.directions, self.homing = described["directions"], described["homing"]
        self.stopping = described.get("stopping")
        self.lock_step, self.simulated = bool(described["lock_step"]), described.get("simulated") is True
        self._answer: np.ndarray | None = None
        # A read that takes longer has missed its period anyway; only the first may.
        hurried = patience_s is None and not self.lock_step
        self._patience_later = 0.5 * self.spec.period_s if hurried else self._patience

    @staticmethod
    def resource(address: str, **_: Any) -> str:
        """Which machine an address reaches, however it is written."""
        host, port = parse_address(address)
        try:
            return f"udp {socket.gethostbyname(host)}:{port}"
        except OSError:
            return f"udp {host}:{port}"

    def read(self) -> np.ndarray:
        """What the machine measures now."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            return answer
        measured = self._ask(READ)
        self._patience = self._patience_later
        return measured

    def write(self, command: np.ndarray) -> None:
        """Hand over a command; in lock-step the machine moves on by one period."""
        if self.lock_step:
            self._answer = self._ask(WRITE, command)
        else:
            self._send(WRITE, command)

    def neutral(self) -> None:
        """Neutral at once."""
        self._send(NEUTRAL)

    def reset(self, position: np.ndarray) -> None:
        """Put the simulation at rest in a configuration."""
        self._answer = None
        self._ask(RESET, position)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _send(self, kind: int, values: Any = ()) -> None:
        self._number += 1
        with contextlib.suppress(ConnectionRefusedError):  # an error of the packet before; reading will tell
            self._socket.send(pack(kind, self._number, values))

    def _ask(self, kind: int, values: Any = (), *, text: bool = False) -> Any:
        self._send(kind, values)
        question = pack(kind, self._number, values)
        deadline = time.monotonic() + self._patience
        wait = min(0.2, self._patience / 2)
        while time.monotonic() < deadline:
            self._socket.settimeout(wait)
            try:
                data = self._socket.recv(MAX_PACKET)
            except TimeoutError:
                with contextlib.suppress(ConnectionRefusedError):
                    self._socket.send(question)  # a packet was lost; the machine acts on it once
                continue
            except ConnectionRefusedError:
                time.sleep(0.01)
                continue
            if len(data) >= HEAD.size and HEAD.unpack_from(data) == (ANSWER, self._number & 0xFFFFFFFF):
                if text:
                    return data[HEAD.size :]
                answer = unpack(data)
                if answer is not None:
                    return answer[2].copy()
        raise MachineError(f"the machine at {self._address} does not answer; is it started?")


class PlantServer:
    """A plant with a clock, a command timeout and a log: what a machine is to the onboard program."""

    def __init__(
        self,
        plant: Plant,
        *,
        neutral: Any = None,
        speed: float = 1.0,
        lock_step: bool = False,
        timeout_s: float = 0.08,
        log: Path | None = None,
    ) -> None:
        limits = plant.spec.limits
        middle = (np.asarray(limits.command_low) + np.asarray(limits.command_high)) / 2
        self.plant, self.lock_step, self.timeout_s = plant, lock_step, timeout_s
        self.period = plant.spec.period_s / speed
        self.neutral = (middle if neutral is None else np.asarray(neutral)).astype(float)
        self.command = self.neutral
        self.measured = plant.measure()
        self.heard = -float("inf")
        self.last: tuple[Any, int] = (None, -1)
        self.timeouts = 0
        self.log = log.open("a", buffering=1) if log else None
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def describe(self) -> bytes:
        """What a client must know, as JSON."""
        return json.dumps(
            {
                "spec": json.loads(self.plant.spec.to_json()),
                "neutral": self.neutral.tolist(),
                "directions": getattr(self.plant, "directions", None),
                "stopping": getattr(self.plant, "stopping", None),
                "homing": getattr(self.plant, "homing", None),
                "lock_step": self.lock_step,
                "simulated": True,
            }
        ).encode()

    def bind(self, address: str) -> int:
        """Listen; returns the port (a free one where 0 was asked for)."""
        self.socket.bind(parse_address(address))
        return int(self.socket.getsockname()[1])

    def note(self, event: str) -> None:
        """One line in the log: monotonic time, event, applied command, measurement."""
        if self.log:
            line = {"t": time.monotonic(), "event": event, "command": self.command.tolist()}
            self.log.write(json.dumps({**line, "measured": self.measured.tolist()}) + "\n")

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        going = True

        def stop(*_: object) -> None:
            nonlocal going
            going = False

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        due = time.monotonic() + self.period
        while going:
            moving = (self.command != self.neutral).any()
            wake = min(due, self.heard + self.timeout_s) if moving else due
            self.socket.settimeout(0.1 if self.lock_step else max(wake - time.monotonic(), 1e-4))
            with contextlib.suppress(TimeoutError, ConnectionError):
                self.handle(*self.socket.recvfrom(MAX_PACKET))
            if self.lock_step:
                continue
            self.expire()
            if time.monotonic() >= due:
                due += self.period
                self.advance()

    def expire(self) -> None:
        """The command timeout: the last line, which holds even when the onboard computer is gone."""
        if time.monotonic() - self.heard > self.timeout_s and (self.command != self.neutral).any():
            self.timeouts += 1
            self.command = self.neutral
            self.note("timeout")

    def advance(self) -> None:
        """The physics moves on by one period."""
        self.plant.step(self.command)
        self.measured = np.asarray(self.plant.measure(), float)
        self.note("step")

    def handle(self, data: bytes, sender: Any) -> None:
        """One packet."""
        packet = unpack(data)
        if packet is None:
            return
        kind, number, values = packet
        fresh, self.last = (sender, number) != self.last, (sender, number)
        if kind == DESCRIBE:
            self.socket.sendto(HEAD.pack(ANSWER, number) + self.describe(), sender)
            return
        if kind == WRITE and fresh and values.shape == self.neutral.shape and np.isfinite(values).all():
            self.heard = time.monotonic()
            self.command = values.copy()
            if self.lock_step:
                self.advance()
        elif kind == NEUTRAL:
            self.heard = time.monotonic()
            if (self.command != self.neutral).any():
                self.command = self.neutral
                self.note("neutral")
        elif kind == RESET and fresh and values.shape == (len(self.plant.spec.layout.position),):
            self.command = self.neutral
            self.plant.reset(values)
            self.measured = np.asarray(self.plant.measure(), float)
            self.note("reset")
        if kind in (READ, RESET) or (kind == WRITE and self.lock_step):
            self.socket.sendto(pack(ANSWER, number, self.measured), sender)
