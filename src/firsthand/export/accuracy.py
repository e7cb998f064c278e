"""How near a policy in single precision is to itself in double: what every export may differ by."""

from collections.abc import Sequence

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.policy import Layer, NumpyPolicy, policy_command

SAMPLES = 500
"""Inputs on which rounding is measured."""
MARGIN = 4.0
"""Over the measured rounding: another compiler, or ONNX, adds in another order, and other inputs round worse."""
LEAST = 1e-6
"""Half ranges of the command that are allowed to every policy."""


def tolerance(spec: ControlSpec, layers: Sequence[Layer], *, seed: int = 0) -> float:
    """How far an export may be from the policy in double precision, in half ranges of the command.

    A tip that is computed at metres is off by a rounding step; a trained policy answers it with all its gain. So
    rounding is a policy's own, and it is measured: numpy's single precision against double.
    """
    states, points = random_inputs(spec, SAMPLES, seed)
    single = NumpyPolicy(spec, layers)
    found = np.stack([single(state, preview) for state, preview in zip(states, points, strict=True)])
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    off = np.abs(found - exact_commands(spec, layers, states, points)) / ((high - low) / 2)
    return max(LEAST, MARGIN * float(off.max()))


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
    points = output[:, None] + scales.error * rng.normal(size=(count, 1, spec.num_outputs))
    points = points + scales.preview * np.cumsum(0.3 * rng.normal(size=(count, 1 + len(spec.preview), 1)), axis=1)
    return states, points.astype(np.float32)


def exact_commands(spec: ControlSpec, layers: Sequence[Layer], states: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The policy's commands in double precision, `(count, commands)`."""
    double = [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in layers]
    rows = zip(states.astype(np.float64), points.astype(np.float64), strict=True)
    return np.stack([policy_command(spec, double, state, preview) for state, preview in rows])
