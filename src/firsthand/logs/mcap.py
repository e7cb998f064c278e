"""MCAP with JSON messages on the topic `firsthand/step`, one per control period.

A message is `{"time": 1.24, "measured": {NAME: number, …}, "commands": {NAME: number, …}}`: what was measured at `time`
(seconds) and the command applied from then until the next message. Without `time` the message's log time counts.
"""

import dataclasses
import hashlib
import json
import math
from array import array
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..runs import atomic
from .base import Log
from .timed import on_the_period

TOPIC = "firsthand/step"
MAX_CHUNK = 64 << 20
"""Bytes of a chunk when it is unpacked; writers make chunks of one to a few megabytes."""
MAX_UNPACKED, MAX_RATIO = 64 << 20, 50
"""A file may unpack to the first plus the second times its own size."""


def schema(spec: ControlSpec) -> dict[str, Any]:
    """The JSON schema of a message for this robot."""

    def numbers(names: tuple[str, ...]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: {"type": "number"} for name in names},
            "required": list(names),
        }

    return {
        "title": TOPIC,
        "type": "object",
        "properties": {
            "time": {"type": "number", "description": "seconds"},
            "measured": numbers(spec.layout.measured),
            "commands": numbers(spec.layout.commands),
        },
        "required": ["measured", "commands"],
    }


def read_mcap(path: Path, spec: ControlSpec) -> Log:
    """The log in an MCAP file for a robot with this specification."""
    try:
        import mcap.stream_reader  # noqa: F401
    except ImportError:
        raise UserError(f"reading {path} needs the package mcap: pip install 'firsthand[mcap]'.") from None
    numbers, logged, count = array("d"), array("Q"), 0
    try:
        with atomic.open_to_read(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
            stream.seek(0)
            for channel, message in _messages(path, stream, size):
                count += 1
                logged.append(message.log_time)
                numbers.extend(_row(path, count, channel, message, spec))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except Exception as error:  # the library lets through whatever its decoders and decompressors raise
        raise UserError(f"{path} is damaged or not an MCAP file: {str(error) or type(error).__name__}.") from None
    if not count:
        raise UserError(f"{path} has no message on the topic {TOPIC!r}.")
    values = np.frombuffer(numbers).reshape(count, -1)
    values = values[np.argsort(np.frombuffer(logged, np.uint64), kind="stable")]
    split = 1 + spec.layout.num_measured
    return on_the_period(spec, str(path), digest, values[:, 0], values[:, 1:split], values[:, split:], "")


def _messages(path: Path, stream: BufferedReader, size: int) -> Iterator[tuple[Any, Any]]:
    """The messages on our topic with their channels, as they lie in the file.

    Not with the library's reader: it believes what a chunk says about its size, and follows an index to anywhere.
    """
    from mcap.records import Channel, Chunk, Message
    from mcap.stream_reader import StreamReader, breakup_chunk

    channels: dict[int, Any] = {}
    total, limit = 0, MAX_UNPACKED + MAX_RATIO * size
    for outer in StreamReader(stream, emit_chunks=True, record_size_limit=size).records:
        if isinstance(outer, Chunk):
            data = _unpack(path, outer)
            total += len(data)
            if total > limit:
                raise UserError(f"{path} has {size} bytes and unpacks to more than {limit}: that is no log of a robot.")
            inside = breakup_chunk(dataclasses.replace(outer, compression="", data=data))
        else:
            inside = [outer]
        for record in inside:
            if isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message):
                channel = channels.get(record.channel_id)
                if channel is not None and channel.topic == TOPIC:
                    yield channel, record


def _unpack(path: Path, chunk: Any) -> bytes:
    """The content of a chunk, of no more than the size that it promises."""
    size = chunk.uncompressed_size
    if size > MAX_CHUNK:
        raise UserError(f"{path} has a chunk that unpacks to {size} bytes, and at most {MAX_CHUNK} are read.")
    if chunk.compression == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor(max_window_size=MAX_CHUNK).stream_reader(chunk.data) as unpacked:
            data = unpacked.read(size + 1)
    elif chunk.compression == "lz4":
        from lz4.frame import LZ4FrameDecompressor

        data = LZ4FrameDecompressor().decompress(chunk.data, max_length=size + 1)
    elif chunk.compression == "":
        data = chunk.data
    else:
        raise UserError(f"{path} is packed with {chunk.compression[:20]!r}, which is not known here.")
    if len(data) != size:
        raise UserError(f"{path} is damaged: a chunk unpacks to another size than the {size} bytes that it promises.")
    return data


def _row(path: Path, number: int, channel: Any, message: Any, spec: ControlSpec) -> list[float]:
    where = f"{path}, message {number} on {TOPIC}"
    if channel.message_encoding != "json":
        raise UserError(f"{where}: its encoding is {channel.message_encoding!r}, but must be 'json'.")
    try:
        content = json.loads(message.data)
    except ValueError:
        raise UserError(f"{where}: it is not JSON.") from None
    except RecursionError:
        raise UserError(f"{where}: its JSON is nested too deep to be read.") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: it is not a JSON object.")
    row = [_number(content.get("time", message.log_time / 1e9))]
    for part, names in (("measured", spec.layout.measured), ("commands", spec.layout.commands)):
        values = content.get(part)
        if not isinstance(values, dict):
            raise UserError(f"{where}: {part!r} is missing or not an object of numbers by name.")
        for name in names:
            if name not in values:
                raise UserError(f"{where}: {part} lacks {name!r}; a log of {spec.robot} has {', '.join(names)}.")
            row.append(_number(values[name]))
    return row


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf
