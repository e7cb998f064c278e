"""What is asked of an inspection, and how it divides the robot's time."""

import math
from dataclasses import dataclass

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError

CHUNK = 5
"""Control periods between two looks at the robot: so soon is a push cut when a position comes near its limit."""
LEAST_PUSH, MOST_PUSH, MOST_PUSH_S = 10, 50, 1.0
"""A push takes a fifth of a trajectory: at least 10 control periods, at most 50 or one second, whichever is longer."""
FIRST_SHARE = 0.04
"""The first push has this share of the largest amplitude."""
FEWEST_LEVELS, SHORT_LEVELS, USUAL_LEVELS, MOST_LEVELS = 3, 4, 6, 9
FEWEST_REPEATS, USUAL_REPEATS = 8, 12
"""Pushes at the top amplitude from which a channel's dead time is read."""
LEVEL_COST, REPEAT_COST = 4.6, 2.7
"""Lengths of a push that an amplitude and a repeat take, about: pushes, their return, and a short rest."""
LONG_MINUTES = 8.0
"""A robot with many channels gets fewer amplitudes and repeats rather than more time than this."""


@dataclass(frozen=True)
class InspectionSettings:
    """How long and how hard the robot is pushed."""

    minutes: float = 5.0
    """Robot time, about."""
    amplitude: float = 0.5
    """The largest push, as a share of half the command range."""
    seed: int = 0
    """Of the order and the signs of the pushes."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise UserError(f"minutes is {self.minutes:g}, but must be a positive number.")
        if not 0 < self.amplitude <= 1:
            raise UserError(
                f"amplitude is {self.amplitude:g}, but must be above 0 and at most 1, the whole half of the range."
            )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")


@dataclass(frozen=True)
class Plan:
    """The robot's time in control periods."""

    total: int
    rest: int
    """Standing still at the beginning."""
    per_channel: int
    """Pushing one channel alone."""
    push: int
    """One push, at most."""
    early: int
    """A push that a coin has shortened."""
    levels: tuple[float, ...]
    """Amplitudes to climb, as shares of half the command range."""


def make_plan(settings: InspectionSettings, spec: ControlSpec) -> Plan:
    """Divide the time: 6 % rest, 70 % one channel after the other, the remainder all channels together.

    A robot with one channel gets nearly all of the time for it.
    """
    total = int(settings.minutes * 60 / spec.period_s)
    push, channels = _push_steps(spec), spec.layout.num_commands
    per_channel = int(_share(spec) * total / channels)
    usual, short = (
        int((per_channel / push - repeats * REPEAT_COST) / LEVEL_COST) for repeats in (USUAL_REPEATS, FEWEST_REPEATS)
    )
    if short < FEWEST_LEVELS:
        raise UserError(
            f"minutes is {settings.minutes:g}, but {channels} command channels of this robot need at least "
            f"{_minutes(spec, FEWEST_LEVELS, FEWEST_REPEATS):g}."
        )
    levels = min(max(usual, min(short, SHORT_LEVELS)), MOST_LEVELS)
    return Plan(
        total=total,
        rest=CHUNK * max(round(0.06 * total / CHUNK), 2 * push // CHUNK),
        per_channel=per_channel,
        push=push,
        early=CHUNK * round(0.6 * push / CHUNK),
        levels=tuple((settings.amplitude * np.geomspace(FIRST_SHARE, 1.0, levels)).tolist()),
    )


def usual_minutes(spec: ControlSpec) -> float:
    """Robot time that is enough for a good look at every channel."""
    short = max(_minutes(spec, SHORT_LEVELS, FEWEST_REPEATS), LONG_MINUTES)
    return max(min(_minutes(spec, USUAL_LEVELS, USUAL_REPEATS), short), 2.0)


def repeats_steps(push: int) -> int:
    """Control periods that the repeated pushes of a channel take, about."""
    return int(REPEAT_COST * FEWEST_REPEATS * push)


def _minutes(spec: ControlSpec, levels: int, repeats: int) -> float:
    steps = _push_steps(spec) * (levels * LEVEL_COST + repeats * REPEAT_COST) * spec.layout.num_commands / _share(spec)
    return math.ceil(10 * (steps + spec.layout.num_commands) * spec.period_s / 60) / 10


def _push_steps(spec: ControlSpec) -> int:
    most = max(MOST_PUSH, MOST_PUSH_S / spec.period_s)
    return CHUNK * round(float(np.clip(spec.reference.steps / 5, LEAST_PUSH, most)) / CHUNK)


def _share(spec: ControlSpec) -> float:
    """Of the time, for pushing one channel after the other."""
    return 0.70 if spec.layout.num_commands > 1 else 0.92
