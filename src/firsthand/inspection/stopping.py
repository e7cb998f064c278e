"""How far each position goes on after its command has become neutral, which the robot's gate must know."""

import math
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from .findings import ChannelFindings, Findings
from .recording import Recording

FAST = 0.4
"""Stops from less than this share of the highest speed at which the command became neutral are left to noise."""
MOVING = ("", "m", "cm", "mm", "µm", "in", "rad", "mrad", "deg", "°")
"""Units of positions that something moves in; a temperature or a pressure has nothing to stop."""
SAFETY = 1.2
"""Ratio of the proposed to the measured value."""


def measure_stopping(recording: Recording, findings: Findings, spec: ControlSpec) -> dict[str, list[Any]] | None:
    """`stopping` as a machine declares it, per position; None where that cannot be told.

    `lag_s` is the longest way to rest that was seen over the speed it began with, without dead time; where no stop was
    seen, the lag of the response. None in it: commands set accelerations, so that neutral stops nothing. Then
    `deceleration` is that of the whole command range, and `brake` the share of it that is to be used.
    """
    units = spec.layout.measured_units
    if units and not any(units[entry] in MOVING for entry in spec.layout.position):
        return None
    lag: list[Any] = []
    dead, deceleration, brake = [], [], []
    for i, entry in enumerate(spec.layout.position):
        channels = [c for c in findings.channels if c.quantity is not None and c.quantity.position == entry]
        channels = [c for c in channels if c.responds and c.dead_time_steps is not None]
        if not channels or any(c.kind == "position" or c.is_contradictory for c in channels):
            return None
        waits = max(c.dead_time_steps or 0 for c in channels) * spec.period_s
        dead.append(_round_up(waits + spec.period_s))  # it is at most one period more than was seen
        if any(c.kind == "acceleration" for c in channels):
            effect = min(_full_effect(c, spec) for c in channels)
            if not effect > 0:
                return None
            lag.append(None)
            deceleration.append(float(f"{effect / SAFETY:.2g}"))
            brake.append(1.0)
            continue
        ways = measure_stops(recording, spec, i)
        rises = [c.lag_steps for c in channels if math.isfinite(c.lag_steps)]
        longest = max(ways) - waits if ways else max(rises, default=0.0) * spec.period_s
        lag.append(_round_up(SAFETY * max(longest, 0.0)))
        deceleration.append(None)
        brake.append(0.0)
    found: dict[str, list[Any]] = {"lag_s": lag, "dead_time_s": dead}
    if any(brake):
        found |= {"deceleration": deceleration, "brake": brake}
    return found


def measure_stops(recording: Recording, spec: ControlSpec, which: int) -> list[float]:
    """Per stop: how far position `which` went on after all commands became neutral, over its speed then, in s."""
    at = spec.layout.position[which]
    neutral = (recording.commands == recording.commands[0]).all(axis=1)
    known = recording.joined & np.isfinite(recording.after[:, at])
    begins = np.flatnonzero(neutral[1:] & ~neutral[:-1]) + 1
    stops = []
    for start in begins:
        end = start
        while end < len(recording) and neutral[end] and known[end]:
            end += 1
        if end - start < 3 or start < 2 or not known[start - 2 : start].all():
            continue
        if spec.layout.velocity:
            speed = recording.before[start, spec.layout.velocity[which]]
        else:
            speed = (recording.before[start, at] - recording.before[start - 2, at]) / (2 * spec.period_s)
        way = np.sign(speed) * (recording.after[start:end, at] - recording.before[start, at])
        if np.isfinite(speed) and speed != 0:
            stops.append((abs(float(speed)), float(way.max())))
    fastest = max((speed for speed, _ in stops), default=0.0)
    return [max(way, 0.0) / speed for speed, way in stops if speed >= FAST * fastest]


def _full_effect(channel: ChannelFindings, spec: ControlSpec) -> float:
    """The acceleration at full command, in the weaker direction."""
    c = spec.layout.commands.index(channel.name)
    half = (spec.limits.command_high[c] - spec.limits.command_low[c]) / 2
    gains = [abs(g) for g in (channel.gain_plus, channel.gain_minus) if math.isfinite(g) and g != 0]
    return min(gains, default=0.0) * half


def _round_up(value: float) -> float:
    return math.ceil(100 * value - 1e-9) / 100
