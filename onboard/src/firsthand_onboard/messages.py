"""The messages of the link: a JSON header and named arrays, in a frame with a checksum.

A frame is `FHL1`, header length, payload length (u32, little endian), 16 bytes BLAKE2b of everything else, the header
as JSON, the payload as safetensors. Decoding runs nothing, allocates no more than the frame's own size, and refuses
whatever is not exactly as described here.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

VERSION = 2
"""Of the messages; a program answers only its own version, but says so to one of another."""
MAGIC = b"FHL1"
HEAD = struct.Struct("<4sII16s")
MAX_HEADER = 1 << 16
MAX_PAYLOAD = 1 << 24
MAX_ARRAYS = 64
MAX_SESSIONS = 256
MAX_RETIRED = 1 << 16
TYPES = ("float32", "float64", "bool")
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

TO_ROBOT = (
    *("hello", "lease", "arm", "policy", "job", "fetch", "stop", "acknowledge", "release", "reset", "status"),
    *("recover", "meet", "prove", "more"),
)
COUNTED = ("accepted", "malformed", "oversized", "unknown", "replayed", "misdirected")
FROM_ROBOT = ("reply", "refused", "trajectory")


MAX_TEXT = 1000


def printable(text: object) -> str:
    """A text that cannot write elsewhere on a terminal: one line, without control characters."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in str(text)[:MAX_TEXT])


class Refusal(Exception):
    """Something that was asked for and cannot be done now; the message says why."""


class MessageError(ValueError):
    """Bytes that are not a message. `cause` is what they are counted as."""

    def __init__(self, cause: str, why: str) -> None:
        super().__init__(why)
        self.cause = cause


class VersionError(MessageError):
    """A sound frame of another version of the messages."""

    def __init__(self, version: int, sender: Message) -> None:
        super().__init__("unknown", f"version {version}, but must be {VERSION}")
        self.version, self.sender = version, sender


def describe_version(theirs: int, who: str, ours: int = VERSION) -> str:
    """One sentence for the person who meets two versions."""
    older = who if theirs < ours else "this program"
    return (
        f"{who} speaks version {theirs} of the messages, but this program speaks version {ours}: "
        f"install the same release of firsthand on both computers ({older} is the older one)"
    )


@dataclass(frozen=True)
class Message:
    """One message, in either direction."""

    kind: str
    """What it asks for or tells."""
    run: str
    """Identity of the training run it belongs to."""
    session: str
    """Identity of the sender's connection; a new one each time a program connects."""
    robot: str
    """Identity of the robot program it is meant for (made when that starts); empty in `hello`."""
    number: int
    """Rises by at least one from message to message of a session: what does not rise is a replay."""
    answers: int = 0
    """In an answer: the number of the message that it answers."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Plain values."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Named arrays."""
    now: float = 0.0
    """When it was sent, in the robot's time. Of a message to the robot it is a lower bound, from what the robot has
    told the sender of its time; 0 before it has told anything."""
    operator: bool = False
    """Set by the robot's end, never sent: it came over the operators' key, which certificates guard."""


def encode(message: Message, version: int = VERSION) -> bytes:
    """A message as a frame."""
    header = json.dumps(
        {
            "version": version,
            "kind": message.kind,
            "run": message.run,
            "session": message.session,
            "robot": message.robot,
            "number": message.number,
            "answers": message.answers,
            "now": float(message.now),
            "body": dict(message.body),
        },
        allow_nan=False,
    ).encode()
    payload = save({n: np.ascontiguousarray(a) for n, a in message.arrays.items()}) if message.arrays else b""
    if len(header) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise MessageError("oversized", f"a message of {len(header)} + {len(payload)} bytes is too long to be sent")
    return HEAD.pack(MAGIC, len(header), len(payload), _digest(header, payload)) + header + payload


def _digest(header: bytes, payload: bytes) -> bytes:
    digest = hashlib.blake2b(struct.pack("<II", len(header), len(payload)), digest_size=16)
    digest.update(header)
    digest.update(payload)
    return digest.digest()


def decode(data: bytes, kinds: tuple[str, ...], version: int = VERSION) -> Message:
    """The message in a frame; `VersionError` for one of another version, `MessageError` for everything else."""
    if len(data) > HEAD.size + MAX_HEADER + MAX_PAYLOAD:
        raise MessageError("oversized", f"{len(data)} bytes")
    if len(data) < HEAD.size:
        raise MessageError("malformed", "shorter than a frame's head")
    magic, header_size, payload_size, digest = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MessageError("malformed", "not a frame")
    if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
        raise MessageError("oversized", "the head promises more than is allowed")
    if len(data) != HEAD.size + header_size + payload_size:
        raise MessageError("malformed", "the head promises another length")
    header_bytes, payload = data[HEAD.size : HEAD.size + header_size], data[HEAD.size + header_size :]
    if _digest(header_bytes, payload) != digest:
        raise MessageError("malformed", "the checksum is wrong")
    header = _header(header_bytes)
    theirs = header.get("version")
    if theirs != version:
        if not isinstance(theirs, int) or isinstance(theirs, bool) or not 1 <= theirs < 1000:
            raise MessageError("unknown", f"version {theirs!r}"[:200])
        raise VersionError(theirs, _message({**header, "body": {}, "now": 0.0}, {}, kinds))
    return _message(header, _arrays(payload), kinds)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _header(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise MessageError("malformed", "the header is not JSON") from None
    if not isinstance(header, dict):
        raise MessageError("malformed", "the header is not a JSON object")
    return header


def _arrays(payload: bytes) -> dict[str, np.ndarray]:
    if not payload:
        return {}
    try:
        arrays = load(payload)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise MessageError("malformed", "the payload is not safetensors") from None
    if len(arrays) > MAX_ARRAYS or any(str(a.dtype) not in TYPES for a in arrays.values()):
        raise MessageError("malformed", "too many arrays, or of another type than float32, float64, bool")
    return arrays


def _message(header: dict[str, Any], arrays: dict[str, np.ndarray], kinds: tuple[str, ...]) -> Message:
    kind, body = header.get("kind"), header.get("body")
    if kind not in kinds:
        raise MessageError("unknown", f"kind {kind!r}"[:200])
    names = [header.get(name) for name in ("run", "session", "robot")]
    whole = [header.get(name) for name in ("number", "answers")]
    if not all(isinstance(name, str) for name in names) or not isinstance(body, dict):
        raise MessageError("malformed", "a field of the header is of the wrong kind")
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**53 for n in whole):
        raise MessageError("malformed", "a number of the header is not a whole number")
    now = header.get("now")
    if not isinstance(now, float) or not 0 <= now < 2**53:
        raise MessageError("malformed", "the time of the header is not a time")
    run, session, robot = (str(name) for name in names)
    if not NAME.fullmatch(run) or not NAME.fullmatch(session) or (robot and not NAME.fullmatch(robot)):
        raise MessageError("malformed", "an identity has other characters than letters, digits and _.:-")
    return Message(str(kind), run, session, robot, int(whole[0]), int(whole[1]), body, arrays, now)  # pyright: ignore


class Receiver:
    """Decodes what arrives, and ignores and counts what is malformed, oversized, unknown, replayed or misdirected."""

    def __init__(self, kinds: tuple[str, ...], identity: str = "", version: int = VERSION) -> None:
        self.kinds, self.identity, self.version = kinds, identity, version
        self.other_version: VersionError | None = None
        """The newest frame of another version; its handler sets it back to None."""
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._sessions: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._retired: OrderedDict[str, None] = OrderedDict()

    def accept(self, data: bytes) -> Message | None:
        """The message, or None for what is to be ignored."""
        try:
            message = decode(data, self.kinds, self.version)
        except MessageError as error:
            self.counts[error.cause] += 1
            if isinstance(error, VersionError):
                self.other_version = error
            return None
        if self.identity and message.kind != "hello" and message.robot != self.identity:
            self.counts["misdirected"] += 1  # for this robot's program before it was restarted
            return None
        known = self._sessions.get(message.session)
        if known is None and self.identity and message.kind != "hello":
            self.counts["misdirected"] += 1  # a session begins with hello
            return None
        if known is not None and known[0] != message.run:
            self.counts["misdirected"] += 1
            return None
        if message.session in self._retired or (known is not None and message.number <= known[1]):
            self.counts["replayed"] += 1
            return None
        self._sessions[message.session] = (message.run, message.number)
        self._sessions.move_to_end(message.session)
        if len(self._sessions) > MAX_SESSIONS:
            self._retired[self._sessions.popitem(last=False)[0]] = None
            if len(self._retired) > MAX_RETIRED:
                self._retired.popitem(last=False)
        self.counts["accepted"] += 1
        return message
