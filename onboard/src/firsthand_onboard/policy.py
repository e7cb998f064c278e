"""The policy: observation → two hidden layers → command. One forward pass for numpy, JAX and every export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .arrays import constant, namespace
from .features import observation
from .serial_chain import SerialChain, serial_error, serial_output_at
from .spec import ControlSpec, SelectedOutput, SpecError

Layer = tuple[Any, Any]
"""Weight `(out, in)` and bias `(out,)` of one layer."""


def network_output(layers: Sequence[Layer], features: Any) -> Any:
    """The network before its last tanh: tanh hidden layers, then a linear one."""
    xp = namespace(features)
    for weight, bias in layers[:-1]:
        features = xp.tanh(weight @ features + bias)
    weight, bias = layers[-1]
    return weight @ features + bias


def command_of(spec: ControlSpec, layers: Sequence[Layer], features: Any) -> Any:
    """The command for an observation, inside the command limits: middle + half range · tanh(network)."""
    low, high = constant(spec.limits.command_low, features), constant(spec.limits.command_high, features)
    return (low + high) / 2 + (high - low) / 2 * namespace(features).tanh(network_output(layers, features))


def policy_command(spec: ControlSpec, layers: Sequence[Layer], state: Any, preview: Any) -> Any:
    """π(x, r): the command in state `state` with the reference preview `preview` (see `features.observation`)."""
    return command_of(spec, layers, observation(spec, state, preview))


def expected_shapes(spec: ControlSpec) -> list[tuple[tuple[int, int], tuple[int]]]:
    """The shapes of weight and bias per layer that the specification asks for."""
    sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
    return [((sizes[i + 1], sizes[i]), (sizes[i + 1],)) for i in range(len(sizes) - 1)]


def check_layers(spec: ControlSpec, layers: Sequence[Layer]) -> None:
    """Raise `SpecError` unless the layers have the specification's shapes and are finite."""
    expected = expected_shapes(spec)
    if len(layers) != len(expected):
        raise SpecError(f"the policy has {len(layers)} layers, but the specification asks for {len(expected)}")
    for i, ((weight, bias), (weight_shape, bias_shape)) in enumerate(zip(layers, expected)):  # noqa: B905
        for name, array, shape in (("weight", weight, weight_shape), ("bias", bias, bias_shape)):
            if tuple(array.shape) != shape:
                raise SpecError(f"policy.{i}.{name} has shape {tuple(array.shape)}, but must have {shape}")
            with np.errstate(over="ignore"):
                single = np.asarray(array).astype(np.float32)
            if not np.all(np.isfinite(single)):
                raise SpecError(f"policy.{i}.{name} holds a value that is not finite in single precision")


class RunningBase(Protocol):
    """A base controller with its memory, as `NumpyPolicy` runs it; see `base_control.NumpyBase`."""

    memory: np.ndarray

    def restart(self, state: np.ndarray) -> None:
        """A motion begins."""

    def begin(self, state: np.ndarray) -> None:
        """A trajectory begins."""

    def go_on_from(self, other: RunningBase | None) -> bool:
        """Go on with another one's memory; whether it is the same base."""
        ...

    def command(self, layers: Sequence[Layer], state: np.ndarray, preview: np.ndarray) -> np.ndarray:
        """The command of base and policy together."""
        ...


class NumpyPolicy:
    """The policy as the robot runs it: numpy float32, written for speed, the same bits as `policy_command`."""

    def __init__(self, spec: ControlSpec, layers: Sequence[Layer], base: RunningBase | None = None) -> None:
        """`base` is the controller that the policy is learned on top of (`base_control.NumpyBase`), if there is one."""
        check_layers(spec, layers)
        self.spec, self.base = spec, base
        self.layers = [
            (np.ascontiguousarray(w, dtype=np.float32), np.ascontiguousarray(b, dtype=np.float32)) for w, b in layers
        ]
        self._forward = self._prepare()

    def __call__(self, state: np.ndarray, preview: np.ndarray) -> np.ndarray:
        """π(x, r) in float32; with a base, both together."""
        if self.base is not None:
            return self.base.command(self.layers, state, preview)
        return self._forward(np.asarray(state, np.float32), np.asarray(preview, np.float32))

    def begin(self, state: np.ndarray, *, motion: bool, before: NumpyPolicy | None = None) -> np.ndarray | None:
        """A trajectory begins, and with it perhaps a whole motion: what the base then remembers, None without one.

        A policy that takes over from the one `before` it, in mid-motion, goes on with what the same base remembers.
        """
        if self.base is None:
            return None
        if before is not None:
            motion = not self.base.go_on_from(before.base)
        (self.base.restart if motion else self.base.begin)(state)
        return self.base.memory

    def _prepare(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """The forward pass with its constants and working memory at hand: looking them up costs a tenth of its time.

        Features = (what is known − shift) / divisor, in two whole-array operations. The earlier measurements enter as
        (y_k − y_{k-j}), which is (y_{k-j} − y_k) over a negative divisor.
        """
        spec, layout, scales, single = self.spec, self.spec.layout, self.spec.scales, np.float32
        y, start, size, memory = layout.num_measured, layout.command_start, layout.size, layout.measurement_memory
        low, high = np.asarray(spec.limits.command_low, single), np.asarray(spec.limits.command_high, single)
        middle, half = (low + high) / 2, (high - low) / 2
        change = -np.asarray(scales.change_scale, single)
        times, points = layout.command_memory, (1 + len(spec.preview), spec.num_outputs)
        shift = np.concatenate(
            [np.asarray(scales.measured_center, single), np.zeros(memory * y, single), np.tile(middle, times)]
        )
        divisor = np.concatenate(
            [np.asarray(scales.measured_scale, single), np.tile(change, memory), np.tile(half, times)]
        )
        now = shift[y:start].reshape(memory, y)
        observed = np.zeros(spec.observation_size, single)
        robot, ahead = observed[:size], observed[size:].reshape(points)
        origin = np.zeros(points, single)
        ahead_divisor = np.full(points, scales.preview, single)
        ahead_divisor[0] = scales.error
        tip, chain = fast_output(spec), spec.kinematics
        turns = chain if isinstance(chain, SerialChain) and chain.lever else None
        hidden = [(weight, bias, np.zeros(len(bias), single)) for weight, bias in self.layers]
        add, subtract, multiply, divide, dot, tanh = np.add, np.subtract, np.multiply, np.divide, np.dot, np.tanh

        def forward(state: np.ndarray, preview: np.ndarray) -> np.ndarray:
            measured = state[:y]
            now[:] = measured
            subtract(state, shift, robot)
            divide(robot, divisor, robot)
            origin[:] = preview[0]
            origin[0] = tip(measured)
            if turns is None:
                subtract(preview, origin, ahead)
            else:
                ahead[:] = serial_error(turns, preview, origin)
            divide(ahead, ahead_divisor, ahead)
            features = observed
            for weight, bias, out in hidden:
                dot(weight, features, out)
                add(out, bias, out)
                tanh(out, out)
                features = out
            command = multiply(half, features)
            return add(middle, command, command)

        return forward


def fast_output(spec: ControlSpec) -> Callable[[np.ndarray], np.ndarray]:
    """`tracked_output` for one float32 measurement, with one cosine and one sine call for the whole chain.

    The next call overwrites the returned array.
    """
    chain, single = spec.kinematics, np.float32
    if isinstance(chain, SerialChain):
        entries = list(spec.layout.position)
        return lambda measured: np.asarray(serial_output_at(chain, measured[entries].tolist()), single)
    if isinstance(chain, SelectedOutput):
        chosen = np.asarray(chain.indices)
        return lambda measured: measured[chosen]
    count = len(chain.joints)
    turns = np.asarray([joint.kind == "revolute" for joint in chain.joints], single)
    slides = 1 - turns
    first = spec.layout.position[0]
    in_a_row = spec.layout.position == tuple(range(first, first + count))
    position: Any = slice(first, first + count) if in_a_row else np.asarray(spec.layout.position)
    along = np.asarray([joint.along for joint in chain.joints], single)
    across = np.asarray([joint.perpendicular for joint in chain.joints], single)
    # Rows: the base, then per joint the part along and the part across, so that a sum over rows is taken in the order
    # of `chain_points`. The second column is −z.
    terms = np.zeros((2 * count + 1, 2), single)
    terms[0] = chain.base[0], -chain.base[1]
    x_along, x_across, z_along, z_across = terms[1::2, 0], terms[2::2, 0], terms[1::2, 1], terms[2::2, 1]
    down, signs = -across, np.asarray([1, -1], single)
    angle, reach, cos, sin, total = (np.zeros(n, single) for n in (count, count, count, count, 2))

    multiply, add, cosine, sine = np.multiply, np.add, np.cos, np.sin
    accumulate, reduce = np.add.accumulate, np.add.reduce

    def tip(measured: np.ndarray) -> np.ndarray:
        at = measured[position]
        multiply(turns, at, angle)
        accumulate(angle, 0, None, angle)
        cosine(angle, cos)
        sine(angle, sin)
        multiply(slides, at, reach)
        add(along, reach, reach)
        multiply(cos, reach, x_along)
        multiply(sin, across, x_across)
        multiply(sin, reach, z_along)
        multiply(cos, down, z_across)
        reduce(terms, 0, None, total)
        return multiply(total, signs, total)

    return tip
