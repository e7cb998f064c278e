"""A base controller under the policy: the command is the base's, and the learned part moves it.

    u = clip(b(x, r, m) + τ · a · half range · tanh(network(x, r)/a), low, high)

b is the base with its memory m (an integrator, for example), a the authority of the learned part and τ its trust. With
a network that gives zero, as a last layer of zeros does, the command is exactly the base's. Trust is 1 until the
recent tracking error (`window_s`) exceeds `error_limit`; from then on it falls to zero within `FADE_S` and stays
there until the motion ends: the base takes over without a jump.

Pure functions against the array API: numpy on the robot, JAX in training. A base has three methods, and its arrays are
parameters that training leaves alone:

    initial_memory(spec)                     what it remembers when a motion begins, as a tuple of numbers
    begin(spec, state, memory)               its memory when a trajectory begins
    step(spec, state, preview, memory)       the command, and the memory for the next step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import constant, namespace
from .features import observation
from .kinematics import chain_points, output_error, tip_jacobian, tracked_output
from .policy import Layer, RunningBase, check_layers, network_output, policy_command
from .spec import ControlSpec, PlanarChain, SelectedOutput, SpecError

PREFIX = "base."
NO_LIMIT = 1e9
"""An error that no robot has: the learned part is never taken back."""
WINDOW_SHARE = 0.4
"""Time constant of the tracking error that trust looks at, as a share of a trajectory: long enough that the base's
largest is not far above its mean, which is what an error that lasts is compared with."""
FADE_S = 0.3
"""How long the learned part takes to fade out, in seconds."""
MIN_AUTHORITY = 1e-3
CENTERING_S = 4.0
"""Time constant of the pull to the middle of the joints' ranges, in seconds."""
CREEP = 0.02
"""Below this share of a joint's highest speed the jump over the dead band is made gradually: less chatter."""
MARGIN = 0.03
"""The joint reference keeps this share of the range away from the limits."""


class BaseControl(NamedTuple):
    """A base, and how far the learned part may go away from it."""

    base: Any
    """The base controller."""
    authority: Any
    """Largest size of the learned part, as a share of half the command range."""
    error_limit: Any
    """Tracking error above which the learned part fades out, in units of `scales.error`."""

    def memory_size(self, spec: ControlSpec) -> int:
        """How many numbers are remembered from step to step: the base's, the mean squared error, and the trust."""
        return len(self.base.initial_memory(spec)) + 2

    def restart(self, spec: ControlSpec, state: Any) -> Any:
        """The memory at the beginning of a motion."""
        return self.begin(spec, state, constant([*self.base.initial_memory(spec), 0.0, 1.0], state))

    def begin(self, spec: ControlSpec, state: Any, memory: Any) -> Any:
        """The memory when a trajectory begins, after the one before it ended with `memory`."""
        return namespace(state).concat([self.base.begin(spec, state, memory[:-2]), memory[-2:]])

    def step(
        self, spec: ControlSpec, layers: Sequence[Layer], state: Any, preview: Any, memory: Any
    ) -> tuple[Any, Any]:
        """The command, and the memory for the next step."""
        xp = namespace(state)
        command, inner = self.base.step(spec, state, preview, memory[:-2])
        low, high = constant(spec.limits.command_low, state), constant(spec.limits.command_high, state)
        share = xp.maximum(self.authority, constant(MIN_AUTHORITY, state))
        learned = (high - low) / 2 * xp.tanh(network_output(layers, observation(spec, state, preview)) / share)
        found = tracked_output(spec, state[: spec.layout.num_measured])
        error = output_error(spec, preview[0], found) / constant(spec.scales.error, state)
        level = memory[-2] + window_share(spec) * (xp.sum(error * error) - memory[-2])
        is_bad = (level > self.error_limit * self.error_limit) | (memory[-1] < 1.0)
        trust = xp.where(is_bad, xp.maximum(memory[-1] - spec.period_s / FADE_S, constant(0.0, state)), memory[-1])
        command = xp.clip(command + trust * self.authority * learned, low, high)
        return command, xp.concat([inner, xp.stack([level, trust])])


def window_s(spec: ControlSpec) -> float:
    """Time constant of the tracking error that trust looks at, in seconds: 2 s for trajectories of 5 s."""
    return WINDOW_SHARE * spec.reference.steps * spec.period_s


def window_share(spec: ControlSpec) -> float:
    """How much of it one control period is."""
    return min(spec.period_s / window_s(spec), 1.0)


class ReferenceBase(NamedTuple):
    """The command is the reference itself: for a machine that follows targets with a loop of its own."""

    def initial_memory(self, spec: ControlSpec) -> tuple[float, ...]:
        """Nothing is remembered."""
        return ()

    def begin(self, spec: ControlSpec, state: Any, memory: Any) -> Any:
        """Nothing is remembered."""
        return memory

    def step(self, spec: ControlSpec, state: Any, preview: Any, memory: Any) -> tuple[Any, Any]:
        """The reference now."""
        return preview[0], memory


class PolicyBase(NamedTuple):
    """A policy that was learned before."""

    layers: Any
    """Its weights."""

    def initial_memory(self, spec: ControlSpec) -> tuple[float, ...]:
        """Nothing is remembered."""
        return ()

    def begin(self, spec: ControlSpec, state: Any, memory: Any) -> Any:
        """Nothing is remembered."""
        return memory

    def step(self, spec: ControlSpec, state: Any, preview: Any, memory: Any) -> tuple[Any, Any]:
        """Its command."""
        return policy_command(spec, self.layers, state, preview), memory


class PIBase(NamedTuple):
    """PI per joint with feed-forward, behind the inverse of each joint's map from command to speed.

    Its memory is the joint reference, then the integral of the joint errors.
    """

    gain: Any
    """`(joints,)`, 1/s."""
    integral_s: Any
    """`(joints,)`: integral time."""
    ahead_s: Any
    """`(joints,)`: dead time and lag. The reference is read this much ahead."""
    sign: Any
    """`(joints,)`: −1 where a positive command lowers the position."""
    up: Any
    """`(joints, 2, points)`: sizes of commands as shares of the half range, from the edge of the dead band on, and the
    speeds that they lead to, towards higher positions."""
    down: Any
    """The same towards lower positions."""

    def initial_memory(self, spec: ControlSpec) -> tuple[float, ...]:
        """Two numbers per joint."""
        return (0.0,) * (2 * len(spec.layout.position))

    def begin(self, spec: ControlSpec, state: Any, memory: Any) -> Any:
        """The joint reference begins where the joints are; what the integral has learned of the valves stays."""
        xp, position = namespace(state), _position(spec, state)
        return xp.concat([xp.clip(position, *_range(spec, state)), memory[len(spec.layout.position) :]])

    def step(self, spec: ControlSpec, state: Any, preview: Any, memory: Any) -> tuple[Any, Any]:
        """The command; the integral of a joint whose command is saturated stands still."""
        xp, position, joints = namespace(state), _position(spec, state), len(spec.layout.position)
        reference, integral = memory[:joints], memory[joints:]
        reference, feed = self._plan(spec, state, preview, reference)
        error = reference - position
        action = self._invert(xp, feed + self.gain * (error + integral / self.integral_s))
        integral = integral + spec.period_s * xp.where(xp.abs(action) < 1.0, error, constant(0.0, state))
        low, high = constant(spec.limits.command_low, state), constant(spec.limits.command_high, state)
        command = (low + high) / 2 + (high - low) / 2 * xp.clip(action, -1.0, 1.0)
        return command, xp.concat([reference, integral])

    def _plan(self, spec: ControlSpec, state: Any, points: Any, reference: Any) -> tuple[Any, Any]:
        """The joint reference now, and the speed that each joint needs after its own dead time and lag."""
        xp = namespace(state)
        times = constant((0.0, *(spec.period_s * k for k in spec.preview)), state)
        half = 1.5 * spec.period_s
        first = xp.maximum(self.ahead_s - half, constant(0.0, state))
        last = self.ahead_s + half
        before, at, after = (_interpolate(xp, times, points, t) for t in (first, self.ahead_s, last))
        velocity = (after - before) / (last - first)[:, None]  # (joints, outputs)
        if isinstance(spec.kinematics, SelectedOutput):
            order = [spec.kinematics.indices.index(i) for i in spec.layout.position]
            return xp.stack([points[0][i] for i in order]), xp.stack([velocity[j, i] for j, i in enumerate(order)])
        assert isinstance(spec.kinematics, PlanarChain)
        low, high = _range(spec, state)
        for _ in range(2):
            missing = points[0] - chain_points(spec.kinematics, reference)[-1]
            reference = reference + self._inverse(spec.kinematics, reference)[1] @ missing
        reference = xp.clip(reference + spec.period_s * self._pull(spec, reference), low, high)
        inverse = self._inverse(spec.kinematics, reference)[1]
        rates = []
        for j in range(len(spec.layout.position)):
            there = xp.clip(reference + inverse @ (at[j] - points[0]), low, high)
            rates.append((self._inverse(spec.kinematics, there)[1] @ velocity[j] + self._pull(spec, there))[j])
        return reference, xp.stack(rates)

    def _inverse(self, chain: PlanarChain, position: Any) -> tuple[Any, Any]:
        """Jacobian of the tip, and its pseudo-inverse weighted by what the joints can do."""
        xp, jacobian = namespace(position), tip_jacobian(chain, position)
        fastest = xp.maximum(self.up[:, 1, -1], self.down[:, 1, -1])
        weighted = jacobian * fastest**2
        square = jacobian @ weighted.T
        a, b, c, d = square[0, 0] + 1e-6, square[0, 1], square[1, 0], square[1, 1] + 1e-6
        adjugate = xp.stack([xp.stack([d, -b]), xp.stack([-c, a])])
        return jacobian, weighted.T @ adjugate / (a * d - b * c)

    def _pull(self, spec: ControlSpec, position: Any) -> Any:
        """Speeds that leave the tip where it is and draw the joints to the middle of their ranges."""
        assert isinstance(spec.kinematics, PlanarChain)
        jacobian, inverse = self._inverse(spec.kinematics, position)
        low, high = constant(spec.limits.position_low, position), constant(spec.limits.position_high, position)
        wanted = ((low + high) / 2 - position) / CENTERING_S
        return wanted - inverse @ (jacobian @ wanted)

    def _invert(self, xp: Any, rate: Any) -> Any:
        """The command for each joint's speed, as a share of the half range; beyond ±1 for one that cannot be had."""
        table = xp.where((rate > 0)[:, None, None], self.up, self.down)
        size, speed, wanted = table[:, 0], table[:, 1], xp.abs(rate)
        steps = xp.maximum(speed[:, 1:] - speed[:, :-1], 1e-6 * speed[:, -1:])
        reached = xp.clip((wanted[:, None] - speed[:, :-1]) / steps, 0.0, 1.0)
        command = size[:, 0] + xp.sum((size[:, 1:] - size[:, :-1]) * reached, axis=1)
        command = command * xp.maximum(wanted / speed[:, -1], xp.ones_like(wanted))
        fastest = xp.maximum(self.up[:, 1, -1], self.down[:, 1, -1])
        jump = size[:, 0] * xp.maximum(1.0 - wanted / (CREEP * fastest), xp.zeros_like(wanted))
        return self.sign * xp.sign(rate) * (command - jump)


class ForeignBase(NamedTuple):
    """Stands for a base that is a function in a file of the user's: a policy file does not hold its code."""

    def initial_memory(self, spec: ControlSpec) -> tuple[float, ...]:
        """Not supported: the function is in the user's file."""
        raise SpecError(FOREIGN)

    def begin(self, spec: ControlSpec, state: Any, memory: Any) -> Any:
        """Not supported: the function is in the user's file."""
        raise SpecError(FOREIGN)

    def step(self, spec: ControlSpec, state: Any, preview: Any, memory: Any) -> tuple[Any, Any]:
        """Not supported: the function is in the user's file."""
        raise SpecError(FOREIGN)


FOREIGN = "the policy's base is a function in a file of the user's, which is not part of a policy"


def _position(spec: ControlSpec, state: Any) -> Any:
    return namespace(state).stack([state[i] for i in spec.layout.position])


def _range(spec: ControlSpec, like: Any) -> tuple[Any, Any]:
    """Where the joint reference may be."""
    low, high = constant(spec.limits.position_low, like), constant(spec.limits.position_high, like)
    return low + MARGIN * (high - low), high - MARGIN * (high - low)


def _interpolate(xp: Any, times: Any, points: Any, at: Any) -> Any:
    """The points at times `at`, `(times, outputs)`; linear between the preview's, held outside."""
    reached = xp.clip((at[:, None] - times[:-1]) / (times[1:] - times[:-1]), 0.0, 1.0)
    return points[0] + reached @ (points[1:] - points[:-1])


# As named arrays, for files and messages. Kinds are part of the names, so that nothing but arrays is needed.

KINDS: dict[str, type] = {"pi": PIBase, "policy": PolicyBase, "reference": ReferenceBase, "function": ForeignBase}
SHARED = ("authority", "error_limit")
SHARED_ARRAYS = tuple(PREFIX + name for name in SHARED)


def kind_of(base: Any) -> str:
    """The kind of a base; `function` for one of the user's."""
    return next((name for name, known in KINDS.items() if type(base) is known), "function")


def has_base(arrays: Mapping[str, Any]) -> bool:
    """Whether named arrays hold a base."""
    return any(name.startswith(PREFIX) for name in arrays)


def base_arrays(control: BaseControl) -> dict[str, np.ndarray]:
    """A base as named arrays, float32; of a function of the user's only that it is one."""
    single = np.float32
    kind = kind_of(control.base)
    named = {PREFIX + name: np.asarray(getattr(control, name), single) for name in SHARED}
    named[f"{PREFIX}{kind}"] = np.zeros(1, single)
    if isinstance(control.base, PolicyBase):
        for i, (weight, bias) in enumerate(control.base.layers):
            named[f"{PREFIX}policy.{i}.weight"] = np.asarray(weight, single)
            named[f"{PREFIX}policy.{i}.bias"] = np.asarray(bias, single)
    if isinstance(control.base, PIBase):
        for name, value in control.base._asdict().items():
            named[f"{PREFIX}pi.{name}"] = np.asarray(value, single)
    return named


def base_from_arrays(spec: ControlSpec, arrays: Mapping[str, Any]) -> BaseControl:
    """What `base_arrays` wrote; others are ignored. `SpecError` says what is wrong with anything else."""
    kind = next((name for name in KINDS if PREFIX + name in arrays), None)
    if kind is None:
        raise SpecError(f"the base has none of the kinds {', '.join(KINDS)}")

    def take(name: str) -> np.ndarray:
        if PREFIX + name not in arrays:
            raise SpecError(f"the base lacks the array {PREFIX}{name}")
        array = np.asarray(arrays[PREFIX + name], np.float32)
        if not np.isfinite(array).all():
            raise SpecError(f"{PREFIX}{name} holds a value that is not finite")
        return array

    authority, limit = (take(name) for name in SHARED)
    for name, value in (("authority", authority), ("error_limit", limit)):
        if value.size != 1 or not value.reshape(()) >= 0 or (name == "authority" and not value.reshape(()) <= 1):
            wanted = "a number from 0 to 1" if name == "authority" else "a number of at least 0"
            raise SpecError(f"{PREFIX}{name} is {value}, but must be {wanted}")
    if kind == "pi":
        base: Any = PIBase(*(take(f"pi.{name}") for name in PIBase._fields))
    elif kind == "policy":
        count = len(spec.policy.hidden) + 1
        base = PolicyBase(tuple((take(f"policy.{i}.weight"), take(f"policy.{i}.bias")) for i in range(count)))
    else:
        base = KINDS[kind]()
    if kind != "function":
        check_base(spec, base)
    return BaseControl(base, authority.reshape(()), limit.reshape(()))


def check_base(spec: ControlSpec, base: Any) -> None:
    """Raise `SpecError` unless a base of one of our kinds fits the specification."""
    commands, joints = spec.layout.num_commands, len(spec.layout.position)
    if isinstance(base, ForeignBase):
        raise SpecError(FOREIGN)
    if isinstance(base, PolicyBase):
        check_layers(spec, base.layers)
    if isinstance(base, ReferenceBase) and spec.num_outputs != commands:
        raise SpecError(f"the reference has {spec.num_outputs} entries, but the robot takes {commands} commands")
    if not isinstance(base, PIBase):
        return
    if commands != joints:
        raise SpecError(f"a PI base needs one command per joint; {spec.robot} has {commands} for {joints}")
    kinematics = spec.kinematics
    tracks = isinstance(kinematics, SelectedOutput) and sorted(kinematics.indices) == sorted(spec.layout.position)
    if not tracks and not isinstance(kinematics, PlanarChain):
        raise SpecError(
            f"a PI base needs joints that are tracked or a chain of known kinematics; {spec.robot} has none"
        )
    points = np.shape(base.up)[-1] if np.ndim(base.up) == 3 else 0
    for name, value in base._asdict().items():
        wanted = (joints, 2, points) if name in ("up", "down") else (joints,)
        if np.shape(value) != wanted or points < 2:
            raise SpecError(f"base.pi.{name} has shape {np.shape(value)}, but must have {wanted}")
    for name in ("gain", "ahead_s", "up", "down"):
        if not (np.asarray(getattr(base, name)) >= 0).all():
            raise SpecError(f"base.pi.{name} holds a negative value, but must hold numbers of at least 0")
    # What is divided by.
    divisors = {"integral_s": base.integral_s, "up": base.up[:, 1, -1], "down": base.down[:, 1, -1]}
    for name, values in divisors.items():
        if not (np.asarray(values) > 0).all():
            what = "integral times" if name == "integral_s" else "highest speeds"
            raise SpecError(f"base.pi.{name} has {what} of {np.asarray(values).tolist()}, but all must be above 0")
    if not (np.abs(np.asarray(base.sign)) == 1).all():
        raise SpecError(f"base.pi.sign is {np.asarray(base.sign).tolist()}, but must hold 1 or -1 per joint")


class NumpyBase:
    """A base and its memory as the robot runs them, in float32."""

    def __init__(self, spec: ControlSpec, control: BaseControl) -> None:
        check_base(spec, control.base)
        self.spec, self.control = spec, as_type(control, np.float32)
        self.memory = np.zeros(control.memory_size(spec), np.float32)

    def restart(self, state: np.ndarray) -> None:
        """A motion begins."""
        self.memory = np.asarray(self.control.restart(self.spec, np.asarray(state, np.float32)), np.float32)

    def begin(self, state: np.ndarray) -> None:
        """The next trajectory of the motion begins."""
        self.memory = np.asarray(self.control.begin(self.spec, np.asarray(state, np.float32), self.memory), np.float32)

    def go_on_from(self, other: RunningBase | None) -> bool:
        """Go on with the memory of another policy's base, in mid-motion; whether it is the same base.

        What the base has learned of the robot stays, and so does its recent error. The learned part is
        another one: it is trusted.
        """
        if not isinstance(other, NumpyBase) or not _is_same(self.control.base, other.control.base):
            return False
        self.memory = other.memory.copy()
        self.memory[-1] = 1.0
        return True

    def command(self, layers: Sequence[Layer], state: np.ndarray, preview: np.ndarray) -> np.ndarray:
        """The command; the memory moves on."""
        single = np.float32
        state, preview = np.asarray(state, single), np.asarray(preview, single)
        command, memory = self.control.step(self.spec, layers, state, preview, self.memory)
        self.memory = np.asarray(memory, single)
        return np.asarray(command, single)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two bases are of one kind, with the same numbers."""
    if isinstance(one, tuple):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(_is_same(a, b) for a, b in zip(one, other))  # noqa: B905
    return np.array_equal(one, other)


def as_type(value: Any, kind: Any) -> Any:
    """A base, or a part of one, with numpy arrays of this type."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(as_type(part, kind) for part in value))
    if isinstance(value, tuple):
        return tuple(as_type(part, kind) for part in value)
    return np.asarray(value, kind) if hasattr(value, "shape") or isinstance(value, float) else value
