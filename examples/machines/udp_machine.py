"""A machine that is reached over UDP: a skeleton to start from.

Serve it with

    firsthand-onboard serve --machine examples/machines/udp_machine.py:UdpMachine \
        --machine-option host=192.168.1.20 --spec robot.json --limits limits.json

Here the controller of the machine takes four 32-bit floats and answers each packet with eight. Change `COMMANDS`,
`MEASURED` and the units to what yours speaks. If it has a command timeout, switch it on: it is the last line.
"""

import socket
import struct

import numpy as np

from firsthand_onboard.machine import MachineError

COMMANDS = struct.Struct("<4f")
MEASURED = struct.Struct("<8f")


class UdpMachine:
    """Four valve commands in [-1, 1] out, four positions and four velocities in."""

    neutral_command = np.zeros(4, np.float32)
    directions = ((0, 1), (1, 1), (2, 1), (3, 1))
    """Which joint a command moves, and which way. Find out by hand, one channel at a time."""

    def __init__(self, host: str = "127.0.0.1", port: int | str = 9000) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((host, int(port)))
        self._socket.settimeout(0.02)
        self._last = self.neutral_command

    def read(self) -> np.ndarray:
        """The newest measurement."""
        newest = None
        try:
            while True:
                newest = self._socket.recv(MEASURED.size)
                self._socket.settimeout(0.0)
        except (BlockingIOError, TimeoutError):
            pass
        except OSError as error:
            raise MachineError(f"the machine cannot be reached: {error}") from None
        finally:
            self._socket.settimeout(0.02)
        if newest is None:
            raise MachineError("the machine does not answer")
        return np.asarray(MEASURED.unpack(newest))

    def write(self, command: np.ndarray) -> None:
        """Send a command."""
        self._socket.send(COMMANDS.pack(*(float(c) for c in command)))

    def neutral(self) -> None:
        """All valves closed."""
        self.write(self.neutral_command)
