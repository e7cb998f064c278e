"""Turn values into what JSON can hold, without losing anything silently."""

import math
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import numpy as np

Nonfinite = Literal["null", "text", "keep"]


def values(value: Any, *, nonfinite: Nonfinite, where: str = "") -> Any:
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
            key: values(item, nonfinite=nonfinite, where=f"{where}.{key}".lstrip(".")) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [values(item, nonfinite=nonfinite, where=f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return values(array.tolist(), nonfinite=nonfinite, where=where)
    raise TypeError(f"{where or 'the value'} is a {type(value).__name__}, which JSON cannot hold")


def _number(value: float, nonfinite: Nonfinite) -> float | str | None:
    if math.isfinite(value) or nonfinite == "keep":
        return value
    return str(value) if nonfinite == "text" else None
