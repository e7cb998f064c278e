"""Small forms of the fuzzers and of the scenes in which time leaps; `make soak` has the long ones."""

import random
import shutil

import pytest

from .fuzz import FUZZERS
from .time_scenes import both_stopped, clock_jumps, sleeps

SECONDS = 3.0


@pytest.mark.parametrize("name", FUZZERS)
def test_nothing_escapes_a_fuzzer(name):
    result = FUZZERS[name](SECONDS, random.Random(1))
    assert result["escapes"] == {}


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler")
@pytest.mark.parametrize("scene", [clock_jumps, sleeps])
def test_clocks_that_leap_and_computers_that_sleep(scene):
    result = scene(2, random.Random(2))
    assert result["ok"], result


def test_after_both_processes_were_stopped_nothing_moves_again():
    result = both_stopped(2, random.Random(3))
    assert (result["moved_again"], result["not_latched"]) == (0, 0)
