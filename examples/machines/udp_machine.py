"""A machine that is reached over UDP: a skeleton to start from.

Serve it with

    firsthand-onboard serve --machine examples/machines/udp_machine.py:UdpMachine \
        --machine-option host=192.168.1.20 --spec robot.json --limits limits.json

Here the controller of the machine takes four 32-bit floats as a command, and answers `?` with eight, measured at that
moment. Change `COMMANDS`, `MEASURED` and the units to what yours speaks. If it has a command timeout, switch it on: it
is the last line.

How old a measurement is matters: the policy learns with it, and dead time is what makes control hard. Here it is as old
as the way there and back, a fraction of a millisecond. A controller that only answers commands would give you what was
measured a whole period ago; one that streams by itself is as old as its interval: then `read` takes the newest packet.
"""

import socket
import struct
from typing import ClassVar

import numpy as np

from firsthand_onboard.machine import MachineError

COMMANDS = struct.Struct("<4f")
MEASURED = struct.Struct("<8f")
ASK = b"?"
PATIENCE_S = 0.02
"""Half a period: an answer that takes longer has missed it anyway."""


class UdpMachine:
    """Four valve commands in [-1, 1] out, four positions and four velocities in."""

    neutral_command = np.zeros(4, np.float32)
    directions = ((0, 1), (1, 1), (2, 1), (3, 1))
    """Which joint a command moves, and which way. Find out by hand, one channel at a time."""
    stopping: ClassVar[dict[str, float]] = {"lag_s": 0.3, "dead_time_s": 0.1}
    """How the joints stop. Measure it: `firsthand inspect`, or by hand from full speed."""

    def __init__(self, host: str = "127.0.0.1", port: int | str = 9000, patience_s: float | str = PATIENCE_S) -> None:
        self._patience = float(patience_s)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((host, int(port)))

    def read(self) -> np.ndarray:
        """Ask, and wait for the answer. One that gets lost is a missing measurement, of which the gate allows a few."""
        try:
            self._drop_old()
            self._socket.settimeout(self._patience)
            self._socket.send(ASK)
            return np.asarray(MEASURED.unpack(self._socket.recv(MEASURED.size)))
        except (TimeoutError, struct.error):
            return np.full(len(self.neutral_command) * 2, np.nan)
        except OSError as error:
            raise MachineError(f"the machine cannot be reached: {error}") from None

    def _drop_old(self) -> None:
        """Answers that came too late are older than they seem."""
        self._socket.settimeout(0.0)
        try:
            while True:
                self._socket.recv(MEASURED.size)
        except BlockingIOError:
            pass

    def write(self, command: np.ndarray) -> None:
        """Send a command."""
        self._socket.send(COMMANDS.pack(*(float(c) for c in command)))

    def neutral(self) -> None:
        """All valves closed."""
        self.write(self.neutral_command)
