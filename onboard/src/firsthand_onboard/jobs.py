"""Policies and jobs that trainers send, checked before anything moves."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .base_control import NumpyBase, base_from_arrays, has_base
from .homing import MAX_STEPS, HomingController
from .loop import Trajectory
from .messages import MAX_PAYLOAD, Message, Refusal
from .numpy_observer import NumpyController, NumpyObserver, has_observer, observer_from_arrays
from .policy import NumpyPolicy
from .signing import Signer
from .spec import ControlSpec
from .streams import Stream, check_points

JOB_NAME = re.compile(r"[A-Za-z0-9_.: -]{1,64}")
MAX_POLICIES = 4
"""How many policies the robot keeps; the oldest go first."""


@dataclass
class Job:
    """Something to execute, and what came of it."""

    name: str
    kind: str
    """`visit` goals, `follow` a reference, `play` commands, go `home`, follow a `stream` of work; or `recover`, for
    which an operator asks."""
    arrays: Mapping[str, np.ndarray]
    controller: NumpyController | None
    authority: float
    asked: Message
    """The message that asked for it: trajectories go to its sender."""
    count: int
    """How many trajectories it has."""
    ended: str = ""
    """Empty while it runs, then `done` or why it ended."""
    trajectories: list[Trajectory | None] = field(default_factory=list)
    """What it did; None for what a stream has done long ago."""
    stream: Stream | None = None
    """The work that is known so far, of a stream."""
    newest_work: Any = None
    """Number of the newest work that was added to it."""
    policy: str = ""
    """Digest of the policy that runs the next chunk of a stream."""
    policies: list[str] = field(default_factory=list)
    """Digest of the policy that ran each chunk."""


def policy_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a policy's weights, and of its observer's: names, shapes and float32 bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], "<f4")
        digest.update(f"{name} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def trajectory_bytes(spec: ControlSpec, steps: int) -> int:
    """The size of the message that carries a trajectory of `steps` steps, as an upper bound."""
    layout = spec.layout
    per_step = 4 * (layout.num_measured + layout.num_commands + spec.num_outputs) + layout.num_commands + 1
    return per_step * (steps + 1 + spec.preview[-1]) + 4 * (layout.size + layout.num_measured) + 8192


class PolicyStore:
    """The newest policies that trainers have sent, by their digest."""

    def __init__(self, spec: ControlSpec, signer: Signer | None = None) -> None:
        self.spec, self.signer = spec, signer
        self._policies: OrderedDict[str, NumpyController] = OrderedDict()

    def add(self, message: Message) -> str:
        """Check and keep the policy in a message; returns its digest."""
        if message.body.get("spec") != self.spec.digest():
            raise Refusal("the policy was made for another control specification than this robot's")
        digest = policy_digest(message.arrays)
        if message.body.get("digest") != digest:
            raise Refusal("the policy's weights do not have the digest that was announced")
        signature = message.body.get("signature")
        if self.signer is not None and not self.signer.has_signed_policy(self.spec.digest(), digest, signature):
            what = "is not signed" if signature is None else "is signed by somebody else"
            raise Refusal(f"the policy {what}, and this robot runs only policies of its signer (policy.key)")
        try:
            names = range(len(self.spec.policy.hidden) + 1)
            layers = [(message.arrays[f"policy.{i}.weight"], message.arrays[f"policy.{i}.bias"]) for i in names]
        except KeyError as error:
            raise Refusal(f"the policy lacks {error}") from None
        base = None
        if has_base(message.arrays):
            base = NumpyBase(self.spec, base_from_arrays(self.spec, message.arrays))
        policy, observer = NumpyPolicy(self.spec, layers, base), None
        if has_observer(message.arrays):
            observer = NumpyObserver(self.spec, *observer_from_arrays(self.spec, message.arrays))
        self._policies[digest] = NumpyController(policy, observer)
        while len(self._policies) > MAX_POLICIES:
            self._policies.popitem(last=False)
        return digest

    def find(self, digest: object) -> NumpyController | None:
        """The policy with this digest and its observer, if they are still here."""
        return self._policies.get(str(digest))


@dataclass(frozen=True)
class _Extent:
    """How long a job is, and which arrays it may bring; the first of them is required."""

    count: int
    """Trajectories."""
    length: int
    """Control steps of all trajectories together."""
    shapes: Mapping[str, tuple[int, ...]]


class JobReader:
    """Turns messages into jobs for one machine; `Refusal` says what is wrong with a message."""

    def __init__(self, spec: ControlSpec, policies: PolicyStore, homing: HomingController | None) -> None:
        self.spec, self.policies, self.homing = spec, policies, homing

    def read(self, message: Message, measured: np.ndarray) -> Job:
        """The job that a message asks for, of a machine that measures `measured` now."""
        body, arrays = message.body, message.arrays
        name, kind, authority = body.get("name"), body.get("kind"), body.get("authority", 1.0)
        if not isinstance(name, str) or not JOB_NAME.fullmatch(name):
            raise Refusal("a job needs a name of 1 to 64 letters, digits, blanks or _.:-")
        if isinstance(authority, bool) or not isinstance(authority, (int, float)) or not 0 < authority <= 1:
            raise Refusal(f"authority is {authority!r}, but must be above 0 and at most 1")
        if kind == "stream":
            return self._stream(message, name, float(authority), measured)
        extent = self._extent(kind, arrays, measured)
        required = next(iter(extent.shapes), "home")
        if (extent.shapes and required not in arrays) or not 1 <= extent.length <= MAX_STEPS:
            raise Refusal(f"{required} asks for {extent.length} steps, but a job has 1 to {MAX_STEPS}")
        single = self._read_arrays(str(kind), arrays, extent.shapes)
        steps = extent.length // extent.count
        if trajectory_bytes(self.spec, steps) > MAX_PAYLOAD:
            raise Refusal(f"{required} asks for {steps} steps at once, more than one message can bring back")
        controller = self.policies.find(body.get("policy"))
        if kind in ("visit", "follow") and controller is None:
            raise Refusal("the policy is not known here; send it first")
        return Job(name, str(kind), single, controller, float(authority), message, extent.count)

    def _stream(self, message: Message, name: str, authority: float, measured: np.ndarray) -> Job:
        """A stream of work begins; its first points must be there."""
        if not np.isfinite(measured).all():
            raise Refusal("the machine does not measure where it is")
        stream = Stream(self.spec, check_points(message.arrays), measured)
        digest = message.body.get("policy")
        controller = self.policies.find(digest)
        if controller is None:
            raise Refusal("the policy is not known here; send it first")
        return Job(name, "stream", {}, controller, authority, message, 0, stream=stream, policy=str(digest))

    def _extent(self, kind: Any, arrays: Mapping[str, np.ndarray], measured: np.ndarray) -> _Extent:
        spec = self.spec
        commands, steps = spec.layout.num_commands, spec.reference.steps
        if kind == "visit":
            count = _rows(arrays, "goals")
            return _Extent(
                count, count * steps, {"goals": (count, spec.goal_size), "excitation": (count, steps, commands)}
            )
        if kind == "follow":
            points = _rows(arrays, "reference")
            return _Extent(1, points - spec.preview[-1], {"reference": (points, spec.num_outputs)})
        if kind == "play":
            length = _rows(arrays, "commands")
            return _Extent(1, length, {"commands": (length, commands)})
        if kind == "home":
            if self.homing is None or not np.isfinite(measured).all():
                raise Refusal("this machine holds between episodes: it is not served with --between home")
            return _Extent(1, self.homing.num_steps(measured), {})
        raise Refusal(f"a job of kind {str(kind)[:40]!r} is unknown")

    @staticmethod
    def _read_arrays(
        kind: str, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused
            single = {key: array.astype(np.float32) for key, array in arrays.items()}
        for key, array in arrays.items():
            fits = key in shapes and array.shape == shapes[key] and array.dtype != bool
            if not fits or not np.isfinite(single[key]).all():
                raise Refusal(f"the array {key!r} of shape {array.shape} does not belong into a job of kind {kind!r}")
        return single


def _rows(arrays: Mapping[str, np.ndarray], name: str) -> int:
    return len(arrays[name]) if name in arrays and arrays[name].ndim else 0
