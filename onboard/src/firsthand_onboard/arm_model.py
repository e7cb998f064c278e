"""An arm as described by the robot's own file: its chain of joints, their names and their limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .rotations import IDENTITY, Quaternion, Vector, multiply, quaternion_about, rotate, unit_quaternion
from .serial_chain import ChainJoint, SerialChain, serial_jacobian
from .spec_checks import SpecError, require

Ranges = Mapping[str, tuple[float, float]]
"""Lower and upper limit by name of the joint."""


@dataclass(frozen=True)
class Link:
    """One step from base to tip, as a file has it: a rigid offset, and a joint after it unless it is fixed."""

    name: str
    """Of the joint."""
    kind: Literal["revolute", "prismatic", "fixed"]
    origin: Vector = (0.0, 0.0, 0.0)
    rotation: Quaternion = IDENTITY
    axis: Vector = (0.0, 0.0, 1.0)
    low: float | None = None
    high: float | None = None
    speed: float | None = None
    effort: float | None = None
    mimics: str | None = None
    """The joint that it follows in a fixed ratio, which a chain cannot have."""


@dataclass(frozen=True)
class ArmModel:
    """A chain of joints from a robot's file, with what the file says about each joint."""

    chain: SerialChain
    """From the base to the tip; what a task tracks."""
    joints: tuple[str, ...]
    """Names of the joints that move, from the base outward."""
    position_low: tuple[float, ...]
    """Lower limit per joint, in rad or m."""
    position_high: tuple[float, ...]
    """Upper limit per joint."""
    speed: tuple[float | None, ...]
    """Highest speed per joint, in rad/s or m/s; None where the file has none."""
    effort: tuple[float | None, ...]
    """Highest torque or force per joint, in Nm or N; None where the file has none."""
    file: str = ""
    """Where it was read."""

    @staticmethod
    def from_urdf(
        path: str | Path,
        *,
        tip: str,
        base: str | None = None,
        lever: float = 0.0,
        limits: Ranges | None = None,
        fixed: Mapping[str, float] | None = None,
    ) -> ArmModel:
        """The arm from `base` (by default the root link) to the link `tip` of a URDF file.

        Args:
            path: the file. Meshes, inertias and includes are not looked at.
            tip: name of the link that is tracked.
            base: name of the link in whose frame it is tracked.
            lever: 0 tracks the position; above 0 also the orientation, counting this many metres per radian.
            limits: lower and upper limit by name of the joint, in place of the file's. Continuous joints need them.
            fixed: positions of joints that never move, by name.
        """
        from .urdf import read_urdf

        return build_arm(read_urdf(path, tip=tip, base=base), path, tip, lever, limits or {}, fixed or {})

    @staticmethod
    def from_mjcf(
        path: str | Path,
        *,
        tip: str,
        base: str | None = None,
        lever: float = 0.0,
        limits: Ranges | None = None,
        fixed: Mapping[str, float] | None = None,
    ) -> ArmModel:
        """The arm from `base` (by default the world) to the body or site `tip` of an MJCF file; see `from_urdf`."""
        from .mjcf import read_mjcf

        return build_arm(read_mjcf(path, tip=tip, base=base), path, tip, lever, limits or {}, fixed or {})

    def rate(self, share: float = 0.8) -> tuple[float, ...]:
        """A share of each joint's highest speed: what references may ask for."""
        for name, speed in zip(self.joints, self.speed):  # noqa: B905 (Python 3.10)
            require(
                speed is not None,
                f"{self.file}: the joint {name!r} has no velocity limit; give rate yourself, in rad/s or m/s per joint",
            )
        return tuple(share * speed for speed in self.speed if speed is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what such an arm measures: all positions, then all velocities."""
        return (*(f"{name}.position" for name in self.joints), *(f"{name}.velocity" for name in self.joints))

    @property
    def units(self) -> tuple[str, ...]:
        """Units of the joints."""
        positions = tuple("rad" if joint.kind == "revolute" else "m" for joint in self.chain.joints)
        return (*positions, *(f"{unit}/s" for unit in positions))

    @property
    def middle(self) -> tuple[float, ...]:
        """The middle of each joint's range."""
        return tuple((a + b) / 2 for a, b in zip(self.position_low, self.position_high))  # noqa: B905


def build_arm(
    links: Sequence[Link], path: str | Path, tip: str, lever: float, limits: Ranges, fixed: Mapping[str, float]
) -> ArmModel:
    """The arm of these links from the base outward, with the caller's limits and fixed joints in place of the file's.

    Raise `SpecError` for limits that are missing or wrong, and for a tip that no joint moves.
    """
    moving_names = [link.name for link in links if link.kind != "fixed"]
    for what, given in (("limits", limits), ("fixed", fixed)):
        for name in given:
            known = ", ".join(moving_names) or "none"
            require(name in moving_names, f"{path}: {what} names {name!r}, but the joints up to {tip!r} are: {known}")
    joints: list[ChainJoint] = []
    moving: list[Link] = []
    at, turn = (0.0, 0.0, 0.0), IDENTITY  # from the last joint that moves
    for link in links:
        at = _add(at, rotate(turn, link.origin))
        turn = unit_quaternion(multiply(turn, link.rotation))
        if link.kind == "fixed":
            continue
        if link.name in fixed:
            value = float(fixed[link.name])
            require(math.isfinite(value), f"fixed[{link.name!r}] is {value}, but must be a finite number")
            if link.kind == "revolute":
                turn = unit_quaternion(multiply(turn, quaternion_about(link.axis, value)))
            else:
                x, y, z = link.axis
                at = _add(at, rotate(turn, (value * x, value * y, value * z)))
            continue
        require(
            link.mimics is None,
            f"{path}: the joint {link.name!r} mimics {link.mimics!r}, but the joints of a chain must move on their "
            f"own; name a tip before it, or hold it: fixed={{{link.name!r}: 0.0}}",
        )
        joints.append(ChainJoint(link.kind, at, turn, link.axis))
        moving.append(_with_limits(link, path, limits))
        at, turn = (0.0, 0.0, 0.0), IDENTITY
    require(
        len(joints) > 0,
        f"{path}: no joint moves {tip!r}; name a tip beyond a joint that moves" + _moving_hint(links, fixed),
    )
    arm = ArmModel(
        chain=SerialChain(tuple(joints), tip=at, tip_rotation=turn),
        joints=tuple(link.name for link in moving),
        position_low=tuple(float(link.low or 0.0) for link in moving),
        position_high=tuple(float(link.high or 0.0) for link in moving),
        speed=tuple(link.speed for link in moving),
        effort=tuple(link.effort for link in moving),
        file=str(path),
    )
    if lever:
        arm = dataclasses.replace(arm, chain=_with_orientation(arm, lever))
    _check_moves(arm, tip)
    return arm


def _moving_hint(links: Iterable[Link], fixed: Mapping[str, float]) -> str:
    held = [link.name for link in links if link.name in fixed]
    return f" (fixed holds {', '.join(held)})" if held else ""


def _add(first: Vector, second: Vector) -> Vector:
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


def _with_limits(link: Link, path: str | Path, limits: Ranges) -> Link:
    """The joint with its limits, the caller's before the file's."""
    where = f"{path}: the joint {link.name!r}"
    if link.name in limits:
        pair = tuple(float(value) for value in limits[link.name])
        require(len(pair) == 2, f"limits[{link.name!r}] has {len(pair)} entries, but must have two, low and high")
        link = dataclasses.replace(link, low=pair[0], high=pair[1])
    if link.low is None or link.high is None:
        raise SpecError(f"{where} has no position limits; give them in rad or m: limits={{{link.name!r}: (low, high)}}")
    require(
        math.isfinite(link.low) and math.isfinite(link.high) and link.low < link.high,
        f"{where} has limits from {link.low:g} to {link.high:g}, but the lower must be below the upper; give "
        f"limits={{{link.name!r}: (low, high)}}",
    )
    for what, value in (("velocity", link.speed), ("effort", link.effort)):
        require(value is None or value > 0, f"{where} has a {what} limit of {value}, but it must be above 0")
    return link


def _with_orientation(arm: ArmModel, lever: float) -> SerialChain:
    """Orientation counted from that in the middle of the joints' ranges."""
    turn = IDENTITY
    for joint, value in zip(arm.chain.joints, arm.middle):  # noqa: B905 (Python 3.10)
        turn = multiply(turn, joint.rotation)
        if joint.kind == "revolute":
            turn = multiply(turn, quaternion_about(joint.axis, value))
    rest = unit_quaternion(multiply(turn, arm.chain.tip_rotation))
    return dataclasses.replace(arm.chain, lever=float(lever), rest=rest)


def _check_moves(arm: ArmModel, tip: str) -> None:
    if len(idle_joints(arm)) == len(arm.joints):
        raise SpecError(
            f"{arm.file}: no joint moves the position of {tip!r}: it lies on the axis of {', '.join(arm.joints)}; name "
            "a tip beyond, or track its orientation with lever=0.1"
        )


STILL = 1e-9
"""A tip that moves by less, in metres per radian or per metre, counts as not moved by that joint."""


def idle_joints(arm: ArmModel) -> tuple[str, ...]:
    """Names of joints that move no tracked output anywhere in their ranges (looked at in 32 random places)."""
    low, high = np.asarray(arm.position_low), np.asarray(arm.position_high)
    places = np.random.default_rng(0).uniform(low, high, (32, len(low)))
    moved = np.max([np.abs(serial_jacobian(arm.chain, place)).max(axis=0) for place in places], axis=0)
    return tuple(name for name, most in zip(arm.joints, moved) if most < STILL)  # noqa: B905
