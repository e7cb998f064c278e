"""The operator's link to a machine that `firsthand-onboard` serves: look, stop, acknowledge."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firsthand_onboard.answers import Status, read_status, refusal
from firsthand_onboard.link import ACKNOWLEDGE_S, ClientEnd, stop_machine
from firsthand_onboard.messages import Message
from firsthand_onboard.network import LinkError, Security
from firsthand_onboard.spec import SpecError

from ..errors import UserError

CERTIFICATES = "FIRSTHAND_CERTIFICATES"
"""Environment variable with the folder of certificates, for tls addresses."""
PATIENCE_S = 1.0
WATCH_S, AWAY_S = 1.0, 5.0
"""How often a machine is asked how it is, when it answers and when it does not."""
ASKED_S, ANSWERED_S = 5.0, 5.0 + 5.0 + ACKNOWLEDGE_S
"""An acknowledgement that has waited longer is forgotten: whoever gave it may think otherwise now. He waits so long for
the answer: until it is sent, for connecting, and for what the machine needs."""


def address_of(robot: str) -> str | None:
    """`tcp/host:port` in the name of a robot; None for a name that is not an address."""
    address = robot.rpartition("@")[2]
    return address if address.startswith(("tcp/", "tls/")) else None


def watch_machines(address: str) -> "Watch | FleetWatch":
    """The watch over the machine at an address, or over several with commas between them."""
    addresses = address.split(",")
    return Watch(address) if len(addresses) == 1 else FleetWatch(addresses)


def security() -> Security | None:
    """The operator's certificates, or, where there are none of his own, the trainer's."""
    folder = os.environ.get(CERTIFICATES)
    if not folder:
        return None
    return Security.in_folder(folder, "operator" if is_operator() else "trainer")


def is_operator() -> bool:
    """Whether there are the operator's own certificates, or none are needed; a trainer's may not acknowledge."""
    folder = os.environ.get(CERTIFICATES)
    return not folder or (Path(folder) / "operator.pem").exists()


class Operator:
    """One connection as the operator, made when it is first used and again when it was lost. For one thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: ClientEnd | None = None

    def look(self) -> dict[str, Any]:
        """`state`, `fault`, `fault_number` and `reachable`; a machine that does not answer is not reachable."""
        try:
            status = self._read(self._ask("status"))
        except UserError as error:
            return {"state": "", "fault": str(error), "fault_number": 0, "reachable": False}
        return {
            "state": status.state, "fault": status.fault, "fault_number": status.fault_number, "reachable": True
        }  # fmt: skip

    def stop(self) -> str:
        """Stop the machine, in any state, until it is acknowledged; what to tell the person."""
        try:
            state = stop_machine(self.address, security(), operator=is_operator())["state"]
        except (LinkError, SpecError) as error:
            raise UserError(f"the machine cannot be reached: {error}.") from None
        if state != "fault":
            raise UserError(f"the machine was told to stop, but is still {state}.")
        return "the machine has stopped, until it is acknowledged"

    def acknowledge(self, number: int) -> str:
        """Acknowledge the fault of this number, the one that the person has seen; what to tell the person."""
        answer = self._reach(lambda client: client.acknowledge(number))
        if answer.kind == "refused":
            raise UserError(f"{refusal(answer)}.")
        return f"acknowledged; the machine is {self._read(answer).state}"

    def close(self) -> None:
        """Leave."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, kind: str) -> Message:
        return self._reach(lambda client: client.ask(kind, patience_s=PATIENCE_S, tries=2))

    def _reach(self, attempt: Callable[[ClientEnd], Message]) -> Message:
        try:
            if self._client is None:
                client = ClientEnd(self.address, security(), run="operator", operator=is_operator())
                self._client = client
                client.hello()
            return attempt(self._client)
        except (LinkError, SpecError) as error:
            with contextlib.suppress(Exception):
                self.close()
            raise UserError(f"the machine cannot be reached: {error}.") from None

    @staticmethod
    def _read(message: Message) -> Status:
        try:
            return read_status(message)
        except LinkError as error:
            raise UserError(f"{error}.") from None


class Watch:
    """A thread that owns the operator's link to a machine: looks at it, and acknowledges where others ask.

    A stop waits for neither: it has a link of its own, in the thread of the caller.
    """

    def __init__(self, address: str) -> None:
        self.operator = Operator(address)
        self.seen: dict[str, Any] | None = None
        """The last status of the machine."""
        self._asked: queue.Queue[tuple[int, float, queue.Queue] | None] = queue.Queue()

    def start(self) -> None:
        """Start watching."""
        threading.Thread(target=self._run, name="machine", daemon=True).start()

    def close(self) -> None:
        """Leave the machine alone."""
        self._asked.put(None)

    def ask(self, kind: str, number: Any = None) -> str:
        """Stop or acknowledge, from another thread; what to tell the person."""
        if kind == "stop":
            with contextlib.closing(Operator(self.operator.address)) as other:
                return other.stop()
        answer: queue.Queue = queue.Queue()
        self._asked.put((int(number), time.monotonic() + ASKED_S, answer))
        try:
            result = answer.get(timeout=ANSWERED_S)
        except queue.Empty:
            raise UserError("the machine does not answer.") from None
        if isinstance(result, Exception):
            raise result
        return str(result)

    def _run(self) -> None:
        while True:
            try:
                here = self.seen is None or self.seen["reachable"]
                asked = self._asked.get(timeout=WATCH_S if here else AWAY_S)
            except queue.Empty:
                self.seen = self.operator.look()
                continue
            if asked is None:
                self.operator.close()
                return
            number, until, answer = asked
            try:
                if time.monotonic() > until:
                    raise UserError("the machine did not answer; what was acknowledged is forgotten.")
                answer.put(self.operator.acknowledge(number))
            except Exception as error:  # reported to the caller; this thread goes on
                answer.put(error)
            self.seen = self.operator.look()


NUMBERS_PER_MACHINE = 1_000_000
"""Fault number n of machine i is shown as i times this, plus n: an acknowledgement must find its machine."""


class FleetWatch:
    """Several machines as one: any fault is shown with its machine, and a stop stops all of them."""

    def __init__(self, addresses: list[str]) -> None:
        self.watches = [Watch(address) for address in addresses]

    @property
    def seen(self) -> dict[str, Any] | None:
        """The last report of the first machine in trouble; if all are well, that of the first machine."""
        seen = [(i, watch.seen) for i, watch in enumerate(self.watches) if watch.seen is not None]
        if not seen:
            return None
        index, worst = max(seen, key=lambda pair: (pair[1]["state"] == "fault", not pair[1]["reachable"], -pair[0]))
        fault = f"{self.watches[index].operator.address}: {worst['fault']}" if worst["fault"] else ""
        reachable = any(found["reachable"] for _, found in seen)
        number = NUMBERS_PER_MACHINE * index + worst["fault_number"]
        return {**worst, "fault": fault, "fault_number": number, "reachable": reachable}

    def start(self) -> None:
        """Start watching."""
        for watch in self.watches:
            watch.start()

    def close(self) -> None:
        """Leave the machines alone."""
        for watch in self.watches:
            watch.close()

    def ask(self, kind: str, number: Any = None) -> str:
        """Stop all machines at the same time, or acknowledge the fault of one."""
        if kind != "stop":
            index, own = divmod(int(number), NUMBERS_PER_MACHINE)
            if not 0 <= index < len(self.watches):
                raise UserError(f"there is no fault number {number}.")
            return self.watches[index].ask(kind, own)
        answers, failed = [""] * len(self.watches), [False] * len(self.watches)

        def stop(index: int) -> None:
            try:
                answers[index] = self.watches[index].ask("stop")
            except UserError as error:
                answers[index], failed[index] = str(error), True

        threads = [threading.Thread(target=stop, args=(i,), daemon=True) for i in range(len(self.watches))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        text = "; ".join(f"{w.operator.address}: {a}" for w, a in zip(self.watches, answers, strict=True))
        if any(failed):
            raise UserError(text)
        return text
