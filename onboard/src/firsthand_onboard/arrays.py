"""The array namespace of an argument: numpy on the robot, jax.numpy while the learner traces."""

from __future__ import annotations

from typing import Any

import numpy as np


def namespace(array: Any) -> Any:
    """The module whose functions apply to `array`; plain numbers and lists count as numpy."""
    get = getattr(array, "__array_namespace__", None)
    return get() if get is not None else np


def constant(values: Any, like: Any) -> Any:
    """`values` as an array in the namespace and floating type of `like`."""
    return namespace(like).asarray(values, dtype=like.dtype)


def add_at(array: Any, indices: Any, values: Any) -> Any:
    """A copy of `array` with `values` added to the entries `indices`, which differ from each other."""
    if hasattr(array, "at"):
        return array.at[namespace(array).asarray(indices)].add(values)
    changed = np.array(array)
    changed[np.asarray(indices, int)] += values
    return changed


def set_at(array: Any, indices: Any, values: Any) -> Any:
    """A copy of `array` with `values` as the entries `indices`."""
    if hasattr(array, "at"):
        return array.at[namespace(array).asarray(indices)].set(values)
    changed = np.array(array)
    changed[np.asarray(indices, int)] = values
    return changed
