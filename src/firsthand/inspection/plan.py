"""How an inspection divides the robot's time."""

import math
from dataclasses import dataclass

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from .settings import InspectionSettings

CHUNK = 5
"""Control periods between two looks at the robot: a push is cut this soon when a position comes near its limit."""
MIN_PUSH_STEPS, MAX_PUSH_STEPS, MAX_PUSH_S = 10, 50, 1.0
"""A push takes a fifth of a trajectory: at least 10 control periods, at most 50 or one second, whichever is longer."""
FIRST_SHARE = 0.04
"""The first push has this share of the largest amplitude."""
MIN_LEVELS, SHORT_LEVELS, USUAL_LEVELS, MAX_LEVELS = 3, 4, 6, 9
"""Amplitudes per channel."""
MIN_REPEATS, USUAL_REPEATS = 8, 12
"""Pushes at the top amplitude from which a channel's dead time is read."""
LEVEL_COST, REPEAT_COST = 4.6, 2.7
"""About how many lengths of a push an amplitude and a repeat take: pushes, their return, and a short rest."""
LONG_MINUTES = 8.0
"""A robot with many channels gets fewer amplitudes and repeats rather than more time than this."""


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
    short_push: int
    """A push that is shortened at random."""
    levels: tuple[float, ...]
    """Amplitudes to climb, as shares of half the command range."""


def make_plan(settings: InspectionSettings, spec: ControlSpec) -> Plan:
    """Divide the time: 6 % rest, 70 % one channel after the other, the remainder all channels together.

    A robot with one channel gets nearly all of the time for it.
    """
    total = int(settings.minutes * 60 / spec.period_s)
    push, channels = _push_steps(spec), spec.layout.num_commands
    per_channel = int(_single_channel_share(spec) * total / channels)
    usual, short = (
        int((per_channel / push - repeats * REPEAT_COST) / LEVEL_COST) for repeats in (USUAL_REPEATS, MIN_REPEATS)
    )
    if short < MIN_LEVELS:
        raise UserError(
            f"minutes is {settings.minutes:g}, but {channels} command channels of this robot need at least "
            f"{_minutes_for(spec, MIN_LEVELS, MIN_REPEATS):g}."
        )
    levels = min(max(usual, min(short, SHORT_LEVELS)), MAX_LEVELS)
    return Plan(
        total=total,
        rest=CHUNK * max(round(0.06 * total / CHUNK), 2 * push // CHUNK),
        per_channel=per_channel,
        push=push,
        short_push=CHUNK * round(0.6 * push / CHUNK),
        levels=tuple((settings.amplitude * np.geomspace(FIRST_SHARE, 1.0, levels)).tolist()),
    )


def usual_minutes(spec: ControlSpec) -> float:
    """Robot time that is enough for a good look at every channel."""
    short = max(_minutes_for(spec, SHORT_LEVELS, MIN_REPEATS), LONG_MINUTES)
    return max(min(_minutes_for(spec, USUAL_LEVELS, USUAL_REPEATS), short), 2.0)


def steps_of_repeats(push: int) -> int:
    """About how many control periods the repeated pushes of a channel take."""
    return int(REPEAT_COST * MIN_REPEATS * push)


def _minutes_for(spec: ControlSpec, levels: int, repeats: int) -> float:
    steps = (
        _push_steps(spec)
        * (levels * LEVEL_COST + repeats * REPEAT_COST)
        * spec.layout.num_commands
        / _single_channel_share(spec)
    )
    return math.ceil(10 * (steps + spec.layout.num_commands) * spec.period_s / 60) / 10


def _push_steps(spec: ControlSpec) -> int:
    longest = max(MAX_PUSH_STEPS, MAX_PUSH_S / spec.period_s)
    return CHUNK * round(float(np.clip(spec.reference.steps / 5, MIN_PUSH_STEPS, longest)) / CHUNK)


def _single_channel_share(spec: ControlSpec) -> float:
    """Share of the time for pushing one channel after the other."""
    return 0.70 if spec.layout.num_commands > 1 else 0.92
