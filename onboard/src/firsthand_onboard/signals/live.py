"""Sensors that must not be believed, one measurement at a time: what the gate looks at before anything else.

A value that is absurd, a sensor that shows the same while its joint is commanded to move, and a position and velocity
that contradict each other are faults. A position that leaps counts as missing: a single glitch passes, a lasting one
becomes a fault like any lost measurement. Every comparison is written so that NaN fails it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ..spec import ControlSpec
from .settings import SignalSettings


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
    same_position: tuple[tuple[int, float], ...] = ()
    """For how many measurements each position has been the same, and how far its velocity went meanwhile."""
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
        count = len(self._joints)
        self._start = SensorMemory((), (0.0,) * count, 0.0, ((0, 0.0),) * count, ((0, 0.0),) * count)

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
        unmoved, positions, velocities, whole = [], [], [], True
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
                for held, entries, which in (
                    (same, (positions, memory.same_position), at),
                    (same_speed, (velocities, memory.same_velocity), speed_at),
                ):
                    now, then = entries
                    count, apart = then[i]
                    count, apart = (count + 1, apart + moved - speed * elapsed_s) if held else (0, 0.0)
                    if count >= settings.contradicted_steps and not abs(apart) <= allowed:
                        return Verdict.FAULT, f"{self._names[which]} is stuck: its joint's other sensor moves", memory
                    now.append((count, apart) if count < settings.stuck_steps else (0, 0.0))
        everything = memory.unmoved_all + max(effort - settings.frozen_command, 0.0) * elapsed_s if whole else 0.0
        if not everything <= (1.0 - settings.frozen_command) * (settings.frozen_s + self._longest_dead_time()):
            return Verdict.FAULT, "the sensors are frozen: nothing changes although commanded", memory
        none = self._start.same_position
        return (
            Verdict.GOOD,
            "",
            SensorMemory(
                tuple(values), tuple(unmoved), everything, tuple(positions) or none, tuple(velocities) or none
            ),
        )

    def _rest(self, memory: SensorMemory) -> tuple:
        return memory.unmoved, memory.unmoved_all, memory.same_position, memory.same_velocity

    def _longest_dead_time(self) -> float:
        return max((joint[4] for joint in self._joints), default=math.inf) - self.settings.frozen_s
