"""Implausible sensors, one measurement at a time: the first check of the gate.

Faults are: an absurd value, a sensor that does not change while its joint is commanded to move, and a position and
velocity that contradict each other. A frozen sensor may still flicker: a position that stays where it is while its
velocity leads away from there, or while nearly all of the command drives it, is a fault, too. A position that leaps
counts as missing: a single glitch passes, a lasting one becomes a fault like any lost measurement. Every comparison is
written so that NaN fails it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ..spec import ControlSpec
from .settings import SignalSettings

CONTRADICTED_SHARE = 0.2
"""A position that went less far than this share of what its velocity says contradicts it."""
VELOCITY_SPIKE = 2.0
"""Of one measurement of a velocity no more change scales count than this: a spike is no contradiction."""
PUSHED_COMMAND, PUSHED_S, PUSHED_SHARE = 0.75, 1.0, 0.02
"""A joint that was driven with the first share of its command range, in one direction, for the second, and dead time
on top, and went less far than the third share of its change scales in this time, is frozen or blocked."""


class Verdict(Enum):
    """What to make of a measurement."""

    GOOD = "good"
    MISSING = "missing"
    FAULT = "fault"


@dataclass(frozen=True)
class SensorMemory:
    """What is remembered of the sensors; lists have an entry per position and are never changed."""

    values: tuple[float, ...] = ()
    """The last good measurement; empty before the first."""
    unmoved: tuple[float, ...] = ()
    """For how long, in seconds of full command, each joint was commanded while its sensors showed the same."""
    unmoved_all: float = 0.0
    """The same for the whole measurement and all commands."""
    ways: tuple[tuple[int, float, float, float], ...] = ()
    """Per position: for how many measurements its velocity has led in one direction, where it was before, how far away
    from there it has been since, and how far its velocity went."""
    pushed: tuple[tuple[float, float], ...] = ()
    """Per position: for how long it has been driven hard in one direction (negative: down), and where it was before."""
    pushed_all: tuple[float, tuple[float, ...]] = (0.0, ())
    """For how long some channel has been driven hard while no joint left its place, and these places."""
    same_velocity: tuple[tuple[int, float], ...] = ()
    """For how many measurements each velocity has been the same, and how far position and velocity disagree."""


class SensorWatch:
    """The sensors of one machine."""

    def __init__(self, spec: ControlSpec, settings: SignalSettings, dead_time_s: tuple[float, ...] = ()) -> None:
        self.settings, self._names, self._period = settings, spec.layout.measured, spec.period_s
        scales, layout = spec.scales, spec.layout
        self._ranges = [
            (center - settings.max_scales * scale, center + settings.max_scales * scale)
            for center, scale in zip(scales.measured_center, scales.measured_scale)  # noqa: B905 (Python 3.10)
        ]
        velocity = layout.velocity or (-1,) * len(layout.position)
        widths = [b - a for a, b in zip(spec.limits.position_low, spec.limits.position_high)]  # noqa: B905
        allowed = [settings.stuck_change_scales * scales.change_scale[at] for at in layout.position]
        frozen = [settings.frozen_s + dead for dead in dead_time_s or (settings.unknown_dead_time_s,) * len(widths)]
        self._joints = list(zip(layout.position, velocity, widths, allowed, frozen))  # noqa: B905
        self._pushed_s = [PUSHED_S + seconds - settings.frozen_s for seconds in frozen]
        self._least_ways = [
            PUSHED_SHARE * scales.change_scale[at] * seconds / spec.period_s
            for at, seconds in zip(layout.position, self._pushed_s)  # noqa: B905
        ]
        count = len(self._joints)
        self._start = SensorMemory(
            (),
            (0.0,) * count,
            0.0,
            ((0, 0.0, 0.0, 0.0),) * count,
            ((0.0, 0.0),) * count,
            (0.0, (math.inf,) * count),
            ((0, 0.0),) * count,
        )

    def start(self) -> SensorMemory:
        """Nothing has been measured yet."""
        return self._start

    def check(
        self, memory: SensorMemory, values: list[float], efforts: list[float], effort: float, elapsed: int
    ) -> tuple[Verdict, str, SensorMemory]:
        """What to make of a finite measurement, why, and what to remember.

        `efforts` are the shares of the command range that drove each joint since the last one, `effort` is the largest
        of all channels, `elapsed` the periods between.
        """
        for name, value, (low, high) in zip(self._names, values, self._ranges):  # noqa: B905
            if not low <= value <= high:
                return Verdict.FAULT, f"{name} measures {value:.3g}, which cannot be", memory
        before = memory.values
        if not before:
            return Verdict.GOOD, "", SensorMemory(tuple(values), *self._rest(memory))
        settings, elapsed_s = self.settings, elapsed * self._period
        unmoved, ways, pushed, velocities, whole = [], [], [], [], True
        for i, (at, speed_at, width, allowed, frozen_s) in enumerate(self._joints):
            moved = values[at] - before[at]
            speed = fastest = 0.0
            if speed_at >= 0:
                speed = (values[speed_at] + before[speed_at]) / 2.0
                fastest = max(abs(values[speed_at]), abs(before[speed_at]))
            if not abs(moved) <= settings.leap_speed * elapsed_s * fastest + settings.leap_range * width:
                return Verdict.MISSING, f"{self._names[at]} leaps by {moved:.3g} within a period", memory
            same = moved == 0.0
            same_speed = speed_at < 0 or values[speed_at] == before[speed_at]
            whole = whole and same and same_speed
            driven = max(abs(efforts[i]) - settings.frozen_command, 0.0) * elapsed_s
            unmoved.append(memory.unmoved[i] + driven if same and same_speed else 0.0)
            if not unmoved[i] <= (1.0 - settings.frozen_command) * frozen_s:
                return Verdict.FAULT, f"{self._names[at]} is frozen: it does not change although commanded", memory
            if speed_at >= 0:
                ways.append(self._follow(memory.ways[i], before[at], values[at], speed * elapsed_s, allowed))
                if self._is_contradicted(ways[i], allowed):
                    return Verdict.FAULT, f"{self._names[at]} is stuck: its joint's other sensor moves", memory
                count, apart = memory.same_velocity[i]
                count, apart = (count + 1, apart + moved - speed * elapsed_s) if same_speed else (0, 0.0)
                if count >= settings.contradicted_steps and not abs(apart) <= allowed:
                    return Verdict.FAULT, f"{self._names[speed_at]} is stuck: its joint's other sensor moves", memory
                velocities.append((count, apart) if count < settings.stuck_steps else (0, 0.0))
            pushed.append(self._push(i, memory.pushed[i], before[at], values[at], efforts[i], elapsed_s))
            if not abs(pushed[i][0]) <= self._pushed_s[i]:
                return Verdict.FAULT, f"{self._names[at]} is frozen, or its joint is blocked: it does not move", memory
        everything = memory.unmoved_all + max(effort - settings.frozen_command, 0.0) * elapsed_s if whole else 0.0
        if not everything <= (1.0 - settings.frozen_command) * (settings.frozen_s + self._longest_dead_time()):
            return Verdict.FAULT, "the sensors are frozen: nothing changes although commanded", memory
        pushed_all = self._push_all(memory.pushed_all, before, values, effort, elapsed_s)
        if not pushed_all[0] <= max(self._pushed_s, default=math.inf):
            return Verdict.FAULT, "the sensors are frozen, or the machine is blocked: nothing moves", memory
        start = self._start
        now = SensorMemory(
            tuple(values),
            tuple(unmoved),
            everything,
            tuple(ways) or start.ways,
            tuple(pushed),
            pushed_all,
            tuple(velocities) or start.same_velocity,
        )
        return Verdict.GOOD, "", now

    def _follow(
        self, way: tuple[int, float, float, float], before: float, now: float, travelled: float, allowed: float
    ) -> tuple[int, float, float, float]:
        """How far a position has gone, and its velocity, since that has led in this direction; for a while."""
        count, began, away, total = way
        if count == 0 or count >= self.settings.stuck_steps or travelled * total < 0:
            count, began, away, total = 0, before, 0.0, 0.0
        most = VELOCITY_SPIKE * allowed / self.settings.stuck_change_scales
        return count + 1, began, max(away, abs(now - began)), total + min(max(travelled, -most), most)

    def _is_contradicted(self, way: tuple[int, float, float, float], allowed: float) -> bool:
        count, _, away, total = way
        if count < self.settings.contradicted_steps or not abs(total) - away > allowed:
            return False
        return not away > CONTRADICTED_SHARE * abs(total)

    def _push(
        self, i: int, pushed: tuple[float, float], before: float, now: float, effort: float, elapsed_s: float
    ) -> tuple[float, float]:
        """For how long a joint has been driven hard without leaving its place, and where that is."""
        seconds, place = pushed
        if not abs(effort) >= PUSHED_COMMAND:
            return 0.0, now
        if seconds * effort <= 0 or not abs(now - place) <= self._least_ways[i]:
            seconds, place = 0.0, before
        return seconds + math.copysign(elapsed_s, effort), place

    def _push_all(
        self,
        pushed: tuple[float, tuple[float, ...]],
        before: tuple[float, ...],
        now: list[float],
        effort: float,
        elapsed_s: float,
    ) -> tuple[float, tuple[float, ...]]:
        """The same for all joints together, where it is not known which channel moves which."""
        seconds, places = pushed
        if not effort >= PUSHED_COMMAND:
            return self._start.pushed_all
        for (at, *_), place, least in zip(self._joints, places, self._least_ways):  # noqa: B905
            if not abs(now[at] - place) <= least:
                return elapsed_s, tuple(before[joint[0]] for joint in self._joints)
        return seconds + elapsed_s, places

    def _rest(self, memory: SensorMemory) -> tuple:
        return (
            memory.unmoved,
            memory.unmoved_all,
            memory.ways,
            memory.pushed,
            memory.pushed_all,
            memory.same_velocity,
        )

    def _longest_dead_time(self) -> float:
        return max((joint[4] for joint in self._joints), default=math.inf) - self.settings.frozen_s
