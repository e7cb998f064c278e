"""The watchdog process and the loop's way around it, with drivers that misbehave."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firsthand_onboard.machine import MachineError
from firsthand_onboard.watchdog import WatchedMachine

DRIVER = """
import sys
import numpy as np

class Driver:
    {declared}

    def __init__(self, log):
        self.log = open(log, "a", buffering=1)

    def read(self):
        return {reading}

    def write(self, command):
        self.log.write("write\\n")
        {on_write}

    def neutral(self):
        self.log.write("neutral\\n")
"""

Driven = Callable[..., WatchedMachine]


@pytest.fixture
def driven(tmp_path: Path):
    """Makes a machine whose driver does what a test says, behind a real watchdog process."""
    made = []

    def make(*, declared: str = "pass", reading: str = "[1.0, 2.0]", on_write: str = "pass") -> WatchedMachine:
        file = tmp_path / f"driver_{tmp_path.name}.py"
        file.write_text(DRIVER.format(declared=declared, reading=reading, on_write=on_write))
        made.append(WatchedMachine(f"{file}:Driver", {"log": str(tmp_path / "log")}, timeout_s=5.0))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


def did(folder: Path) -> list[str]:
    """What the driver was asked to do."""
    return (folder / "log").read_text().split()


@pytest.mark.parametrize("reading", ["'text'", "{'a': 1.0}", "[[1.0, 2.0], [3.0]]", "object()"])
def test_a_reading_that_is_no_array_is_a_fault_and_not_the_end_of_the_watchdog(driven: Driven, tmp_path, reading):
    machine = driven(reading=reading)
    machine.write(np.zeros(2))
    with pytest.raises(MachineError, match="Error: "):
        machine.read()
    assert machine.process.poll() is None
    assert did(tmp_path)[-2:] == ["write", "neutral"]


def test_whatever_ends_the_watchdog_it_leaves_the_machine_in_neutral(driven: Driven, tmp_path):
    machine = driven(on_write="sys.exit()")
    machine.write(np.zeros(2))
    machine.process.wait(30)
    assert did(tmp_path)[-2:] == ["write", "neutral"]


def test_directions_may_be_an_array(driven: Driven):
    assert driven(declared="directions = np.asarray([[0, 1], [1, -1]])").directions == [[0, 1], [1, -1]]


def test_what_a_driver_declares_wrongly_is_told(driven: Driven):
    with pytest.raises(MachineError, match="did not start: TypeError"):
        driven(declared="directions = (1, 2)")
