"""Checksums inside text files: a damaged config.json or line of metrics.jsonl is noticed, not believed.

The last field of the JSON object is `sha256`. It covers every byte of the file or line, itself counted as zeros. What
was written without one, by an earlier version or by hand, is read as it is; what looks like a damaged one is not.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

FIELD = "sha256"
FILE_DIGITS, LINE_DIGITS = 64, 32
_FILE_END = re.compile(rb'"sha256": "([0-9a-f]{64})"\n}\n\Z')
_LINE_START, _LINE_STOP = b', "sha256": "', b'"}'
_LINE_END = re.compile(rb', "sha256": "([0-9a-f]{32})"}\Z')
_ALMOST = 0.8
"""A share of a checksum's characters that no line without one has in its place."""


class WrongChecksum(ValueError):
    """The content is not what was written."""


def signed_json(content: Mapping[str, Any]) -> bytes:
    """A JSON file that carries its own SHA-256 in its last field."""
    text = json.dumps({**content, FIELD: FILE_DIGITS * "0"}, indent=2, allow_nan=False).encode() + b"\n"
    return text.replace(FILE_DIGITS * b"0" + b'"\n}\n', _digest(text, FILE_DIGITS) + b'"\n}\n')


def check_json(data: bytes, content: Mapping[str, Any]) -> None:
    """Raise `WrongChecksum` where a file that carries a SHA-256 has another content; `content` is `data`, parsed."""
    if FIELD not in content:
        return
    found = _FILE_END.search(data)
    if found is None or _digest(data[: found.start(1)] + FILE_DIGITS * b"0" + data[found.end(1) :], 64) != found[1]:
        raise WrongChecksum("its content does not match its SHA-256")


def signed_line(content: Mapping[str, Any]) -> bytes:
    """A JSON object on one line, without the newline, with its checksum."""
    line = json.dumps({**content, FIELD: LINE_DIGITS * "0"}, allow_nan=False).encode()
    return line[: -len(_LINE_STOP) - LINE_DIGITS] + _digest(line, LINE_DIGITS) + _LINE_STOP


def read_line(line: bytes) -> dict[str, Any]:
    """The object on a line, without its checksum; `ValueError` for a damaged one."""
    try:
        content = json.loads(line)
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    if _LINE_END.search(line):
        if not has_checksum(line):
            raise WrongChecksum("its content does not match its checksum")
        del content[FIELD]
    elif _is_almost_signed(line):
        raise WrongChecksum("its checksum is damaged")
    return content


def has_checksum(line: bytes) -> bool:
    """Whether a line carries a checksum, and the right one."""
    found = _LINE_END.search(line)
    if found is None:
        return False
    return _digest(line[: found.start(1)] + LINE_DIGITS * b"0" + line[found.end(1) :], LINE_DIGITS) == found[1]


def _is_almost_signed(line: bytes) -> bool:
    """Whether a line ends in what was a checksum before a few of its bytes were changed."""
    size = len(_LINE_START) + LINE_DIGITS + len(_LINE_STOP)
    end = line[-size:]
    if len(end) < size:
        return False
    fixed = end[: len(_LINE_START)] + end[-len(_LINE_STOP) :]
    digits = end[len(_LINE_START) : -len(_LINE_STOP)]
    same = sum(a == b for a, b in zip(fixed, _LINE_START + _LINE_STOP, strict=True))
    return same >= _ALMOST * len(fixed) and sum(d in b"0123456789abcdef" for d in digits) >= _ALMOST * LINE_DIGITS


def _digest(data: bytes, digits: int) -> bytes:
    return hashlib.sha256(data).hexdigest()[:digits].encode()
