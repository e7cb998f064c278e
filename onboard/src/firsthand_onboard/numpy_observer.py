"""The observer as the robot runs it, in numpy float32 with preallocated memory, and its arrays by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from .observer import (
    ObserverParameters,
    ObserverSettings,
    ObserverState,
    find_fault,
    num_blocks,
    predicted_entries,
    start_motion,
    trusted_measurement,
)
from .policy import NumpyPolicy
from .spec import ControlSpec, SpecError

PREFIX = "observer."
ARRAYS = ("change_scale", "gain", "taps", "scale")
"""The parameters besides the layers."""


class Observer(Protocol):
    """An observer in any array library: what is learned, and when it is not trusted."""

    @property
    def parameters(self) -> ObserverParameters:
        """The learned parameters."""
        ...

    @property
    def settings(self) -> ObserverSettings:
        """When it is not trusted."""
        ...


def observer_arrays(observer: Observer) -> dict[str, np.ndarray]:
    """An observer as named arrays, for files and messages: float32, and its settings in double precision."""
    given, settings, single = observer.parameters, observer.settings, np.float32
    named = {}
    for i, (weight, bias) in enumerate(given.layers):
        named[f"{PREFIX}{i}.weight"], named[f"{PREFIX}{i}.bias"] = np.asarray(weight, single), np.asarray(bias, single)
    for name in ARRAYS:
        named[PREFIX + name] = np.asarray(getattr(given, name), single)
    named[f"{PREFIX}settings"] = np.asarray([settings.clip, settings.restart_after, settings.max_missing], np.float64)
    return named


def has_observer(arrays: Mapping[str, Any]) -> bool:
    """Whether named arrays hold an observer, or part of one."""
    return any(name.startswith(PREFIX) for name in arrays)


def observer_from_arrays(spec: ControlSpec, arrays: Mapping[str, Any]) -> tuple[ObserverParameters, ObserverSettings]:
    """What `observer_arrays` wrote; others are ignored. `SpecError` says what is wrong with anything else."""
    count = sum(name.startswith(PREFIX) and name.endswith(".weight") for name in arrays)
    names = [f"{i}.{part}" for i in range(max(count, 1)) for part in ("weight", "bias")]
    for name in (*names, *ARRAYS, "settings"):
        if PREFIX + name not in arrays:
            raise SpecError(f"the observer lacks the array {PREFIX}{name}")
    layers = tuple((arrays[f"{PREFIX}{i}.weight"], arrays[f"{PREFIX}{i}.bias"]) for i in range(count))
    numbers = np.asarray(arrays[f"{PREFIX}settings"], float)
    if numbers.shape != (3,) or not np.isfinite(numbers).all() or (numbers[1:] % 1).any():
        raise SpecError(f"observer.settings is {numbers.tolist()}, but must be a number and two whole numbers")
    settings = ObserverSettings(float(numbers[0]), int(numbers[1]), int(numbers[2]))
    parameters = ObserverParameters(layers, *(arrays[PREFIX + name] for name in ARRAYS))
    check_observer(spec, parameters)
    return parameters, settings


def observer_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the observer among named arrays: names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(name for name in arrays if name.startswith(PREFIX)):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def check_observer(spec: ControlSpec, parameters: ObserverParameters) -> None:
    """Raise `SpecError` unless the parameters have the specification's shapes and are finite."""
    layout, size, blocks = spec.layout, spec.layout.num_measured, num_blocks(spec)
    predicted = len(predicted_entries(spec))
    arrays: list[tuple[str, Any, tuple[int, ...]]] = []
    if not parameters.layers:
        raise SpecError("the observer has no layers")
    inputs = layout.size + layout.num_commands
    for i, (weight, bias) in enumerate(parameters.layers):
        is_last = i == len(parameters.layers) - 1
        outputs = predicted if is_last else int(np.shape(bias)[0]) if np.ndim(bias) == 1 else 0
        arrays += [(f"{i}.weight", weight, (outputs, inputs)), (f"{i}.bias", bias, (outputs,))]
        inputs = outputs
    arrays += [
        ("change_scale", parameters.change_scale, (predicted,)),
        ("gain", parameters.gain, (blocks, size, size)),
        ("taps", parameters.taps, (blocks, len(layout.velocity))),
        ("scale", parameters.scale, (size,)),
    ]
    for name, array, shape in arrays:
        if tuple(np.shape(array)) != shape or 0 in shape[:1]:
            raise SpecError(f"observer.{name} has shape {tuple(np.shape(array))}, but must have {shape}")
        with np.errstate(over="ignore"):
            single = np.asarray(array).astype(np.float32)
        if not np.isfinite(single).all():
            raise SpecError(f"observer.{name} holds a value that is not finite in single precision")
        if name == "scale" and not (single > 0).all():
            raise SpecError("observer.scale holds a value that is not positive")


class NumpyObserver:
    """`observe` in numpy float32, written for speed: equal to it up to rounding.

    It carries its own estimate. `state` is overwritten by the next step.
    """

    def __init__(self, spec: ControlSpec, parameters: ObserverParameters, settings: ObserverSettings) -> None:
        check_observer(spec, parameters)
        self.spec, self.settings = spec, settings
        single = np.float32
        layers = tuple(
            (np.ascontiguousarray(w, dtype=single), np.ascontiguousarray(b, dtype=single)) for w, b in parameters.layers
        )
        others = (np.ascontiguousarray(getattr(parameters, name), dtype=single) for name in ARRAYS)
        self.parameters = ObserverParameters(layers, *others)
        size = spec.layout.num_measured
        self.state = np.zeros(spec.layout.size, single)
        """x̂, the estimate."""
        self.clipped, self.missing, self.restarts = (np.zeros(size, np.int32) for _ in range(3))
        self._prepare()

    @staticmethod
    def of(spec: ControlSpec, observer: Observer) -> NumpyObserver:
        """The same observer for the robot."""
        return NumpyObserver(spec, observer.parameters, observer.settings)

    def begin(self, state: np.ndarray) -> None:
        """Take a state vector as the estimate; nothing is counted yet."""
        self.state[:] = state
        for count in (self.clipped, self.missing, self.restarts):
            count[:] = 0
        self._is_missing = False

    def start_motion(self, register: np.ndarray) -> None:
        """Begin a motion, or go on after a pause, from what a plain state vector remembers."""
        self.begin(start_motion(self.spec, register).state)

    def go_on_from(self, other: NumpyObserver) -> None:
        """Go on with the estimate of another observer of the same robot, and with what it has counted in a row."""
        self.begin(other.state)
        self.clipped[:], self.missing[:] = other.clipped, other.missing
        self._is_missing = other._is_missing

    def trust(self, measured: np.ndarray) -> np.ndarray:
        """The newest measurement, with what the estimate shows in place of outliers."""
        return trusted_measurement(self.spec, self.parameters, self.settings, self.state, measured)

    def shift(self, by: np.ndarray) -> None:
        """Count every remembered measurement from elsewhere, as an angle from another turn."""
        self._blocks += by

    @property
    def carry(self) -> ObserverState:
        """A copy of what is carried from step to step."""
        return ObserverState(self.state.copy(), self.clipped.copy(), self.missing.copy(), self.restarts.copy())

    @property
    def fault(self) -> str:
        """Why the estimate cannot be used any more; empty where it can."""
        return find_fault(self.spec, self.settings, self.missing) if self._is_missing else ""

    def _prepare(self) -> None:
        spec, layout, scales, single = self.spec, self.spec.layout, self.spec.scales, np.float32
        size, start, memory, times = layout.num_measured, layout.command_start, num_blocks(spec), layout.command_memory
        low, high = np.asarray(spec.limits.command_low, single), np.asarray(spec.limits.command_high, single)
        middle, half = (low + high) / 2, (high - low) / 2
        self._unit = np.asarray(scales.change_scale, single)
        # Features = (what is known − shift) / divisor; see `NumpyPolicy`.
        earlier = memory - 1
        self._shift = np.concatenate(
            [np.asarray(scales.measured_center, single), np.zeros(earlier * size, single), np.tile(middle, times + 1)]
        )
        self._divisor = np.concatenate(
            [np.asarray(scales.measured_scale, single), np.tile(-self._unit, earlier), np.tile(half, times + 1)]
        )
        self._now = self._shift[size:start].reshape(earlier, size)
        self._features = np.zeros(layout.size + layout.num_commands, single)
        *hidden, (weight, bias) = self.parameters.layers
        self._hidden = [(w, b, np.zeros(len(b), single)) for w, b in hidden]
        self._last = (weight, bias, np.zeros(len(bias), single))
        self._predicted, self._position = np.asarray(predicted_entries(spec)), np.asarray(layout.position)
        self._velocity = np.asarray(layout.velocity, int)
        self._half_period = single(0.5 * spec.period_s)
        self._gain = self.parameters.gain.reshape(memory * size, size)
        self._units = np.tile(self._unit, memory)
        self._limit = single(self.settings.clip) * self.parameters.scale
        self._correction = np.zeros(memory * size, single)
        self._blocks = self.state[:start].reshape(memory, size)
        self._is_missing = False

    def observe(self, command: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """One control period: `command` was applied, then `measured` was read. Returns the estimate."""
        state, settings = self.state, self.settings
        start = self.spec.layout.command_start
        self._predict(command)
        blocks = self._blocks
        expected = blocks[0].copy()
        if self._velocity.size:
            expected[self._velocity] = (self.parameters.taps * blocks[:, self._velocity]).sum(axis=0)
        innovation = measured - expected
        missing = ~np.isfinite(measured)
        any_missing = bool(missing.any())
        if any_missing:
            innovation[missing] = 0
        clipped, up = np.abs(innovation) > self._limit, innovation > 0
        np.minimum(np.maximum(innovation, -self._limit), self._limit, innovation)
        np.divide(innovation, self._unit, innovation)
        np.dot(self._gain, innovation, self._correction)
        np.multiply(self._correction, self._units, self._correction)
        np.add(state[:start], self._correction, state[:start])
        # The counts change rarely; what is not finite is looked for in one go.
        diverged = ~np.isfinite(state[:start]).all()
        if any_missing or self._is_missing or diverged or clipped.any() or self.clipped.any():
            here = ~missing
            row = np.where(up, np.maximum(self.clipped, 0) + 1, np.minimum(self.clipped, 0) - 1)
            self.clipped[:] = np.where(here, np.where(clipped, row, 0), self.clipped)
            broken = (np.abs(self.clipped) >= settings.restart_after) | ~np.isfinite(blocks).all(axis=0)
            restart = here & (broken | (self.missing > settings.max_missing))
            blocks[:, restart] = measured[restart]
            self.clipped[restart] = 0
            self.missing[:] = np.where(here, 0, self.missing + 1)
            self.restarts += restart
            self._is_missing = any_missing
        return state

    def _predict(self, command: np.ndarray) -> None:
        """The learned model's next state, in place."""
        state, features, layout = self.state, self._features, self.spec.layout
        size, start = layout.num_measured, layout.command_start
        measured = state[:size].copy()
        self._now[:] = measured
        features[: layout.size] = state
        features[layout.size :] = command
        np.subtract(features, self._shift, features)
        np.divide(features, self._divisor, features)
        for weight, bias, out in self._hidden:
            np.dot(weight, features, out)
            np.add(out, bias, out)
            np.tanh(out, out)
            features = out
        weight, bias, out = self._last
        np.dot(weight, features, out)
        np.add(out, bias, out)
        np.multiply(out, self.parameters.change_scale, out)
        state[size:start] = state[: start - size]
        state[start + layout.num_commands :] = state[start : -layout.num_commands]
        state[start : start + layout.num_commands] = command
        state[self._predicted] += out
        if self._velocity.size:
            speeds = measured[self._velocity] + state[self._velocity]
            state[self._position] += self._half_period * speeds


class NumpyController(NamedTuple):
    """What runs on the robot: the policy, and the observer whose estimate it was trained on, if there is one."""

    policy: NumpyPolicy
    observer: NumpyObserver | None = None
