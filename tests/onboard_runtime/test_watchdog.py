"""The watchdog process and the loop's way around it, with drivers that misbehave."""

import dataclasses
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firsthand_onboard import watched
from firsthand_onboard.command_check import CommandCheck, CommandLimits
from firsthand_onboard.machine import MachineError, load_machine
from firsthand_onboard.machine_lock import MachineLock, machine_resource
from firsthand_onboard.watched import WatchedMachine

DRIVER = """
import sys, time
import numpy as np

class Driver:
    {declared}
    waited = moved = False

    def __init__(self, log):
        self.log = open(log, "a", buffering=1)
        self.log.write("made\\n")

    def read(self):
        return {reading}

    def write(self, command):
        self.log.write("write\\n")
        self.moved = True
        {on_write}

    def neutral(self):
        self.log.write("neutral\\n")
"""

Driven = Callable[..., WatchedMachine]


@pytest.fixture
def driven(tmp_path: Path):
    """Makes a machine whose driver does what a test says, behind a real watchdog process."""
    made = []

    def make(
        *, declared: str = "pass", reading: str = "[1.0, 2.0]", on_write: str = "pass", timeout_s: float = 5.0
    ) -> WatchedMachine:
        file = tmp_path / f"driver_{tmp_path.name}.py"
        file.write_text(DRIVER.format(declared=declared, reading=reading, on_write=on_write))
        made.append(WatchedMachine(f"{file}:Driver", {"log": str(tmp_path / "log")}, timeout_s=timeout_s))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


def did(folder: Path) -> list[str]:
    """What the driver was asked to do."""
    return (folder / "log").read_text().split()


@pytest.mark.parametrize("reading", ["'text'", "{'a': 1.0}", "[[1.0, 2.0], [3.0]]", "object()"])
def test_a_reading_that_is_no_array_is_a_fault_and_not_the_end_of_the_watchdog(driven: Driven, tmp_path, reading):
    machine = driven(reading=f"{reading} if self.moved else [1.0, 2.0]")
    machine.write(np.zeros(2))
    with pytest.raises(MachineError, match="Error: "):
        machine.read()
    assert machine.process.poll() is None
    assert did(tmp_path)[-2:] == ["write", "neutral"]


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ("np.zeros((1, 2))", r"shape \(1, 2\), but must measure one row"),
        ("np.float64(1.0)", r"shape \(\), but must measure one row"),
        ("np.zeros(25_005)", "measures 25005 values, but at most 24998 can be passed on"),
        ("np.zeros(10**6)", "measures 1000000 values"),
    ],
)
def test_a_reading_of_another_shape_or_size_is_a_fault_with_a_clear_sentence(driven: Driven, tmp_path, reading, words):
    machine = driven(reading=f"{reading} if self.moved else [1.0, 2.0]")
    machine.write(np.zeros(2))
    with pytest.raises(MachineError, match=words):
        machine.read()
    assert machine.process.poll() is None
    assert did(tmp_path)[-2:] == ["write", "neutral"]


@pytest.mark.parametrize("count", [24_999, 25_000, 25_001])
def test_no_number_of_values_ends_the_loop(driven: Driven, count):
    machine = driven(reading=f"np.zeros({count}) if self.moved else [1.0, 2.0]")
    machine.write(np.zeros(2))
    with pytest.raises(MachineError, match="can be passed on"):
        machine.read()


def test_whatever_ends_the_watchdog_it_leaves_the_machine_in_neutral(driven: Driven, tmp_path):
    machine = driven(on_write="sys.exit()")
    machine.write(np.zeros(2))
    machine.process.wait(30)
    assert did(tmp_path)[-2:] == ["write", "neutral"]


def test_directions_may_be_an_array(driven: Driven):
    assert driven(declared="directions = np.asarray([[0, 1], [1, -1]])").directions == [[0, 1], [1, -1]]


def test_what_a_driver_declares_wrongly_is_told(driven: Driven):
    with pytest.raises(MachineError, match=r"directions is \(1, 2\), but must have a joint and a sign"):
        driven(declared="directions = (1, 2)")


class Stuck:
    """A process that hangs in the kernel: it takes a signal and does not end."""

    pid = -1

    def kill(self) -> None:
        pass

    def poll(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> None:
        assert timeout is not None, "this would wait forever"
        raise subprocess.TimeoutExpired("watchdog", timeout)


def test_neutral_does_not_wait_for_a_watchdog_that_cannot_be_ended(driven: Driven, tmp_path):
    machine = driven()
    process, machine.process = machine.process, Stuck()  # pyright: ignore[reportAttributeAccessIssue]
    process.kill()
    process.wait(30)
    before = len(did(tmp_path))
    machine.neutral()
    assert did(tmp_path)[before:] == ["made", "neutral"]
    with pytest.raises(MachineError, match="cannot be ended"):
        machine.resume()  # two processes must not own one machine
    machine.process = process
    machine.resume()
    assert machine.read().tolist() == [1.0, 2.0]


def test_a_machine_that_cannot_be_reached_any_more_is_tried_again_but_not_all_the_time(driven: Driven, tmp_path):
    machine = driven()
    tries = []

    def fails(*arguments):
        tries.append(arguments)
        raise OSError("no such port")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watched, "load_machine", fails)
        patch.setattr(watched, "RETRY_S", 1000.0)
        machine.process.kill()
        machine.process.wait(30)
        for _ in range(20):
            machine.neutral()
        assert len(tries) == 1
        machine._try_at = 0.0
        patch.setattr(watched, "load_machine", load_machine)
        before = len(did(tmp_path))
        for _ in range(3):
            machine.neutral()
        assert did(tmp_path)[before:] == ["made", *["neutral"] * 3]


def test_the_driver_is_imported_in_the_loop_before_it_is_needed(driven: Driven):
    machine = driven()
    assert Path(machine.name.partition(":")[0]).stem in sys.modules


def test_a_second_connection_that_stays_open_is_made_at_the_start(driven: Driven, tmp_path):
    machine = driven(declared="standby = classmethod(lambda cls, **options: cls(**options))")
    for _ in range(2):  # also after the first time
        machine.process.kill()
        machine.process.wait(30)
        before = did(tmp_path)
        assert before.count("made") >= 2
        machine.neutral()
        assert did(tmp_path)[len(before) :] == ["neutral"]
        machine.resume()
        assert machine.read().tolist() == [1.0, 2.0]


def test_the_first_reading_may_take_long(driven: Driven):
    slow = "(self.waited or time.sleep(1.0), setattr(self, 'waited', True)) and [1.0, 2.0]"
    machine = driven(reading=slow, timeout_s=0.5)
    assert machine.read().tolist() == [1.0, 2.0]


RESET = "reset = lambda self, *_: self.log.write('reset\\n')"


def test_a_driver_with_a_reset_is_no_simulation_unless_it_says_so(driven: Driven, tmp_path):
    machine = driven(declared=RESET)
    assert not machine.can_reset
    with pytest.raises(MachineError, match="only a simulated machine"):
        machine.reset(np.zeros(2))
    assert "reset" not in did(tmp_path)


@pytest.mark.parametrize("word", ["simulated", "lock_step"])
def test_a_simulation_that_says_so_can_be_put_somewhere(driven: Driven, tmp_path, word):
    machine = driven(declared=f"{word} = True; {RESET}")
    assert machine.can_reset
    assert machine.reset(np.zeros(2)).tolist() == [1.0, 2.0]
    assert did(tmp_path).count("reset") == 1
    machine.close()
    assert not driven(declared=f"{word} = True").can_reset


def test_a_watchdog_without_its_priority_is_told(driven: Driven, monkeypatch, caplog):
    def refused(*_):
        raise PermissionError("not permitted")

    machine = driven()
    monkeypatch.setattr("os.sched_setscheduler", refused)
    machine.prefer(51)
    assert "51 is not permitted for the watchdog" in caplog.text


def limits(size: int = 2, *, step: float = 0.5, age_s: float = math.inf) -> CommandLimits:
    """Commands from -1 to 1, neutral at 0."""
    ones = np.ones(size)
    return CommandLimits(-ones, ones, 0 * ones, step * ones, 0.04, age_s)


HOSTILE = [
    ([math.nan, 0.0], "not finite"),
    ([math.inf, 0.0], "not finite"),
    ([1.2, 0.0], "outside its range"),
    ([-3e38, 0.0], "outside its range"),
    ([0.0], "1 values instead of 2"),
    ([], "0 values instead of 2"),
    ([0.0] * 3, "3 values instead of 2"),
]


@pytest.mark.parametrize(("command", "words"), HOSTILE)
def test_the_watchdog_passes_on_no_command_that_its_limits_forbid(driven: Driven, tmp_path, command, words):
    machine = driven()
    machine.limit(limits())
    machine.write(np.asarray([0.1, 0.1]))
    machine.write(np.asarray(command))
    with pytest.raises(MachineError, match=f"the watchdog refused a command.*{words}"):
        machine.read()
    machine.write(np.asarray([0.1, 0.1]))  # refused until somebody has looked
    with pytest.raises(MachineError):
        machine.read()
    assert did(tmp_path).count("write") == 1
    assert did(tmp_path)[-1] == "neutral"
    machine.resume()
    machine.write(np.asarray([0.1, 0.1]))
    machine.read()
    assert did(tmp_path).count("write") == 2


def test_the_watchdog_refuses_a_command_from_an_old_measurement(driven: Driven):
    machine = driven()
    machine.limit(limits(age_s=0.5))
    for wait_s, refused in ((0.0, False), (0.7, True)):
        machine.read()
        time.sleep(wait_s)
        machine.write(np.zeros(2))
        if refused:
            with pytest.raises(MachineError, match="ms after its measurement"):
                machine.read()


def test_a_loop_that_has_gone_wrong_does_not_widen_the_watchdogs_limits(driven: Driven, tmp_path):
    machine = driven()
    machine.limit(limits())
    machine.limit(limits())  # the same ones may be told again
    with pytest.raises(MachineError, match="other limits than before"):
        machine.limit(limits(age_s=10.0))
    machine.resume()
    with pytest.raises(MachineError, match="other limits than before"):
        machine.limit(dataclasses.replace(limits(), high=np.full(2, 50.0)))
    machine.resume()
    machine.write(np.asarray([5.0, 0.0]))
    with pytest.raises(MachineError, match="a command outside its range"):
        machine.read()
    assert "write" not in did(tmp_path)


def test_the_watchdogs_limits_survive_a_new_watchdog(driven: Driven):
    machine = driven()
    machine.limit(limits())
    machine.process.kill()
    machine.process.wait(30)
    machine.neutral()
    machine.neutral()
    with pytest.raises(MachineError):
        machine.read()
    machine.resume()
    machine.write(np.asarray([2.0, 0.0]))
    with pytest.raises(MachineError, match="outside its range"):
        machine.read()


def test_a_command_changes_away_from_neutral_no_faster_than_its_rate_on_average():
    check, now = CommandCheck(limits(1, step=0.1), lock_step=False), 100.0
    check.rest(now)

    def refused(value: float) -> str:
        return check.refuse(np.asarray([value]), now, now)

    for k in range(1, 9):  # ten periods, the jitter of a busy computer among them
        now += 0.04 + (0.02 if k % 2 else -0.02)
        assert not refused(0.1 * k), k
    now += 0.04
    assert not refused(0.0)  # towards neutral at once
    now += 0.04
    assert not refused(-0.1)
    assert "faster than its rate" in refused(-0.9)
    check.rest(now)
    for _ in range(50):  # a flood of small changes is a fast change
        now += 0.001
        if refused(float(check._last[0]) + 0.05):
            break
    else:
        raise AssertionError("the flood was let through")
    stepwise = CommandCheck(limits(1, step=0.1), lock_step=True)
    for k in range(1, 8):
        assert not stepwise.refuse(np.asarray([0.1 * k]), 0.0, 0.0)
    assert stepwise.refuse(np.asarray([1.0]), 0.0, 0.0)


@pytest.mark.parametrize(
    "row", [[], [1.0], [1.0] * 5, [0.0, 1.0, -1.0, 1.0, 0.0, 1.0], [1, 1, 1, -1, 0, 1], [math.nan] * 6]
)
def test_limits_that_are_not_in_order_are_refused(row):
    with pytest.raises(ValueError, match="limits"):
        CommandLimits.unpack(np.asarray(row, float))
    assert CommandLimits.unpack(limits(3).pack()).step.tolist() == [0.5] * 3


INPUTS = """def emergency_stop(self):
        return {stop}
    def enabling_switch(self):
        return {enable}
    """


def inputs(folder: Path, stop: str = "(FOLDER / 'stop').exists()", enable: str = "(FOLDER / 'enable').exists()") -> str:
    text = INPUTS.format(stop=stop, enable=enable) + "pass"
    return text.replace("FOLDER", f"__import__('pathlib').Path({str(folder)!r})")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_emergency_stop_input_latches_until_it_is_released_and_acknowledged(driven: Driven, tmp_path):
    (tmp_path / "enable").touch()
    machine = driven(declared=inputs(tmp_path))
    assert machine.hindrance() == ""
    machine.write(np.zeros(2))
    machine.read()
    (tmp_path / "stop").touch()
    wait_until(lambda: did(tmp_path)[-1] == "neutral")  # without any command or question
    (tmp_path / "stop").unlink()
    with pytest.raises(MachineError, match="emergency stop is pressed"):
        machine.read()
    machine.write(np.zeros(2))
    assert did(tmp_path).count("write") == 1
    (tmp_path / "stop").touch()
    machine.resume()
    with pytest.raises(MachineError, match="emergency stop is pressed"):  # still
        machine.read()
    (tmp_path / "stop").unlink()
    machine.resume()
    machine.read()
    machine.write(np.zeros(2))
    machine.read()
    assert did(tmp_path).count("write") == 2


def test_the_enabling_switch_must_be_held_while_it_moves_and_only_then(driven: Driven, tmp_path):
    machine = driven(declared=inputs(tmp_path))
    machine.read()
    assert machine.hindrance() == "the enabling switch is not held"
    machine.neutral()
    machine.read()
    (tmp_path / "enable").touch()
    assert machine.hindrance() == ""
    machine.write(np.zeros(2))
    machine.read()
    (tmp_path / "enable").unlink()
    wait_until(lambda: did(tmp_path)[-1] == "neutral")
    (tmp_path / "enable").touch()
    with pytest.raises(MachineError, match="enabling switch is not held"):
        machine.read()


@pytest.mark.parametrize("value", ["None", "0", "'off'", "1 / 0", "np.nan"])
def test_an_input_that_does_not_clearly_permit_is_a_stop(driven: Driven, tmp_path, value):
    machine = driven(declared=inputs(tmp_path, stop=f"({value}) if self.moved else False", enable="True"))
    machine.write(np.zeros(2))
    wait_until(lambda: did(tmp_path)[-2:] == ["write", "neutral"])
    with pytest.raises(MachineError, match="emergency stop is pressed"):
        machine.read()
    machine.close()
    with pytest.raises(MachineError, match="did not start: the emergency stop is pressed"):
        driven(declared=inputs(tmp_path, stop=value))


def test_a_machine_is_served_by_one_program_alone(driven: Driven, tmp_path):
    machine = driven()
    with pytest.raises(MachineError, match="another program on this computer already serves this machine"):
        WatchedMachine(machine.name, machine.options, timeout_s=5.0)
    assert did(tmp_path).count("made") == 1  # the second did not even connect
    machine.process.kill()
    machine.process.wait(30)
    again = WatchedMachine(machine.name, machine.options, timeout_s=5.0)  # a killed one leaves nothing behind
    again.close()


def test_two_ways_to_write_an_address_are_one_machine():
    name = "firsthand_onboard.simulation:UdpMachine"
    here = machine_resource(name, {"address": "127.0.0.1:9870"})
    assert here == machine_resource(name, {"address": "localhost:9870", "patience_s": "5"})
    assert here != machine_resource(name, {"address": "127.0.0.1:9871"})
    held = MachineLock(here)
    with pytest.raises(MachineError, match="already serves"):
        MachineLock(here)
    held.release()
    MachineLock(here).release()
