"""Where a motion ends because a position is about to leave its limits."""

import numpy as np
import pytest

from firsthand.robots.limits import LIMIT_SLACK, LimitWatch
from firsthand_onboard import (
    ControlSpec,
    Limits,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    StateLayout,
)

SPEC = ControlSpec(
    robot="slide",
    period_s=0.1,
    layout=StateLayout(("x",), (0,), (), ("u",), 1),
    kinematics=SelectedOutput((0,)),
    preview=(1,),
    scales=Scales((0.0,), (1.0,), (0.1,), 1.0, 1.0),
    limits=Limits((-1.0,), (1.0,), (-1.0,), (1.0,)),
    reference=ReferenceSpec("output", 10, (-1.0,), (1.0,)),
    policy=PolicyShape((4,)),
)
BEYOND = 1.0 + 2 * LIMIT_SLACK
"""The limit with its slack."""


@pytest.mark.parametrize("speed", [0.001, 0.003, 0.05])
def test_a_robot_that_creeps_is_stopped_although_it_is_watched_in_short_pieces(speed: float):
    """An inspection plays a few periods at a time; each begins where the last one ended."""
    at, ended = 0.9, False
    while not ended and at < 2.0:
        watch = LimitWatch(SPEC, np.array([at]))
        for _ in range(5):
            at += speed
            ended = ended or watch.leaves(np.array([at]))
    assert ended
    assert at < BEYOND + 5 * speed


def test_what_begins_outside_may_come_back_but_not_lead_farther_out():
    assert not LimitWatch(SPEC, np.array([1.5])).leaves(np.array([1.45]))
    assert not LimitWatch(SPEC, np.array([1.5])).leaves(np.array([1.505]))  # noise
    assert LimitWatch(SPEC, np.array([1.5])).leaves(np.array([1.55]))
    assert not LimitWatch(SPEC, np.array([0.5])).leaves(np.array([np.nan]))


def test_a_spike_ends_no_motion_and_a_real_jump_does():
    watch = LimitWatch(SPEC, np.array([0.5]))
    for value in (0.5, 1.5, 0.51, -2.0, 0.5, 1.5, np.nan, 0.5):  # never two in a row to the same side
        assert not watch.leaves(np.array([value]))
    assert not watch.leaves(np.array([1.5]))
    assert watch.leaves(np.array([1.5]))
