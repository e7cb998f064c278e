"""The machine across the network, as the trainer's operator sees it: asked in threads, watched for faults."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...control.machine import ANSWERED_S, FleetWatch, Watch
from ...errors import UserError
from .inbox import Answers

GOODBYE_S = ANSWERED_S
"""How long the end waits for what is still being asked of the machine."""


class MachineLink:
    """Passes stops and acknowledgements on to the machine and reports its faults."""

    def __init__(self, watch: Watch | FleetWatch, answers: Answers, report_fault: Callable[[str], None]) -> None:
        self.watch, self.answers, self.report_fault = watch, answers, report_fault
        self._fault_number = 0
        self._asking: list[threading.Thread] = []

    @property
    def seen(self) -> Mapping[str, Any] | None:
        """The last report of the machine."""
        return self.watch.seen

    def start(self) -> None:
        """Begin to watch."""
        self.watch.start()

    def ask(self, name: str, kind: str, number: Any = None) -> None:
        """Ask in a thread of its own: a machine may take seconds to answer, and the next request must not wait."""

        def ask() -> None:
            try:
                self.answers.add(name, kind, True, self.watch.ask(kind, number))
            except UserError as error:
                self.answers.add(name, kind, False, str(error))

        thread = threading.Thread(target=ask, name=kind, daemon=True)
        self._asking = [other for other in self._asking if other.is_alive()] + [thread]
        thread.start()

    def check_faults(self) -> None:
        """Report a fault that is new."""
        seen = self.seen
        if seen and seen["state"] == "fault" and seen["fault_number"] != self._fault_number:
            self._fault_number = seen["fault_number"]
            self.report_fault(f"fault: {seen['fault']}")

    def close(self, deadline: float) -> None:
        """Leave the machine alone, once it has answered or at this time of the monotonic clock."""
        for thread in self._asking:  # a stop for the machine may still be on its way
            thread.join(max(deadline - time.monotonic(), 0.0))
        self.watch.close()
