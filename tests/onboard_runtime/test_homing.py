"""Homing without a policy: it arrives, slowly and under the gate, and does not run away where it is told wrongly."""

import json
import math
import tracemalloc

import numpy as np
import pytest

from firsthand_onboard.gate import LOST_MEASUREMENT
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.homing import AWAY, Homing, HomingController
from firsthand_onboard.loop import Executor, Trajectory
from firsthand_onboard.machine import MachineError
from firsthand_onboard.spec import SpecError
from firsthand_onboard.timing import LockStep
from firsthand_onboard.toy import SPEED, Toy, toy_spec

SPEC = toy_spec()
HOMING = Homing((-0.5, 1.0))
RANGE = 4.0


class InStep:
    """The toy in lock-step; a sensor gives nothing in some of the readings."""

    def __init__(self, start: tuple[float, float], missing: set[int] = frozenset()) -> None:  # pyright: ignore
        self.toy, self.missing, self.readings = Toy(), missing, -1
        self.toy.reset(np.asarray(start))

    def read(self) -> np.ndarray:
        self.readings += 1
        measured = self.toy.measure()
        measured[0] = math.nan if self.readings in self.missing else measured[0]
        return measured

    def write(self, command: np.ndarray) -> None:
        self.toy.step(command)

    def neutral(self) -> None:
        pass


def go_home(machine: InStep, homing: Homing = HOMING, signs: tuple[int, int] = (1, 1)) -> Trajectory:
    limits = GateLimits.of(SPEC, directions=((0, signs[0]), (1, signs[1])))
    executor = Executor(SPEC, machine, limits, LockStep(SPEC.period_s))
    return executor.home(HomingController(SPEC, limits, homing))


@pytest.mark.parametrize("start", [(1.7, -1.7), (-1.9, 1.9), (-0.5, 1.0), (-0.4, -1.2)])
def test_it_arrives_slowly_from_everywhere(start):
    done = go_home(InStep(start))
    assert (done.ended, done.valid.all()) == ("done", True)
    np.testing.assert_allclose(done.measured[-1, :2], HOMING.position, atol=0.02 * RANGE)
    assert np.abs(done.commands).max() <= HOMING.authority
    # The toy does SPEED rad/s at full command.
    assert np.abs(np.diff(done.measured[:, :2], axis=0)).max() <= 1.001 * SPEED * HOMING.authority * SPEC.period_s
    away = np.abs(done.measured[:, :2] - HOMING.position)
    assert (away[1:] <= np.maximum(away[:-1], 0.02 * RANGE) + 1e-6).all()  # never back again


def test_the_reference_keeps_its_speed_and_ends_at_home():
    controller = HomingController(SPEC, GateLimits.of(SPEC, directions=((0, 1), (1, 1))), HOMING)
    path = controller.reference(np.asarray([1.5, 1.0, 0.0, 0.0]))
    fastest = np.abs(np.diff(path, axis=0)).max() / SPEC.period_s
    assert 0.9 * HOMING.speed * RANGE < fastest <= HOMING.speed * RANGE
    np.testing.assert_allclose(path[-50:], np.tile(HOMING.position, (50, 1)))  # two seconds to settle


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1)])
def test_a_wrong_direction_is_a_fault_before_the_joint_is_far(signs):
    machine = InStep((0.5, 0.0))
    before = machine.toy.position.copy()
    done = go_home(machine, signs=signs)
    assert (done.ended, done.fault) == (AWAY, True)
    assert np.abs(machine.toy.position - before).max() < (HOMING.error + 0.02) * RANGE


def test_a_missing_measurement_on_the_way_is_a_neutral_step_and_the_fourth_a_fault():
    done = go_home(InStep((0.5, 0.0), missing={20, 40, 41, 42}))
    assert done.ended == "done"
    assert np.flatnonzero(~done.commands[:60].any(axis=1)).tolist()[-4:] == [20, 40, 41, 42]
    cut = go_home(InStep((0.5, 0.0), missing={40, 41, 42, 43}))
    assert (cut.ended, cut.fault, cut.valid.sum()) == (LOST_MEASUREMENT, True, 43)


def test_home_must_be_known_and_reachable():
    known = GateLimits.of(SPEC, directions=((0, 1), (1, 1)))
    with pytest.raises(SpecError, match="which joint"):
        HomingController(SPEC, GateLimits.of(SPEC), HOMING)
    with pytest.raises(SpecError, match=r"position\[1\] is 9"):
        HomingController(SPEC, known, Homing((0.0, 9.0)))
    with pytest.raises(SpecError, match="3 entries"):
        HomingController(SPEC, known, Homing((0.0, 0.0, 0.0)))
    boxed = GateLimits.of(SPEC, directions=((0, 1), (1, 1)), box_low=(-2.0, -2.0), box_high=(0.0, 2.0))
    with pytest.raises(SpecError, match="coordinate 0 of the workspace box"):
        HomingController(SPEC, boxed, HOMING)
    assert Homing.from_json(HOMING.to_json()) == HOMING
    for text, word in (
        ("[", "JSON"),
        ("{}", "position"),
        ('{"position": "here"}', "numbers"),
        ('{"position": [0, true]}', "numbers"),
        ('{"position": [0, 0], "speed": 0}', "speed is 0"),
        ('{"position": [0, 0], "gain": NaN}', "gain is nan"),
        (json.dumps({"position": [0, 0], "place": 1}), "fields out of"),
    ):
        with pytest.raises(SpecError, match=word):
            Homing.from_json(text)


@pytest.mark.parametrize("where", [1e6, -1e6, 1e12, 3e38])
def test_a_reading_that_is_too_far_away_is_refused_before_memory_is_taken_for_the_way(where):
    limits = GateLimits.of(SPEC, directions=((0, 1), (1, 1)))
    controller = HomingController(SPEC, limits, HOMING)
    measured = np.asarray([where, 0.0, 0.0, 0.0], np.float32)
    tracemalloc.start()
    with pytest.raises(MachineError, match="too far to go there"):
        controller.reference(measured)
    with pytest.raises(MachineError, match="too far to go there"):
        controller.num_steps(measured)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reading_that_is_missing_leads_nowhere(value):
    controller = HomingController(SPEC, GateLimits.of(SPEC, directions=((0, 1), (1, 1))), HOMING)
    with pytest.raises(MachineError):
        controller.reference(np.asarray([value, 0.0, 0.0, 0.0]))
