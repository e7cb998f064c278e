"""LeRobotDataset, the format itself: v2.0, v2.1 and v3.0, read with pyarrow. The lerobot package is not needed.

`observation.state` holds what was measured and `action` the command from then on. Their names in `meta/info.json` must
be the robot's, or a topic map says which entry is which: `"boom.position" = "observation.state main_boom.pos"`.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError, how_to_install, suggest
from ..runs import atomic
from .base import Log, first_line
from .timed import on_the_period
from .topics import Source, TopicMap
from .vectors import join

INFO = "meta/info.json"
STATE, ACTION = "observation.state", "action"
VERSIONS = ("v2.0", "v2.1", "v3.0")
MAX_ROWS = 50_000_000
"""Rows of one file: a month at 20 Hz."""
MAX_FPS, MAX_WIDTH = 1e6, 100_000
"""Of a dataset, and of a feature; no robot has more."""
MIN_UNPACKED = 1 << 20
"""Bytes to which a column may unpack in any case."""
BATCH = 65_536


def is_dataset(path: Path) -> bool:
    """Whether a folder is a LeRobotDataset."""
    return (path / INFO).is_file()


def read_lerobot(path: Path, spec: ControlSpec, topics: TopicMap | None = None) -> Log:
    """The log in a LeRobotDataset for a robot with this specification; each episode is a stretch of its own."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(f"reading {path} needs the package pyarrow: {how_to_install('lerobot')}.") from None
    info = _info(path)
    features = info["features"]
    wanted = topics or _named_map(path, features, spec)
    places = [_place(path, features, source) for source in wanted.sources]
    files = sorted(path.glob("data/*/*.parquet"))
    if not files:
        raise UserError(f"{path} has no file data/*/*.parquet.")
    digest = hashlib.sha256()
    tables: list[np.ndarray] = []
    for file in files:
        try:
            with atomic.open_to_read(file) as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
            tables.append(_table(file, wanted.sources, places, features))
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
        except Exception as error:  # whatever pyarrow raises on a damaged file
            raise UserError(f"{file} is damaged or not a parquet file: {first_line(error)}.") from None
    rows = np.concatenate(tables)
    if not len(rows):
        raise UserError(f"{path} has no frame.")
    return join(str(path), digest.hexdigest(), _episodes(path, digest.hexdigest(), spec, rows, info["fps"]))


def _episodes(path: Path, digest: str, spec: ControlSpec, rows: np.ndarray, fps: float) -> list[Log]:
    """A log per episode: `rows` has episode, time, measured quantities, commands."""
    logs = []
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    for part in np.split(rows, np.flatnonzero(np.diff(rows[:, 0])) + 1):
        if len(part) < 2:
            continue
        number = part[0, 0]
        step = float(np.median(np.diff(part[:, 1])))
        if not abs(step * fps - 1) <= 0.02:
            raise UserError(
                f"{path}: fps is {fps:g} in {INFO}, but episode {int(number)} has a frame every {step:g} s; "
                "one of them is wrong."
            )
        split = 2 + spec.layout.num_measured
        where = f"{path}, episode {int(number)}"
        logs.append(on_the_period(spec, where, digest, part[:, 1], part[:, 2:split], part[:, split:], ""))
    if not logs:
        raise UserError(f"{path} has no episode of two frames or more.")
    return logs


def _info(path: Path) -> dict[str, Any]:
    file = path / INFO
    try:
        with atomic.open_to_read(file) as stream:
            info = json.loads(stream.read())
    except OSError as error:
        raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
    except (ValueError, RecursionError):
        raise UserError(f"{file} is not JSON.") from None
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version not in VERSIONS:
        raise UserError(f"{file}: codebase_version is {version!r}, but must be one of {', '.join(VERSIONS)}.")
    fps, features = info.get("fps"), info.get("features")
    if not isinstance(fps, int | float) or isinstance(fps, bool) or not 0 < fps <= MAX_FPS:
        raise UserError(f"{file}: fps is {str(fps)[:20]}, but must be a positive number of at most {MAX_FPS:g}.")
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise UserError(f"{file}: features is not an object with an entry per feature.")
    return info


def _names(feature: dict[str, Any]) -> list[str]:
    """Names of a feature's entries, also where they are listed under `motors` or the like."""
    names = feature.get("names")
    if isinstance(names, dict):
        lists = [value for value in names.values() if isinstance(value, list)]
        names = lists[0] if len(lists) == 1 else list(names) if not lists else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _named_map(path: Path, features: dict[str, Any], spec: ControlSpec) -> TopicMap:
    """Where the names of the dataset are the robot's own."""
    for feature, names in ((STATE, spec.layout.measured), (ACTION, spec.layout.commands)):
        there = _names(features.get(feature, {}))
        missing = [name for name in names if name not in there]
        if missing:
            raise UserError(
                f"{path}: {feature} has no {missing[0]!r}{suggest(missing[0], there)}; it has "
                f"{', '.join(there) or 'no names'}: say in a topic map which entry is which (--topics FILE.toml)."
            )
    return TopicMap(
        tuple(Source(STATE, name) for name in spec.layout.measured),
        tuple(Source(ACTION, name) for name in spec.layout.commands),
    )


def _place(path: Path, features: dict[str, Any], source: Source) -> int:
    """The entry of a feature that a source names, by name or number."""
    if source.topic not in features:
        numeric = [name for name, feature in features.items() if str(feature.get("dtype")).startswith(("float", "int"))]
        raise UserError(
            f"{path} has no feature {source.topic!r}{suggest(source.topic, numeric)}; it has {', '.join(numeric)}."
        )
    feature = features[source.topic]
    shape, names = feature.get("shape"), _names(feature)
    if not (isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int) and 0 < shape[0] <= MAX_WIDTH):
        raise UserError(f"{path}: {source.topic} has the shape {shape}, but must be a list of numbers.")
    if source.field in names:
        return names.index(source.field)
    if source.field.isdecimal() and int(source.field) < shape[0]:
        return int(source.field)
    raise UserError(
        f"{path}: {source.topic} has no {source.field!r}{suggest(source.field, names)}; "
        f"it has {', '.join(names) or f'{shape[0]} entries without names'}."
    )


def _table(file: Path, sources: Sequence[Source], places: Sequence[int], features: dict[str, Any]) -> np.ndarray:
    """Episode, time and a column per source."""
    import pyarrow.parquet

    columns = ["episode_index", "timestamp", *dict.fromkeys(source.topic for source in sources)]
    with pyarrow.parquet.ParquetFile(file, memory_map=False) as opened:
        there = opened.schema_arrow.names
        if lacking := [name for name in columns if name not in there]:
            raise UserError(f"{file} has no column {lacking[0]!r}; it has {', '.join(there)}.")
        if opened.metadata.num_rows > MAX_ROWS:
            raise UserError(f"{file} has {opened.metadata.num_rows} rows, and at most {MAX_ROWS} are read.")
        _check_size(file, opened.metadata, columns, features)
        parts = []
        for batch in opened.iter_batches(BATCH, columns=columns):
            found = {name: _numbers(file, name, batch.column(name), features.get(name)) for name in columns}
            values = [
                found[source.topic][:, place] * source.factor for source, place in zip(sources, places, strict=True)
            ]
            parts.append(np.stack([found["episode_index"][:, 0], found["timestamp"][:, 0], *values], axis=1))
    return np.concatenate(parts) if parts else np.zeros((0, 2 + len(sources)))


def _check_size(file: Path, metadata: Any, columns: Sequence[str], features: dict[str, Any]) -> None:
    """Refuse columns that unpack to far more than their rows can hold: a few bytes may stand for gigabytes."""
    for name in columns:
        width = _width(features.get(name))
        parts = [
            part
            for group in range(metadata.num_row_groups)
            for part in map(metadata.row_group(group).column, range(metadata.num_columns))
            if part.path_in_schema == name or part.path_in_schema.startswith(f"{name}.")
        ]
        values, size = sum(part.num_values for part in parts), sum(part.total_uncompressed_size for part in parts)
        if values > width * metadata.num_rows or size > MIN_UNPACKED + 16 * width * metadata.num_rows:
            raise UserError(
                f"{file}: {name} has {values} values in {size} bytes, but must have {width} in each of its "
                f"{metadata.num_rows} rows, as {INFO} says."
            )


def _width(feature: dict[str, Any] | None) -> int:
    """How many numbers a feature has in a row."""
    shape = (feature or {}).get("shape", [1])
    return shape[0] if isinstance(shape, list) and shape and isinstance(shape[0], int) else 1


def _numbers(file: Path, name: str, column: Any, feature: dict[str, Any] | None) -> np.ndarray:
    """A column as rows of numbers; not a number where a value is missing."""
    import pyarrow

    width = 1
    if pyarrow.types.is_list(column.type) or pyarrow.types.is_fixed_size_list(column.type):
        width = _width(feature)
        flat = column.flatten()
        if column.null_count or len(flat) != width * len(column):
            raise UserError(f"{file}: {name} must have {width} numbers in every row, as {INFO} says.")
        column = flat
    try:
        return np.asarray(column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False), float).reshape(-1, width)
    except pyarrow.ArrowInvalid:
        raise UserError(f"{file}: {name} does not hold numbers.") from None
