"""The link over zenoh: the robot's end and the trainer's or operator's end. Loopback, or TLS with certificates."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import ipaddress
import json
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zenoh

from .messages import (
    COUNTED,
    FROM_ROBOT,
    HEAD,
    MAX_HEADER,
    MAX_PAYLOAD,
    NAME,
    TO_ROBOT,
    Message,
    Receiver,
    encode,
)
from .spec import SpecError
from .timing import since_boot

TO_ROBOT_KEY, FROM_ROBOT_KEY = "firsthand/1/to_robot", "firsthand/1/from_robot"
OPERATOR_KEY = "firsthand/1/operator"
"""What comes over this key is an operator's; where there are certificates, only those named `operator` get in."""
QUEUE = 64
"""Messages that wait to be read; the oldest go first when a flood comes."""
WAITING = 1024
"""The same at the other end."""
AT_ONCE, BYTES_AT_ONCE = 16, 1 << 20
"""So much of each key is read before the loop goes on: a flood must not hold up commands, nor the operator."""
DRIFT = 1e-3
"""So much two computers' clocks may differ in their rate: what is known of the robot's time grows old."""
REFRESH_S = 60.0
"""After so long without a word from the robot its time is asked for again."""
ACKNOWLEDGE_S = 10.0
"""So long somebody who has acknowledged waits for the answer: the machine may have to be connected anew."""


class LinkError(Exception):
    """The other side cannot be reached or does not answer."""


@dataclass(frozen=True)
class Security:
    """Certificates for a link that leaves this computer; see scripts/make_certificates.sh."""

    authority: Path
    """Certificate of the authority that both sides trust."""
    certificate: Path
    """This side's certificate."""
    key: Path
    """Its private key."""

    def __post_init__(self) -> None:
        for name in ("authority", "certificate", "key"):
            if not getattr(self, name).is_file():
                raise SpecError(f"the {name} file {getattr(self, name)} does not exist")

    @staticmethod
    def in_folder(folder: str | Path, name: str) -> Security:
        """The files that scripts/make_certificates.sh makes for `name` (robot, trainer or operator)."""
        folder = Path(folder)
        return Security(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def check_address(address: str, security: Security | None) -> None:
    """Raise `SpecError` unless the address is loopback, or tls with certificates."""
    protocol, _, place = address.partition("/")
    host, _, port = place.rpartition(":")
    if protocol not in ("tcp", "tls") or not host or not port.isdigit():
        raise SpecError(f"the address is {address!r}, but must be given as tcp/host:port or tls/host:port")
    if protocol == "tls":
        if security is None:
            raise SpecError(f"the address {address} needs certificates: give --certificates FOLDER")
        return
    try:
        local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise SpecError(
            f"the address {address} leaves this computer without encryption; use tls/{place} and --certificates FOLDER"
        )


def access() -> dict[str, Any]:
    """Who may do what on the robot's end, by the common name of the certificate; everything else is dropped."""

    def rule(name: str, message: str, flow: str, key: str) -> dict[str, Any]:
        return {"id": name, "messages": [message], "flows": [flow], "permission": "allow", "key_exprs": [key]}

    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [
            rule("train", "put", "ingress", TO_ROBOT_KEY),
            rule("operate", "put", "ingress", OPERATOR_KEY),
            rule("listen", "declare_subscriber", "ingress", FROM_ROBOT_KEY),
            rule("answer", "put", "egress", FROM_ROBOT_KEY),
            rule("announce", "declare_subscriber", "egress", "firsthand/1/*"),
        ],
        "subjects": [{"id": name, "cert_common_names": [name]} for name in ("trainer", "operator")],
        "policies": [
            {"rules": ["train", "listen", "answer", "announce"], "subjects": ["trainer"]},
            {"rules": ["operate", "listen", "answer", "announce"], "subjects": ["operator"]},
        ],
    }


def _open(mode: str, address: str, security: Security | None) -> zenoh.Session:
    check_address(address, security)
    config = zenoh.Config()
    settings: dict[str, Any] = {
        "mode": mode,
        ("listen" if mode == "peer" else "connect") + "/endpoints": [address],
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/link/rx/max_message_size": HEAD.size + MAX_HEADER + MAX_PAYLOAD + 4096,
        # With it, each session that sends something long takes 16 MB of locked memory, and a killed one leaves them.
        "transport/shared_memory/enabled": False,
    }
    if mode == "client":
        settings["listen/endpoints"] = []
    if security is not None:
        ours = {"listen_private_key": security.key, "listen_certificate": security.certificate}
        if mode == "client":
            ours = {"connect_private_key": security.key, "connect_certificate": security.certificate}
        settings["transport/link/tls"] = {
            "root_ca_certificate": str(security.authority),
            "enable_mtls": True,
            **{name: str(path) for name, path in ours.items()},
        }
        if mode == "peer":
            settings["access_control"] = access()
    for name, value in settings.items():
        config.insert_json5(name, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        if mode == "client":
            raise LinkError(f"nobody answers at {address}") from None
        raise LinkError(f"cannot listen at {address}: {str(error).split(' at /')[0]}") from None


def identity() -> str:
    """A name that nobody had before."""
    return secrets.token_hex(12)


class RobotEnd:
    """The robot's end. Never blocks and has no Python thread: the loop reads it when it has time."""

    def __init__(self, address: str, security: Security | None = None) -> None:
        self.identity = identity()
        self._session = _open("peer", address, security)
        self._incoming = [
            (
                operator,
                self._session.declare_subscriber(key, zenoh.handlers.RingChannel(QUEUE)),
                Receiver(TO_ROBOT, self.identity),
            )
            for operator, key in ((True, OPERATOR_KEY), (False, TO_ROBOT_KEY))
        ]
        self._outgoing = self._session.declare_publisher(
            FROM_ROBOT_KEY, congestion_control=zenoh.CongestionControl.DROP, reliability=zenoh.Reliability.RELIABLE
        )
        self._number = 0

    def receive(self, *, everything: bool = False) -> Iterator[Message]:
        """Messages that wait, operators' first; what is not a message is counted and skipped.

        No more than `AT_ONCE` and about `BYTES_AT_ONCE` of each key, or all that the queues hold.
        """
        for operator, incoming, receiver in self._incoming:
            size = 0
            for _ in range(QUEUE if everything else AT_ONCE):
                sample = incoming.try_recv()
                if sample is None:
                    break
                data = sample.payload.to_bytes()
                message = receiver.accept(data)
                if message is not None:
                    yield dataclasses.replace(message, operator=operator)
                size += len(data)
                if size >= BYTES_AT_ONCE and not everything:
                    break

    def counts(self) -> dict[str, int]:
        """How many messages were accepted, and how many ignored and why."""
        return {name: sum(receiver.counts[name] for _, _, receiver in self._incoming) for name in COUNTED}

    def send(self, kind: str, to: Message, body: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None):
        """Tell something to the sender of `to`."""
        self._number += 1
        known = (to.run, to.session, self.identity, self._number, to.number)
        message = Message(kind, *known, body=body, arrays=arrays or {}, now=since_boot())
        self._outgoing.put(encode(message))

    def close(self) -> None:
        """Leave the network."""
        self._session.close()


class ClientEnd:
    """The trainer's or operator's end: asks, waits for answers, keeps the lease alive.

    An operator's (`operator=True`) may ask for hello, status, stop and acknowledge; with certificates it needs the
    operator's. A trainer's may ask for everything but acknowledge.
    """

    def __init__(
        self, address: str, security: Security | None = None, *, run: str = "operator", operator: bool = False
    ) -> None:
        if not NAME.fullmatch(run):
            raise SpecError(f"the run's identity is {run!r}, but must be 1 to 64 letters, digits or _.:-")
        self.address, self.run, self.session = address, run, identity()
        self.robot = ""
        self._receiver = Receiver(FROM_ROBOT)
        self._zenoh = _open("client", address, security)
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._number = 0
        self._ahead, self._heard = -math.inf, since_boot()
        """By how much the robot's clock is ahead of ours, at least, and when that was so."""
        self._inbox: deque[Message] = deque(maxlen=WAITING)
        # Not a callback: zenoh would run it in a thread that Python waits for when it ends.
        self._incoming = self._zenoh.declare_subscriber(FROM_ROBOT_KEY, zenoh.handlers.RingChannel(WAITING))
        self._outgoing = self._zenoh.declare_publisher(OPERATOR_KEY if operator else TO_ROBOT_KEY)
        self._leasing: threading.Event | None = None
        atexit.register(self.close)  # a session that is still open when Python ends would hang it
        self.others: list[Message] = []
        """What came without being an answer to a question: trajectories."""

    def send(self, kind: str, body: Mapping[str, Any] | None = None, arrays: Mapping[str, Any] | None = None) -> int:
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
                self._outgoing.put(encode(message))
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
        raise LinkError(f"{self.address} does not answer")

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
            while (sample := self._incoming.try_recv()) is not None:
                message = self._receiver.accept(sample.payload.to_bytes())
                if message is None or message.session != self.session:
                    continue
                here = since_boot()
                known = self._ahead - DRIFT * (here - self._heard)
                self._ahead, self._heard = max(known, message.now - here), here
                self._inbox.append(message)

    def _robots_time(self) -> float:
        """Rather too early than too late: it was later when what the robot said of it arrived here."""
        here = since_boot()
        return max(here + self._ahead - DRIFT * (here - self._heard), 0.0)

    def hello(self) -> Message:
        """Open a session with the robot's program; its answer says what it is."""
        try:
            answer = self.ask("hello", patience_s=1.0)
        except LinkError as error:
            raise LinkError(f"{error}{', or not to this certificate' * self.address.startswith('tls/')}") from None
        if answer.robot != self.robot:  # another computer, perhaps
            self._ahead, self._heard, self.robot = answer.now - since_boot(), since_boot(), answer.robot
        return answer

    def keep_lease(self, every_s: float) -> None:
        """Tell the robot from now on, in a thread, that the trainer is there."""
        self.drop_lease()
        stop = self._leasing = threading.Event()

        def beat() -> None:
            while not stop.wait(every_s):
                self._read()
                with contextlib.suppress(LinkError):
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
