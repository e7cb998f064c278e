"""MCAP with JSON messages on the topic `firsthand/step`, one per control period.

A message is `{"time": 1.24, "measured": {NAME: number, …}, "commands": {NAME: number, …}}`: what was measured at `time`
(seconds) and the command applied from then until the next message. Without `time` the message's log time counts.
"""

import hashlib
import json
import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..runs import atomic
from .base import Log
from .timed import on_the_period

TOPIC = "firsthand/step"


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
        from mcap.reader import make_reader
    except ImportError:
        raise UserError(f"reading {path} needs the package mcap: pip install 'firsthand[mcap]'.") from None
    numbers, count = array("d"), 0
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            for _, channel, message in make_reader(stream).iter_messages(topics=[TOPIC]):
                count += 1
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
    split = 1 + spec.layout.num_measured
    return on_the_period(spec, str(path), digest, values[:, 0], values[:, 1:split], values[:, split:], "")


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
