"""The state vector and the policy's input. Pure functions against the array API: numpy on the robot, JAX in training."""

from __future__ import annotations

from typing import Any

from .arrays import constant, namespace
from .kinematics import tracked_output
from .spec import ControlSpec, StateLayout


def initial_state(layout: StateLayout, measured: Any, command: Any) -> Any:
    """The state of a robot that has been standing like this, with this command, for a long time."""
    xp = namespace(measured)
    parts = [measured] * (1 + layout.measurement_memory) + [command] * layout.command_memory
    return xp.concat(parts, axis=-1)


def next_state(layout: StateLayout, state: Any, command: Any, measured: Any) -> Any:
    """The state after `command` was applied and `measured` was read: both registers move on by one."""
    xp = namespace(state)
    y, start = layout.num_measured, layout.command_start
    kept_measured = state[..., : start - y]
    kept_commands = state[..., start : layout.size - layout.num_commands]
    return xp.concat([measured, kept_measured, command, kept_commands], axis=-1)


def measured_part(layout: StateLayout, state: Any) -> Any:
    """y_k, what was measured last."""
    return state[..., : layout.num_measured]


def last_command(layout: StateLayout, state: Any) -> Any:
    """u_{k-1}, the command before this one."""
    return state[..., layout.command_start : layout.command_start + layout.num_commands]


def preview_points(spec: ControlSpec, reference: Any, step: int) -> Any:
    """The reference now and at the preview's offsets, `(1 + preview, outputs)`, for one step of one trajectory."""
    rows = [reference[step], *(reference[step + offset] for offset in spec.preview)]
    return namespace(reference).stack(rows)


def observation(spec: ControlSpec, state: Any, preview: Any) -> Any:
    """The policy's input for one step.

    `preview[0]` is the reference now and `preview[j]` the one `spec.preview[j-1]` steps ahead. The reference enters
    relative to the robot: the error now, and how far the reference will move from where it is now.
    """
    xp = namespace(state)
    layout, scales, limits = spec.layout, spec.scales, spec.limits
    y, start = layout.num_measured, layout.command_start
    measured = state[:y]
    parts = [(measured - constant(scales.measured_center, state)) / constant(scales.measured_scale, state)]
    change = constant(scales.change_scale, state)
    for j in range(1, layout.measurement_memory + 1):
        parts.append((measured - state[j * y : (j + 1) * y]) / change)
    low, high = constant(limits.command_low, state), constant(limits.command_high, state)
    middle, half = (low + high) / 2, (high - low) / 2
    for j in range(layout.command_memory):
        command = state[start + j * layout.num_commands : start + (j + 1) * layout.num_commands]
        parts.append((command - middle) / half)
    parts.append((preview[0] - tracked_output(spec, measured)) / scales.error)
    parts.append(xp.reshape((preview[1:] - preview[0]) / scales.preview, (-1,)))
    return xp.concat(parts)
