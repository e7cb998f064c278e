"""A light reader of URDF: the joints from a base link to a tip link. Geometry and inertia are skipped."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal
from xml.etree.ElementTree import Element

from .arm_model import Link
from .robot_xml import RobotFile, list_names
from .rotations import quaternion_of_rpy

MOVING: dict[str, Literal["revolute", "prismatic"]] = {
    "revolute": "revolute",
    "continuous": "revolute",
    "prismatic": "prismatic",
}
TYPES = (*MOVING, "fixed")


def read_urdf(path: str | Path, *, tip: str, base: str | None = None) -> list[Link]:
    """The joints from `base` (by default the root) to `tip`. Raise `SpecError` for what is not a serial chain."""
    file = RobotFile(path)
    root = file.root
    _check_root(file, root)
    links = [element.get("name", "") for element in root.findall("link")]
    if not links:
        file.fail("it has no links; a URDF file has <link name=…> elements")
    above = _joints_by_child(file, root, links)
    for what, name in (("tip", tip), ("base", base)):
        if name is not None and name not in links:
            file.fail(f"{what} is {name!r}, but the links are: {list_names(links)}")
    path_up: list[Element] = []
    at, seen = tip, {tip}
    while at != base and at in above:
        joint = above[at]
        path_up.append(joint)
        at = _end(joint, "parent")
        if at in seen:
            file.fail(f"the links form a loop through {at!r}, but only a chain from a base to a tip can be computed")
        seen.add(at)
    if base is not None and at != base:
        file.fail(f"base is {base!r}, which is not between the root and the tip {tip!r}: these are {list_names(seen)}")
    return [_link(file, joint) for joint in reversed(path_up)]


def _check_root(file: RobotFile, root: Element) -> None:
    tags = {element.tag for element in root.iter()}
    if any(tag.startswith("xacro:") for tag in tags):
        file.fail(f"it is a xacro macro, not a URDF file yet; expand it first: xacro {file.name} > robot.urdf")
    if root.tag == "mujoco":
        file.fail("it is an MJCF file; read it with from_mjcf")
    if root.tag != "robot":
        file.fail(f"it begins with <{root.tag}>, but a URDF file begins with <robot>")


def _end(joint: Element, which: str) -> str:
    element = joint.find(which)
    return "" if element is None else element.get("link", "")


def _joints_by_child(file: RobotFile, root: Element, links: list[str]) -> dict[str, Element]:
    """The joint that leads to each link. A link that two joints lead to closes a loop."""
    above: dict[str, Element] = {}
    for joint in root.findall("joint"):
        name = joint.get("name", "")
        for which in ("parent", "child"):
            end = _end(joint, which)
            if end not in links:
                file.fail(f"the {which} of joint {name!r} is the link {end!r}, but the links are: {list_names(links)}")
        child = _end(joint, "child")
        if child in above:
            file.fail(
                f"the link {child!r} is the child of two joints, {above[child].get('name')!r} and {name!r}: it closes "
                "a loop, but only a chain from a base to a tip can be computed"
            )
        above[child] = joint
    return above


def _link(file: RobotFile, joint: Element) -> Link:
    name, kind = joint.get("name", ""), joint.get("type", "")
    of = f"joint {name!r}"
    if kind in ("floating", "planar"):
        file.fail(
            f"{of} is {kind}: the base moves freely, but a chain needs a fixed base; name the link after it as base: "
            f"base={_end(joint, 'child')!r}"
        )
    if kind not in TYPES:
        file.fail(f"{of} has the type {kind!r}, but must be one of {', '.join(TYPES)}")
    origin = joint.find("origin")
    place, angles = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
    if origin is not None:
        place = file.numbers(origin, "xyz", place, f"the origin of {of}")
        angles = file.numbers(origin, "rpy", angles, f"the origin of {of}")
    x, y, z = place
    link = Link(name, "fixed", (x, y, z), quaternion_of_rpy(*angles))
    if kind == "fixed":
        return link
    mimic = joint.find("mimic")
    link = replace(link, kind=MOVING[kind], axis=_axis(file, joint, of))
    link = replace(link, mimics=None if mimic is None else mimic.get("joint", ""))
    limit = joint.find("limit")
    if limit is None:
        return link
    if kind != "continuous":  # a missing lower or upper limit means 0
        lower, upper = (file.numbers(limit, side, (0.0,), f"the limit of {of}")[0] for side in ("lower", "upper"))
        link = replace(link, low=lower, high=upper)
    speed, effort = (file.number(limit, what, f"the limit of {of}") for what in ("velocity", "effort"))
    return replace(link, speed=speed or None, effort=effort or None)  # exporters write 0 for what they do not know


def _axis(file: RobotFile, joint: Element, of: str) -> tuple[float, float, float]:
    element = joint.find("axis")
    x, y, z = (1.0, 0.0, 0.0) if element is None else file.numbers(element, "xyz", (1.0, 0.0, 0.0), f"the axis of {of}")
    length = math.sqrt(x * x + y * y + z * z)
    if not length > 1e-9:
        file.fail(f"the axis of {of} has no length, but must point somewhere")
    return x / length, y / length, z / length
