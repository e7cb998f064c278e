"""Joints stop inside their limits, chatter keeps its mean, sensors are checked; the benchmark in its quick form."""

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from firsthand_onboard import SpecError
from firsthand_onboard.gate import CHATTER, Gate
from firsthand_onboard.gate_limits import GateLimits, check_stops_are_known
from firsthand_onboard.loop import Executor
from firsthand_onboard.machine import MachineError
from firsthand_onboard.timing import LockStep

FILE = Path(__file__).parents[2] / "benchmarks" / "gate_safety.py"
loaded = importlib.util.spec_from_file_location("gate_safety", FILE)
assert loaded is not None
assert loaded.loader is not None
safety = importlib.util.module_from_spec(loaded)
sys.modules["gate_safety"] = safety
loaded.loader.exec_module(safety)

SPEC = safety.make_spec()
UP = ((0, 1),)


@pytest.mark.parametrize("name", list(safety.MACHINES))
def test_full_command_ends_inside_the_limit(name):
    actuator = safety.MACHINES[name]
    for velocity in (True, False):
        for start in (0.0, 1.8):
            beyond, fault = safety.overshoot(actuator, stopping=actuator.stopping, velocity=velocity, start=start)
            assert beyond <= 1.0, (name, velocity, start)
            assert not fault


def test_a_machine_of_which_nothing_is_declared_is_refused():
    assert safety.is_refused()
    off = GateLimits.of(SPEC, directions=UP, joint_margin=0.0)
    check_stops_are_known(SPEC, off, None, simulated=True)  # nothing is promised there
    with pytest.raises(SpecError, match="joint_margin is 0, which switches the joint limits off"):
        check_stops_are_known(SPEC, off, None, simulated=False)


def test_neutral_that_does_not_stop_needs_a_brake():
    with pytest.raises(SpecError, match="Say how it stops: brake and deceleration"):
        GateLimits.of(SPEC, directions=UP, stopping={"lag_s": None})
    with pytest.raises(SpecError, match=r"deceleration\[0\] does not say how well"):
        GateLimits.of(SPEC, directions=UP, stopping={"brake": 1.0})
    with pytest.raises(SpecError, match="no channel is known to move position 0"):
        GateLimits.of(SPEC, stopping={"brake": 1.0, "deceleration": 1.0})
    for wrong in ({"lag": 1.0}, [1.0], {"lag_s": "long"}, {"lag_s": [0.1, 0.2]}, {"lag_s": -1.0}, {"speed": 0.0}):
        with pytest.raises(SpecError):
            GateLimits.of(SPEC, directions=UP, stopping=wrong)
    with pytest.raises(SpecError, match="must be"):
        GateLimits.of(SPEC, directions=UP, stopping={"lag_s": math.nan})
    stored = GateLimits.of(
        SPEC, directions=UP, stopping={"lag_s": None, "brake": 0.5, "deceleration": 2.0, "speed": 1.0}
    )
    assert GateLimits.from_json(stored.to_json(), SPEC) == stored


def test_beyond_a_limit_is_a_fault_and_the_tolerance_is_small():
    gate = Gate(SPEC, GateLimits.of(SPEC, directions=UP))
    state = gate(gate.start(), np.zeros(1), np.asarray([1.95, 0.0])).state
    assert not gate(state, np.zeros(1), np.asarray([2.03, 0.0])).fault
    assert "is at 2.05, beyond its limits -2 to 2" in gate(state, np.zeros(1), np.asarray([2.05, 0.0])).fault
    assert "stands at -2.05, outside" in gate(gate.start(), np.zeros(1), np.asarray([-2.05, 0.0])).fault


def test_a_joint_keeps_to_its_highest_speed():
    spec = safety.make_spec()
    gate = Gate(spec, GateLimits.of(spec, directions=UP, stopping={"lag_s": 0.2, "speed": 0.5}))
    plant = safety.Actuator(0.2, speed=2.0).run(0.04, -2.0)
    (position, speed), state, fastest = next(plant), gate.start(), 0.0
    for _ in range(100):
        result = gate(state, np.ones(1), np.asarray([position, speed]))
        assert not result.fault
        state = result.state
        position, speed = plant.send(float(result.command[0]))
        fastest = max(fastest, speed)
    assert 0.4 < fastest < 0.6  # how fast full command is must be seen first
    state = gate.start()
    for k in range(3):  # driven by something else
        result = gate(state, np.zeros(1), np.asarray([0.028 * k, 0.7]))
        state = result.state
    assert "faster than its limit 0.5" in result.fault


def test_without_directions_all_commands_are_slowed_in_front_of_a_limit():
    gate = Gate(SPEC, GateLimits.of(SPEC))
    plant = safety.Actuator(0.1).run(0.04, 0.0)
    (position, speed), state = next(plant), gate.start()
    for _ in range(400):
        result = gate(state, np.ones(1), np.asarray([position, speed]))
        assert not result.fault
        state = result.state
        position, speed = plant.send(float(result.command[0]))
    assert position < 2.04


@pytest.mark.parametrize("name", list(safety.PATTERNS))
@pytest.mark.parametrize(
    ("period", "changes"),
    [(0.04, {}), (0.01, {}), (0.01, {"acceleration": (math.inf,)}), (0.1, {"rate": (3.0,), "acceleration": (10.0,)})],
)
def test_commands_of_mean_zero_keep_their_mean(name, period, changes):
    """Triangles are cut on their steep side without ever reversing while cut; slow limits take longer to see a mean."""
    pattern, spec = safety.PATTERNS[name], safety.make_spec(period)
    gate = Gate(spec, GateLimits.of(spec, directions=UP, check_sensors=0, **changes))
    state, applied = gate.start(), []
    for k in range(600):
        result = gate(state, np.asarray([pattern(np.random.default_rng(k), k)]), np.zeros(2))
        state = result.state
        applied.append(float(result.command[0]))
    if name not in ("random signs", "normal"):  # whose own mean is only about zero
        assert abs(np.mean(applied)) <= 0.05 * 2.0


def test_alternating_commands_come_out_near_zero_and_are_counted():
    gate = Gate(SPEC, GateLimits.of(SPEC, directions=UP, check_sensors=0))
    limited = Gate(SPEC, dataclasses.replace(gate.limits, chatter_s=1.0))
    state = other = gate.start()
    largest, fault, at = 0.0, "", 0
    for k in range(100):
        command = np.asarray([1.0 - 2.0 * (k % 2)])
        result = gate(state, command, np.zeros(2))
        state = result.state
        largest = max(largest, abs(float(result.command[0])))
        if not fault:
            second = limited(other, command, np.zeros(2))
            other, fault, at = second.state, second.fault, k
    assert largest <= 0.2
    assert state.chattered > 90
    assert fault == CHATTER
    assert at == pytest.approx(1.0 / 0.04, abs=4)
    for _ in range(60):  # a fast but steady change is not chatter, and passes
        result = gate(state, np.asarray([0.8]), np.zeros(2))
        state = result.state
    assert state.chattered == 0
    assert result.command[0] == np.float32(0.8)


def test_the_executor_counts_chatter():
    machine = safety.Driven(safety.MACHINES["lag 0.1 s"])
    limits = GateLimits.of(SPEC, directions=UP, stopping={"lag_s": 0.1})
    executor = Executor(SPEC, machine, limits, LockStep(0.04))
    assert executor.play(np.tile([[1.0], [-1.0]], (25, 1)).astype(np.float32)).ended == "done"
    assert executor.chatter_steps > 40
    assert abs(float(machine.read()[0])) < 0.2


def run_sensors(measure, *, command: float = 1.0, steps: int = 100, velocity: bool = True, directions=UP) -> tuple:
    """Full command while the sensors say what a test wants; when the fault came, which, and what was applied."""
    spec = safety.make_spec(velocity=velocity)
    gate = Gate(spec, GateLimits.of(spec, directions=directions, stopping={"lag_s": 0.2}))
    state = gate.start()
    for k in range(steps):
        with np.errstate(all="ignore"):
            result = gate(state, np.full(1, command), np.asarray(measure(k), float))
        assert np.isfinite(result.command).all()
        if result.fault:
            return k * spec.period_s, result.fault
        state = result.state
    return math.inf, ""


def moving(k: int) -> list[float]:
    return [-1.5 + 0.02 * k, 0.5]


@pytest.mark.parametrize("name", ["lag 0.3 s", "lag 1 s", "second order, 1 Hz", "lag 0.3 s at 3 rad/s"])
def test_limits_hold_also_where_nobody_knows_which_command_moves_a_joint(name):
    actuator = safety.MACHINES[name]
    for velocity in (True, False):
        assert safety.overshoot(actuator, stopping=actuator.stopping, velocity=velocity, directed=False)[0] <= 1.0


@pytest.mark.parametrize("directions", [UP, None])
@pytest.mark.parametrize("velocity", [True, False])
def test_a_frozen_sensor_is_a_fault_while_the_machine_is_commanded(velocity, directions):
    size = 1 + velocity
    for since in (0, 20):
        time, fault = run_sensors(
            lambda k, since=since: moving(min(k, since))[:size], velocity=velocity, directions=directions
        )
        # Where nobody knows which way a command leads, less of it is left half a radian from a limit.
        assert time - 0.04 * since <= (1.0 if directions else 1.5)
        assert "frozen" in fault or "stuck" in fault
    assert run_sensors(lambda k: [0.5, 0.0][:size], command=0.0, velocity=velocity)[1] == ""
    assert run_sensors(lambda k: moving(k)[:size], velocity=velocity)[1] == ""


@pytest.mark.parametrize("velocity", ["true", "frozen, flickers", "zero, flickers", "not measured"])
@pytest.mark.parametrize("what", ["flickers", "reads a tenth", "creeps back"])
@pytest.mark.parametrize("directions", [UP, None])
def test_a_frozen_sensor_that_flickers_is_not_believed(velocity, what, directions):
    """Sensors have noise, also where their value is frozen."""
    if what == "reads a tenth" and velocity != "true":
        return  # nothing contradicts it
    spec, actuator = safety.make_spec(velocity=velocity != "not measured"), safety.MACHINES["lag 0.3 s"]
    gate = Gate(spec, GateLimits.of(spec, directions=directions, stopping=actuator.stopping))
    plant, rng, state, fault = actuator.run(0.04, 0.0), np.random.default_rng(0), gate.start(), ""
    position, speed = next(plant)
    frozen = (position, speed)
    for k in range(200):
        if k == 25:
            frozen = (position, speed)
        shown, rate = (position, speed) if k < 25 else frozen
        if k >= 25:
            shown -= 0.0004 * (k - 25) * (what == "creeps back")
            rate = speed if velocity == "true" else 0.0 if velocity == "zero, flickers" else rate
        shown = 0.1 * position if what == "reads a tenth" else shown
        noise = 1e-4 * rng.standard_normal(2) * (k >= 25)
        measured = (np.asarray([shown, rate]) + noise * [1.0, velocity != "true"])[: spec.layout.num_measured]
        command = gate.neutral
        if not fault:
            result = gate(state, np.ones(1), measured)
            state, command, fault = result.state, result.command, result.fault
        position, speed = plant.send(float(command[0]))
    assert "is stuck" in fault or "frozen, or" in fault
    assert position < 2.15  # out of sight for 1.2 s at 1 rad/s; 3 rad further without the fault


def test_spikes_in_a_velocity_and_a_joint_at_rest_are_no_contradiction():
    gate, rng = Gate(SPEC, GateLimits.of(SPEC, directions=UP, stopping={"lag_s": 0.1})), np.random.default_rng(0)
    state = gate.start()
    for k in range(300):
        measured = np.asarray([0.5, 0.0]) + 1e-3 * rng.standard_normal(2) + [0.0, 50.0 * (k % 40 == 20)]
        result = gate(state, np.zeros(1), measured)
        assert not result.fault
        state = result.state


def test_one_of_two_sensors_that_is_stuck_is_a_fault():
    assert "joint 0 is stuck" in run_sensors(lambda k: [0.0, 0.5], command=0.2)[1]
    assert "joint 0 velocity is stuck" in run_sensors(lambda k: [-1.5 + 0.03 * k, 0.0], command=0.2)[1]


@pytest.mark.parametrize("value", [3e38, -3e38, 1e6, 1e308, 101.0])
@pytest.mark.parametrize("entry", [0, 1])
def test_what_cannot_be_is_a_fault_at_once(value, entry):
    def measure(k: int) -> list[float]:
        values = moving(k)
        if k == 10:
            values[entry] = value
        return values

    assert run_sensors(measure)[0] == pytest.approx(0.4)
    assert run_sensors(lambda k: [value, value])[0] == 0.0


def test_a_position_that_leaps_counts_as_missing_and_a_lasting_leap_is_a_fault():
    glitch = run_sensors(lambda k: [1.6, 0.5] if k == 10 else moving(k))
    assert glitch[1] == ""
    time, fault = run_sensors(lambda k: [1.6, 0.5] if k >= 10 else moving(k))
    assert "leaps" in fault
    assert time == pytest.approx(0.52)


@pytest.mark.parametrize("shape", [(1, 2), (3,), (0,), (), (2, 1), (25_005,)])
def test_a_measurement_of_another_shape_is_a_fault(shape):
    gate = Gate(SPEC, GateLimits.of(SPEC, directions=UP))
    assert "shape" in gate(gate.start(), np.zeros(1), np.zeros(shape)).fault


def test_the_box_refuses_what_is_not_a_number():
    spec = safety.make_spec(joints=2)
    limits = GateLimits.of(spec, box_low=(-1.0, -1.0), box_high=(1.0, 1.0), check_sensors=0, joint_margin=0.0)
    gate = Gate(spec, limits)
    for values in ([3e38, 3e38, 0, 0], [1e300, -1e300, 0, 0], [2.0, 0.0, 0.0, 0.0]):
        with np.errstate(all="ignore"):
            assert gate(gate.start(), np.zeros(2), np.asarray(values, float)).fault


def test_hostile_steps_leave_nothing_outside():
    result = safety.measure_hostile(3000, seed=3)
    assert result["outside"] == result["not finite"] == result["not neutral at a fault"] == 0
    assert result["faults"] > 100


def test_a_mass_with_a_brake_stands_at_the_end_of_every_motion():
    results = safety.measure_endings()
    assert "without brake: refused" in results
    assert max(results.values()) <= 0.01


@pytest.mark.parametrize("name", ["mass, 1 rad/s²", "mass, 5 rad/s², dead time 0.1 s"])
def test_a_mass_is_braked_also_where_its_velocity_reads_zero(name):
    class Stuck(safety.Driven):
        def read(self) -> np.ndarray:
            return np.asarray([self._seen[0], 0.0])

    actuator = {**safety.MACHINES, **safety.MORE_MACHINES}[name]
    machine, limits = Stuck(actuator), GateLimits.of(SPEC, directions=UP, stopping=actuator.stopping)
    done = Executor(SPEC, machine, limits, LockStep(0.04)).play(np.ones((300, 1), np.float32))
    assert "velocity is stuck" in done.ended
    assert abs(machine._seen[1]) < 0.05  # positions tell it a little later; 0.6 and more without them


def test_a_mass_is_braked_on_where_a_measurement_is_missing_meanwhile():
    class Flaky(safety.Driven):
        reads = 0

        def read(self) -> np.ndarray:
            self.reads += 1
            return np.full(2, np.nan) if self.reads in (33, 34, 38) else np.asarray(self._seen)

    actuator = safety.MACHINES["mass, 1 rad/s²"]
    machine, limits = Flaky(actuator), GateLimits.of(SPEC, directions=UP, stopping=actuator.stopping)
    executor = Executor(SPEC, machine, limits, LockStep(0.04))
    executor.play(np.ones((30, 1), np.float32), until=lambda done: "stop" if done == 30 else "")
    assert machine._seen[1] > 0.5
    executor.come_to_rest()
    assert machine.reads > 40
    assert abs(machine._seen[1]) < 0.02


def test_a_declared_speed_counts_before_it_was_seen():
    """At 5 Hz one period at 6 rad/s is a third of the range."""
    fast = safety.Actuator(0.3, speed=6.0)
    beyond, fault = safety.overshoot(fast, stopping={"lag_s": 0.3, "speed": 6.0}, period_s=0.2)
    assert beyond <= 0.1
    assert not fault


def test_the_executor_ends_with_the_gates_fault_when_a_limit_is_passed():
    class Pushed(safety.Driven):
        """Something else moves it."""

        def write(self, command: np.ndarray) -> None:
            self._seen = (self._seen[0] + 0.05, 1.25)

    machine = Pushed(safety.MACHINES["lag 0.3 s"])
    limits = GateLimits.of(SPEC, directions=UP, stopping={"lag_s": 0.3})
    done = Executor(SPEC, machine, limits, LockStep(0.04)).play(np.zeros((200, 1), np.float32))
    assert done.fault
    assert "beyond its limits" in done.ended


class Leaning(safety.Driven):
    """Two joints; the first stands outside. A command below 0.05 moves nothing."""

    def __init__(self, position: float, sign: int = 1) -> None:
        self.position, self.sign = np.asarray([position, 0.0]), sign

    def read(self) -> np.ndarray:
        return np.concatenate([self.position, np.zeros(2)])

    def write(self, command: np.ndarray) -> None:
        self.position = self.position + 0.04 * self.sign * np.where(np.abs(command) > 0.05, command, 0.0)


@pytest.mark.parametrize("position", [2.3, -2.3, 2.05])
def test_a_machine_that_stands_outside_is_led_back_slowly(position):
    spec = safety.make_spec(joints=2)
    machine = Leaning(position)
    executor = Executor(spec, machine, GateLimits.of(spec, directions=((0, 1), (1, 1))), LockStep(0.04))
    assert f"joint 0 stands at {position}, outside its limits -2 to 2" in executor.describe_outside()
    refused = executor.play(np.full((5, 2), 0.5, np.float32))
    assert refused.fault
    assert "stands at" in refused.ended
    assert machine.position[0] == position
    executor.look()
    done = executor.recover()
    assert (done.ended, done.fault) == ("done", False)
    assert abs(machine.position[0]) <= 2.0 + 1e-6
    assert machine.position[1] == 0.0
    assert np.abs(done.commands).max() <= 0.3
    assert np.abs(np.diff(done.measured[:, 0])).max() <= 0.08 * 4.0 * 0.04  # of the range per second
    executor.look()
    assert executor.describe_outside() == ""
    assert executor.play(np.full((5, 2), -0.1 * np.sign(position), np.float32)).ended == "done"


def test_recovery_is_given_up_where_it_leads_further_out():
    spec = safety.make_spec(joints=2)
    machine = Leaning(2.3, sign=-1)  # its directions are declared wrongly
    executor = Executor(spec, machine, GateLimits.of(spec, directions=((0, 1), (1, 1))), LockStep(0.04))
    done = executor.recover()
    assert done.fault
    assert "moves further out" in done.ended or "does not slow down" in done.ended
    assert machine.position[0] < 2.3 + 0.05 * 4.0
    for limits in (GateLimits.of(spec), GateLimits.of(spec, directions=((-1, 1), (1, 1)))):
        with pytest.raises(MachineError, match="by hand"):
            Executor(spec, Leaning(2.3), limits, LockStep(0.04)).recover()
