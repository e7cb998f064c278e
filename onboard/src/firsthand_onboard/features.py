"""The state vector, the reference to follow, and the policy's input of both.

Pure functions against the array API: numpy, or JAX in training. A reference is built on the robot's side when a
trajectory starts, from where the robot then is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import constant, namespace
from .kinematics import output_error, output_of_positions, tracked_output
from .spec import ControlSpec, StateLayout

PEAK_OF_QUINTIC = 1.875
"""The highest slope of the quintic blend: a move by Δ in T seconds peaks at 1.875 Δ/T."""


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


def quintic_blend(phase: Any) -> Any:
    """10 s³ − 15 s⁴ + 6 s⁵: from 0 to 1 with zero speed and acceleration at both ends, held outside [0, 1]."""
    s = namespace(phase).clip(phase, 0.0, 1.0)
    return s * s * s * (10.0 + s * (6.0 * s - 15.0))


def reachable_fraction(spec: ControlSpec, start: Any, goal: Any) -> Any:
    """How much of the way from start to goal a reference may go so that its peak speeds stay allowed; at most 1."""
    xp = namespace(start)
    way = goal - start
    rate = xp.where(way < 0, constant(spec.reference.rate_low, start), constant(spec.reference.rate_high, start))
    farthest = rate * (spec.reference.steps * spec.period_s / PEAK_OF_QUINTIC)  # same sign as `way`
    share = xp.abs(farthest) / xp.maximum(xp.abs(way), constant(1e-9, start))
    return xp.minimum(xp.min(share), constant(1.0, start))


def reference_start(spec: ControlSpec, measured: Any) -> Any:
    """Where a reference of a robot that measures this begins: its positions, or its tracked output."""
    if spec.reference.space == "position":
        return namespace(measured).stack([measured[i] for i in spec.layout.position])
    return tracked_output(spec, measured)


def reference_path(spec: ControlSpec, start: Any, goal: Any, entry: float = 0.0) -> Any:
    """The path `(steps + last preview offset, coordinates)` from `start` towards `goal`, in the reference's own space.

    A quintic blend, at rest at both ends and held after `steps`. A goal too far to reach within the allowed peak speeds
    is moved closer along the straight line to it. With an `entry` above 0 the blend is entered at that phase, in
    motion, and what lies before it is left out of the way.
    """
    phase = entry + np.arange(spec.reference_length) / spec.reference.steps
    blend = constant(quintic_blend(phase) - quintic_blend(np.asarray(entry)), start)
    return start + blend[:, None] * (reachable_fraction(spec, start, goal) * (goal - start))


def path_outputs(spec: ControlSpec, path: Any) -> Any:
    """The tracked output along a path in the reference's own space."""
    return output_of_positions(spec.kinematics, path) if spec.reference.space == "position" else path


def build_reference(spec: ControlSpec, measured: Any, goal: Any) -> Any:
    """The reference `(steps + last preview offset, outputs)` from where the robot is to `goal`; row k is for step k.

    C²-continuous: a quintic blend in joint space (mapped through the kinematics) or in the space of the tracked
    output; see `reference_path`. Where the profile is "hold" every row is the goal.
    """
    if spec.reference.profile == "hold":
        xp = namespace(measured)
        return path_outputs(spec, xp.stack([xp.asarray(goal, dtype=measured.dtype)] * spec.reference_length))
    return path_outputs(spec, reference_path(spec, reference_start(spec, measured), goal))


def error_size(spec: ControlSpec, error: Any) -> Any:
    """The Euclidean size of tracking errors `(…, outputs)`; where units differ, of each over its `scales.error`."""
    if spec.has_mixed_units:
        error = error / constant(spec.scales.error, error)
    return namespace(error).linalg.norm(error, axis=-1)


def preview_points(spec: ControlSpec, reference: Any, step: int) -> Any:
    """The reference now and at the preview's offsets, `(1 + preview, outputs)`, for one step of one trajectory."""
    rows = [reference[step], *(reference[step + offset] for offset in spec.preview)]
    return namespace(reference).stack(rows)


def robot_features(spec: ControlSpec, state: Any) -> Any:
    """The state, every entry of order one: what is measured, how it changed, and the command memory."""
    xp = namespace(state)
    layout, scales = spec.layout, spec.scales
    y, start, memory = layout.num_measured, layout.command_start, layout.measurement_memory
    measured = state[:y]
    parts = [(measured - constant(scales.measured_center, state)) / constant(scales.measured_scale, state)]
    if memory:
        earlier = xp.reshape(state[y:start], (memory, y))
        parts.append(xp.reshape((measured - earlier) / constant(scales.change_scale, state), (-1,)))
    commands = xp.reshape(state[start:], (layout.command_memory, layout.num_commands))
    parts.append(xp.reshape(command_feature(spec, commands), (-1,)))
    return xp.concat(parts)


def command_feature(spec: ControlSpec, command: Any) -> Any:
    """A command scaled so that its range is [-1, 1]."""
    low, high = constant(spec.limits.command_low, command), constant(spec.limits.command_high, command)
    return (command - (low + high) / 2) / ((high - low) / 2)


def observation(spec: ControlSpec, state: Any, preview: Any) -> Any:
    """The policy's input for one step.

    `preview[0]` is the reference now and `preview[j]` the one `spec.preview[j-1]` steps ahead. The reference enters
    relative to the robot: the error now, and how far the reference will move from where it is now. Orientations enter
    as the rotation from the one to the other (`output_error`), which does not jump where a rotation vector does.
    """
    xp = namespace(state)
    output = tracked_output(spec, measured_part(spec.layout, state))
    error = output_error(spec, preview[0], output) / _divisor(spec.scales.error, state)
    motion = output_error(spec, preview[1:], preview[:1]) / _divisor(spec.scales.preview, state)
    return xp.concat([robot_features(spec, state), error, xp.reshape(motion, (-1,))])


def _divisor(scale: Any, like: Any) -> Any:
    """One scale for all outputs as it is, or one per output as an array."""
    return constant(scale, like) if isinstance(scale, tuple) else scale
