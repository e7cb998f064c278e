"""MCAP: ROS 2 messages (CDR), as our export and rosbag2 write them, or JSON messages on the topic `firsthand/step`.

A JSON message is `{"time": 1.24, "measured": {NAME: number, …}, "commands": {NAME: number, …}}`: what was measured at
`time` (seconds) and the command applied from then until the next message. Without `time` the message's log time counts.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
from array import array
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError, how_to_install
from ..runs import atomic
from .base import Log, first_line
from .ros2 import COMMAND_TOPIC, MEASURED_TOPIC, Channel, own_map, read_messages
from .timed import on_the_period
from .topics import TopicMap

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


def read_mcap(path: Path, spec: ControlSpec, topics: TopicMap | None = None) -> Log:
    """The log in an MCAP file for a robot with this specification.

    `topics` says where ROS 2 messages hold what; without it the file must be an export of ours, or hold JSON messages
    on `firsthand/step`.
    """
    return read_mcap_files(path, [path], spec, topics)


def read_mcap_files(path: Path, files: list[Path], spec: ControlSpec, topics: TopicMap | None = None) -> Log:
    """The log in MCAP files that follow one another, such as those of one bag; `path` is what they are called."""
    try:
        import mcap.stream_reader  # noqa: F401
        import mcap_ros2._dynamic  # noqa: F401
    except ImportError:
        raise UserError(
            f"reading {path} needs the packages mcap and mcap-ros2-support: {how_to_install('mcap')}."
        ) from None
    seen: dict[str, None] = {}
    digests = []
    try:
        with contextlib.ExitStack() as stack:
            streams = []
            for file in files:
                stream = stack.enter_context(atomic.open_to_read(file))
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
                streams.append((stream, stream.tell()))
                stream.seek(0)
            digest = digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
            messages = itertools.chain.from_iterable(_messages(path, stream, size, seen) for stream, size in streams)
            if topics is not None:
                return read_messages(str(path), digest, spec, topics, messages, lambda: sorted(seen))
            for first in messages:
                if first[0].topic == TOPIC:
                    return _read_json(path, digest, spec, itertools.chain([first], messages))
                if first[0].topic in (MEASURED_TOPIC, COMMAND_TOPIC):
                    rest = itertools.chain([first], messages)
                    return read_messages(str(path), digest, spec, own_map(spec), rest, lambda: sorted(seen))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except Exception as error:  # the library lets through whatever its decoders and decompressors raise
        raise UserError(f"{path} is damaged or not an MCAP file: {first_line(error)}.") from None
    raise UserError(
        f"{path} has no message on the topic {TOPIC!r} or {MEASURED_TOPIC!r}; "
        f"it has {', '.join(sorted(seen)) or 'none'}: "
        "say in a topic map which holds what (--topics FILE.toml)."
    )


def _read_json(path: Path, digest: str, spec: ControlSpec, messages: Iterable[tuple[Channel, int, bytes]]) -> Log:
    numbers, logged, count = array("d"), array("q"), 0
    for channel, log_time, data in messages:
        if channel.topic == TOPIC:
            count += 1
            logged.append(log_time)
            numbers.extend(_row(path, count, channel, log_time, data, spec))
    values = np.frombuffer(numbers).reshape(count, -1)
    values = values[np.argsort(np.frombuffer(logged, np.int64), kind="stable")]
    split = 1 + spec.layout.num_measured
    return on_the_period(spec, str(path), digest, values[:, 0], values[:, 1:split], values[:, split:], "")


def _messages(
    path: Path, stream: BufferedReader, size: int, seen: dict[str, None]
) -> Iterator[tuple[Channel, int, bytes]]:
    """The messages with their channels, as they lie in the file; topics are noted in `seen`.

    Not with the library's reader: it believes what a chunk says about its size, and follows an index to anywhere.
    """
    from mcap.records import Channel as ChannelRecord
    from mcap.records import Chunk, Message, Schema
    from mcap.stream_reader import StreamReader, breakup_chunk

    schemas: dict[int, Any] = {}
    channels: dict[int, Channel] = {}
    total, limit = 0, MAX_UNPACKED + MAX_RATIO * size
    for outer in StreamReader(stream, emit_chunks=True, record_size_limit=size).records:
        if isinstance(outer, Chunk):
            data = _unpack(path, outer)
            total += len(data)
            if total > limit:
                raise UserError(f"{path} has {size} bytes and unpacks to over {limit}: that is not a log of a robot.")
            inside = breakup_chunk(dataclasses.replace(outer, compression="", data=data))
        else:
            inside = [outer]
        for record in inside:
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, ChannelRecord):
                form = schemas.get(record.schema_id)
                text = form.data.decode("utf-8", "replace") if form is not None and form.encoding == "ros2msg" else ""
                name = "" if form is None else form.name
                channels[record.id] = Channel(record.topic, name, record.message_encoding, text)
                seen[record.topic] = None
            elif isinstance(record, Message) and record.channel_id in channels:
                yield channels[record.channel_id], record.log_time, record.data


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


def _row(path: Path, number: int, channel: Channel, log_time: int, data: bytes, spec: ControlSpec) -> list[float]:
    where = f"{path}, message {number} on {TOPIC}"
    if channel.encoding != "json":
        raise UserError(f"{where}: its encoding is {channel.encoding!r}, but must be 'json'.")
    try:
        content = json.loads(data)
    except ValueError:
        raise UserError(f"{where}: it is not JSON.") from None
    except RecursionError:
        raise UserError(f"{where}: its JSON is nested too deep to be read.") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: it is not a JSON object.")
    row = [_number(content.get("time", log_time / 1e9))]
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
