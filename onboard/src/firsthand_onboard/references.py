"""From a goal to a reference. Built on the robot's side when a trajectory starts, from where the robot then is."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import constant, namespace
from .kinematics import output_of_positions, tracked_output
from .spec import ControlSpec

PEAK_OF_QUINTIC = 1.875
"""The highest slope of the quintic blend: a move by Δ in T seconds peaks at 1.875 Δ/T."""


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


def build_reference(spec: ControlSpec, measured: Any, goal: Any) -> Any:
    """The reference `(steps + last preview offset, outputs)` from where the robot is to `goal`; row k is for step k.

    C²-continuous: a quintic blend in joint space (mapped through the kinematics) or in the space of the tracked
    output, at rest at both ends and held at the goal after `steps`. A goal too far to reach within the allowed peak
    speeds is moved closer along the straight line to it.
    """
    xp = namespace(measured)
    if spec.reference.space == "position":
        start = xp.stack([measured[i] for i in spec.layout.position])
    else:
        start = tracked_output(spec, measured)
    phase = np.arange(spec.reference_length) / spec.reference.steps
    blend = constant(quintic_blend(phase), measured)
    path = start + blend[:, None] * (reachable_fraction(spec, start, goal) * (goal - start))
    return output_of_positions(spec.kinematics, path) if spec.reference.space == "position" else path
