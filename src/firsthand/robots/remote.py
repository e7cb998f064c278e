"""A robot across the network: `firsthand train tcp/host:port`.

The onboard program runs the loop; this side sends the policy, asks for an episode, collects trajectories as they
arrive, and starts over where a link, a trainer or an onboard program was lost.
"""

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.answers import (
    About,
    Status,
    read_about,
    read_measured,
    read_status,
    read_trajectory,
    refusal,
)
from firsthand_onboard.homing import NEAR
from firsthand_onboard.jobs import policy_digest
from firsthand_onboard.link import ClientEnd, identity
from firsthand_onboard.messages import Message
from firsthand_onboard.network import LinkError, Security, VersionMismatch, check_address
from firsthand_onboard.signing import PRIVATE, SigningKey

from ..console import notify
from ..errors import UserError
from ..models import Controller, Policy, as_controller
from ..tasks import Task
from .acquaintance import is_the_one
from .base import EpisodeAbandoned
from .onboard import FIRST_AUTHORITY, Arrays, OnboardRobot
from .source import RobotSource

PATIENCE_S = 600.0
"""How long an unreachable or faulty robot is waited for."""
STOP_S = 2.0
"""How long a machine that was told to stop may take to say that it stands."""
NOT_STOPPED = "The machine does not say that it has stopped: it may move until its lease or its trajectory is over."
FIND_S = 2.0
"""How long an address is tried when it is first named."""
IDENTIFY_S = 5.0
"""How long a machine is asked who it is; one that does not answer has earned nothing."""
CERTIFICATES = "FIRSTHAND_CERTIFICATES"
"""Environment variable with the folder of certificates, for tls addresses."""
POLICY_KEY = "FIRSTHAND_POLICY_KEY"
"""Environment variable with the private key that signs policies, where it is not beside the certificates."""


class Interrupted(Exception):
    """An episode that did not come to its end; it is asked for again."""


class RobotAway(UserError):
    """A robot that could not be reached, or would not move, for as long as it was waited for."""


def security() -> Security | None:
    """The trainer's certificates, if there are any."""
    folder = os.environ.get(CERTIFICATES)
    return None if not folder else Security.in_folder(folder, "trainer")


@functools.cache
def _read_key(path: str) -> SigningKey:
    return SigningKey(path)


def signing_key() -> SigningKey | None:
    """The key that signs policies: the file that is named, or the one beside the trainer's certificates."""
    path, folder = os.environ.get(POLICY_KEY), os.environ.get(CERTIFICATES)
    if not path and folder and (Path(folder) / PRIVATE).exists():
        path = str(Path(folder) / PRIVATE)
    try:
        return _read_key(path) if path else None
    except SpecError as error:
        raise UserError(f"{error}.") from error


@dataclass(frozen=True)
class RemoteAddress:
    """Where a robot is. Without a name the robot is asked which one it is."""

    address: str
    """tcp/host:port or tls/host:port."""
    name: str = ""
    """Which robot's task it has."""

    @staticmethod
    def parse(text: str) -> "RemoteAddress":
        """From `NAME@tcp/host:port` or `tcp/host:port`."""
        name, _, address = text.rpartition("@")
        try:
            check_address(address, security())
        except SpecError as error:
            raise UserError(f"{error} (certificates for training: {CERTIFICATES}=FOLDER).") from None
        return RemoteAddress(address, name)

    def full_name(self) -> str:
        """`NAME@tcp/host:port`: with it a run can be read when the robot is away."""
        return f"{self.robot()}@{self.address}"

    def robot(self) -> str:
        """Which robot it is: the one that was named, or what is there says."""
        return self.name or self.ask_spec().robot

    def ask_spec(self) -> ControlSpec:
        """The control specification of the robot that is there; `RobotAway` if it does not answer."""
        try:
            return self._patiently(self._hello_spec)
        except VersionMismatch as error:
            raise UserError(f"{error}.") from None
        except (LinkError, SpecError) as error:
            raise RobotAway(f"No robot is there: {error}; start it with firsthand-onboard serve.") from None

    def _hello_spec(self) -> ControlSpec:
        client = ClientEnd(self.address, security(), run="find")
        try:
            return read_about(client.hello()).spec
        finally:
            client.close()

    def _patiently(self, attempt: Callable[[], ControlSpec]) -> ControlSpec:
        deadline = time.monotonic() + FIND_S
        while True:
            try:
                return attempt()
            except VersionMismatch:
                raise
            except LinkError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@dataclass(frozen=True)
class RemoteSource(RobotSource):
    """A robot across the network, from its address."""

    at: RemoteAddress
    find_source: Callable[[str], RobotSource]
    """Where the robot that is there would come from by name: its task is known by that name."""

    def make_task(self) -> Task:
        """The task of the robot that is there, or of the one that was named."""
        return self.find_source(self.at.robot()).make_task()

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> "RemoteRobot":
        """Connects when it is first used."""
        if payload_kg:
            raise UserError(
                f"payload is {payload_kg} kg, but the load of a robot across the network is what it carries."
            )
        return RemoteRobot(self.at.address, task, run=f"seed{seed}-{identity()[:8]}")


@dataclass
class Connection:
    """This process's one connection to an address: all its robots there share a session and its lease."""

    client: ClientEnd
    about: About
    """The robot's answer to hello."""
    machine: str = ""
    """Its identity, once proven; empty otherwise."""
    known_policy: str = ""
    """Digest of the policy that the robot was sent last."""


@dataclass(frozen=True)
class _Asked:
    """What is waited for: this many trajectories of a job, with this many steps each."""

    name: str
    count: int
    steps: int


_CONNECTIONS: dict[str, Connection] = {}


def disconnect(address: str) -> None:
    """Give the lease back and leave."""
    connection = _CONNECTIONS.pop(address, None)
    if connection is not None:
        with contextlib.suppress(LinkError):
            connection.client.ask("release", patience_s=0.5, tries=1)
        connection.client.close()


def _stop(client: ClientEnd) -> str:
    """Stop what moves for this client, and give its lease back; what the machine then does, as a sentence."""
    deadline = time.monotonic() + STOP_S
    client.drop_lease()
    with contextlib.suppress(LinkError):
        status = _status_now(client)
        if status is None or status.yours or (status.state == "moving" and not status.taken):
            client.send("stop")  # once: from somebody without the lease, as we are after it, a stop latches
            status = _status_now(client)
        while status is not None and status.state == "moving" and time.monotonic() < deadline:
            status = _status_now(client)
        if status is not None and status.state != "moving":
            return f"The machine stands{', until its operator acknowledges it' * (status.state == 'fault')}."
    return NOT_STOPPED


def _status_now(client: ClientEnd) -> Status | None:
    try:
        return read_status(client.ask("status", patience_s=0.5, tries=1))
    except LinkError:
        return None


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a trainer; by themselves they would leave its machine moving until the lease is over."""
_LEAVING = threading.Event()
"""This process is about to end: nothing more is asked of a machine, which would begin again what was stopped."""


def _stop_on_ending_signals() -> None:
    """From now on a signal that ends this process stops its machines first.

    In a thread that the kernel wakes: the main one may be in the middle of a computation for seconds. Where somebody
    else deals with a signal, or it is ignored (nohup), that stays.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if not numbers:
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    if before != -1:  # somebody's event loop needs it; then the handler alone wakes the thread
        signal.set_wakeup_fd(before)
    for number in numbers:
        signal.signal(number, lambda number, _: os.write(wake, bytes([number])))
    threading.Thread(target=_wait_for_signal, args=(woken, numbers), name="ending", daemon=True).start()


def _wait_for_signal(woken: int, numbers: Sequence[int]) -> None:
    while True:
        for number in os.read(woken, 64):
            if number in numbers:
                _leave(number)


def _leave(number: int) -> None:
    """Stop the machines and end this process, as the signal would have. A run folder can be left at any instant."""
    _LEAVING.set()
    try:
        stops = [threading.Thread(target=_stop, args=(c.client,), daemon=True) for c in list(_CONNECTIONS.values())]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join(STOP_S + 1.0)
    finally:
        os._exit(128 + number)


class RemoteRobot(OnboardRobot):
    """A robot behind `firsthand-onboard serve`."""

    def __init__(
        self,
        address: str,
        task: Task,
        *,
        run: str = "run",
        patience_s: float = PATIENCE_S,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.task, self.address, self.run, self.patience_s = task, address, run, patience_s
        self.authority = FIRST_AUTHORITY
        self.arrived: Callable[[int, Arrays], None] | None = None
        """Called with the index, of all that was asked for, and the arrays of each trajectory as it arrives, while the
        robot still moves."""
        self._before_pause = 0
        """How many trajectories were done before a pause; the job that runs begins with the next one."""
        self._say_to = say
        self._trouble: float | None = None
        self._reported = ""
        self._was_paused = False
        self._homing = ""
        """Name of the job in which the machine goes home."""
        self._machine_id: str | None = None

    def measured(self) -> Float[np.ndarray, " measured"]:
        """What the sensors say now, or, where the machine is on its way home, once it is there."""

        def measured() -> np.ndarray:
            self._wait_for_home()
            return read_measured(self.task.spec, self._ask("status"))

        return self._until_it_works(measured)

    def measured_if_ready(self) -> Float[np.ndarray, " measured"]:
        """What the sensors say, of a machine that would move for us; one that would not is waited for as one away."""

        def measured() -> np.ndarray:
            self._wait_for_home()
            message = self._ask("status")
            status = read_status(message)
            self._check_no_fault(status)
            if status.taken and not status.yours:
                raise Interrupted("another trainer holds the lease")
            return read_measured(self.task.spec, message)

        return self._until_it_works(measured)

    def place(self, position: np.ndarray) -> None:
        """Put a simulated machine at rest in a configuration."""

        def place() -> None:
            self._wait_for_home()
            self._arm()
            self._ask("reset", arrays={"position": np.asarray(position, np.float32)})

        self._until_it_works(place)

    def execute(self, kind: str, policy: Policy | Controller | None, arrays: Arrays, count: int) -> Sequence[Arrays]:
        """Ask, collect, and ask again from the start when it was interrupted; after a pause only for what is left."""
        done: list[Arrays] = []
        found: dict[int, Arrays] = {}

        def attempt() -> Sequence[Arrays]:
            if kind == "visit" and self._was_paused:
                done.extend(found[i] for i in itertools.takewhile(found.__contains__, itertools.count()))
            self._was_paused = False
            self._before_pause = len(done)
            found.clear()
            left = {name: value[len(done) :] for name, value in arrays.items()} if kind == "visit" else arrays
            return [*done, *self._attempt(kind, policy, left, count - len(done), found)]

        return self._until_it_works(attempt)

    def finish_trajectory(self) -> None:
        """Let the machine finish the running trajectory, and then hold: gives the lease back. From any thread."""
        connection = _CONNECTIONS.get(self.address)
        if connection is not None:
            with contextlib.suppress(LinkError):
                connection.client.send("release")

    def close(self) -> None:
        """Give the lease back and leave."""
        disconnect(self.address)

    def stop_at_once(self) -> str:
        """Stop what this trainer has asked for, from any thread; what the machine then does, as a sentence.

        Without latching: the holder of the lease may arm again. Where nothing of ours moves, nothing is sent.
        """
        connection = _CONNECTIONS.get(self.address)
        return NOT_STOPPED if connection is None else _stop(connection.client)

    def go_home(self) -> None:
        """Let the machine go home if it is served so, without waiting: what comes next on it waits.

        Tried once: where it cannot, the machine holds, and the episode that is over counts all the same.
        """
        try:
            if self._connect().about.homes:
                self._arm()
                name = identity()
                self._ask("job", {"name": name, "kind": "home", "authority": float(self.authority)})
                self._homing = name
        except (LinkError, Interrupted) as error:
            self._say(f"robot: it does not go home: {error}")

    def _wait_for_home(self) -> None:
        while self._homing:
            job = self._status().job
            if job is not None and job.name == self._homing and not job.ended:
                time.sleep(0.05)
                continue
            self._homing = ""
            if job is not None and job.ended == "done" and (job.away or 0.0) > NEAR:
                self._say(f"robot: it stopped {100 * (job.away or 0.0):.0f} % of a joint's range away from home")

    @property
    def machine_id(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The machine's name, from its own key; empty if it cannot be reached soon."""
        deadline = time.monotonic() + IDENTIFY_S
        while self._machine_id is None and time.monotonic() < deadline:
            try:
                self._connect()
            except LinkError:
                time.sleep(0.2)
        return self._machine_id or ""

    @property
    def neutral_between_motions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """In real time; in lock-step the machine's time passes only while it is commanded."""
        return self._until_it_works(lambda: not self._connect().about.lock_step)

    @property
    def can_reset(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the machine is a simulation that can be put somewhere."""
        return self._until_it_works(lambda: self._connect().about.can_reset)

    def _attempt(
        self, kind: str, policy: Policy | Controller | None, arrays: Arrays, count: int, found: dict[int, Arrays]
    ) -> Sequence[Arrays]:
        self._wait_for_home()
        client = self._arm()
        body = {"name": identity(), "kind": kind, "authority": float(self.authority)}
        if policy is not None:
            body["policy"] = self._send_policy(policy)
        client.others.clear()
        try:
            self._ask("job", body, arrays)
        except Interrupted:
            self._connect().known_policy = ""  # it may be what the robot lacks
            raise
        return self._collect(client, _Asked(str(body["name"]), count, self._steps_of(kind, arrays)), found)

    def _steps_of(self, kind: str, arrays: Arrays) -> int:
        """Control steps of each trajectory that a job brings back."""
        spec = self.task.spec
        if kind == "visit":
            return spec.reference.steps
        return len(arrays["commands"]) if kind == "play" else len(arrays["reference"]) - spec.preview[-1]

    def _collect(self, client: ClientEnd, asked: _Asked, found: dict[int, Arrays]) -> Sequence[Arrays]:
        while True:
            message = client.next(1.0)
            self._sort(client, asked, found)
            if len(found) == asked.count:
                break
            if message is None:
                state = self._status().job
                if state is None or state.name != asked.name:
                    raise Interrupted("the robot does not know the episode any more")
                self._sort(client, asked, found)
                for index in set(range(min(state.count, asked.count))) - set(found) if state.ended else ():
                    self._ask("fetch", {"job": asked.name, "index": index})
                    self._sort(client, asked, found)
                if state.ended not in ("", "done"):
                    raise Interrupted(state.ended)
        return [found[i] for i in range(asked.count)]

    def _sort(self, client: ClientEnd, asked: _Asked, found: dict[int, Arrays]) -> None:
        """Take what has arrived; a trajectory that was cut short interrupts."""
        arrived, client.others[:] = list(client.others), []
        for message in arrived:
            if message.body.get("job") != asked.name:
                continue
            sent = read_trajectory(self.task.spec, message, asked.steps)
            if sent.index in found or sent.index >= asked.count:
                continue
            if sent.ended != "done":
                raise Interrupted(sent.ended)
            found[sent.index] = sent.arrays
            if self.arrived is not None:
                self.arrived(self._before_pause + sent.index, sent.arrays)

    def _send_policy(self, policy: Policy | Controller) -> str:
        arrays = as_controller(policy).arrays()
        digest = policy_digest(arrays)
        connection = self._connect()
        if digest != connection.known_policy:
            body = {"spec": self.task.spec.digest(), "digest": digest}
            if (key := signing_key()) is not None:
                body["signature"] = key.sign_policy(body["spec"], digest)
            self._ask("policy", body, arrays)
            connection.known_policy = digest
        return digest

    def _arm(self) -> ClientEnd:
        """Connected, without a fault, and with the lease in our hands."""
        connection = self._connect()
        status = self._status()
        self._check_no_fault(status)
        if not status.yours:
            self._ask("arm")
            connection.client.keep_lease(connection.about.lease_s / 4)
        return connection.client

    def _check_no_fault(self, status: Status) -> None:
        if status.state == "fault":
            raise Interrupted(
                f"the robot waits for its operator ({status.fault}); look at it, then run "
                f"`firsthand-onboard acknowledge {self.address}`"
            )

    def _connect(self) -> Connection:
        known = _CONNECTIONS.get(self.address)
        if known is not None:
            self._machine_id = known.machine if self._machine_id is None else self._machine_id
            return known
        client = ClientEnd(self.address, security(), run=self.run)
        try:
            about = read_about(client.hello())
            theirs, ours = about.spec, self.task.spec
        except VersionMismatch as error:
            client.close()
            raise UserError(f"{error}.") from None
        except LinkError:
            client.close()
            raise
        if theirs.digest() != ours.digest():
            client.close()
            raise UserError(
                f"The robot at {self.address} has another control specification ({theirs.robot}, "
                f"{theirs.digest()[:8]}) than the task here ({ours.robot}, {ours.digest()[:8]}); give both the same."
            )
        machine = about.machine if self._is_the_one(client, about) else ""
        if self._machine_id is not None and machine != self._machine_id:
            client.close()
            raise UserError(
                f"At {self.address} is another machine now than before; look at it, and go on with --resume: it begins "
                "with the range that it has earned itself."
            )
        self._machine_id = machine
        connection = _CONNECTIONS[self.address] = Connection(client, about, machine)
        _stop_on_ending_signals()
        return connection

    def _is_the_one(self, client: ClientEnd, about: About) -> bool:
        def ask(kind: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
            answer = client.ask(kind, body)
            return None if answer.kind == "refused" else answer.body

        try:
            proven = is_the_one(about.machine, about.proves, ask)
        except LinkError:
            client.close()
            raise
        if not proven:
            self._say(
                f"robot: what answers at {self.address} calls itself a machine that is known here, and cannot prove "
                "it: it begins with half the range"
            )
        return proven

    def _ask(self, kind: str, body=None, arrays: Arrays | None = None) -> Message:
        while _LEAVING.is_set():
            time.sleep(1.0)
        answer = self._connect().client.ask(kind, body, arrays)
        if answer.kind == "refused":
            raise Interrupted(refusal(answer))
        return answer

    def _status(self) -> Status:
        return read_status(self._ask("status"))

    def _until_it_works(self, attempt: Callable):
        while True:
            try:
                result = attempt()
            except (LinkError, Interrupted) as error:
                if isinstance(error, LinkError) and self.address in _CONNECTIONS:
                    _CONNECTIONS.pop(self.address).client.close()
                if self.before_trajectory is not None and self.before_trajectory():
                    self._was_paused, self._trouble = True, None
                    continue
                if self.stop_wanted is not None and self.stop_wanted():
                    raise EpisodeAbandoned from None
                now = time.monotonic()
                self._trouble = self._trouble or now
                if now - self._trouble > self.patience_s:
                    raise RobotAway(f"Gave up on the robot after {self.patience_s:.0f} s: {error}.") from None
                self._say(f"robot: {error}; trying again")
                time.sleep(0.2)
            else:
                self._trouble, self._reported = None, ""
                return result

    def _say(self, text: str) -> None:
        if text == self._reported:
            return
        self._reported = text
        if self._say_to is not None:
            self._say_to(text)
            return
        notify(text)
