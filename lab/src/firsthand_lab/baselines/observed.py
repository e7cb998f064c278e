"""Back from what a policy sees to the state vector and the reference: for controllers that need them."""

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output

SAME = 1e-3
"""Entries of the state vector that differ by no more, in units of their scales, are the same: single precision."""


def read_observation(
    spec: ControlSpec, seen: Float[np.ndarray, " observation"]
) -> tuple[Float[np.ndarray, " state"], Float[np.ndarray, "points outputs"]]:
    """The state vector, and the reference now and at each offset of the preview: the inverse of `observation`."""
    layout, scales, limits = spec.layout, spec.scales, spec.limits
    seen = np.asarray(seen, float)
    y, start, size, outputs = layout.num_measured, layout.command_start, layout.size, spec.num_outputs
    measured = seen[:y] * np.asarray(scales.measured_scale) + np.asarray(scales.measured_center)
    earlier = measured - seen[y:start].reshape(-1, y) * np.asarray(scales.change_scale)
    low, high = np.asarray(limits.command_low), np.asarray(limits.command_high)
    commands = (low + high) / 2 + (high - low) / 2 * seen[start:size].reshape(-1, layout.num_commands)
    now = np.asarray(tracked_output(spec, measured)) + seen[size : size + outputs] * np.asarray(scales.error)
    motion = seen[size + outputs :].reshape(-1, outputs) * np.asarray(scales.preview)
    state = np.concatenate([measured, earlier.ravel(), commands.ravel()])
    return state, np.concatenate([now[None], now + motion])


def goes_on(
    spec: ControlSpec,
    before: Float[np.ndarray, " state"],
    sent: Float[np.ndarray, " commands"],
    state: Float[np.ndarray, " state"],
) -> bool:
    """Whether a state vector is the one `before`, one step later, with the command `sent` between them.

    Otherwise the robot is another one, or was put somewhere else.
    """
    layout, limits = spec.layout, spec.limits
    y, start, m = layout.num_measured, layout.command_start, layout.num_commands
    half = (np.asarray(limits.command_high) - np.asarray(limits.command_low)) / 2
    remembered = np.concatenate([sent, before[start:-m]]).reshape(-1, m)
    commands = np.abs(state[start:].reshape(-1, m) - remembered) / half
    scale = np.asarray(spec.scales.measured_scale)
    measured = np.abs((state[y:start] - before[: start - y]).reshape(-1, y)) / scale
    return bool((commands < SAME).all() and (measured < SAME).all())
