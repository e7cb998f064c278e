"""A chain of joints in space, and where its tip is. Pure functions against the array API.

Written as T₀ Z(q₁) T₁ Z(q₂) … Z(qₙ) Tₙ: constant frames T between joints that all turn about, or move along, their own
z axis. A point is carried from the tip to the base, which takes no product of matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .arrays import namespace
from .rotations import (
    IDENTITY,
    Quaternion,
    inverse,
    multiply,
    quaternion_of_matrix,
    quaternion_of_vector,
    rotation_matrix,
    vector_between,
    vector_of_quaternion,
)
from .spec_checks import check_finite, check_length, require

MAX_JOINTS = 64
UNIT_TOLERANCE = 1e-6
"""How far the length of an axis or a quaternion may be from one."""


def _check_unit(name: str, values: tuple[float, ...], size: int) -> None:
    check_length(name, values, size, "coordinate")
    check_finite(name, values)
    length = math.sqrt(sum(value * value for value in values))
    require(abs(length - 1) < UNIT_TOLERANCE, f"{name} is {values}, of length {length:.6g}, but must have length 1")


class Frames(NamedTuple):
    """The constants of T₀ Z(q₁) T₁ … Z(qₙ) Tₙ."""

    matrices: tuple[tuple[tuple[float, float, float], ...], ...]
    """The rotation of each T, row by row, `(n + 1, 3, 3)`."""
    offsets: tuple[tuple[float, float, float], ...]
    """The translation of each T, `(n + 1, 3)`."""
    quaternions: tuple[Quaternion, ...]
    """The rotation of each T; the last with the way back from `rest`, so that their product is what is tracked."""


@dataclass(frozen=True)
class ChainJoint:
    """One joint of a serial chain, as in a URDF file: where it sits in the frame before it, and its axis."""

    kind: Literal["revolute", "prismatic"]
    """A revolute joint turns what follows about its axis; a prismatic one moves it along the axis."""
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where the joint is in the frame before it, in metres."""
    rotation: Quaternion = IDENTITY
    """How its frame is turned against the frame before it: a unit quaternion (w, x, y, z)."""
    axis: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """A unit vector in the joint's own frame."""

    def __post_init__(self) -> None:
        require(
            self.kind in ("revolute", "prismatic"),
            f"joint.kind is {self.kind!r}, but must be 'revolute' or 'prismatic'",
        )
        check_length("joint.origin", self.origin, 3, "coordinate")
        check_finite("joint.origin", self.origin)
        _check_unit("joint.rotation", self.rotation, 4)
        _check_unit("joint.axis", self.axis, 3)


@dataclass(frozen=True)
class SerialChain:
    """The tracked output is the tip of a chain of joints in space: its position, and its orientation if wanted.

    Position is (x, y, z) in metres in the frame of the base. Orientation, where `lever` is above 0, follows as three
    more outputs: the rotation vector that turns `rest` into the tip's orientation, in the frame of the base, times
    `lever`. The error of an orientation is the rotation vector from the tip's to the wanted one (`serial_error`).
    """

    joints: tuple[ChainJoint, ...]
    """From the base outward; joint i moves with entry `layout.position[i]`."""
    tip: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where the tip is in the frame after the last joint, in metres."""
    tip_rotation: Quaternion = IDENTITY
    """How the tip's frame is turned against the frame after the last joint."""
    lever: float = 0.0
    """Metres that a radian of orientation counts: about the length of the tool. 0: orientation is not tracked."""
    rest: Quaternion = IDENTITY
    """The orientation from which the tip's is counted: half a turn from it, the output jumps, errors do not."""
    kind: Literal["serial_chain"] = "serial_chain"

    def __post_init__(self) -> None:
        require(len(self.joints) > 0, "kinematics.joints is empty, but a chain has at least one joint")
        require(
            len(self.joints) <= MAX_JOINTS,
            f"kinematics.joints has {len(self.joints)} entries, but must have at most {MAX_JOINTS}",
        )
        check_length("kinematics.tip", self.tip, 3, "coordinate")
        check_finite("kinematics.tip", self.tip)
        _check_unit("kinematics.tip_rotation", self.tip_rotation, 4)
        _check_unit("kinematics.rest", self.rest, 4)
        require(
            math.isfinite(self.lever) and self.lever >= 0,
            f"kinematics.lever is {self.lever}, but must be 0 (position only) or a length in metres",
        )

    @property
    def num_outputs(self) -> int:
        """Three coordinates of the position, and three of the orientation where it is tracked."""
        return 6 if self.lever else 3

    @cached_property
    def frames(self) -> Frames:
        """The chain's constants, computed once."""
        return _frames(self)

    @staticmethod
    def from_urdf(path: str | Path, *, tip: str, **options: Any) -> SerialChain:
        """The chain to the link `tip` of a URDF file; `ArmModel.from_urdf` has its limits, too, and the options."""
        from .arm_model import ArmModel

        return ArmModel.from_urdf(path, tip=tip, **options).chain

    @staticmethod
    def from_mjcf(path: str | Path, *, tip: str, **options: Any) -> SerialChain:
        """The chain to the body or site `tip` of an MJCF file; see `ArmModel.from_mjcf`."""
        from .arm_model import ArmModel

        return ArmModel.from_mjcf(path, tip=tip, **options).chain

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the outputs are called."""
        return ("x", "y", "z", "rx", "ry", "rz")[: self.num_outputs]


def _axis_frame(axis: tuple[float, float, float]) -> np.ndarray:
    """A rotation matrix that turns z into `axis`; whole numbers for an axis along x, y or z."""
    z = np.asarray(axis, float) / np.linalg.norm(axis)
    if z[2] == 1.0:
        return np.eye(3)
    x = np.cross(np.eye(3)[int(np.argmin(np.abs(z)))], z)
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)


def _without_dust(values: np.ndarray) -> np.ndarray:
    """Quarter turns written with digits of π leave 1e-12 where 0 is meant."""
    return np.where(np.abs(values) < 1e-11, 0.0, np.where(np.abs(np.abs(values) - 1) < 1e-11, np.sign(values), values))


def _frames(chain: SerialChain) -> Frames:
    turns, offsets = [], []
    before = np.eye(3)
    for joint in chain.joints:
        own = _axis_frame(joint.axis)
        turns.append(before.T @ rotation_matrix(joint.rotation) @ own)
        offsets.append(before.T @ np.asarray(joint.origin))
        before = own
    turns.append(before.T @ rotation_matrix(chain.tip_rotation))
    offsets.append(before.T @ np.asarray(chain.tip))
    quaternions = [quaternion_of_matrix(turn) for turn in turns]
    # Orientation is R · restᵀ: the rotation to the right of the last frame. Its vector is in the base's frame.
    quaternions[-1] = multiply(quaternions[-1], inverse(chain.rest))
    return Frames(
        tuple(tuple(tuple(row) for row in _without_dust(turn).tolist()) for turn in turns),  # type: ignore[misc]
        tuple(tuple(_without_dust(offset).tolist()) for offset in offsets),  # type: ignore[misc]
        tuple(quaternions),
    )


def _affine(matrix: Any, offset: Any, point: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """matrix · point + offset, without the products by 0 and 1, of which real arms have many."""
    found = []
    for row, value in zip(matrix, offset):  # noqa: B905 (Python 3.10)
        total: Any = value
        for factor, coordinate in zip(row, point):  # noqa: B905
            if factor != 0.0:
                term = coordinate if factor == 1.0 else -coordinate if factor == -1.0 else factor * coordinate
                total = term if isinstance(total, float) and total == 0.0 else total + term
        found.append(total)
    return found[0], found[1], found[2]


class _Joints(NamedTuple):
    """Positions of the joints, one array or number each, with what is computed of them once."""

    position: list[Any]
    cos: list[Any]
    sin: list[Any]


def _joints_of(chain: SerialChain, position: Any) -> _Joints:
    xp, count = namespace(position), len(chain.joints)
    parts = ([values[..., i] for i in range(count)] for values in (position, xp.cos(position), xp.sin(position)))
    return _Joints(*parts)


def _carry(chain: SerialChain, at: _Joints, point: Any, joint: int) -> tuple[Any, Any, Any]:
    """A point in the frame after `joint` (counted from 1; 0 is the base), in the frame of the base."""
    frames = chain.frames
    for i in range(joint - 1, -1, -1):
        x, y, z = point
        if chain.joints[i].kind == "revolute":
            point = at.cos[i] * x - at.sin[i] * y, at.sin[i] * x + at.cos[i] * y, z
        else:
            point = x, y, z + at.position[i]
        point = _affine(frames.matrices[i], frames.offsets[i], point)
    return point


def _stack(position: Any, values: Any) -> Any:
    """Coordinates, some of them constants, as the last axis of one array."""
    xp = namespace(position)
    like = position[..., 0]
    return xp.stack([xp.full_like(like, v) if isinstance(v, float) else v for v in values], axis=-1)


def serial_output(chain: SerialChain, position: Any) -> Any:
    """The tracked output `(…, 3 or 6)` at joint positions `(…, joints)`."""
    values = _carry(chain, _joints_of(chain, position), chain.frames.offsets[-1], len(chain.joints))
    if chain.lever:
        xp = namespace(position)
        half = position * 0.5
        parts = ([part[..., i] for i in range(len(chain.joints))] for part in (xp.cos(half), xp.sin(half)))
        values = (*values, *(chain.lever * part for part in vector_of_quaternion(_orientation(chain, *parts))))
    return _stack(position, values)


def serial_output_at(chain: SerialChain, position: list[float]) -> list[float]:
    """`serial_output` at one set of joint positions, in plain numbers: faster than with arrays of one."""
    cos, sin = [math.cos(value) for value in position], [math.sin(value) for value in position]
    point = _carry(chain, _Joints(position, cos, sin), chain.frames.offsets[-1], len(chain.joints))
    if not chain.lever:
        return list(point)
    halves = [math.cos(value / 2) for value in position], [math.sin(value / 2) for value in position]
    turn = vector_of_quaternion(_orientation(chain, *halves))
    return [*point, *(chain.lever * float(part) for part in turn)]


def _orientation(chain: SerialChain, cos: list[Any], sin: list[Any]) -> tuple[Any, Any, Any, Any]:
    """The turn from `rest` to the tip's orientation, as four arrays; given cosines and sines of half the positions."""
    quaternions = chain.frames.quaternions
    zero = 0.0 * cos[0]
    w, x, y, z = (zero + part for part in quaternions[0])
    for i, joint in enumerate(chain.joints):
        if joint.kind == "revolute":  # times (cos, 0, 0, sin)
            c, s = cos[i], sin[i]
            w, x, y, z = w * c - z * s, x * c + y * s, y * c - x * s, z * c + w * s
        w, x, y, z = multiply((w, x, y, z), quaternions[i + 1])
    return w, x, y, z


def serial_points(chain: SerialChain, position: Any) -> Any:
    """Where the joints are, `(…, joints + 2, 3)`: the base first, the tip last. For pictures."""
    at, offsets = _joints_of(chain, position), chain.frames.offsets
    places = [(0.0, 0.0, 0.0), *(_carry(chain, at, offset, i) for i, offset in enumerate(offsets))]
    return namespace(position).stack([_stack(position, place) for place in places], axis=-2)


def serial_jacobian(chain: SerialChain, position: np.ndarray) -> np.ndarray:
    """∂output/∂position, `(outputs, joints)`, in numpy: axis × lever arm for a revolute joint, the axis for a
    prismatic one. Rows of the orientation are the derivative of the rotation vector.
    """
    position = np.asarray(position, float)
    frames = chain.frames
    turn, at, axes, places = np.eye(3), np.zeros(3), [], []
    for i, joint in enumerate(chain.joints):
        at = at + turn @ np.asarray(frames.offsets[i])
        turn = turn @ np.asarray(frames.matrices[i])
        axes.append(turn[:, 2])
        places.append(at)
        if joint.kind == "revolute":
            c, s = math.cos(position[i]), math.sin(position[i])
            turn = turn @ np.asarray([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        else:
            at = at + turn[:, 2] * position[i]
    at = at + turn @ np.asarray(frames.offsets[-1])
    turns = [joint.kind == "revolute" for joint in chain.joints]
    columns = [np.cross(axes[i], at - places[i]) if turns[i] else axes[i] for i in range(len(turns))]
    if not chain.lever:
        return np.stack(columns, axis=1)
    rates = np.stack([axes[i] if turns[i] else np.zeros(3) for i in range(len(turns))], axis=1)
    angular = chain.lever * _vector_rate(serial_output(chain, position)[3:] / chain.lever) @ rates
    return np.concatenate([np.stack(columns, axis=1), angular])


def _vector_rate(vector: np.ndarray) -> np.ndarray:
    """From an angular velocity in the fixed frame to the rate of the rotation vector, 3 × 3."""
    angle = float(np.linalg.norm(vector))
    x, y, z = vector
    cross = np.asarray([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    half = angle / 2
    factor = 1 / 12 if angle < 1e-3 else (1 - half / math.tan(half)) / angle**2
    return np.eye(3) - cross / 2 + factor * cross @ cross


def serial_error(chain: SerialChain, wanted: Any, found: Any) -> Any:
    """From the output `found` to the one `wanted`, `(…, outputs)`: a difference of positions, and `lever` times the
    rotation vector, in the base's frame, that turns the one orientation into the other.
    """
    if not chain.lever:
        return wanted - found
    xp = namespace(found)
    first, second = ([part[..., i] / chain.lever for i in (3, 4, 5)] for part in (wanted, found))
    turn = xp.stack([chain.lever * part for part in vector_between(first, second)], axis=-1)
    return xp.concat([wanted[..., :3] - found[..., :3], turn], axis=-1)


def serial_after(chain: SerialChain, found: Any, error: Any) -> Any:
    """The output that `error`, as of `serial_error`, leads to from `found`."""
    if not chain.lever:
        return found + error
    xp = namespace(found)
    start, turn = ([part[..., i] / chain.lever for i in (3, 4, 5)] for part in (found, error))
    turned = vector_of_quaternion(multiply(quaternion_of_vector(turn), quaternion_of_vector(start)))
    vector = xp.stack([chain.lever * part for part in turned], axis=-1)
    return xp.concat([found[..., :3] + error[..., :3], vector], axis=-1)
