"""ROS 2 messages in a log: decoded without ROS, each topic with times of its own, brought to common rows.

A row is a message of the topic that has the first measured quantity. Quantities of other topics are interpolated to its
time; a command is its mean from row to row, held from message to message.

Message types are read by `mcap-ros2-support`, which interprets their definitions; nothing of a bag is executed.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError, suggest
from .base import Log
from .timed import held_mean, on_the_period
from .topics import Source, TopicMap, parse_field

MEASURED_TOPIC, COMMAND_TOPIC = "/firsthand/measured", "/firsthand/command"
"""Where an export of ours has what `train --data` reads."""
GAP = 2.0
"""Interpolation reaches across this many steps of a topic, or control periods if those are longer."""
NAME_FIELDS = ("name", "names", "joint_names")
"""Fields of messages that name the entries of the other fields."""


class Channel(NamedTuple):
    """A topic and how its messages are written."""

    topic: str
    """Name of the topic."""
    kind: str
    """Name of the message type."""
    encoding: str
    """Of the messages; only `cdr` is ROS 2's."""
    definition: str
    """The message type as text, with what it contains."""


def own_map(spec: ControlSpec) -> TopicMap:
    """Where an export of a run has what."""
    layout = spec.layout
    return TopicMap(
        tuple(Source(MEASURED_TOPIC, f"data[{label(name)}]") for name in layout.measured),
        tuple(Source(COMMAND_TOPIC, f"data[{label(name)}]") for name in layout.commands),
    )


def label(name: str) -> str:
    """A name that can stand in a list with commas, and between brackets."""
    return name.translate(str.maketrans(",[]", ";()"))


@dataclass
class _Samples:
    """The content of one topic."""

    read: list[tuple[int, Callable[[Any], Any]]]
    """Which column a value goes to, and how it is found in a message."""
    times: array = field(default_factory=lambda: array("q"))
    values: array = field(default_factory=lambda: array("d"))

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Times in ns and values, in order of time."""
        times = np.frombuffer(self.times, np.int64) if self.times else np.zeros(0, np.int64)
        values = np.frombuffer(self.values).reshape(len(times), -1) if self.times else np.zeros((0, len(self.read)))
        order = np.argsort(times, kind="stable")
        return times[order], values[order]


def read_messages(
    path: str,
    sha256: str,
    spec: ControlSpec,
    topics: TopicMap,
    messages: Iterable[tuple[Channel, int, bytes]],
    known: Callable[[], Sequence[str]],
) -> Log:
    """The log in messages (channel, log time in ns, content).

    `known` lists the topics of the file, for the message about one that it lacks.
    """
    samples = {topic: _Samples([]) for topic in topics.topics}
    for column, source in enumerate(topics.sources):
        samples[source.topic].read.append((column, _getter(path, source)))
    decoders: dict[Channel, Callable[[bytes], Any]] = {}
    for channel, logged, data in messages:
        if channel.topic not in samples:
            continue
        if channel not in decoders:
            decoders[channel] = _decoder(path, channel)
        wanted = samples[channel.topic]
        where = f"{path}, message {len(wanted.times) + 1} on {channel.topic}"
        try:
            message = decoders[channel](data)
        except Exception as error:  # whatever a damaged message makes the decoder raise
            raise UserError(f"{where} is damaged: {str(error) or type(error).__name__}.") from None
        wanted.times.append(_stamp(where, message) if topics.time == "stamp" else logged)
        wanted.values.extend(find(message) for _, find in wanted.read)
    for topic, found in samples.items():
        if not found.times:
            there = list(known())
            raise UserError(
                f"{path} has no message on the topic {topic!r}{suggest(topic, there)}; "
                f"it has {', '.join(there) or 'no topic at all'}."
            )
        _, values = found.table()
        for place, (column, _) in enumerate(found.read):
            if np.isnan(values[:, place]).all():
                raise UserError(
                    f"{path}: {topics.sources[column].field!r} of {topic} is a number in none of its {len(values)} "
                    "messages: is the list that long, counted from 0?"
                )
    return _rows(path, sha256, spec, topics, samples)


def _rows(path: str, sha256: str, spec: ControlSpec, topics: TopicMap, samples: dict[str, _Samples]) -> Log:
    lead, *_ = topics.topics
    tables = {topic: found.table() for topic, found in samples.items()}
    origin = int(tables[lead][0][0])
    clocks = {topic: (times - origin) / 1e9 for topic, (times, _) in tables.items()}
    time = clocks[lead]
    columns = np.full((len(time), len(topics.sources)), np.nan)
    rises = bool((np.diff(time) > 0).all())  # otherwise the log is refused, with the row
    for topic, found in samples.items() if rises else ():
        values, own = tables[topic][1], clocks[topic]
        for j, (column, _) in enumerate(found.read):
            values_j = values[:, j] * topics.sources[column].factor
            if column >= spec.layout.num_measured:
                columns[:, column] = _average_held(own, values_j, time, topics.hold_s)
            else:
                columns[:, column] = values_j if topic == lead else _interpolate(own, values_j, time, spec.period_s)
    split = spec.layout.num_measured
    others = sorted({topic for topic in topics.topics if topic != lead})
    same = all(np.array_equal(clocks[topic], time) for topic in others)
    note = "" if same else f"rows are the messages on {lead}; brought to their times: {', '.join(others)}"
    return on_the_period(spec, path, sha256, time, columns[:, :split], columns[:, split:], note)


def _interpolate(own: np.ndarray, values: np.ndarray, time: np.ndarray, period_s: float) -> np.ndarray:
    """Values at other times; not a number where the neighbours lie far apart or on one side only."""
    rising = np.concatenate([[True], np.diff(own) > 0])
    own, values = own[rising], values[rising]
    if len(own) < 2:
        return np.where(np.isin(time, own), values[0], np.nan)
    reach = GAP * max(period_s, float(np.median(np.diff(own))))
    after = np.clip(np.searchsorted(own, time), 1, len(own) - 1)
    found = np.interp(time, own, values, left=np.nan, right=np.nan)
    return np.where(own[after] - own[after - 1] <= reach, found, np.nan)


def _average_held(own: np.ndarray, values: np.ndarray, time: np.ndarray, hold_s: float) -> np.ndarray:
    """The mean of a held command from each row to the next; not a number before the first, and where it grew old."""
    if np.array_equal(own, time):
        return values
    rising = np.concatenate([np.diff(own) > 0, [True]])  # of several at one time, the last counts
    own, values = own[rising], values[rising]
    # Up to the end of the rows, and known to have an end.
    last = max(float(time[-1]), float(own[-1])) + 1.0
    mean = held_mean(np.append(own, last), np.append(values, values[-1])[:, None], time)[:, 0]
    before = np.searchsorted(own, time, side="right") - 1
    old = time - own[np.maximum(before, 0)] > hold_s
    return np.where((before < 0) | old, np.nan, mean)


def _decoder(path: str, channel: Channel) -> Callable[[bytes], Any]:
    from mcap_ros2._dynamic import generate_dynamic

    where = f"{path}: the topic {channel.topic!r}"
    if channel.encoding != "cdr":
        raise UserError(f"{where} has messages in {channel.encoding!r}, but ROS 2 writes 'cdr'.")
    if not channel.definition:
        raise UserError(f"{where} has messages of the type {channel.kind!r}, whose definition is not in the file.")
    try:
        return generate_dynamic(channel.kind, channel.definition)[channel.kind]
    except Exception as error:
        raise UserError(f"{where} has messages of the type {channel.kind!r}, which cannot be read: {error}.") from None


def _stamp(where: str, message: Any) -> int:
    stamp = getattr(getattr(message, "header", None), "stamp", None)
    if stamp is None:
        raise UserError(f'{where} has no header with a time; write time = "log" in the topic map.')
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def _getter(path: str, source: Source) -> Callable[[Any], float]:
    """A function that finds a number in a message; not a number where a list is too short."""
    steps = parse_field(source.field)
    where = f"{path}: {source.field!r} of {source.topic}"
    if steps is None:
        raise UserError(f"{where} is not a field of a message; write, for example, position[boom] or data[0].")

    def find(message: Any) -> float:
        at, within = message, message
        for step in steps:
            if isinstance(step, int):
                if not isinstance(at, Sequence | np.ndarray) or isinstance(at, str):
                    raise UserError(f"{where}: there is no list to take entry {step} from.")
                if step >= len(at):
                    return math.nan
                at = at[step]
            elif step.startswith("@"):
                names = _names(within)
                if step[1:] not in names:
                    raise UserError(
                        f"{where}: the message names no {step[1:]!r}{suggest(step[1:], names)}; "
                        f"it names {', '.join(names) or 'nothing'}."
                    )
                place = names.index(step[1:])
                if not isinstance(at, Sequence | np.ndarray) or place >= len(at):
                    return math.nan
                at = at[place]
            else:
                if not hasattr(at, step):
                    there: list[str] = list(getattr(type(at), "__slots__", ()))
                    raise UserError(f"{where}: there is no {step!r}{suggest(step, there)}; it has {', '.join(there)}.")
                within, at = at, getattr(at, step)
        if isinstance(at, bool) or not isinstance(at, int | float):
            raise UserError(f"{where} is {type(at).__name__}, but must be a number.")
        return float(at)

    return find


def _names(message: Any) -> list[str]:
    """Names of the entries of a message's lists."""
    for name in NAME_FIELDS:
        found = getattr(message, name, None)
        if isinstance(found, list) and all(isinstance(entry, str) for entry in found):
            return found
    dimensions = getattr(getattr(message, "layout", None), "dim", None)
    if isinstance(dimensions, list) and dimensions:
        return str(dimensions[0].label).split(",")
    return []
