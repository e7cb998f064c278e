"""Real processes for the tests: a simulated machine, the onboard program with its watchdog, a client."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.jobs import policy_digest
from firsthand_onboard.link import ClientEnd
from firsthand_onboard.network import LinkError
from firsthand_onboard.toy import toy_spec

PATIENCE = 60.0
"""Seconds after which something counts as hanging; machines are slow when they are busy."""

SPEC = toy_spec()
PRIORITY = 40
FAST = {"simulate": ("--speed", "4")}
GOALS = np.tile(np.asarray([[0.8, -0.8], [-0.8, 0.8]], np.float32), (500, 1))
"""Minutes of motion: every test interrupts it."""


def real_time(process: int = 0) -> bool:
    """Let a process, or this thread, be scheduled as `serve` asks for itself by default; whether that is permitted."""
    try:
        os.sched_setscheduler(process, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return False
    return True


def ordinary() -> None:
    """Let this thread be scheduled like others again."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def serve_priority() -> tuple[str, ...]:
    """What lets a rig's program be a real-time process, as it is by default on a robot; empty where that is not
    permitted. Times that are measured are then the program's delay, not that of a busy computer.
    """
    permitted = real_time()
    ordinary()
    return ("--priority", str(PRIORITY)) if permitted else ()


def free_port() -> int:
    """A TCP port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE) -> Any:
    """Wait until something is true."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"did not happen in {patience_s} s: {what or condition}")


class Process:
    """A program whose first line on stdout says that it is ready."""

    def __init__(self, *command: str, stderr: Path | None = None) -> None:
        self._stderr = stderr.open("ab") if stderr else subprocess.DEVNULL
        self.popen = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=self._stderr, text=True, bufsize=1
        )
        assert self.popen.stdout is not None
        self.ready = self.popen.stdout.readline()
        assert self.ready, f"{command} ended with code {self.popen.wait()}"
        self.pid = self.popen.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        """SIGTERM, and SIGKILL for what does not listen."""
        if self.popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
                self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.popen.wait()
        if self.popen.stdout:
            self.popen.stdout.close()
        if self._stderr is not subprocess.DEVNULL:
            self._stderr.close()  # pyright: ignore


class Rig:
    """A simulated machine and the onboard program in front of it.

    Unless `strict`, every time limit is a second and more, so that a busy computer does not look like a fault.
    """

    onboard: Process

    def __init__(
        self,
        folder: Path,
        *serve: str,
        simulate: tuple[str, ...] = (),
        lock_step: bool = False,
        strict: bool = False,
        limits: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        if not strict:
            serve = ("--priority", "0", *serve)
            simulate = ("--timeout", "1.5", *simulate)
            patience = ("--watchdog", "1.5", "--machine-option", "patience_s=5")
            chosen = folder / "limits.json"
            chosen.write_text(json.dumps({"command_age_s": None, **(limits or {})}))
            serve = (*patience, "--limits", str(chosen), *serve)
        self.log = folder / "machine.jsonl"
        options = ("--lock-step",) if lock_step else ()
        listen = ("--listen", "127.0.0.1:0", "--log", str(self.log))
        self.machine = Process("-m", "firsthand_onboard", "simulate", *listen, *options, *simulate)
        found = re.search(r"at ([\d.]+:\d+)", self.machine.ready)
        assert found
        self.udp = found[1]
        self.address = f"tcp/127.0.0.1:{free_port()}"
        self.options = serve
        try:
            self.start()
        except BaseException:
            self.end()
            raise

    def start(self) -> None:
        """Start the onboard program (again); on a busy computer a strict one may not get through its start at once."""
        machine = ("--machine", "firsthand_onboard.simulation:UdpMachine", "--machine-option", f"address={self.udp}")
        command = ("-m", "firsthand_onboard", "serve", "--listen", self.address, *machine, *self.options)
        for tries_left in (2, 1, 0):
            try:
                self.onboard = Process(*command, stderr=self.folder / "onboard.log")
                break
            except AssertionError:
                if not tries_left:
                    raise
        self.watchdog_pid = int(self.onboard.ready.rsplit(" ", 1)[1])

    def onboards_watchdog(self) -> int:
        """The process id of the watchdog that there is now: after a fault it may be a new one."""
        children = Path(f"/proc/{self.onboard.pid}/task/{self.onboard.pid}/children").read_text().split()
        return int(children[-1])

    def end(self) -> None:
        if hasattr(self, "onboard"):
            self.onboard.end()
        self.machine.end()

    def lines(self) -> list[dict[str, Any]]:
        """What the machine has done so far."""
        text = self.log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def last(self) -> dict[str, Any]:
        """What the machine did last."""
        with self.log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - 4096, 0))
            whole = file.read().rpartition(b"\n")[0]  # the machine may be writing a line right now
            return json.loads(whole.rpartition(b"\n")[2] or b"{}")

    def moving(self) -> bool:
        return any(c != 0 for c in self.last().get("command", ()))

    def client(self, run: str = "test", *, operator: bool = False) -> ClientEnd:
        """Connect; the program may have just been started again."""
        return connect(self.address, run, operator)

    def acknowledge(self) -> str:
        """As the operator does; the state afterwards, or why it was refused."""
        return acknowledge(self.address)


def connect(address: str, run: str = "test", operator: bool = False) -> ClientEnd:
    """A client of a program that may be just starting."""

    def attempt() -> ClientEnd | None:
        try:
            client = ClientEnd(address, run=run, operator=operator)
        except LinkError:
            return None
        try:
            client.hello()
        except LinkError:
            client.close()
            return None
        return client

    return wait_for(attempt, "connection")


def stop(client: ClientEnd) -> Any:
    """Once: a second stop, sent because the answer to the first was slow, would be another one."""
    return client.ask("stop", patience_s=PATIENCE, tries=1)


def acknowledge(address: str) -> str:
    """As the operator does; the state afterwards, or why it was refused."""
    client = connect(address, "operator", operator=True)
    number = client.ask("status").body["fault_number"]
    answer = client.acknowledge(number, patience_s=PATIENCE)
    client.close()
    return answer.body["why"] if answer.kind == "refused" else answer.body["state"]


@contextlib.contextmanager
def rig(folder: Path, *serve: str, **options: Any) -> Iterator[Rig]:
    """A rig that is gone afterwards, whatever happens."""
    made = Rig(folder, *serve, **options)
    try:
        yield made
    finally:
        made.end()


def random_policy(spec: ControlSpec, seed: int = 0, gain: float = 1.0) -> dict[str, np.ndarray]:
    """Weights of a policy that moves."""
    rng = np.random.default_rng(seed)
    sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
    arrays = {}
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        arrays[f"policy.{i}.weight"] = (gain * rng.standard_normal((b, a)) / np.sqrt(a)).astype(np.float32)
        arrays[f"policy.{i}.bias"] = (0.5 * rng.standard_normal(b)).astype(np.float32)
    return arrays


def send_policy(client: ClientEnd, spec: ControlSpec, arrays: dict[str, np.ndarray]) -> str:
    answer = client.ask("policy", {"spec": spec.digest(), "digest": policy_digest(arrays)}, arrays)
    assert answer.kind == "reply", answer.body
    return answer.body["policy"]


def begin(client: ClientEnd, spec: ControlSpec, name: str, goals: np.ndarray) -> None:
    """Arm, and start a job with a random policy, away from the joint limits: there the gate would hold it."""
    client.keep_lease(0.1)
    weights = random_policy(spec)
    position, digest = {"position": np.asarray([-0.5, 1.0])}, policy_digest(weights)
    questions = (
        ("reset", {}, position),
        ("policy", {"spec": spec.digest(), "digest": digest}, weights),
        ("job", {"name": name, "kind": "visit", "policy": digest}, {"goals": goals}),
    )
    why = ""

    def begun() -> bool:
        nonlocal why
        answer = client.ask("arm")
        for question in questions:
            if answer.kind == "refused":
                break
            answer = client.ask(*question)
        why = answer.body.get("why", "")
        return answer.kind == "reply"

    for _ in range(5):  # where this process was left without a core for longer than the lease, it must arm again
        if begun():
            return
    raise AssertionError(why)


def finished(client: ClientEnd) -> dict:
    """The status once the job is over."""
    return wait_for(lambda: (s := client.ask("status").body)["job"] and s["job"]["ended"] and s, "end of the job")


def silent(made: Rig) -> None:
    """The machine stands in neutral and stays there."""
    wait_for(lambda: not made.moving(), "neutral")
    count = len(made.lines())
    wait_for(lambda: len(made.lines()) > count + 20, "time to pass")
    assert not any(any(line["command"]) for line in made.lines()[count:])
