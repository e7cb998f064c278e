"""How near policy and observer in single precision are to themselves in double: what every export may differ by."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import BaseControl, NumpyBase, as_type
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.numpy_observer import Observer
from firsthand_onboard.observer import (
    ObserverParameters,
    ObserverState,
    expected_measurement,
    observe,
    predict_state,
)
from firsthand_onboard.policy import Layer, NumpyPolicy, policy_command

SAMPLES = 500
"""Inputs on which rounding is measured."""
MARGIN = 4.0
"""Over the measured rounding: another compiler, or ONNX, adds in another order, and other inputs round worse."""
MIN_TOLERANCE = 1e-6
"""Half ranges of the command that are allowed to every policy, and change scales to every observer."""
CLIPPED_SHARE, MISSING_SHARE = 0.25, 0.1
"""Of the random innovations and measurements."""
LARGE = 100.0
"""Change scales: an innovation of this size is not drawn, also where it would not be clipped."""


def tolerance(
    spec: ControlSpec, layers: Sequence[Layer], control: BaseControl | None = None, *, seed: int = 0
) -> float:
    """How far an export may be from the policy in double precision, in half ranges of the command.

    A tip that is computed at metres is off by a rounding step; a trained policy answers it with all its gain. So
    rounding is a policy's own, and it is measured: numpy's single precision against double.
    """
    states, points = random_inputs(spec, SAMPLES, seed)
    base = None if control is None else NumpyBase(spec, control)
    single = NumpyPolicy(spec, layers, base)
    found = []
    for state, preview in zip(states, points, strict=True):
        single.begin(state, motion=True)
        found.append(single(state, preview))
    found = np.stack(found)
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    off = np.abs(found - exact_commands(spec, layers, states, points, control)) / ((high - low) / 2)
    return max(MIN_TOLERANCE, MARGIN * float(off.max()))


def random_inputs(spec: ControlSpec, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States `(count, state)` and reference points `(count, points, outputs)` of the size that a robot sees."""
    rng, layout, scales = np.random.default_rng(seed), spec.layout, spec.scales
    center, scale, change = (
        np.asarray(v) for v in (scales.measured_center, scales.measured_scale, scales.change_scale)
    )
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    newest = center + scale * rng.uniform(-1, 1, (count, layout.num_measured))
    earlier = [newest + change * rng.normal(size=newest.shape) for _ in range(layout.measurement_memory)]
    commands = [rng.uniform(low, high, (count, layout.num_commands)) for _ in range(layout.command_memory)]
    states = np.concatenate([newest, *earlier, *commands], axis=1).astype(np.float32)
    output = np.asarray(tracked_output(spec, states[:, : layout.num_measured].astype(np.float64)))
    points = output[:, None] + np.asarray(scales.error) * rng.normal(size=(count, 1, spec.num_outputs))
    points = points + np.asarray(scales.preview) * np.cumsum(
        0.3 * rng.normal(size=(count, 1 + len(spec.preview), 1)), axis=1
    )
    return states, points.astype(np.float32)


def exact_commands(
    spec: ControlSpec,
    layers: Sequence[Layer],
    states: np.ndarray,
    points: np.ndarray,
    control: BaseControl | None = None,
) -> np.ndarray:
    """The policy's commands in double precision, `(count, commands)`; a base begins a motion in each state."""
    double = [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in layers]
    rows = zip(states.astype(np.float64), points.astype(np.float64), strict=True)
    if control is not None:
        exact = as_type(control, np.float64)
        memories = starting_memories(spec, control, states)
        return np.stack([exact.step(spec, double, *row, memory)[0] for row, memory in zip(rows, memories, strict=True)])
    return np.stack([policy_command(spec, double, state, preview) for state, preview in rows])


def starting_memories(spec: ControlSpec, control: BaseControl, states: np.ndarray) -> list[np.ndarray]:
    """A base's memory when a motion begins in each state, in double precision."""
    exact = as_type(control, np.float64)
    return [exact.restart(spec, state) for state in states.astype(np.float64)]


# The observer


class Observations(NamedTuple):
    """Inputs of many single steps of an observer."""

    carry: ObserverState
    """Its state at each step; it had not restarted yet."""
    commands: np.ndarray
    """The applied commands, `(count, commands)`."""
    measured: np.ndarray
    """The measurements, `(count, measured)`, with NaN where one is missing."""


def random_observations(spec: ControlSpec, observer: Observer, count: int, seed: int) -> Observations:
    """Steps of the size that a robot sees, with clipped innovations, missing measurements and restarts.

    No innovation is so near to its limit that rounding decides whether it is clipped.
    """
    rng, settings, size = np.random.default_rng((seed, 1)), observer.settings, (count, spec.layout.num_measured)
    states, _ = random_inputs(spec, count, seed)
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    commands = rng.uniform(low, high, (count, len(low))).astype(np.float32)
    parameters, unit = _as_type(observer.parameters, np.float64), np.asarray(spec.scales.change_scale)
    limit = settings.clip * parameters.scale
    inside = rng.uniform(0, 0.9, size) * np.minimum(limit, 4 * unit)
    outside = rng.uniform(1.1, 5, size) * limit
    is_outside = (rng.uniform(size=size) < CLIPPED_SHARE) & (limit < LARGE * unit / 5)
    innovation = np.where(is_outside, outside, inside) * rng.choice((-1.0, 1.0), size)
    expected = np.stack(
        [
            expected_measurement(
                spec, parameters, predict_state(spec, parameters.layers, parameters.change_scale, x, u)
            )
            for x, u in zip(states.astype(np.float64), commands.astype(np.float64), strict=True)
        ]
    )
    measured = (expected + innovation).astype(np.float32)
    measured[rng.uniform(size=size) < MISSING_SHARE] = np.nan
    clipped = rng.integers(0, settings.restart_after, size, dtype=np.int32)
    missing = np.where(rng.uniform(size=size) < 2 * MISSING_SHARE, settings.max_missing + rng.integers(0, 2, size), 0)
    carry = ObserverState(states, clipped, missing.astype(np.int32), np.zeros(size, np.int32))
    return Observations(carry, commands, measured)


def exact_observations(
    spec: ControlSpec, observer: Observer, given: Observations, kind: Any = np.float64
) -> ObserverState:
    """What the observer carries on from each step, in double precision or as another type."""
    parameters = _as_type(observer.parameters, kind)
    after = []
    for *carry, command, measured in zip(*given.carry, given.commands, given.measured, strict=True):
        before = ObserverState(carry[0].astype(kind), *carry[1:])
        after.append(observe(spec, parameters, observer.settings, before, command.astype(kind), measured.astype(kind)))
    return ObserverState(*(np.stack(part) for part in zip(*after, strict=True)))


def observer_tolerance(spec: ControlSpec, observer: Observer, *, seed: int = 0) -> float:
    """How far one step of an exported observer may be from double precision, in change scales of the measurement."""
    given, start = random_observations(spec, observer, SAMPLES, seed), spec.layout.command_start
    double, single = (exact_observations(spec, observer, given, kind) for kind in (np.float64, np.float32))
    unit = np.tile(np.asarray(spec.scales.change_scale), 1 + spec.layout.measurement_memory)
    off = np.abs(single.state[:, :start] - double.state[:, :start]) / unit
    return max(MIN_TOLERANCE, MARGIN * float(off.max()))


def _as_type(parameters: ObserverParameters, kind: Any) -> ObserverParameters:
    """The parameters, as they are in single precision, in another type."""
    layers = tuple(
        (np.asarray(w, np.float32).astype(kind), np.asarray(b, np.float32).astype(kind)) for w, b in parameters.layers
    )
    return ObserverParameters(layers, *(np.asarray(part, np.float32).astype(kind) for part in parameters[1:]))
