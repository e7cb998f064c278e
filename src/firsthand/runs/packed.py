"""Named arrays and a dictionary as the bytes of one safetensors file that carries its own SHA-256.

The digest is inside the file, not beside it. One rename then makes the arrays and their digest visible
together, so no crash can separate them, and a copied file can still be checked. It is taken over what a
reader gets (the info text and every name, type, shape and byte), not over how the file lays it out.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from firsthand.runs import atomic

Arrays = dict[str, np.ndarray]

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
    info_text = json.dumps(atomic.plain_values(dict(info), nonfinite="keep", where="info"))
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
        raise DamagedFile("it is cut short or is no safetensors file") from error
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
