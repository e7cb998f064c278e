"""Checks of the numbers in a control specification; each raises `SpecError` with one sentence."""

from __future__ import annotations

import math


class SpecError(ValueError):
    """A control specification that cannot be used; the message says which field is wrong and what it may be."""


def require(condition: bool, message: str) -> None:
    """Raise `SpecError` with this message unless the condition holds."""
    if not condition:
        raise SpecError(message)


def check_finite(name: str, values: tuple[float, ...]) -> None:
    """Raise `SpecError` for the first value that is not finite."""
    for i, value in enumerate(values):
        require(math.isfinite(value), f"{name}[{i}] is {value}, but must be a finite number")


def check_positive(name: str, values: tuple[float, ...]) -> None:
    """Raise `SpecError` for the first value that is not a positive number."""
    for i, value in enumerate(values):
        require(math.isfinite(value) and value > 0, f"{name}[{i}] is {value}, but must be a positive number")


def check_length(name: str, values: tuple, size: int, of: str) -> None:
    """Raise `SpecError` unless there is one value per thing."""
    require(len(values) == size, f"{name} has {len(values)} entries, but must have {size}, one per {of}")


def check_ordered(name: str, low: tuple[float, ...], high: tuple[float, ...]) -> None:
    """Raise `SpecError` for the first lower limit that is not below its upper limit."""
    for i, (a, b) in enumerate(zip(low, high)):  # noqa: B905 (Python 3.10: lengths are checked before)
        require(a < b, f"{name}_low[{i}] is {a}, but must be below {name}_high[{i}], which is {b}")
