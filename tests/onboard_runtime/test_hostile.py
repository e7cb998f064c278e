"""Attempts to make the machine move when it should not: the real runtime and link, with a machine that plays along."""

import dataclasses
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import firsthand_onboard
from firsthand.errors import UserError
from firsthand.robots.registry import make_task
from firsthand.robots.remote import RemoteRobot, disconnect
from firsthand_onboard import timing
from firsthand_onboard.faults import CRASHED, FaultLatch
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.homing import Homing, HomingController
from firsthand_onboard.identity import MachineIdentity
from firsthand_onboard.link import MAX_BYTES_AT_ONCE, MAX_MESSAGES_AT_ONCE, ROBOT_QUEUE, ClientEnd, FloodMeter, RobotEnd
from firsthand_onboard.machine import MachineError
from firsthand_onboard.messages import Message, encode
from firsthand_onboard.network import split_address
from firsthand_onboard.runtime import OPERATOR_STOP, Runtime, RuntimeSettings
from firsthand_onboard.spec import SpecError
from firsthand_onboard.stop_way import StopUnreachable, StopWay, send_stop
from firsthand_onboard.toy import Toy, toy_spec

from .processes import PATIENCE, acknowledge, connect, free_port, random_policy, send_policy, stop, wait_for

SPEC = toy_spec(steps=20)
GOALS = np.tile(np.asarray([[0.8, -0.8], [-0.8, 0.8]], np.float32), (200, 1))
PERIOD_S = 0.004


class Bench:
    """A toy that moves on with every reading, remembers what was written, and breaks when told to."""

    lock_step, can_reset = False, True
    directions = Toy.directions

    def __init__(self) -> None:
        self.toy, self.command = Toy(), np.zeros(2)
        self.written: list[np.ndarray] = []
        self.broken: Callable[[], bool] = lambda: False

    def read(self) -> np.ndarray:
        if self.broken():
            raise MachineError("the sensors are gone")
        self.toy.step(self.command)
        return self.toy.measure()

    def write(self, command: np.ndarray) -> None:
        self.command = np.asarray(command, float)
        self.written.append(self.command)

    def neutral(self) -> None:
        self.command = np.zeros(2)

    def reset(self, position: np.ndarray) -> None:
        self.toy.reset(position)

    def resume(self) -> None:
        pass


class Program:
    """The onboard program in a thread, without its watchdog process.

    Its times are long: on a busy computer a thread may get no core for a second.
    """

    def __init__(
        self, address: str, latch: Path | None = None, command_age_s: float = PATIENCE, lease_s: float = 10.0
    ) -> None:
        self.address, self.machine = address, Bench()
        self.link, self.stop_way = RobotEnd(address), StopWay(split_address(address)[1])
        limits = GateLimits.of(SPEC, directions=Bench.directions, command_age_s=command_age_s)
        homing = HomingController(SPEC, limits, Homing((-0.5, 1.0), speed=0.5))
        settings = RuntimeSettings(lease_s=lease_s, latch=latch)
        self.runtime = Runtime(SPEC, self.machine, limits, self.link, settings, PERIOD_S, homing, self.stop_way)
        self.thread = threading.Thread(target=self.runtime.run, daemon=True)
        self.thread.start()

    def trainer(self, run: str = "test") -> ClientEnd:
        return connect(self.address, run)

    def still(self, periods: int = 20) -> None:
        """Time passes, and nothing is written."""
        written, steps = len(self.machine.written), self.runtime.executor.clock.now() + periods * PERIOD_S
        wait_for(lambda: self.runtime.executor.clock.now() > steps, "time to pass")
        assert len(self.machine.written) == written
        assert not self.machine.command.any()

    def end(self) -> None:
        self.runtime.stopping = True
        self.thread.join(10)
        self.stop_way.close()
        self.link.close()
        assert not self.thread.is_alive()


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program(f"tcp/127.0.0.1:{free_port()}")
    yield made
    made.end()


def constant(value: float) -> dict[str, np.ndarray]:
    """A policy that always commands the same."""
    weights = {name: np.zeros_like(array) for name, array in random_policy(SPEC).items()}
    weights["policy.2.bias"][:] = np.arctanh(value)
    return weights


def armed(program: Program, run: str = "test") -> tuple[ClientEnd, str]:
    """A trainer with the lease and a policy."""
    client = program.trainer(run)
    assert client.ask("arm").kind == "reply"
    client.keep_lease(0.2)
    return client, send_policy(client, SPEC, constant(0.3))


def start(client: ClientEnd, name: str, policy: str, goals: np.ndarray = GOALS) -> Any:
    return client.ask("job", {"name": name, "kind": "visit", "policy": policy}, {"goals": goals})


def test_a_job_whose_lease_ran_out_while_the_loop_was_away_does_not_begin(monkeypatch):
    """The program is frozen between taking the job and its first command, and meanwhile the trainer goes."""
    program = Program(f"tcp/127.0.0.1:{free_port()}", lease_s=1.5)
    client, policy = armed(program)
    collect = gc.collect

    def away() -> None:
        client.drop_lease()
        time.sleep(3.0)
        monkeypatch.setattr(gc, "collect", collect)

    monkeypatch.setattr(gc, "collect", away)
    client.send("job", {"name": "begun", "kind": "visit", "policy": policy}, {"goals": GOALS})
    ended = wait_for(lambda: (last := program.runtime.last) and last.ended, "the end of the job")
    assert ended == "the lease ran out"
    program.still()
    assert program.machine.written == []
    client.close()
    program.end()


def test_a_job_that_waited_for_a_broken_machine_does_not_run_when_it_is_mended(program):
    client, policy = armed(program)
    # The reading fails just when the job has been taken, and before it begins.
    program.machine.broken = lambda: program.runtime.job is not None or program.runtime.state == "fault"
    start(client, "waits", policy)
    wait_for(lambda: client.ask("status").body["state"] == "fault", "the fault")
    program.machine.broken = lambda: False
    assert acknowledge(program.address) == "idle"
    assert client.ask("arm").body["job"]["ended"] == "the sensors are gone"
    program.still()
    assert program.machine.written == []
    client.close()


def test_a_policy_that_comes_while_the_machine_moves_changes_nothing_that_runs(program):
    client, policy = armed(program)
    start(client, "long", policy, GOALS[:6])
    wait_for(lambda: program.machine.written, "motion")
    for value in (-0.9, -0.8, -0.7, -0.6, -0.5):  # more than the robot keeps
        other = send_policy(client, SPEC, constant(value))
    wait_for(lambda: client.ask("status").body["job"]["ended"] == "done", "the end")
    assert min(command.min() for command in program.machine.written) >= 0.0
    assert "send it first" in start(client, "pushed out", policy).body["why"]
    before = len(program.machine.written)
    start(client, "next", other, GOALS[:1])
    wait_for(lambda: client.ask("status").body["job"]["ended"] == "done", "the end")
    assert max(command.max() for command in program.machine.written[before + 5 :]) < 0.0
    client.close()


def test_a_disk_that_is_full_ends_neither_the_program_nor_the_fault(tmp_path):
    program = Program(f"tcp/127.0.0.1:{free_port()}", tmp_path / "fault.json")
    try:
        client, policy = armed(program)
        start(client, "moves", policy)
        wait_for(lambda: program.machine.written, "motion")
        (tmp_path / "fault.json.new").symlink_to("/dev/full")
        operator = connect(program.address, "operator", operator=True)
        stop(operator)
        wait_for(lambda: operator.ask("status").body["state"] == "fault", "the latch")
        assert FaultLatch(tmp_path / "fault.json").fault == CRASHED  # what was written before it moved
        assert start(client, "again", policy).kind == "refused"
        program.still()
        assert acknowledge(program.address) == "idle"
        client.close()
        operator.close()
    finally:
        program.end()


def test_a_machine_with_a_latch_does_not_move_where_that_cannot_be_written(tmp_path):
    (tmp_path / "fault.json.new").symlink_to("/dev/full")
    program = Program(f"tcp/127.0.0.1:{free_port()}", tmp_path / "fault.json")
    try:
        client, policy = armed(program)
        start(client, "moves", policy)
        job = wait_for(lambda: (j := client.ask("status").body["job"]) and j["ended"] and j, "the end")
        assert "fault.json cannot be written, and the machine does not move without it" in job["ended"]
        program.still()
        (tmp_path / "fault.json.new").unlink()
        assert start(client, "again", policy, GOALS[:1]).kind == "reply"
        wait_for(lambda: program.machine.written, "motion")
        client.close()
    finally:
        program.end()
    assert not FaultLatch(tmp_path / "fault.json").is_set  # it ended cleanly


def test_the_first_command_of_a_job_comes_from_a_reading_after_the_pause_before_it(monkeypatch):
    program = Program(f"tcp/127.0.0.1:{free_port()}", command_age_s=1.0)
    try:
        client, policy = armed(program)
        monkeypatch.setattr(timing, "gc", SimpleNamespace(**{**vars(gc), "collect": lambda: time.sleep(1.5)}))
        start(client, "after a pause", policy, GOALS[:1])
        job = wait_for(lambda: (j := client.ask("status").body["job"]) and j["ended"] and j, "the end")
        assert job["ended"] == "done"
        program.machine.broken = lambda: program.runtime.state == "moving"
        start(client, "broken", policy, GOALS[:1])
        status = wait_for(lambda: (s := client.ask("status").body)["job"]["ended"] and s, "the end")
        assert (status["state"], status["job"]["count"]) == ("fault", 0)
        assert status["fault"] == status["job"]["ended"] == "the sensors are gone"
        client.close()
    finally:
        program.end()


class Waiting:
    """A key on which frames wait."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        self.frames, self.taken = iter(frames), 0

    def try_recv(self) -> Any:
        frame = next(self.frames, None)
        if frame is None:
            return None
        self.taken += 1
        return SimpleNamespace(payload=SimpleNamespace(to_bytes=lambda: frame))


@pytest.mark.parametrize("operators", [True, False])
@pytest.mark.parametrize(
    "frame",
    [b"garbage", bytes(1 << 21), encode(Message("hello", "run", "s", "", 1, arrays={"much": np.zeros(1 << 17)}))],
)
def test_a_flood_delays_no_command_and_is_a_fault(program, frame, operators):
    client, policy = armed(program)
    start(client, "moves", policy)
    wait_for(lambda: program.machine.written, "motion")
    flood, whole = Waiting(itertools.repeat(frame)), program.link._incoming
    before = len(program.machine.written)
    program.link._incoming = [
        (operator, flood if operator == operators else incoming, receiver) for operator, incoming, receiver in whole
    ]
    try:
        wait_for(lambda: program.runtime.state == "fault", "the fault")
        assert flood.taken > 0
        assert len(program.machine.written) > before + 2  # it went on until then
        who = "operators" if operators else "trainers"
        assert program.runtime.latch.fault == f"the {who}' key is flooded with messages"
        program.still()
    finally:
        program.link._incoming = whole
    assert acknowledge(program.address) == "idle"
    client.close()


def test_what_firsthand_sends_is_no_flood(program):
    """Questions as fast as they are answered, and what a link held up and then delivers at once."""
    client, policy = armed(program)
    for _ in range(300):
        client.ask("status")
    for _ in range(4 * ROBOT_QUEUE):
        client.send("lease")
    start(client, "moves", policy, GOALS[:1])
    wait_for(lambda: (j := client.ask("status").body["job"]) and j["ended"] == "done", "the end")
    client.close()


def test_a_flood_counts_when_the_queue_is_never_empty_or_too_much_comes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("firsthand_onboard.link.time.monotonic", lambda: now[0])

    def flooded(messages: int, size: int, emptied: bool, seconds: float = 1.0, every_s: float = 0.004) -> bool:
        meter, end = FloodMeter(), now[0] + seconds
        while now[0] < end:
            now[0] += every_s
            meter.add(messages, size, emptied=emptied)
        return meter.exceeded

    assert flooded(16, 0, emptied=False)
    assert flooded(16, 0, emptied=False, every_s=0.04)  # a slow loop reads few, and the others are pushed out
    assert flooded(12, 0, emptied=True, seconds=3)
    assert not flooded(3, 0, emptied=True, seconds=60)
    assert not flooded(16, 0, emptied=False, seconds=0.2)
    assert flooded(1, 1 << 20, emptied=True)
    assert not flooded(1, 1 << 20, emptied=True, every_s=0.1, seconds=20)


def test_a_stop_has_a_way_of_its_own_that_no_flood_fills(program):
    """Both keys overflow, and the stops' own socket too; in every state, and as often as somebody wants."""
    port = split_address(program.address)[1]
    for state in ("idle", "armed", "moving", "fault"):
        client, policy = armed(program) if state != "idle" else (connect(program.address), "")
        if state in ("moving", "fault"):
            start(client, f"moves-{state}", policy)
            wait_for(lambda: program.runtime.state == "moving", "motion")
        if state == "fault":
            send_stop("127.0.0.1", port, patience_s=PATIENCE)
        number, whole = program.runtime.latch.number, program.link._incoming
        # Not enough to be a flood yet, but no message gets through any more.
        program.link._incoming = [(o, Waiting(()), receiver) for o, _, receiver in whole]
        with ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(lambda _: send_stop("localhost", port, patience_s=PATIENCE), range(30)))
        assert {(answer["state"], answer["fault"]) for answer in answers} == {("fault", OPERATOR_STOP)}
        program.still()
        program.link._incoming = whole
        if state == "fault":
            wait_for(lambda n=number: program.runtime.latch.number > n, "a new number")
        assert acknowledge(program.address) == "idle"
        client.close()


def test_a_stop_that_comes_while_the_loop_looks_is_not_lost():
    """From a thread or a signal, at the worst instant: after the loop has looked, before it has finished looking."""

    class Racing(StopWay):
        late = False

        @property
        def _requested(self) -> bool:
            found = self._value
            if self.late:
                self.late, self._value = False, True
            return found

        @_requested.setter
        def _requested(self, value: bool) -> None:
            self._value = value

    way = Racing(free_port())
    try:
        way.late = True
        assert not way.asked()
        assert way.asked()
        assert not way.asked()
    finally:
        way.close()


def test_who_only_knows_a_machines_name_is_not_believed(program, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    task = dataclasses.replace(make_task("excavator"), spec=SPEC, home=(0.0, 0.0))
    real, said = MachineIdentity(tmp_path / "a.key"), []

    def met(proof: MachineIdentity | None) -> str:
        program.runtime.identity, program.runtime.proof = real.name, proof
        disconnect(program.address)
        return RemoteRobot(program.address, task, say=said.append).machine_id

    try:
        assert met(real) == real.name  # the first time everybody is believed
        assert met(real) == real.name
        assert met(MachineIdentity(tmp_path / "a.key")) == real.name  # after a restart
        assert met(None) == ""
        assert met(MachineIdentity(tmp_path / "b.key")) == ""
        assert met(real) == real.name
        assert len(said) == 2
        assert "cannot prove it" in said[0]
    finally:
        disconnect(program.address)


def test_another_machine_at_the_same_address_is_not_moved_with_the_range_of_the_first(program):
    task = dataclasses.replace(make_task("excavator"), spec=SPEC, home=(0.0, 0.0))
    program.runtime.identity = "first"
    robot = RemoteRobot(program.address, task)
    try:
        assert robot.machine_id == "first"
        disconnect(program.address)
        program.runtime.identity = "second"
        with pytest.raises(UserError, match=f"At {program.address} is another machine now"):
            robot.measured()
        assert RemoteRobot(program.address, task).machine_id == "second"
    finally:
        disconnect(program.address)


def test_two_programs_do_not_hear_the_same_stops(program):
    port = split_address(program.address)[1]
    with pytest.raises(StopUnreachable, match=f"listens for stops of port {port}"):
        StopWay(port)
    with pytest.raises(StopUnreachable, match="nothing listens for stops"):
        send_stop("127.0.0.1", free_port())
    with pytest.raises(StopUnreachable, match="no certificates"):
        send_stop("192.168.1.20", port)


def test_what_waited_is_read_whole_when_the_loop_was_away():
    robot = RobotEnd(f"tcp/127.0.0.1:{free_port()}")
    for arrays, at_once in (({}, MAX_MESSAGES_AT_ONCE), ({"much": np.zeros(MAX_BYTES_AT_ONCE // 8)}, 1)):
        key = Waiting(
            encode(Message("hello", "run", f"s{at_once}", "", 1 + i, arrays=arrays)) for i in range(ROBOT_QUEUE)
        )
        robot._incoming = [(False, key, robot._incoming[-1][2])]
        assert len(list(robot.receive())) == at_once
        assert len(list(robot.receive(everything=True))) == ROBOT_QUEUE - at_once
    robot.close()


class Tap:
    """Keeps what goes out."""

    def __init__(self, outgoing: Any) -> None:
        self.outgoing, self.frames = outgoing, []

    def put(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.outgoing.put(frame)


def play(outgoing: Any, frames: list[bytes], seen: Callable[[], int]) -> None:
    """In pieces: of a long burst the queue keeps only the end."""
    for i, frame in enumerate(frames):
        outgoing.put(frame)
        if i % MAX_MESSAGES_AT_ONCE == MAX_MESSAGES_AT_ONCE - 1 or i == len(frames) - 1:
            wait_for(lambda i=i: seen() > i, "the frames")


def test_a_whole_session_played_again_moves_nothing_also_after_a_restart(program):
    client, policy = armed(program)
    tap = client._outgoing = Tap(client._outgoing)
    client.hello()
    client.ask("arm")
    send_policy(client, SPEC, constant(0.5))
    start(client, "once", policy, GOALS[:1])
    wait_for(lambda: client.ask("status").body["job"]["ended"] == "done", "the end")
    client.ask("release")
    client.drop_lease()
    frames, written = list(tap.frames), len(program.machine.written)
    assert written == SPEC.reference.steps
    play(tap.outgoing, frames, lambda: program.link.counts()["replayed"])
    assert program.runtime.state == "idle"
    program.still()
    client.close()
    program.end()
    again = Program(program.address)
    try:
        other = again.trainer()
        play(other._outgoing, frames, lambda: sum(again.link.counts().values()) - 1)
        assert again.link.counts()["misdirected"] >= len(frames) - 2
        assert (again.runtime.state, again.machine.written) == ("idle", [])
        other.close()
    finally:
        again.end()


def test_after_the_operators_stop_no_order_of_messages_moves_the_machine(program):
    """Two trainers and an operator at random; from a stop to its acknowledgement nothing is ever written."""
    rng = np.random.default_rng(0)
    clients = [program.trainer(run) for run in ("first", "second")]
    operator = connect(program.address, "operator", operator=True)
    policy = {"spec": SPEC.digest(), "digest": "", "policy": ""}
    written, stops, moved = None, 0, 0
    for i in range(200):
        client = clients[rng.integers(2)]
        kinds = ["job", "home", "play", "policy", "release", "reset", "stop", "acknowledge", "acknowledge"]
        what = rng.choice(kinds)
        if what in kinds[:3] and rng.uniform() < 0.8:
            client.ask("arm")
        if what == "job":
            start(client, f"job-{i}", policy["policy"], GOALS[:2])
        elif what == "home":
            client.ask("job", {"name": f"home-{i}", "kind": "home"})
        elif what == "play":
            client.ask("job", {"name": f"play-{i}", "kind": "play"}, {"commands": np.full((30, 2), 0.4)})
        elif what == "policy":
            answer = client.ask("arm")
            if answer.kind == "reply":
                policy["policy"] = send_policy(client, SPEC, constant(0.3))
        elif what == "reset":
            client.ask("reset", arrays={"position": np.zeros(2)})
        elif what == "stop":
            stop(operator)
            wait_for(lambda: operator.ask("status").body["state"] == "fault", "the latch")
            written, stops = len(program.machine.written), stops + 1
        elif what == "acknowledge":
            number = operator.ask("status").body["fault_number"]
            client.acknowledge(number)  # a trainer's counts for nothing
            if written is not None:
                assert len(program.machine.written) == written
            moved += operator.acknowledge(number).kind == "reply"
            written = None
        else:
            client.ask(str(what))
        if written is not None:
            assert len(program.machine.written) == written
            assert not program.machine.command.any()
    assert min(stops, moved) > 10
    assert len(program.machine.written) > 50  # between the stops it did move
    for client in (*clients, operator):
        client.close()


def test_nothing_on_the_robot_asks_for_the_time_of_day():
    """Clocks that are set, by hand or by a time server, must not end a lease or keep one alive."""
    sources = list(Path(firsthand_onboard.__file__).parent.rglob("*.py"))
    assert len(sources) > 15
    assert [file.name for file in sources if "time.time(" in file.read_text() or "datetime" in file.read_text()] == []


@pytest.mark.parametrize("size", [57_000, 63_000, 300_000])
def test_a_specification_too_long_for_a_hello_is_refused_before_anybody_asks(size):
    link = RobotEnd(f"tcp/127.0.0.1:{free_port()}")
    spec = dataclasses.replace(SPEC, robot="x" * size)
    with pytest.raises(SpecError, match="bytes as JSON, but must fit into 57344"):
        Runtime(spec, Bench(), GateLimits.of(spec), link, RuntimeSettings(), PERIOD_S)
    link.close()


def test_a_specification_just_short_enough_is_served():
    program = Program(f"tcp/127.0.0.1:{free_port()}")
    program.runtime.spec = dataclasses.replace(SPEC, robot="x" * 50_000)
    client = program.trainer()
    assert len(client.hello().body["spec"]) > 50_000
    client.close()
    program.end()


@pytest.mark.parametrize("body", [{"long": "x" * 70_000}, {"number": float("nan")}])
def test_an_answer_that_cannot_be_sent_becomes_a_refusal_and_the_loop_goes_on(program, body):
    client = program.trainer()
    program.runtime._requests._handlers["status"] = lambda _: body
    answer = client.ask("status")
    assert answer.kind == "refused"
    assert "the answer cannot be sent" in answer.body["why"]
    assert program.thread.is_alive()
    assert client.hello().kind == "reply"
    client.close()
