"""How the robot's side and the learner's side talk: frames over two pipes. Both processes use this file.

A frame is its kind (one byte), the length of its content (4 bytes, little-endian) and the content: float32 numbers, or
UTF-8 text. The learner asks, the robot's side answers; only at the end of a trajectory it is the other way round:

    learner             robot's side
    RESET          →
                   ←    SEEN       the first observation of the next trajectory
    STEP action    →
                   ←    NEXT       reward, 1 if the trajectory is over, the next observation
    ENDED facts    →               a trajectory is over and learned from; facts are JSON
                   ←    ACT        a row per robot: 1 if its trajectory begins, its observation
    ACTED          →               a row per robot: its action
                   ←    SAVE       a folder for a checkpoint
    SAVED          →
                   ←    ON         enough asked: go on learning
"""

import struct
from typing import IO

import numpy as np

RESET, STEP, ENDED, ACTED, SAVED = b"R", b"S", b"E", b"A", b"W"
"""From the learner."""
SEEN, NEXT, ACT, SAVE, ON = b"o", b"n", b"a", b"w", b"g"
"""From the robot's side."""

_HEADER = struct.Struct("<cI")
_LONGEST = 1 << 24


class Ended(Exception):
    """The other process is gone, or what it sent makes no sense; the message says which."""


class Link:
    """One end of the two pipes."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink = source, sink

    def send(self, kind: bytes, content: "np.ndarray | str | None" = None) -> None:
        """Send one frame."""
        if isinstance(content, str):
            body = content.encode()
        else:
            body = b"" if content is None else np.ascontiguousarray(content, "<f4").tobytes()
        try:
            self._sink.write(_HEADER.pack(kind, len(body)) + body)
            self._sink.flush()
        except (OSError, ValueError) as error:
            raise Ended("the other process has ended") from error

    def receive(self, *kinds: bytes) -> tuple[bytes, bytes]:
        """Wait for a frame of one of these kinds; its kind and content."""
        kind, length = _HEADER.unpack(self._read(_HEADER.size))
        if kind not in kinds or length > _LONGEST:
            raise Ended(f"the other process sent {kind!r} of {length} bytes where {b''.join(kinds)!r} was due")
        return kind, self._read(length)

    def _read(self, size: int) -> bytes:
        try:
            content = self._source.read(size) if size else b""
        except (OSError, ValueError) as error:
            raise Ended("the other process has ended") from error
        if len(content) < size:
            raise Ended("the other process has ended")
        return content


def numbers(content: bytes, columns: int) -> np.ndarray:
    """The content of a frame as rows of float32."""
    if len(content) % (4 * columns):
        raise Ended(f"the other process sent {len(content)} bytes, which are not rows of {columns} numbers")
    return np.frombuffer(content, "<f4").reshape(-1, columns)
