"""The link over zenoh: the robot's end, and the trainer's or operator's end."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zenoh

from .answers import read_status
from .messages import (
    COUNTED,
    FROM_ROBOT,
    NAME,
    TO_ROBOT,
    VERSION,
    Message,
    Receiver,
    VersionError,
    describe_version,
    encode,
)
from .network import (
    FROM_ROBOT_KEY,
    OPERATOR_KEY,
    TO_ROBOT_KEY,
    LinkError,
    NoAnswer,
    Security,
    VersionMismatch,
    check_address,
    open_session,
    split_address,
)
from .spec import SpecError
from .stop_way import StopUnreachable, send_stop
from .timing import since_boot

log = logging.getLogger("firsthand-onboard")

ROBOT_QUEUE = 64
"""How many messages wait to be read by the robot; when a flood comes, the oldest are dropped."""
CLIENT_QUEUE = 1024
"""The same at the other end."""
MAX_MESSAGES_AT_ONCE, MAX_BYTES_AT_ONCE = 16, 1 << 20
"""How much of each key is read before the loop goes on: a flood must hold up neither commands nor the operator."""
FLOOD_S, FLOOD_RATE, FLOOD_BYTES = 0.25, 1000.0, 32 << 20
"""More messages per second than `FLOOD_RATE`, or a queue that is never empty for `FLOOD_S`, is a flood; so are
`FLOOD_BYTES` within a second. The programs that belong to firsthand send at most a few hundred messages per second."""
CLOCK_DRIFT = 1e-3
"""How much two computers' clocks may differ in their rate: what is known of the robot's time grows old."""
REFRESH_S = 60.0
"""After this long without a message from the robot its time is asked for again."""
STOP_S = 5.0
"""How long a machine that was told to stop may take to stand."""
ACKNOWLEDGE_S = 10.0
"""How long somebody who has acknowledged waits for the answer: the machine may have to be connected again."""


def identity() -> str:
    """A name that was never used before."""
    return secrets.token_hex(12)


class FloodMeter:
    """Notices that more comes over a key than anybody needs to send: then nobody's messages are sure to be read."""

    def __init__(self) -> None:
        self.exceeded = False
        """Whether there is a flood; its handler calls `restart`."""
        self.restart()

    def restart(self) -> None:
        """Begin to count."""
        self.exceeded = False
        self._messages, self._bytes, self._at = 0.0, 0.0, time.monotonic()
        self._never_empty, self._since_empty = self._at, 0

    def add(self, messages: int, size: int, *, emptied: bool) -> None:
        """So much was read, and whether that was all that waited."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        self._messages = max(self._messages - FLOOD_RATE * passed, 0.0) + messages
        self._bytes = max(self._bytes - FLOOD_BYTES * passed, 0.0) + size
        if emptied:
            self._never_empty, self._since_empty = now, 0
        self._since_empty += messages
        overflowing = now - self._never_empty > FLOOD_S and self._since_empty > 2 * ROBOT_QUEUE
        self.exceeded |= overflowing or self._messages > FLOOD_RATE or self._bytes > FLOOD_BYTES


class RobotEnd:
    """The robot's end. Never blocks and has no Python thread: the loop reads it when it has time."""

    def __init__(self, address: str, security: Security | None = None, *, version: int = VERSION) -> None:
        self.identity, self.version = identity(), version
        self._versions_met: set[int] = set()
        self._session = open_session("peer", address, security)
        self._incoming: list[tuple[bool, Any, Receiver]] = [
            (
                operator,
                self._session.declare_subscriber(key, zenoh.handlers.RingChannel(ROBOT_QUEUE)),
                Receiver(TO_ROBOT, self.identity, version),
            )
            for operator, key in ((True, OPERATOR_KEY), (False, TO_ROBOT_KEY))
        ]
        self._outgoing = self._session.declare_publisher(
            FROM_ROBOT_KEY, congestion_control=zenoh.CongestionControl.DROP, reliability=zenoh.Reliability.RELIABLE
        )
        self._meters = {operator: FloodMeter() for operator, _, _ in self._incoming}
        self._number = 0

    def flood(self) -> str:
        """Which key is flooded with messages, as a sentence; empty where none is. Each flood is reported once."""
        for operator, meter in self._meters.items():
            if meter.exceeded:
                meter.restart()
                return f"the {'operators' if operator else 'trainers'}' key is flooded with messages"
        return ""

    def receive(self, *, everything: bool = False) -> Iterator[Message]:
        """Messages that wait, operators' first; what is not a message is counted and skipped.

        No more than `MAX_MESSAGES_AT_ONCE` and about `MAX_BYTES_AT_ONCE` of each key, or all that the queues hold.
        """
        for operator, incoming, receiver in self._incoming:
            size, count, emptied = 0, 0, False
            for _ in range(ROBOT_QUEUE if everything else MAX_MESSAGES_AT_ONCE):
                sample = incoming.try_recv()
                if sample is None:
                    emptied = True
                    break
                count += 1
                data = sample.payload.to_bytes()
                message = receiver.accept(data)
                if message is not None:
                    yield dataclasses.replace(message, operator=operator)
                elif receiver.other_version is not None:
                    self._refuse_version(receiver.other_version)
                    receiver.other_version = None
                size += len(data)
                if size >= MAX_BYTES_AT_ONCE and not everything:
                    break
            if everything:  # messages that piled up while none were read are not a flood
                self._meters[operator].restart()
            else:
                self._meters[operator].add(count, size, emptied=emptied)

    def counts(self) -> dict[str, int]:
        """How many messages were accepted, and how many ignored and why."""
        return {name: sum(receiver.counts[name] for _, _, receiver in self._incoming) for name in COUNTED}

    def send(self, kind: str, to: Message, body: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None):
        """Tell something to the sender of `to`."""
        self._number += 1
        known = (to.run, to.session, self.identity, self._number, to.number)
        message = Message(kind, *known, body=body, arrays=arrays or {}, now=since_boot())
        try:
            frame = encode(message, self.version)
        except ValueError as error:  # too long, or not finite: the loop must go on, and the sender must know
            log.error("the answer to %s cannot be sent: %s", to.kind, error)
            refused = {"why": f"the answer cannot be sent: {error}"[:1000]}
            frame = encode(dataclasses.replace(message, kind="refused", body=refused, arrays={}), self.version)
        self._outgoing.put(frame)

    def _refuse_version(self, error: VersionError) -> None:
        """Tell somebody of another version so, and the operator once per version: silence would look like a lost link.

        The answer is in this program's version. The other side need not understand it, only see which one it is.
        """
        if error.sender.kind != "hello":
            return
        why = describe_version(error.version, f"the program of run {error.sender.run}", self.version)
        if error.version not in self._versions_met and len(self._versions_met) < 8:
            self._versions_met.add(error.version)
            log.error("%s; it is not answered", why)
        self.send("refused", error.sender, {"why": why})

    def close(self) -> None:
        """Leave the network."""
        self._session.close()


class ClientEnd:
    """The trainer's or operator's end: asks, waits for answers, keeps the lease alive.

    An operator's (`operator=True`) may ask for hello, status, stop and acknowledge; with certificates it needs the
    operator's. A trainer's may ask for everything but acknowledge.
    """

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        *,
        run: str = "operator",
        operator: bool = False,
        version: int = VERSION,
    ) -> None:
        if not NAME.fullmatch(run):
            raise SpecError(f"the run's identity is {run!r}, but must be 1 to 64 letters, digits or _.:-")
        self.address, self.run, self.session = address, run, identity()
        self.robot, self.version = "", version
        self._receiver = Receiver(FROM_ROBOT, version=version)
        self._zenoh = open_session("client", address, security)
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._number = 0
        self._ahead, self._heard = -math.inf, since_boot()
        """By how much the robot's clock is ahead of ours, at least, and when that was so."""
        self._inbox: deque[Message] = deque(maxlen=CLIENT_QUEUE)
        # Not a callback: zenoh would run it in a thread that Python waits for when it ends.
        self._incoming = self._zenoh.declare_subscriber(FROM_ROBOT_KEY, zenoh.handlers.RingChannel(CLIENT_QUEUE))
        self._outgoing: Any = self._zenoh.declare_publisher(OPERATOR_KEY if operator else TO_ROBOT_KEY)
        self._leasing: threading.Event | None = None
        atexit.register(self.close)  # a session that is still open when Python ends would hang it
        self.others: list[Message] = []
        """What came without being an answer to a question: trajectories."""

    def send(
        self,
        kind: str,
        body: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> int:
        """Send without waiting; returns the message's number."""
        with self._lock:
            self._number += 1
            message = Message(
                kind,
                self.run,
                self.session,
                self.robot,
                self._number,
                body=body or {},
                arrays=arrays or {},
                now=self._robots_time(),
            )
            try:
                self._outgoing.put(encode(message, self.version if version is None else version))
            except zenoh.ZError as error:
                raise LinkError(f"the link to {self.address} is closed: {error}") from None
            return self._number

    def ask(
        self,
        kind: str,
        body: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
        *,
        patience_s: float = 2.0,
        tries: int = 3,
    ) -> Message:
        """Send, and wait for the answer; asked again when none comes. `LinkError` when that does not help."""
        numbers = []
        for _ in range(tries):
            numbers.append(self.send(kind, body, arrays))
            deadline = time.monotonic() + patience_s
            while (left := deadline - time.monotonic()) > 0:
                message = self.next(left)
                if message is None:
                    break
                if message.answers in numbers and message.kind != "trajectory":
                    return message
        raise NoAnswer(f"{self.address} does not answer")

    def acknowledge(self, number: int, *, patience_s: float = ACKNOWLEDGE_S) -> Message:
        """Acknowledge the fault of this number, which somebody has looked at. Sent once: he may change his mind."""
        return self.ask("acknowledge", {"number": number}, patience_s=patience_s, tries=1)

    def next(self, patience_s: float) -> Message | None:
        """The next message, or None; trajectories are kept in `others`."""
        deadline = time.monotonic() + patience_s
        while True:
            self._read()
            if self._inbox:
                message = self._inbox.popleft()
                if message.kind == "trajectory":
                    self.others.append(message)
                return message
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.002)

    def _read(self) -> None:
        """What has arrived, and what it tells of the robot's time."""
        with self._reading:
            for _ in range(CLIENT_QUEUE):  # no more: what comes faster than it is read must not keep us here
                try:
                    sample = self._incoming.try_recv()
                except zenoh.ZError as error:
                    raise LinkError(f"the link to {self.address} is closed: {error}") from None
                if sample is None:
                    break
                message = self._receiver.accept(sample.payload.to_bytes())
                if message is None or message.session != self.session:
                    self._check_version()
                    continue
                here = since_boot()
                known = self._ahead - CLOCK_DRIFT * (here - self._heard)
                self._ahead, self._heard = max(known, message.now - here), here
                self._inbox.append(message)

    def _check_version(self) -> None:
        """Raise `VersionMismatch` when the robot has answered us in another version of the messages."""
        error, self._receiver.other_version = self._receiver.other_version, None
        if error is not None and error.sender.session == self.session:
            raise VersionMismatch(describe_version(error.version, f"the robot at {self.address}", self.version))

    def _robots_time(self) -> float:
        """A lower bound: it was later when the robot's message arrived here."""
        here = since_boot()
        return max(here + self._ahead - CLOCK_DRIFT * (here - self._heard), 0.0)

    def hello(self) -> Message:
        """Open a session with the robot's program; its answer says what it is."""
        try:
            answer = self.ask("hello", patience_s=1.0)
        except NoAnswer as error:
            self._try_older_versions()
            raise LinkError(f"{error}{', or not to this certificate' * self.address.startswith('tls/')}") from None
        if answer.robot != self.robot:  # another computer, perhaps
            self._ahead, self._heard, self.robot = answer.now - since_boot(), since_boot(), answer.robot
        return answer

    def _try_older_versions(self) -> None:
        """A robot's program of an early version answers only its own: ask in those, to be able to name it."""
        for version in range(1, self.version):
            self.send("hello", version=version)
        self.next(1.0)

    def keep_lease(self, every_s: float) -> None:
        """Tell the robot from now on, in a thread, that the trainer is there."""
        self.drop_lease()
        stop = self._leasing = threading.Event()

        def beat() -> None:
            while not stop.wait(every_s):
                with contextlib.suppress(LinkError):
                    self._read()
                    self.send("status" if since_boot() - self._heard > REFRESH_S else "lease")

        threading.Thread(target=beat, daemon=True).start()

    def drop_lease(self) -> None:
        """Stop telling."""
        if self._leasing is not None:
            self._leasing.set()
            self._leasing = None

    def close(self) -> None:
        """Leave the network."""
        atexit.unregister(self.close)
        self.drop_lease()
        with contextlib.suppress(zenoh.ZError):
            self._zenoh.close()


def stop_machine(
    address: str, security: Security | None = None, *, stop_port: int | None = None, operator: bool = True
) -> dict[str, Any]:
    """Stop a served machine, in any state, until it is acknowledged; its status once it stands.

    Over the way for stops alone, and over the link where that cannot be reached.
    """
    check_address(address, security)
    try:
        return send_stop(*split_address(address), security, stop_port=stop_port)
    except StopUnreachable:
        pass
    client = ClientEnd(address, security, run="operator", operator=operator)
    try:
        client.hello()
        status = read_status(client.ask("stop"))
        deadline = time.monotonic() + STOP_S
        while status.state == "moving" and time.monotonic() < deadline:
            status = read_status(client.ask("status"))
        return {"state": status.state, "fault": status.fault, "fault_number": status.fault_number}
    finally:
        client.close()
