"""What the files of a run hold, as bytes that carry their own SHA-256: arrays as safetensors, values as JSON.

The digest is inside the file, not beside it. One rename then makes content and digest visible together, so no crash can
separate them, and a copied file can still be checked.

`pack` and `unpack` have named arrays and a dictionary. Their digest is taken over what a reader gets (the info text and
every name, type, shape and byte), not over how the file lays it out.

`signed_json` and `signed_line` have a JSON object, as a file or as a line of metrics.jsonl. Its last field is `sha256`:
it covers every byte of the file or line, with its own digits as zeros. A file or line without that field, from an
earlier version or written by hand, is read as it is; a damaged field is an error. `plain_values` turns values into what
JSON can hold.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import ml_dtypes
import numpy as np
import safetensors

Arrays = dict[str, np.ndarray]
Nonfinite = Literal["null", "text", "keep"]

# The name of each type in a safetensors file. What is not here cannot be stored.
_TYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "C64": np.dtype(np.complex64),
}
_STORABLE = frozenset(_TYPES.values())

# One entry only: safetensors writes several in an order that differs from process to process, and equal runs
# should leave equal files.
_ENTRY = "firsthand"


class DamagedFile(Exception):
    """The bytes are not what was written; the message says in what way, without naming the file."""


def storable(dtype: np.dtype) -> bool:
    """Whether arrays of this type can be stored."""
    return dtype in _STORABLE


def pack(arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> bytes:
    """The bytes of a safetensors file with `arrays`, and `info` as JSON in its metadata.

    Equal arguments give equal bytes. `info` may hold ±∞ and NaN, written as Python's JSON does, because a
    number such as "the best loss so far" starts at ∞ and has to come back as that.
    """
    ready: Arrays = {}
    for name, array in arrays.items():
        if name == "__metadata__":
            raise ValueError("an array cannot be called '__metadata__': safetensors keeps that name for itself")
        array = np.asarray(array)
        if not storable(array.dtype):
            raise ValueError(f"the array {name!r} has the type {array.dtype}, which safetensors cannot hold")
        # safetensors copies memory as it lies, so anything but C order would be stored wrongly. (Not
        # `ascontiguousarray`: it turns a scalar into a vector.)
        ready[name] = np.asarray(array, order="C")
    info_text = json.dumps(plain_values(dict(info), nonfinite="keep", where="info"))
    entry = json.dumps({"sha256": _digest(ready, info_text), "info": info_text})
    specs = {
        name: safetensors.TensorSpec(
            dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, array in ready.items()
    }
    return bytes(safetensors.serialize(specs, metadata={_ENTRY: entry}))


def unpack(data: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the info that `pack` was given. Raises `DamagedFile` for any other bytes."""
    if not data:
        raise DamagedFile("it is empty")
    try:
        arrays = {
            name: np.frombuffer(tensor["data"], dtype=_TYPES[tensor["dtype"]]).reshape(tensor["shape"])
            for name, tensor in safetensors.deserialize(data)
        }
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedFile("it is cut short or is not a safetensors file") from error
    try:
        entry = json.loads(header["__metadata__"][_ENTRY])
        expected, info_text = entry["sha256"], entry["info"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile("it carries no SHA-256") from error
    if not isinstance(info_text, str) or _digest(arrays, info_text) != expected:
        raise DamagedFile("its content does not match its SHA-256")
    try:
        info = json.loads(info_text)
    except (ValueError, RecursionError) as error:
        raise DamagedFile("its info is not JSON that can be read") from error
    if not isinstance(info, dict):
        raise DamagedFile("its info is not a JSON object")
    return dict(sorted(arrays.items())), info


def _digest(arrays: Mapping[str, np.ndarray], info_text: str) -> str:
    """SHA-256 of everything a reader gets. The shapes come first and fix where each array's bytes end."""
    names = sorted(arrays)
    layout = [[name, arrays[name].dtype.name, list(arrays[name].shape)] for name in names]
    head = json.dumps([info_text, layout]).encode()
    digest = hashlib.sha256(len(head).to_bytes(8, "little") + head)
    for name in names:
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# JSON.

FIELD = "sha256"
FILE_DIGITS, LINE_DIGITS = 64, 32
_FILE_END = re.compile(rb'"sha256": "([0-9a-f]{64})"\n}\n\Z')
_LINE_START, _LINE_STOP = b', "sha256": "', b'"}'
_LINE_END = re.compile(rb', "sha256": "([0-9a-f]{32})"}\Z')
_ALMOST = 0.8
"""A share of a checksum's characters that no line without one has in its place."""


def plain_values(value: Any, *, nonfinite: Nonfinite, where: str = "") -> Any:
    """`value` made of dict, list, str, int, float, bool and None only.

    NumPy and JAX scalars and arrays become numbers and lists, tuples become lists, paths become text, and an
    `Enum` member becomes its name. JSON has no ±∞ and no NaN; `nonfinite` says what becomes of them:

    - "null": None. For metrics, where plotting tools expect a number or nothing.
    - "text": "inf", "-inf" or "nan", which `float()` reads back. For configurations, where ∞ may be meant.
    - "keep": as they are, for Python's own reader. For what has to come back exactly.

    `where` is the dotted name of `value`, for the message when it cannot be stored.
    """
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(float(value), nonfinite)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where or 'the dictionary'} has the key {key!r}; JSON keys are strings")
        return {
            key: plain_values(item, nonfinite=nonfinite, where=f"{where}.{key}".lstrip("."))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_values(item, nonfinite=nonfinite, where=f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return plain_values(array.tolist(), nonfinite=nonfinite, where=where)
    raise TypeError(f"{where or 'the value'} is a {type(value).__name__}, which JSON cannot hold")


def _number(value: float, nonfinite: Nonfinite) -> float | str | None:
    if math.isfinite(value) or nonfinite == "keep":
        return value
    return str(value) if nonfinite == "text" else None


class WrongChecksum(ValueError):
    """The content is not what was written."""


def signed_json(content: Mapping[str, Any]) -> bytes:
    """A JSON file that carries its own SHA-256 in its last field."""
    text = json.dumps({**content, FIELD: FILE_DIGITS * "0"}, indent=2, allow_nan=False).encode() + b"\n"
    return text.replace(FILE_DIGITS * b"0" + b'"\n}\n', _hex_digest(text, FILE_DIGITS) + b'"\n}\n')


def check_json(data: bytes, content: Mapping[str, Any]) -> None:
    """Raise `WrongChecksum` where a file that carries a SHA-256 has another content; `content` is `data`, parsed."""
    if FIELD not in content:
        return
    found = _FILE_END.search(data)
    if found is None or _hex_digest(data[: found.start(1)] + FILE_DIGITS * b"0" + data[found.end(1) :], 64) != found[1]:
        raise WrongChecksum("its content does not match its SHA-256")


def signed_line(content: Mapping[str, Any]) -> bytes:
    """A JSON object on one line, without the newline, with its checksum."""
    line = json.dumps({**content, FIELD: LINE_DIGITS * "0"}, allow_nan=False).encode()
    return line[: -len(_LINE_STOP) - LINE_DIGITS] + _hex_digest(line, LINE_DIGITS) + _LINE_STOP


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
    return _hex_digest(line[: found.start(1)] + LINE_DIGITS * b"0" + line[found.end(1) :], LINE_DIGITS) == found[1]


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


def _hex_digest(data: bytes, digits: int) -> bytes:
    return hashlib.sha256(data).hexdigest()[:digits].encode()
