"""A robot's answers, read strictly: a value that is missing, of the wrong kind or out of range is a `LinkError`.

An answer may come from another kind of program, or from an attacker. Values read here are safe to print, to index with
and to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .messages import Message, printable
from .network import LinkError
from .spec import ControlSpec, SpecError

STATES = ("idle", "armed", "moving", "fault")
MAX_COUNT = 1 << 20
"""Trajectories of a job."""
MAX_ENTRIES = 1 << 16
"""Of an array whose length only the policy knows."""


def refusal(message: Message) -> str:
    """Why something was refused."""
    return printable(message.body.get("why", "no reason was given"))


class _Fields:
    """The fields of an answer's body, by kind."""

    def __init__(self, what: str, body: Any) -> None:
        if not isinstance(body, Mapping):
            raise LinkError(f"the robot's {what} is not an answer of this program's kind")
        self._what, self._body = what, body

    def text(self, name: str) -> str:
        return printable(self._get(name, str, "a text"))

    def flag(self, name: str) -> bool:
        return self._get(name, bool, "true or false")

    def whole(self, name: str, below: int) -> int:
        value = self._get(name, int, "a whole number")
        if isinstance(value, bool) or not 0 <= value < below:
            raise self._wrong(name, f"a whole number below {below}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = self._get(name, (int, float), "a number")
        if isinstance(value, bool) or not low <= value <= high:  # NaN is not inside either
            raise self._wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def _get(self, name: str, kind: Any, wanted: str) -> Any:
        value = self._body.get(name)
        if not isinstance(value, kind):
            raise self._wrong(name, wanted)
        return value

    def _wrong(self, name: str, wanted: str) -> LinkError:
        shown = printable(repr(self._body.get(name))[:60])
        return LinkError(f"the robot's {self._what} has {shown} for {name}, but it must be {wanted}")


@dataclass(frozen=True)
class JobStatus:
    """How far the newest job is."""

    name: str
    kind: str
    ended: str
    """Empty while it runs."""
    count: int
    """Trajectories so far."""
    away: float | None
    """After homing: how far from home it ended, as a share of a joint's range; None where that is not known."""
    ahead: int
    """Points of a stream of work that are known and not reached yet; 0 for another job."""


@dataclass(frozen=True)
class Status:
    """The activity of a machine."""

    state: str
    fault: str
    fault_number: int
    yours: bool
    taken: bool
    job: JobStatus | None


def read_status(message: Message) -> Status:
    """The machine's status in an answer."""
    fields = _Fields("status", message.body)
    state, job = fields.text("state"), message.body.get("job")
    if state not in STATES:
        raise LinkError(f"the robot says that it is {state[:60]!r}, but it can be {', '.join(STATES)}")
    return Status(
        state,
        fields.text("fault"),
        fields.whole("fault_number", 1 << 53),
        fields.flag("yours"),
        fields.flag("taken"),
        None if job is None else _read_job(job),
    )


def _read_job(body: Any) -> JobStatus:
    fields = _Fields("job", body)
    known = body.get("away") is not None
    away = fields.number("away", 0.0, math.inf) if known else None
    ahead = fields.whole("ahead", MAX_COUNT) if "ahead" in body else 0
    return JobStatus(
        fields.text("name"), fields.text("kind"), fields.text("ended"), fields.whole("count", MAX_COUNT), away, ahead
    )


@dataclass(frozen=True)
class About:
    """A robot program's description of itself, in answer to a greeting."""

    spec: ControlSpec
    machine: str
    """Identity of the machine; empty if it is not known."""
    lock_step: bool
    can_reset: bool
    homes: bool
    lease_s: float
    proves: bool
    """Whether it can prove who the machine is."""


def read_about(message: Message) -> About:
    """The content of an answer to hello."""
    if message.kind == "refused":
        raise LinkError(refusal(message))
    fields = _Fields("greeting", message.body)
    try:
        spec = ControlSpec.from_json(str(message.body.get("spec")))
    except SpecError as error:
        raise LinkError(f"the robot's specification cannot be used: {printable(error)}") from None
    machine = fields.text("machine") if "machine" in message.body else ""
    return About(
        spec,
        machine,
        fields.flag("lock_step"),
        fields.flag("can_reset"),
        fields.flag("homes"),
        fields.number("lease_s", 0.05, 60.0),
        message.body.get("proves") is True,
    )


def read_measured(spec: ControlSpec, message: Message) -> np.ndarray:
    """The measurement in an answer; NaN where a value is missing."""
    wanted = (spec.layout.num_measured,)
    measured = message.arrays.get("measured")
    if measured is None or measured.shape != wanted or measured.dtype == bool:
        raise LinkError(f"the robot's answer has no measurement of {wanted[0]} numbers")
    return _single(measured)


@dataclass(frozen=True)
class SentTrajectory:
    """One trajectory of a job, as it came."""

    job: str
    index: int
    ended: str
    arrays: Mapping[str, np.ndarray]


def read_trajectory(spec: ControlSpec, message: Message, steps: int) -> SentTrajectory:
    """A trajectory of `steps` steps; another shape, or commands that no gate lets out, are refused."""
    fields = _Fields("trajectory", message.body)
    layout, limits, arrays = spec.layout, spec.limits, message.arrays
    points = len(arrays["reference"]) if "reference" in arrays and arrays["reference"].ndim else 0
    shapes = {
        "start": (layout.size,),
        "measured": (steps + 1, layout.num_measured),
        "commands": (steps, layout.num_commands),
        "reference": (max(points, steps), spec.num_outputs),
        "free": (steps, layout.num_commands),
        "valid": (steps,),
    }
    if "restarts" in arrays:
        shapes["restarts"] = (layout.num_measured,)
    if "memory" in arrays:
        shapes["memory"] = (min(arrays["memory"].size, MAX_ENTRIES),)
    found = {}
    for name, shape in shapes.items():
        array = arrays.get(name)
        if array is None or array.shape != shape or (array.dtype == bool) != (name in ("free", "valid")):
            there = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise LinkError(f"the robot's trajectory has {there} as {name}, but it must be of shape {shape}")
        found[name] = array if array.dtype == bool else _single(array)
    low, high = (np.asarray(v, float) for v in (limits.command_low, limits.command_high))
    slack = 1e-5 * (high - low)
    if not ((low - slack <= found["commands"]) & (found["commands"] <= high + slack)).all():
        raise LinkError("the robot's trajectory has commands outside their range")
    return SentTrajectory(fields.text("job"), fields.whole("index", MAX_COUNT), fields.text("ended"), found)


def _single(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
