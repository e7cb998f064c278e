"""rosbag2: a folder with metadata.yaml and its storage files, or a single .db3 file.

MCAP storage is read by `mcap.py`, which trusts no size in the file. SQLite storage, and files that are compressed as a
whole, are opened by the package rosbags. Where a bag lacks the definitions of its messages, as those before ROS 2 Iron
do, the standard types of ROS 2 Humble are used.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firsthand_onboard import ControlSpec

from ..errors import UserError, how_to_install
from ..runs import atomic
from .base import Log, first_line
from .mcap import MAX_RATIO, MAX_UNPACKED, read_mcap_files
from .ros2 import COMMAND_TOPIC, MEASURED_TOPIC, Channel, own_map, read_messages
from .topics import TopicMap

METADATA = "metadata.yaml"
STORAGE = (".db3", ".mcap", ".zstd")


def is_bag(path: Path) -> bool:
    """Whether a folder is a rosbag2."""
    return (path / METADATA).is_file()


def read_bag(path: Path, spec: ControlSpec, topics: TopicMap | None = None) -> Log:
    """The log in a rosbag2 (a folder or a .db3 file) for a robot with this specification."""
    files = sorted(f for f in path.iterdir() if f.suffix in STORAGE) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path} has a {METADATA}, but no .db3 or .mcap file beside it.")
    if all(file.suffix == ".mcap" for file in files):
        return read_mcap_files(path, files, spec, topics)
    try:
        from mcap_ros2 import _dynamic  # noqa: F401
        from rosbags.rosbag2 import Reader
    except ImportError:
        raise UserError(
            f"reading {path} needs the packages rosbags and mcap-ros2-support: {how_to_install('ros2')}."
        ) from None
    try:
        digest = _digest(files)
        for file in files:
            _check_storage(file)
        with Reader(path) as reader:
            if getattr(reader, "compression_mode", None) == "message":
                raise UserError(
                    f"{path} has messages that are compressed one by one, which is not read; convert it, "
                    "for example with `ros2 bag convert`."
                )
            there = sorted({connection.topic for connection in reader.connections})
            wanted = own_map(spec) if topics is None else topics
            if topics is None and not {MEASURED_TOPIC, COMMAND_TOPIC} <= set(there):
                raise UserError(
                    f"{path} needs a topic map that says which topic holds what (--topics FILE.toml); "
                    f"it has {', '.join(there) or 'no topic'}."
                )
            return read_messages(str(path), digest, spec, wanted, _messages(reader, wanted), lambda: there)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except Exception as error:  # whatever the package and its database raise
        raise UserError(f"{path} is damaged or not a rosbag2: {first_line(error)}.") from None


def _check_storage(file: Path) -> None:
    """Refuse files that unpack to far more than their size, and databases that hold more than tables."""
    if file.suffix == ".zstd":
        import zstandard

        allowed, found = MAX_UNPACKED + MAX_RATIO * file.stat().st_size, 0
        with atomic.open_to_read(file) as stream, zstandard.ZstdDecompressor().stream_reader(stream) as unpacked:
            while part := unpacked.read(1 << 20):
                found += len(part)
                if found > allowed:
                    raise UserError(f"{file} unpacks to more than {allowed >> 20} MB, which no log does.")
    elif file.suffix == ".db3":
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            others = database.execute("SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index')")
            if (other := others.fetchone()) is not None:  # a view may compute without end
                kind, name = other
                raise UserError(f"{file} is not a rosbag2: its database has a {kind} {name!r}, not only tables.")


def _messages(reader: Any, topics: TopicMap) -> Iterator[tuple[Channel, int, bytes]]:
    wanted = [connection for connection in reader.connections if connection.topic in topics.topics]
    channels = {
        id(c): Channel(c.topic, c.msgtype, c.ext.serialization_format, _definition(c.msgtype, c.msgdef)) for c in wanted
    }
    if wanted:
        for connection, logged, data in reader.messages(wanted):
            yield channels[id(connection)], logged, data


def _definition(kind: str, stored: Any) -> str:
    """The message type as text: from the bag, or the one that ROS 2 Humble has."""
    from rosbags.interfaces import MessageDefinitionFormat
    from rosbags.typesys import Stores, get_typestore

    if stored.format == MessageDefinitionFormat.MSG and stored.data:
        return stored.data
    store = get_typestore(Stores.ROS2_HUMBLE)
    return store.generate_msgdef(kind, ros_version=2)[0] if kind in store.fielddefs else ""


def _digest(files: list[Path]) -> str:
    digests = []
    for file in files:
        with atomic.open_to_read(file) as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
