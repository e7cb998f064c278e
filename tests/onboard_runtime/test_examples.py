"""The example of a machine over UDP, against a controller that counts what it is asked."""

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firsthand_onboard.machine import Machine, load_machine

EXAMPLE = Path(__file__).parents[2] / "examples" / "machines" / "udp_machine.py"


class Controller(threading.Thread):
    """Answers a question with how often it was asked, unless it is told to lose the answer; keeps the last command."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.asked, self.lose, self.late = 0, False, b""
        self.command = threading.Event()
        self.newest: tuple[float, ...] = ()

    def run(self) -> None:
        while (packet := self.socket.recvfrom(100))[0] != b"end":
            data, sender = packet
            if data == b"?":
                self.asked += 1
                answer = struct.pack("<8f", *[self.asked] * 8)
                if self.lose:
                    self.late = answer
                else:
                    self.socket.sendto(answer, sender)
            else:
                if self.late:
                    self.socket.sendto(self.late, sender)
                self.newest = struct.unpack("<4f", data)
                self.command.set()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    made.start()
    yield made
    made.socket.sendto(b"end", made.socket.getsockname())
    made.join(10)
    made.socket.close()


def test_a_reading_is_of_now_and_a_lost_one_is_missing(controller):
    port = controller.socket.getsockname()[1]
    machine = load_machine(f"{EXAMPLE}:UdpMachine", {"port": str(port), "patience_s": "1"})
    assert isinstance(machine, Machine)
    assert [machine.read()[0] for _ in range(3)] == [1.0, 2.0, 3.0]
    controller.lose = True
    assert np.isnan(machine.read()).all()
    controller.lose = False
    machine.write(np.asarray([0.5, -0.5, 0.0, 1.0]))  # now the lost answer comes after all
    assert controller.command.wait(10)
    assert controller.newest == (0.5, -0.5, 0.0, 1.0)
    assert machine.read()[7] == 5.0  # not the fourth
    controller.command.clear()
    machine.neutral()
    assert controller.command.wait(10)
    assert controller.newest == (0.0,) * 4
