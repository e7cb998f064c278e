"""Rotations as unit quaternions (w, x, y, z) and as rotation vectors. Against the array API where arrays go in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import namespace

Quaternion = tuple[float, float, float, float]
Vector = tuple[float, float, float]
IDENTITY: Quaternion = (1.0, 0.0, 0.0, 0.0)
SMALL = 1e-3
"""Below this sine of half the angle, a rotation vector comes from its series: exact to rounding in both precisions."""


def unit_quaternion(values: Sequence[float]) -> Quaternion:
    """The quaternion of length one that points the same way."""
    w, x, y, z = (float(value) for value in values)
    length = math.sqrt(w * w + x * x + y * y + z * z)
    return w / length, x / length, y / length, z / length


def quaternion_about(axis: Sequence[float], angle: float) -> Quaternion:
    """A turn by `angle` about a unit vector."""
    half, (x, y, z) = angle / 2, axis
    return math.cos(half), math.sin(half) * x, math.sin(half) * y, math.sin(half) * z


def quaternion_of_rpy(roll: float, pitch: float, yaw: float) -> Quaternion:
    """URDF's `rpy`: a turn about the fixed x axis, then about the fixed y axis, then about the fixed z axis."""
    x, y, z = ((1.0, 0.0, 0.0), roll), ((0.0, 1.0, 0.0), pitch), ((0.0, 0.0, 1.0), yaw)
    return multiply(quaternion_about(*z), multiply(quaternion_about(*y), quaternion_about(*x)))


def quaternion_of_matrix(matrix: np.ndarray) -> Quaternion:
    """The rotation of a 3 × 3 rotation matrix."""
    m = np.asarray(matrix, float)
    trace = m[0, 0] + m[1, 1] + m[2, 2]
    squares = [1 + trace, *(1 + 2 * m[i, i] - trace for i in range(3))]  # 4 w², 4 x², 4 y², 4 z²
    largest = int(np.argmax(squares))
    products = np.asarray(
        [
            [squares[0], m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]],
            [m[2, 1] - m[1, 2], squares[1], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0]],
            [m[0, 2] - m[2, 0], m[0, 1] + m[1, 0], squares[2], m[1, 2] + m[2, 1]],
            [m[1, 0] - m[0, 1], m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], squares[3]],
        ]
    )
    return unit_quaternion(products[largest].tolist())


def rotation_matrix(quaternion: Sequence[float]) -> np.ndarray:
    """The 3 × 3 matrix of a unit quaternion."""
    w, x, y, z = quaternion
    return np.asarray(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def multiply(first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """The quaternion product: `second`, then `first`. Entries may be numbers or arrays."""
    a, b, c, d = first
    e, f, g, h = second
    return (
        a * e - b * f - c * g - d * h,
        a * f + b * e + c * h - d * g,
        a * g - b * h + c * e + d * f,
        a * h + b * g - c * f + d * e,
    )


def inverse(quaternion: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """The rotation back."""
    w, x, y, z = quaternion
    return w, -x, -y, -z


def vector_of_quaternion(quaternion: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The rotation vector, axis times angle, of unit quaternions given as four arrays; its length is at most π.

    Differentiable everywhere but at half a turn, where the vector jumps to its opposite.
    """
    w, x, y, z = quaternion
    xp = namespace(w)
    sign = xp.where(w < 0, -xp.ones_like(w), xp.ones_like(w))
    w = sign * w
    square = x * x + y * y + z * z
    is_small = square < SMALL * SMALL
    sine = xp.sqrt(xp.where(is_small, xp.ones_like(square), square))  # a root of 0 has no derivative
    safe = xp.maximum(w, xp.full_like(w, 1e-12))
    angle = xp.atan(sine / safe)
    ratio = square / (safe * safe)
    factor = 2 * sign * xp.where(is_small, (1 - ratio / 3) / safe, angle / sine)
    return factor * x, factor * y, factor * z


def quaternion_of_vector(vector: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """The unit quaternion of rotation vectors given as three arrays."""
    x, y, z = vector
    xp = namespace(x)
    square = x * x + y * y + z * z
    is_small = square < SMALL * SMALL
    angle = xp.sqrt(xp.where(is_small, xp.ones_like(square), square))
    factor = xp.where(is_small, 0.5 - square / 48, xp.sin(angle / 2) / angle)
    w = xp.where(is_small, 1 - square / 8, xp.cos(angle / 2))
    return w, factor * x, factor * y, factor * z


def vector_between(wanted: Sequence[Any], found: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The rotation vector, in the fixed frame, that turns the orientation `found` into `wanted` (rotation vectors)."""
    turn = multiply(quaternion_of_vector(wanted), inverse(quaternion_of_vector(found)))
    return vector_of_quaternion(turn)


def rotate(quaternion: Sequence[float], vector: Sequence[float]) -> Vector:
    """A vector of three numbers, turned."""
    x, y, z = (rotation_matrix(quaternion) @ np.asarray(vector, float)).tolist()
    return x, y, z
