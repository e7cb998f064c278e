"""A machine on a serial line: a skeleton to start from. Needs `pip install pyserial`.

    firsthand-onboard serve --machine examples/machines/serial_machine.py:SerialMachine \
        --machine-option port=/dev/ttyUSB0 --spec robot.json --limits limits.json

The microcontroller sends a line `M y1 y2 …` every few milliseconds and takes a line `C u1 u2 …`. It shall close its
valves by itself when no `C` line came for 80 ms.
"""

import os
from typing import ClassVar

import numpy as np

from firsthand_onboard.machine import MachineError


class SerialMachine:
    """Text lines over a serial port."""

    neutral_command = np.zeros(2, np.float32)
    directions = ((0, 1), (1, 1))
    stopping: ClassVar[dict[str, float]] = {"lag_s": 0.3, "dead_time_s": 0.1}
    """How the joints stop. Measure it: `firsthand inspect`, or by hand from full speed."""

    @staticmethod
    def resource(port: str, **_: str) -> str:
        """Only one program may serve this port."""
        return os.path.realpath(port)

    def __init__(self, port: str, baud: int | str = 921600) -> None:
        import serial

        self._port = serial.Serial(port, int(baud), timeout=0.02)

    def read(self) -> np.ndarray:
        """The newest whole line; older ones in the buffer are dropped."""
        line = self._port.readline()
        while self._port.in_waiting:
            line = self._port.readline() or line
        if not line.endswith(b"\n"):  # cut short: its last number may lack digits
            raise MachineError("no whole line came over the serial line")
        words = line.decode(errors="replace").split()
        if len(words) < 2 or words[0] != "M":
            raise MachineError("no measurement came over the serial line")
        try:
            return np.asarray([float(word) for word in words[1:]])
        except ValueError:
            raise MachineError(f"the serial line sent {line!r}") from None

    def write(self, command: np.ndarray) -> None:
        """Send a command."""
        self._port.write(("C " + " ".join(f"{c:.4f}" for c in command) + "\n").encode())

    def neutral(self) -> None:
        """All outputs off."""
        self.write(self.neutral_command)
