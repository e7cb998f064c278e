"""A way for stops alone, beside the link: nothing else can fill it, because whatever comes over it is a stop.

On the robot's computer it is a socket in the kernel, which the loop looks at before it reads any message, and the
signal SIGUSR1 to the program. From another computer it is a TLS port of its own, whose handshakes are done in a thread
of their own: who shows a certificate that may stop the machine has stopped it. It needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .network import Security

log = logging.getLogger("firsthand-onboard")

STOP = b"stop"
NEXT_PORT = 1
"""The TLS port for stops is this far above the link's, unless another is chosen."""
MAX_HANDSHAKES = 32
"""Connections that may be under way at a time; then the oldest goes."""
HANDSHAKE_S = 2.0
TLS_TRIES = 5
"""How often a stop that was pushed out by the connections of strangers is sent again, at once."""
MAX_STRANGERS = 200
"""Connections within a second that show no certificate: more are a flood, which is a fault."""
AGAIN_S = 0.02
MAX_ANSWER = 4096
MAX_WAITING = 64
"""Senders who are told how it ended."""


class StopUnreachable(Exception):
    """Nothing listens for stops there."""


def local_name(port: int) -> str:
    """The name of the socket on which the program that listens at this port hears stops; of Linux's own kind, which
    has no file and vanishes with its process.
    """
    return f"\0firsthand-onboard.stop.{port}"


class StopWay:
    """The robot's end. `asked` tells whether somebody wants the machine to stop."""

    def __init__(self, port: int) -> None:
        self.flood = ""
        """Why strangers at the TLS port count as a flood; empty while they do not."""
        self._requested = False
        self._waiting: list[Any] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._tls: TlsStops | None = None
        try:
            self._socket.bind(local_name(port))
        except OSError as error:
            self._socket.close()
            raise StopUnreachable(
                f"another program on this computer listens for stops of port {port} ({error.strerror})"
            ) from None

    def listen(self, host: str, port: int, security: Security) -> None:
        """Hear stops from other computers, too."""
        self._tls = TlsStops(self, host, port, security)

    def request(self, *_: object) -> None:
        """Somebody wants the machine to stop: from a signal handler or a thread."""
        self._requested = True

    def asked(self) -> bool:
        """Whether somebody has asked since this was called last. Never waits."""
        found = self._requested
        if found:  # only what was seen is taken back: a stop that comes between these two lines is not lost
            self._requested = False
        for _ in range(MAX_WAITING):
            try:
                _, sender = self._socket.recvfrom(16)
            except OSError:  # nothing there
                break
            found = True
            if sender and len(self._waiting) < MAX_WAITING:
                self._waiting.append(sender)
        return found

    def answer(self, **status: Any) -> None:
        """The machine stands: tell those who have asked."""
        content = json.dumps(status).encode()[:MAX_ANSWER]
        waiting, self._waiting = self._waiting, []
        for sender in waiting:
            with contextlib.suppress(OSError):
                self._socket.sendto(content, sender)
        if self._tls is not None:
            self._tls.outcome, self._tls.pending = content, False

    @property
    def awaited(self) -> bool:
        """Whether somebody who has asked waits to be told that the machine stands."""
        return bool(self._waiting) or (self._tls is not None and self._tls.pending)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        if self._tls is not None:
            self._tls.close()


class TlsStops:
    """A thread with a port of its own: a completed handshake with a permitted certificate stops the machine."""

    def __init__(self, way: StopWay, host: str, port: int, security: Security) -> None:
        self.outcome, self.pending = b"", False
        """What those who have asked are told once the machine stands, and whether somebody waits for it."""
        self._way = way
        self._context = server_context(security)
        self._may_stop = (*security.operators, *security.trainers)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._since: dict[ssl.SSLSocket, float] = {}
        self._strangers, self._counted_from = 0, time.monotonic()
        self._closed = False
        threading.Thread(target=self._run, name="stops", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed = True

    def _run(self) -> None:
        while not self._closed:
            try:
                for key, _ in self._selector.select(0.2):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._shake(key.fileobj)  # pyright: ignore[reportArgumentType]
                now = time.monotonic()
                for connection in [c for c, since in self._since.items() if now - since > HANDSHAKE_S]:
                    self._drop(connection)
            except Exception as error:  # this thread must live; a stop that cannot be told from noise is one
                log.error("the port for stops: %s: %s", type(error).__name__, error)
                time.sleep(AGAIN_S)
        for connection in list(self._since):
            self._drop(connection)
        self._listener.close()

    def _accept(self) -> None:
        try:
            plain, _ = self._listener.accept()
        except OSError:
            return
        self._count_stranger()
        plain.setblocking(False)
        try:
            connection = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        except OSError:
            plain.close()
            return
        if len(self._since) >= MAX_HANDSHAKES:
            self._drop(next(iter(self._since)))
        self._since[connection] = time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ)

    def _count_stranger(self) -> None:
        now = time.monotonic()
        if now - self._counted_from > 1.0:
            self._strangers, self._counted_from = 0, now
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._way.flood = f"more than {MAX_STRANGERS} connections within a second at the port for stops"

    def _shake(self, connection: ssl.SSLSocket) -> None:
        try:
            connection.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:  # no certificate, or none of ours
            self._drop(connection)
            return
        if common_name(connection) in self._may_stop:
            self.outcome, self.pending = b"", True
            self._way.request()
            self._selector.unregister(connection)
            self._since.pop(connection, None)
            threading.Thread(target=self._tell, args=(connection,), daemon=True).start()
        else:
            self._drop(connection)

    def _tell(self, connection: ssl.SSLSocket) -> None:
        deadline = time.monotonic() + HANDSHAKE_S
        while not self.outcome and time.monotonic() < deadline:
            time.sleep(AGAIN_S / 4)
        with contextlib.suppress(OSError):
            connection.settimeout(HANDSHAKE_S)
            connection.sendall(self.outcome)
            connection.close()

    def _drop(self, connection: ssl.SSLSocket) -> None:
        self._since.pop(connection, None)
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._selector.unregister(connection)
        with contextlib.suppress(OSError):
            connection.close()


def server_context(security: Security) -> ssl.SSLContext:
    """The robot's side: it shows its certificate and wants one of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(security.certificate, security.key)
    context.load_verify_locations(security.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(security: Security) -> ssl.SSLContext:
    """The operator's side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(security.certificate, security.key)
    context.load_verify_locations(security.authority)
    return context


def common_name(connection: ssl.SSLSocket) -> str:
    """The common name in the other side's certificate."""
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    return next((value for part in subject for name, value in part if name == "commonName"), "")


def send_stop(
    host: str, port: int, security: Security | None = None, *, stop_port: int | None = None, patience_s: float = 2.0
) -> dict[str, Any]:
    """Stop the machine that is served at `host` and `port`; its state once it stands.

    `StopUnreachable` if nothing listens.
    """
    if host in ("localhost", "::1", "[::1]") or host.startswith("127."):
        return _send_locally(port, patience_s)
    if security is None:
        raise StopUnreachable(f"{host} is another computer, and there are no certificates")
    return _send_over_tls(host, port + NEXT_PORT if stop_port is None else stop_port, security, patience_s)


def _send_locally(port: int, patience_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + patience_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind("")  # a name that the system chooses, for the answer
        ours.settimeout(AGAIN_S)
        while True:
            try:
                ours.sendto(STOP, local_name(port))
                break
            except (TimeoutError, BlockingIOError):  # full of stops
                if time.monotonic() > deadline:
                    raise StopUnreachable("the program there does not take stops") from None
            except OSError as error:
                raise StopUnreachable(f"nothing listens for stops of port {port}: {error.strerror}") from None
        ours.settimeout(max(deadline - time.monotonic(), AGAIN_S))
        try:
            return _status(ours.recv(MAX_ANSWER))
        except OSError:
            raise StopUnreachable("the program there was told to stop and does not answer") from None


def _send_over_tls(host: str, port: int, security: Security, patience_s: float) -> dict[str, Any]:
    for tries_left in range(TLS_TRIES - 1, -1, -1):
        try:
            with (
                socket.create_connection((host.strip("[]"), port), timeout=patience_s) as plain,
                client_context(security).wrap_socket(plain, server_hostname=host.strip("[]")) as connection,
            ):
                if content := connection.recv(MAX_ANSWER):
                    return _status(content)
                raise ConnectionResetError("it was closed without an answer")
        except OSError as error:
            pushed_out = isinstance(
                error, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
            )  # by others' handshakes
            if not (pushed_out and tries_left):
                raise StopUnreachable(f"nothing listens for stops at {host}:{port}: {error}") from None
    raise AssertionError("unreachable")


def _status(content: bytes) -> dict[str, Any]:
    try:
        status = json.loads(content)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("state"), str):
        raise StopUnreachable("the program there was told to stop and does not say that it has")
    return status
