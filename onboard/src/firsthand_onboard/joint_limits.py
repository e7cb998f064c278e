"""Keeps joints inside their limits: predicts where each would come to rest, and limits its commands accordingly.

A joint that moves at speed v towards a limit, at distance d, goes on by D(v) = T·v + v²/(2a) when its command becomes
neutral: T is dead time and lag, a the deceleration. Both are declared or measured; where they are not, T is long
(`UNKNOWN_STOP_S`). The share u of the command range towards the limit is then at most

    u ≤ (d − D(v)) / m          what is left at the present speed, over the margin m
    m·u + D(k·u) ≤ d            what is left at the speed k·u that this command leads to

so that a joint approaches its limit no faster than it can stop. k, the speed at full command, is watched.

Where neutral does not stop a joint, `brake` says which share of the command range, opposed to the motion, does: then u
may become negative. A machine that declares neither is not served (`check_stops_are_known`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .gate_limits import GateLimits
from .spec import ControlSpec

UNKNOWN_STOP_S = 1.4
"""How long a joint goes on at its present speed if it is not declared how it stops: 1.2 s of lag, 0.2 s of dead
time."""
UNKNOWN_DEAD_TIME_S = 0.2
WINDOW = 5
"""Speeds are also taken from positions over this many periods: a velocity that reads too low must not hide motion."""
SLOW = 0.002
"""Ranges per second below which a joint is slow."""
CREEP = 0.05
"""The share of all commands that is left where a joint that no channel is known to move stands at its limit."""
OVERSPEED, OVERSPEED_STEPS = 1.25, 3
"""A joint faster than this multiple of its highest speed, in this many measurements in a row, is a fault."""


@dataclass(frozen=True)
class JointMemory:
    """What is remembered of the joints from step to step; lists have an entry per position and are never changed."""

    gain: list[float]
    """Highest speed per share of the command range that was seen."""
    effort: list[float]
    """Recent largest share of the command range that drove the joint."""
    fast: list[int]
    """For how many measurements it has been too fast."""
    history: tuple[tuple[int, list[float], list[float]], ...] = ()
    """When, where and how fast the joints were lately, the newest last."""
    tick: int = 0
    """Counts periods."""


@dataclass(frozen=True)
class Rooms:
    """The commands after the limits."""

    of_joint: list[tuple[float, float]] = field(default_factory=list)
    """Shares of the command range that may move each joint down and up: 1 is all, 0 neutral, below that it brakes."""
    of_all: float = 1.0
    """The same for all channels, because of joints that no channel is known to move."""
    fault: str = ""
    """Why the machine must stop, or an empty text."""


@dataclass(frozen=True)
class _Joint:
    name: str
    at: int
    speed_at: int
    low: float
    high: float
    margin: float
    driven: bool
    stop_s: float
    dead_time_s: float
    deceleration: float
    brake: float
    speed: float

    @property
    def range(self) -> float:
        return self.high - self.low


class JointLimits:
    """The limits of one machine's joints, prepared for the loop."""

    def __init__(self, spec: ControlSpec, limits: GateLimits) -> None:
        self._period, self._tolerance = spec.period_s, limits.limit_tolerance
        self.active = limits.joint_margin > 0
        layout, box = spec.layout, spec.limits
        velocity = layout.velocity or (-1,) * len(layout.position)
        self.joints: list[_Joint] = []
        for i, (at, speed_at, low, high) in enumerate(
            zip(layout.position, velocity, box.position_low, box.position_high)  # noqa: B905 (Python 3.10)
        ):
            self.joints.append(_prepare(spec, limits, i, layout.measured[at], at, speed_at, low, high))
        self._gains = [
            max(expected, joint.speed) if joint.speed < math.inf else expected
            for expected, joint in zip(_expected_speeds(spec), self.joints)  # noqa: B905 (Python 3.10)
        ]

    def start(self, before: JointMemory | None = None) -> JointMemory:
        """At rest. What was learned about the joints `before` stays."""
        zeros = [0.0] * len(self.joints)
        counts = [0] * len(self.joints)
        if before is None:
            return JointMemory(self._gains, zeros, counts)
        return JointMemory(before.gain, zeros, counts)

    def __call__(
        self, memory: JointMemory, values: list[float], efforts: list[float], elapsed: int, recovering: bool = False
    ) -> tuple[Rooms, JointMemory]:
        """What is left of the commands at a measurement.

        `efforts` are the shares of the command range that drove each joint up (or, negative, down) in the last period,
        of one that no channel is known to move the largest of all; `elapsed` the periods since the last measurement.
        """
        if not self.active:
            return Rooms(), memory
        tick = memory.tick + elapsed
        positions, speeds, window = [], [], memory.history
        rooms, of_all, fault = [], 1.0, ""
        gains, kept_efforts, fast = [], [], []
        for i, joint in enumerate(self.joints):
            position = values[joint.at]
            rate, slope = self._speed(joint, i, position, values, tick, window)
            positions.append(position)
            speeds.append(rate)
            effort = max(abs(efforts[i]), memory.effort[i] * (1.0 - min(elapsed * self._period / joint.stop_s, 1.0)))
            gain = memory.gain[i]
            if abs(efforts[i]) > 0.2:
                gain = max(gain, abs(rate) / effort)
            gains.append(gain)
            kept_efforts.append(effort)
            # Comparisons are written so that NaN fails them.
            tolerance = self._tolerance * joint.range * (1.0 if joint.driven else 0.5)
            if not (joint.low - tolerance <= position <= joint.high + tolerance or recovering):
                fault = fault or self._describe_outside(joint, position, bool(window))
            acceleration = self._acceleration(i, rate, tick, window)
            gaining = acceleration * joint.dead_time_s if joint.brake == 0 else 0.0
            up = self._room(joint, joint.high - position, max(rate, slope, rate + gaining), gain)
            down = self._room(joint, position - joint.low, max(-rate, -slope, -rate - gaining), gain)
            if joint.speed < math.inf:
                soon = rate + acceleration * joint.stop_s
                up, down = (
                    min(up, self._room_of_speed(joint, soon, gain)),
                    min(down, self._room_of_speed(joint, -soon, gain)),
                )
            if not joint.driven:  # at rest it is unknown which way a command leads: gently, near a limit
                rises, falls = max(rate, slope) > 0, min(rate, slope) < 0
                of_all = min(of_all, up if rises else max(up, CREEP), down if falls else max(down, CREEP))
            rooms.append((min(down, 1.0), min(up, 1.0)))
            too_fast = not abs(rate) <= OVERSPEED * joint.speed
            fast.append(memory.fast[i] + 1 if too_fast else 0)
            if fast[i] >= OVERSPEED_STEPS:
                fault = fault or f"{joint.name} moves at {abs(rate):.3g} per s, faster than its limit {joint.speed:g}"
        history = (*window[-WINDOW + 1 :], (tick, positions, speeds))
        return Rooms(rooms, max(of_all, 0.0), fault), JointMemory(gains, kept_efforts, fast, history, tick)

    def describe_outside(self, values: list[float]) -> str:
        """One sentence for a joint that stands outside its limits; empty where none does."""
        for joint in self.joints if self.active else ():
            tolerance = self._tolerance * joint.range
            if not joint.low - tolerance <= values[joint.at] <= joint.high + tolerance:
                return self._describe_outside(joint, values[joint.at], False)
        return ""

    def speed(self, memory: JointMemory, i: int, values: list[float]) -> float:
        """The speed of a joint at a measurement: as measured or, where that is less, as its positions tell."""
        joint = self.joints[i]
        rate, slope = self._speed(joint, i, values[joint.at], values, memory.tick + 1, memory.history)
        return slope if abs(rate) < 0.5 * abs(slope) else rate

    def stand(self, memory: JointMemory, values: list[float]) -> bool:
        """Whether all joints that neutral does not stop are slow, by their positions, too: not known at once."""
        return len(memory.history) >= WINDOW - 1 and all(
            abs(self.speed(memory, i, values)) <= SLOW * joint.range
            for i, joint in enumerate(self.joints)
            if joint.brake > 0
        )

    def _speed(
        self, joint: _Joint, i: int, position: float, values: list[float], tick: int, window: tuple
    ) -> tuple[float, float]:
        """The speed as measured, or over the last period; and over the whole window."""
        if not window:
            return (values[joint.speed_at] if joint.speed_at >= 0 else 0.0), 0.0
        then, earlier, _ = window[0]
        slope = (position - earlier[i]) / ((tick - then) * self._period)
        if joint.speed_at >= 0:
            return values[joint.speed_at], slope
        then, earlier, _ = window[-min(2, len(window))]
        return (position - earlier[i]) / ((tick - then) * self._period), slope

    def _acceleration(self, i: int, rate: float, tick: int, window: tuple) -> float:
        """Over the whole window; 0 before there is one."""
        if len(window) < WINDOW:
            return 0.0
        then, _, earlier = window[0]
        return (rate - earlier[i]) / ((tick - then) * self._period)

    def _distance(self, joint: _Joint, speed: float) -> float:
        """How far a joint goes on at a speed towards a limit."""
        return speed * joint.stop_s + speed * speed / (2.0 * joint.deceleration)

    def _room(self, joint: _Joint, distance: float, speed: float, gain: float) -> float:
        """The share of the command range that may still move a joint towards a limit at `distance`."""
        speed = max(speed, 0.0)
        left = distance - self._distance(joint, speed)
        if joint.brake > 0:
            return max(left / joint.margin, -joint.brake)
        room = left / joint.margin
        linear = joint.margin + gain * joint.stop_s
        root = math.sqrt(linear * linear + 2.0 * max(distance, 0.0) * gain * gain / joint.deceleration)
        return max(min(room, 2.0 * distance / (linear + root)), 0.0)

    def _room_of_speed(self, joint: _Joint, soon: float, gain: float) -> float:
        """The share of the command range that keeps a joint to its highest speed, from where its speed is soon."""
        if joint.brake > 0:
            return max((joint.speed - soon) / (0.2 * joint.speed), -joint.brake)
        return max(min(joint.speed / max(gain, 1e-9), 1.0 - (soon / joint.speed - 1.0) / 0.2), 0.0)

    def _describe_outside(self, joint: _Joint, position: float, was_inside: bool) -> str:
        limits = f"its limits {joint.low:g} to {joint.high:g}"
        if was_inside:
            return f"{joint.name} is at {position:.4g}, beyond {limits}"
        return f"{joint.name} stands at {position:.4g}, outside {limits}: lead it back with `firsthand-onboard recover`"


def _prepare(
    spec: ControlSpec, limits: GateLimits, i: int, name: str, at: int, speed_at: int, low: float, high: float
) -> _Joint:
    lag = limits.stop_lag_s[i] if limits.stop_lag_s else 0.0
    deceleration = limits.deceleration[i] if limits.deceleration else math.inf
    known = bool(limits.stop_lag_s) or deceleration < math.inf
    dead = limits.stop_dead_time_s[i] if limits.stop_dead_time_s else 0.0 if known else UNKNOWN_DEAD_TIME_S
    brake = limits.brake[i] if limits.brake else 0.0
    driven, margin = i in limits.joint, limits.joint_margin * (high - low)
    stop_s = max(limits.lookahead_s, lag + dead + spec.period_s if known else UNKNOWN_STOP_S)
    if speed_at < 0:
        stop_s += spec.period_s  # the speed is that of a while ago
    if brake > 0:
        # Commands set accelerations a·u. With u = (d − T·v)/m the approach is well damped from T = 2·sqrt(m/a) on, and
        # stable where the gain of its speed loop, a·T/m, is well below one over the delay.
        full, delay = deceleration / brake, dead + (1.5 if speed_at >= 0 else 2.5) * spec.period_s + _ramp_s(limits, i)
        margin = max(margin, 16.0 * full * delay**2)
        stop_s = delay + 2.0 * math.sqrt(margin / full)
    return _Joint(
        name,
        at,
        speed_at,
        low,
        high,
        margin,
        driven,
        stop_s,
        dead,
        deceleration,
        brake,
        limits.speed[i] if limits.speed else math.inf,
    )


def _ramp_s(limits: GateLimits, joint: int) -> float:
    """About how much later a command comes because of its rate and acceleration limits."""
    delays = [0.0]
    for channel, moves in enumerate(limits.joint):
        rate = limits.rate[channel]
        if moves == joint and rate < math.inf:
            half = (limits.high[channel] - limits.low[channel]) / 2.0
            delays.append((half / rate + rate / limits.acceleration[channel]) / 2.0)
    return max(delays)


def _expected_speeds(spec: ControlSpec) -> list[float]:
    """The known speeds at full command before any motion.

    References use 80 % of them; where they are not of positions, the scales of the velocities say what is usual, or
    those of the changes.
    """
    layout, scales = spec.layout, spec.scales
    ranges = [b - a for a, b in zip(spec.limits.position_low, spec.limits.position_high)]  # noqa: B905 (Python 3.10)
    if spec.reference.space == "position":
        speeds = [max(-a, b) / 0.8 for a, b in zip(spec.reference.rate_low, spec.reference.rate_high)]  # noqa: B905
    elif layout.velocity:
        speeds = [scales.measured_scale[at] for at in layout.velocity]
    else:
        speeds = [scales.change_scale[at] / spec.period_s for at in layout.position]
    return [min(speed, 0.5 * width) for speed, width in zip(speeds, ranges)]  # noqa: B905
