"""A light reader of MJCF, MuJoCo's own format: the joints from a base body to a tip body or site.

Defaults and their classes, nested frames, and every way of writing a rotation are understood. Geometry, inertia and
contacts are skipped. Included and attached files are refused: save the compiled model as one file first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from .arm_model import Link
from .robot_xml import RobotFile, list_names
from .rotations import (
    IDENTITY,
    Quaternion,
    Vector,
    multiply,
    quaternion_about,
    quaternion_of_matrix,
    unit_quaternion,
)

MIXED = ("include", "attach", "model", "replicate", "composite", "flexcomp")
"""Elements that bring bodies from elsewhere, or make them."""
JOINT_TYPES = ("hinge", "slide", "ball", "free")
ACTUATORS = (
    "general",
    "motor",
    "position",
    "velocity",
    "intvelocity",
    "damper",
    "cylinder",
    "muscle",
    "adhesion",
    "dcmotor",
)
"""Elements that are actuators; in a class of defaults all of them set the same fields, as in MuJoCo."""
AXES = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}


def read_mjcf(path: str | Path, *, tip: str, base: str | None = None) -> list[Link]:
    """The joints from `base` (by default the world) to `tip`. Raise `SpecError` for what is not a serial chain."""
    return _Model(RobotFile(path)).links(tip, base)


class _Defaults(NamedTuple):
    """Attributes that a class gives to joints and to actuators."""

    joint: dict[str, str]
    actuator: dict[str, str]


class _Model:
    """The file with what holds for all of it: units, defaults, where everything hangs."""

    def __init__(self, file: RobotFile) -> None:
        self.file, root = file, file.root
        if root.tag == "robot":
            file.fail("it is a URDF file; read it with from_urdf")
        if root.tag != "mujoco":
            file.fail(f"it begins with <{root.tag}>, but an MJCF file begins with <mujoco>")
        for element in root.iter():
            if element.tag in MIXED:
                file.fail(
                    f"it has <{element.tag}>, but must be one file with every body written out; save it so with "
                    "MuJoCo: mujoco.mj_saveLastXML('robot.xml', mujoco.MjModel.from_xml_path(…))"
                )
        compiler = {name: value for element in root.findall("compiler") for name, value in element.items()}
        self.in_degrees = compiler.get("angle", "degree") == "degree"
        self.euler = compiler.get("eulerseq", "xyz")
        self.has_auto_limits = compiler.get("autolimits", "true") == "true"
        if compiler.get("coordinate", "local") != "local":
            file.fail("its compiler uses coordinate='global', which MuJoCo has given up, too; write local coordinates")
        if len(self.euler) != 3 or any(letter not in "xyzXYZ" for letter in self.euler):
            file.fail(f"eulerseq is {self.euler!r}, but must be three of the letters x, y, z, X, Y, Z")
        self.defaults: dict[str, _Defaults] = {"main": _Defaults({}, {})}
        for element in root.findall("default"):
            self._read_defaults(element, self.defaults["main"], "main")
        worlds = root.findall("worldbody")
        if not worlds:
            file.fail("it has no <worldbody>")
        self.bodies: dict[str, list[tuple[Element, str | None]]] = {}
        """By name of a body: elements from the world to it, each with the class of defaults inside it."""
        self.sites: dict[str, list[tuple[Element, str | None]]] = {}
        for world in worlds:
            self._read_bodies(world, [], None)

    def _read_defaults(self, element: Element, inherited: _Defaults, name: str) -> None:
        name = element.get("class", name)
        own = _Defaults(dict(inherited.joint), dict(inherited.actuator))
        for child in element:
            if child.tag == "joint":
                own.joint.update(child.items())
            elif child.tag in ACTUATORS:
                own.actuator.update(child.items())
        self.defaults[name] = own
        for inner in element.findall("default"):
            self._read_defaults(inner, own, name)

    def _read_bodies(self, element: Element, above: list[tuple[Element, str | None]], kind: str | None) -> None:
        for child in element:
            if child.tag in ("body", "frame"):
                here = [*above, (child, child.get("childclass", kind))]
                if child.tag == "body":
                    self.bodies[child.get("name", f"body {len(self.bodies)}")] = here
                self._read_bodies(child, here, child.get("childclass", kind))
            elif child.tag == "site" and child.get("name"):
                self.sites[child.get("name", "")] = [*above, (child, kind)]

    def links(self, tip: str, base: str | None) -> list[Link]:
        """From `base` to `tip`."""
        known = {**self.sites, **self.bodies}
        if tip not in known:
            self.file.fail(f"tip is {tip!r}, but the bodies and sites are: {list_names(known)}")
        way = known[tip]
        if base is not None and base != "world":
            if base not in self.bodies:
                self.file.fail(f"base is {base!r}, but the bodies are: {list_names(self.bodies)}")
            last = self.bodies[base][-1][0]
            places = [i for i, (element, _) in enumerate(way) if element is last]
            if not places:
                inside = [e.get("name", "?") for e, _ in way if e.tag == "body"]
                self.file.fail(f"base is {base!r}, which is not between the world and the tip: {', '.join(inside)}")
            way = way[places[0] + 1 :]
        found = [link for element, kind in way for link in self._steps(element, kind)]
        self._check_loops(way)
        efforts, speeds, followers = self._actuators(), self._speeds(), self._followers()
        return [
            replace(
                link,
                effort=link.effort if link.effort is not None else efforts.get(link.name),
                speed=speeds.get(link.name),
                mimics=followers.get(link.name),
            )
            for link in found
        ]

    def _steps(self, element: Element, kind: str | None) -> list[Link]:
        """The offset of a body, frame or site, then its joints."""
        name = element.get("name", element.tag)
        of = f"{element.tag} {name!r}"
        x, y, z = self.file.numbers(element, "pos", (0.0, 0.0, 0.0), of)
        steps = [Link(f"offset of {name}", "fixed", (x, y, z), self._rotation(element, of))]
        if element.tag != "body":
            if element.find("joint") is not None:
                self.file.fail(f"a joint stands inside {of}, but must stand in its body; save it so with MuJoCo")
            return steps
        if element.find("freejoint") is not None:
            self._refuse_free(name)
        for i, joint in enumerate(element.findall("joint")):
            steps.extend(self._joint(joint, kind, f"{name} joint {i}", name))
        return steps

    def _refuse_free(self, body: str) -> None:
        self.file.fail(
            f"the body {body!r} has a free joint: the base floats, but a chain needs a fixed base; name that body as "
            f"base: base={body!r}"
        )

    def _joint(self, element: Element, kind: str | None, default_name: str, body: str) -> list[Link]:
        """A joint; one that is anchored away from its body's origin comes with an offset there and back."""
        values = Element("joint", {**self._default(element.get("class", kind)).joint, **element.attrib})
        name = values.get("name", default_name)
        of, file = f"joint {name!r}", self.file
        form = values.get("type", "hinge")
        if form == "free":
            self._refuse_free(body)
        if form == "ball":
            file.fail(f"{of} is a ball joint, but a chain has hinge and slide joints only")
        if form not in JOINT_TYPES:
            file.fail(f"{of} has the type {form!r}, but must be hinge or slide")
        x, y, z = file.numbers(values, "axis", (0.0, 0.0, 1.0), of)
        length = math.sqrt(x * x + y * y + z * z)
        if not length > 1e-9:
            file.fail(f"the axis of {of} has no length, but must point somewhere")
        axis = (x / length, y / length, z / length)
        unit = math.pi / 180 if self.in_degrees and form == "hinge" else 1.0
        reference = unit * file.numbers(values, "ref", (0.0,), of)[0]
        low, high = (None, None)
        limited = values.get("limited", "auto")
        if limited == "true" or (limited == "auto" and self.has_auto_limits and values.get("range") is not None):
            low, high = (unit * value for value in file.numbers(values, "range", (0.0, 0.0), of))
        effort = None
        if values.get("actuatorfrcrange") is not None:
            effort = max(abs(value) for value in file.numbers(values, "actuatorfrcrange", (0.0, 0.0), of))
        px, py, pz = file.numbers(values, "pos", (0.0, 0.0, 0.0), of)
        if form == "slide":
            back = (-reference * axis[0], -reference * axis[1], -reference * axis[2])
            return [Link(name, "prismatic", back, IDENTITY, axis, low, high, effort=effort)]
        turned_back = quaternion_about(axis, -reference)
        joint = Link(name, "revolute", (px, py, pz), turned_back, axis, low, high, effort=effort)
        if (px, py, pz) == (0.0, 0.0, 0.0):
            return [joint]
        return [joint, Link(f"anchor of {name}", "fixed", (-px, -py, -pz))]

    def _default(self, kind: str | None) -> _Defaults:
        name = kind or "main"
        if name not in self.defaults:
            self.file.fail(f"there is no default class {name!r}; the classes are: {list_names(self.defaults)}")
        return self.defaults[name]

    def _rotation(self, element: Element, of: str) -> Quaternion:
        file, unit = self.file, math.pi / 180 if self.in_degrees else 1.0
        if element.get("quat") is not None:
            values = file.numbers(element, "quat", IDENTITY, of)
            if not sum(value * value for value in values) > 1e-12:
                file.fail(f"quat of {of} has no length")
            return unit_quaternion(values)
        if element.get("euler") is not None:
            turn = IDENTITY
            for letter, angle in zip(self.euler, file.numbers(element, "euler", (0.0, 0.0, 0.0), of)):  # noqa: B905
                about = quaternion_about(AXES[letter.lower()], unit * angle)
                turn = multiply(turn, about) if letter.islower() else multiply(about, turn)
            return unit_quaternion(turn)
        if element.get("axisangle") is not None:
            x, y, z, angle = file.numbers(element, "axisangle", (0.0,) * 4, of)
            return quaternion_about(_unit_vector(file, np.asarray([x, y, z]), of), unit * angle)
        if element.get("xyaxes") is not None:
            values = np.asarray(file.numbers(element, "xyaxes", (0.0,) * 6, of))
            first = np.asarray(_unit_vector(file, values[:3], of))
            second = np.asarray(_unit_vector(file, values[3:] - first * (first @ values[3:]), of))
            return quaternion_of_matrix(np.stack([first, second, np.cross(first, second)], axis=1))
        if element.get("zaxis") is not None:
            target = np.asarray(_unit_vector(file, np.asarray(file.numbers(element, "zaxis", (0.0,) * 3, of)), of))
            across = np.cross([0.0, 0.0, 1.0], target)
            sine = float(np.linalg.norm(across))
            axis = across / sine if sine > 1e-10 else np.asarray([1.0, 0.0, 0.0])
            return quaternion_about(axis.tolist(), math.atan2(sine, float(target[2])))
        return IDENTITY

    def _check_loops(self, way: list[tuple[Element, str | None]]) -> None:
        """Constraints that close a loop through a body of the chain."""
        bodies = {element.get("name") for element, _ in way if element.tag == "body"}
        for element in self.file.root.iter():
            if element.tag in ("connect", "weld") and element.get("active", "true") == "true":
                ends = [element.get(name) for name in ("body1", "body2", "site1", "site2")]
                closed = [end for end in ends if end in bodies]
                if closed and element.get("body1") is not None:
                    self.file.fail(
                        f"the constraint <{element.tag}> holds the body {closed[0]!r}: it closes a loop, but only a "
                        "chain from a base to a tip can be computed"
                    )

    def _followers(self) -> dict[str, str]:
        """Joints that follow another one by an equality constraint."""
        found = {}
        for equality in self.file.root.findall("equality"):
            for joint in equality.findall("joint"):
                if joint.get("joint2") is not None and joint.get("active", "true") == "true":
                    found[joint.get("joint1", "")] = joint.get("joint2", "")
        return found

    def _actuators(self) -> dict[str, float]:
        """The largest force of the actuator of each joint, through its gear."""
        found: dict[str, float] = {}
        for actuator, of in self._all_actuators():
            field = "forcerange" if self._is_limited(actuator, "force") else "ctrlrange"
            if field == "ctrlrange" and not (actuator.tag == "motor" and self._is_limited(actuator, "ctrl")):
                continue
            most = max(abs(value) for value in self.file.numbers(actuator, field, (0.0, 0.0), of))
            most *= self._gear(actuator, of)
            if most > 0:
                found[actuator.get("joint", "")] = most
        return found

    def _all_actuators(self) -> list[tuple[Element, str]]:
        """Actuators of joints with the defaults of their classes filled in, and how to speak of each."""
        found = []
        for element in [actuator for actuators in self.file.root.findall("actuator") for actuator in actuators]:
            actuator = Element(element.tag, {**self._default(element.get("class")).actuator, **element.attrib})
            if actuator.get("joint") is not None:
                found.append((actuator, f"actuator {actuator.get('name', actuator.tag)!r}"))
        return found

    def _is_limited(self, actuator: Element, what: str) -> bool:
        """Whether `forcerange` or `ctrlrange` holds."""
        limited = actuator.get(f"{what}limited", "auto")
        given = actuator.get(f"{what}range") is not None
        return given and (limited == "true" or (limited == "auto" and self.has_auto_limits))

    def _gear(self, actuator: Element, of: str) -> float:
        """The size of the ratio from joint to actuator: forces are multiplied by it, speeds divided."""
        first = Element("gear", {"gear": (actuator.get("gear", "").split() or ["1"])[0]})
        return abs(self.file.numbers(first, "gear", (1.0,), of)[0])

    def _speeds(self) -> dict[str, float]:
        """The largest speed that a velocity actuator may ask of its joint, through its gear."""
        found = {}
        for actuator, of in self._all_actuators():
            if actuator.tag == "velocity" and self._is_limited(actuator, "ctrl"):
                most = max(abs(value) for value in self.file.numbers(actuator, "ctrlrange", (0.0, 0.0), of))
                gear = self._gear(actuator, of)
                if most > 0 and gear > 0:
                    found[actuator.get("joint", "")] = most / gear
        return found


def _unit_vector(file: RobotFile, values: np.ndarray, of: str) -> Vector:
    length = float(np.linalg.norm(values))
    if not length > 1e-9:
        file.fail(f"an axis of {of} has no length, but must point somewhere")
    x, y, z = (values / length).tolist()
    return x, y, z
