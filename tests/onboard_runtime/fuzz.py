"""Fuzzers against the three doors of the onboard program, each for as long as wanted.

python -m onboard_runtime.fuzz [--seconds 600] [--only serve|trainer|watchdog] [--seed 0] [--out FILE]

`serve`: messages with a right checksum and anything inside, from trainers and operators, to the real program with a
real machine. `trainer`: a real program whose answers are changed on their way, and signed again. `watchdog`: packets of
a loop that has gone mad. Whatever was let through, ended or raised that should not is an escape, and is printed.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from firsthand.errors import UserError
from firsthand.models import Controller
from firsthand.robots.registry import make_task
from firsthand.robots.remote import RemoteRobot, disconnect
from firsthand_onboard import messages, watchdog
from firsthand_onboard.command_check import CommandLimits
from firsthand_onboard.jobs import policy_digest
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.link import ClientEnd
from firsthand_onboard.messages import FROM_ROBOT, HEAD, TO_ROBOT, Message, decode, encode
from firsthand_onboard.network import OPERATOR_KEY, TO_ROBOT_KEY, LinkError, open_session
from firsthand_onboard.timing import since_boot
from firsthand_onboard.work import WorkClient, WorkRefused

from .processes import SPEC, Rig, free_port, random_policy, real_time, rig, wait_for
from .test_hostile import SPEC as SHORT
from .test_hostile import Program

STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 0.5, 1e308, 10**400, -(10**400), 2**63, "", "x", "nan", "\x00\x1b[2J", "é" * 300,
    "\ud800", [], {}, [[]], [None], {"a": {"b": 1}}, [[[[[[[[[]]]]]]]]], math.nan, math.inf, -math.inf, "done",
    "moving", [10**400],
)  # fmt: skip
NUMBERS = (math.nan, math.inf, -math.inf, 3e38, -3e38, 5e-324, -0.0, 0.0, 1.0, -1.0, 0.3, 1e6)
MAX_GROWTH_MB = 64


def framed(header: Any, arrays: dict[str, np.ndarray] | bytes) -> bytes:
    """A frame with a right checksum, also around what JSON does not know."""
    head = json.dumps(header).encode(errors="surrogatepass")
    payload = arrays if isinstance(arrays, bytes) else save(arrays) if arrays else b""
    return HEAD.pack(messages.MAGIC, len(head), len(payload), messages._digest(head, payload)) + head + payload


def strange_array(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """An array of nearly this shape, with nearly sensible numbers."""
    sizes = list(shape)
    if rng.random() < 0.3:
        change = rng.randrange(5)
        if change == 0:
            sizes = sizes[:-1]
        elif change == 1:
            sizes.append(1)
        elif change == 2 and sizes:
            sizes[rng.randrange(len(sizes))] = rng.choice((0, 1, 3, 50))
        elif change == 3:
            sizes = sizes[::-1]
    array = np.random.default_rng(rng.randrange(1 << 30)).uniform(-1, 1, sizes)
    if array.size and rng.random() < 0.4:
        array.flat[rng.randrange(array.size)] = rng.choice(NUMBERS)
    kind = rng.choice((np.float32, np.float32, np.float32, np.float64, bool, np.int64))
    with np.errstate(all="ignore"):
        return array.astype(kind)


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing inside replaced, removed or added."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        if rng.random() < 0.2:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(STRANGE)


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# Towards the onboard program -----------------------------------------------------------------------------------------


class Talker:
    """Somebody who speaks the messages, and says anything."""

    def __init__(self, made: Rig, rng: random.Random) -> None:
        self.made, self.rng = made, rng
        self.client = made.client("fuzz")
        self.session = open_session("client", made.address, None)
        self.weights = random_policy(SPEC)
        self.digest = policy_digest(self.weights)
        self.job, self.at, self.streams = "j1", np.zeros(SPEC.num_outputs), 0

    def body(self, kind: str) -> dict[str, Any]:
        rng = self.rng
        bodies: dict[str, dict[str, Any]] = {
            "policy": {"spec": SPEC.digest(), "digest": self.digest},
            "job": {
                "name": f"j{rng.randrange(10**6)}",
                "kind": rng.choice(
                    ("visit", "visit", "follow", "play", "home", "recover", "stream", "stream", "stream")
                ),
                "policy": self.digest,
                "authority": 1.0,
            },
            "more": {
                "job": self.job,
                "number": rng.randrange(9),
                **({"policy": self.digest} if rng.random() < 0.3 else {}),
            },
            "fetch": {"job": self.job, "index": 0},
            "meet": {"tag": "a" * 32},
            "prove": {"tag": "a" * 32, "question": "b" * 64},
            "acknowledge": {"number": rng.randrange(20)},
        }
        body = bodies.get(kind, {})
        return changed(body, rng) if rng.random() < 0.5 else body

    def arrays(self, kind: str, body: Any) -> dict[str, np.ndarray]:
        rng, arrays = self.rng, {}
        if kind == "policy":
            arrays = dict(self.weights)
            if rng.random() < 0.5:
                name = rng.choice(list(arrays))
                arrays[name] = strange_array(rng, arrays[name].shape)
                if rng.random() < 0.5 and isinstance(body, dict):
                    with contextlib.suppress(Exception):
                        body["digest"] = policy_digest(arrays)
        elif kind == "job":
            steps, points = SPEC.reference.steps, SPEC.reference.steps + SPEC.preview[-1]
            shapes = {
                "visit": {"goals": (2, 2), "excitation": (2, steps, 2)},
                "follow": {"reference": (points, SPEC.num_outputs)},
                "play": {"commands": (20, 2)},
                "stream": {"reference": (points, SPEC.num_outputs)},
            }
            wanted = shapes.get(str(body.get("kind")) if isinstance(body, dict) else "", {"goals": (2, 2)})
            arrays = {name: strange_array(rng, shape) for name, shape in wanted.items() if rng.random() < 0.8}
            if "reference" in arrays and "kind" in body and body["kind"] == "stream" and rng.random() < 0.7:
                arrays["reference"] = self.path(points)
        elif kind == "more" and rng.random() < 0.8:
            arrays = {"reference": self.path(rng.randrange(1, 200))}
            if rng.random() < 0.2:
                arrays["reference"] = strange_array(rng, arrays["reference"].shape)
        elif kind == "reset":
            arrays = {"position": strange_array(rng, (2,))}
        return arrays

    def path(self, points: int) -> np.ndarray:
        """Work that goes on from where the last one ended, or begins where the machine was lately."""
        steps = np.random.default_rng(self.rng.randrange(1 << 30)).normal(0, 0.02, (points, SPEC.num_outputs))
        path = np.clip(self.at + np.cumsum(steps, axis=0), -2.0, 2.0)
        self.at = path[-1]
        return path.astype(np.float32)

    def look(self, message: Message) -> None:
        """Where the machine is, and what it does: later messages go on from there."""
        job, measured = message.body.get("job"), message.arrays.get("measured")
        if job and not job["ended"]:
            self.job, self.streams = job["name"], self.streams + (job["kind"] == "stream" and job["name"] != self.job)
        elif measured is not None and np.isfinite(measured).all():
            self.at = np.asarray(tracked_output(SPEC, np.asarray(measured, float)))

    def say(self) -> None:
        """One message, over either key."""
        rng = self.rng
        operator = rng.random() < 0.2
        kind = rng.choice(("job", "job", "policy", *TO_ROBOT))
        if kind == "stop" and rng.random() < 0.9:
            kind = "status"
        body = self.body(kind)
        with self.client._lock:
            self.client._number += 1
            number = self.client._number
        header: dict[str, Any] = {
            "version": messages.VERSION, "kind": kind, "run": self.client.run, "session": self.client.session,
            "robot": self.client.robot, "number": number, "answers": 0, "now": since_boot(), "body": body,
        }  # fmt: skip
        if rng.random() < 0.1:
            header = changed(header, rng)
        arrays: Any = self.arrays(kind, body)
        if rng.random() < 0.03:
            arrays = rng.randbytes(rng.randrange(200))
        with contextlib.suppress(OverflowError):
            frame = framed(header, arrays)
            if rng.random() < 0.05:
                at = rng.randrange(len(frame))
                frame = frame[:at] + bytes([frame[at] ^ (1 << rng.randrange(8))]) + frame[at + 1 :]
            self.session.put(OPERATOR_KEY if operator else TO_ROBOT_KEY, frame)

    def close(self) -> None:
        self.session.close()
        self.client.close()


def fuzz_serve(seconds: float, rng: random.Random) -> dict[str, Any]:
    """Messages towards the program; its machine's commands stay inside their limits, and it lives and answers."""
    escapes: Counter[str] = Counter()
    sent = moved = acknowledged = 0
    low, high = np.asarray(SPEC.limits.command_low), np.asarray(SPEC.limits.command_high)
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder), "--lease", "5") as made:
        talker = Talker(made, rng)
        before, end = memory_mb(made.onboard.pid), time.monotonic() + seconds
        while time.monotonic() < end:
            talker.client.ask("arm")
            for _ in range(100):
                talker.say()
                sent += 1
                time.sleep(0.002)  # below what counts as a flood
            if made.onboard.popen.poll() is not None:
                escapes["the program ended"] += 1
                break
            try:
                answer = wait_for(lambda: _status(talker.client), "an answer")
            except AssertionError:
                escapes["the program does not answer"] += 1
                break
            status = answer.body
            talker.look(answer)
            for line in made.lines():
                command = np.asarray(line["command"], float)
                moved += bool(command.any())
                escapes["a command outside its range"] += not ((low <= command) & (command <= high)).all()
            made.log.write_text("")
            if status["state"] == "fault":
                acknowledged += made.acknowledge() == "idle"
        grown = memory_mb(made.onboard.pid) - before if made.onboard.popen.poll() is None else 0.0
        talker.close()
        text = (Path(folder) / "onboard.log").read_text(errors="replace")
    escapes["a traceback in its log"] += text.count("Traceback")
    if "Traceback" in text:
        print(text[text.index("Traceback") :][:3000])
    escapes["memory"] += grown > MAX_GROWTH_MB
    escapes = +escapes
    return {
        "messages": sent, "steps_moved": moved, "streams_seen": talker.streams, "faults_acknowledged": acknowledged,
        "memory_growth_mb": round(grown, 1), "escapes": dict(escapes), "ok": not escapes and moved > 0,
    }  # fmt: skip


def _status(client: ClientEnd) -> Message | None:
    try:
        return client.ask("status")
    except LinkError:
        return None


# Towards the trainer -------------------------------------------------------------------------------------------------


class Liar:
    """Stands before a robot's answers, and changes some of them."""

    def __init__(self, real: Any, rng: random.Random) -> None:
        self._real, self._rng, self.share, self.lies = real, rng, 0.3, 0

    def put(self, frame: bytes) -> None:
        """Hand on, perhaps changed, perhaps twice, perhaps not at all."""
        rng = self._rng
        if rng.random() > self.share:
            self._real.put(frame)
            return
        self.lies += 1
        way = rng.randrange(10)
        if way == 0:
            return
        if way == 1:
            self._real.put(frame)
        elif way == 2:
            at = rng.randrange(len(frame))
            frame = frame[:at] + rng.randbytes(rng.randrange(20)) + frame[at:]
        else:
            frame = self._lie(decode(frame, FROM_ROBOT))
        self._real.put(frame)

    def _lie(self, message: Message) -> bytes:
        rng, arrays = self._rng, dict(message.arrays)
        header: dict[str, Any] = {
            "version": messages.VERSION, "kind": message.kind, "run": message.run, "session": message.session,
            "robot": message.robot, "number": message.number, "answers": message.answers, "now": message.now,
            "body": dict(message.body),
        }  # fmt: skip
        what = rng.randrange(4)
        if what == 0:
            header = changed(header, rng)
        elif what == 1 and arrays:
            name = rng.choice(list(arrays))
            arrays[name] = strange_array(rng, arrays[name].shape)
            if rng.random() < 0.2:
                del arrays[name]
        elif what == 2:
            header["kind"] = rng.choice(FROM_ROBOT)
        else:
            header["body"] = changed(header["body"], rng)
        try:
            return framed(header, arrays)
        except (OverflowError, ValueError):
            return encode(message)


def fuzz_trainer(seconds: float, rng: random.Random) -> dict[str, Any]:
    """Answers towards the trainer; whatever comes, it gets a sound record or one sentence."""
    escapes: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    program = Program(f"tcp/127.0.0.1:{free_port()}", lease_s=2.0)
    liar = Liar(program.link._outgoing, rng)
    program.link._outgoing = liar  # pyright: ignore[reportAttributeAccessIssue]
    task = dataclasses.replace(make_task("excavator"), spec=SHORT, home=(0.0, 0.0))
    policy = Controller.from_arrays(SHORT, random_policy(SHORT))
    robot = RemoteRobot(program.address, task, run="fuzz", patience_s=1.0, say=lambda _: None)
    commands = np.zeros((10, 2), np.float32)
    patience = dict(ClientEnd.ask.__kwdefaults__ or {})
    ClientEnd.ask.__kwdefaults__ = {**patience, "patience_s": 0.2}  # what is lost is lost soon: more is tried

    def episode() -> None:
        done = robot.execute("visit", policy, {"goals": np.zeros((2, 2), np.float32)}, 2)
        for arrays in done:
            assert np.isfinite(arrays["commands"]).all()
            assert arrays["measured"].shape == (SHORT.reference.steps + 1, SHORT.layout.num_measured)
            assert arrays["valid"].dtype == bool

    def work() -> None:
        """A program that sends work; `WorkClient` says what is wrong in its own two kinds of error."""
        try:
            with WorkClient(program.address, random_policy(SHORT, gain=0.1), run="fuzz") as stream:
                stream.send(stream.start() + np.zeros((SHORT.reference.steps, SHORT.num_outputs)))
                stream.use(random_policy(SHORT, seed=1, gain=0.1))
                for chunk in stream.done():
                    assert np.isfinite(chunk.arrays["commands"]).all()
        except (WorkRefused, LinkError) as error:
            raise UserError(str(error)) from None

    calls: dict[str, Callable[[], Any]] = {
        "work": work,
        "measured": robot.measured,
        "episode": episode,
        "play": lambda: robot.play_applied(commands),
        "home": robot.go_home,
        "stop": robot.stop_at_once,
        "machine": lambda: robot.machine_id,
        "lock-step": lambda: robot.neutral_between_motions,
        "connect again": lambda: disconnect(program.address),
    }
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            name, liar.share = rng.choice([*calls, "episode", "play", "work"]), rng.choice((0.03, 0.1, 0.3, 1.0))
            try:
                calls[name]()
                outcomes["went well"] += 1
            except UserError as error:
                outcomes["one sentence"] += 1
                text = str(error)
                if "\n" in text or not text.isprintable():
                    escapes[f"{name}: more than one line"] += 1
                robot = _anew(robot, calls)
            except Exception as error:
                own = [f for f in traceback.extract_tb(error.__traceback__) if "/firsthand" in f.filename][-1]
                key = f"{name}: {type(error).__name__} at {Path(own.filename).name}:{own.lineno}"
                if not escapes[key]:
                    print(key, "|", str(error)[:200], flush=True)
                escapes[key] += 1
                disconnect(program.address)
            if program.runtime.state == "fault":
                _calm(program)
    finally:
        ClientEnd.ask.__kwdefaults__ = patience
        disconnect(program.address)
        program.end()
    escapes = +escapes
    return {"lies": liar.lies, "calls": dict(outcomes), "escapes": dict(escapes), "ok": not escapes and liar.lies > 0}


def _anew(robot: RemoteRobot, calls: dict[str, Callable[[], Any]]) -> RemoteRobot:
    """After giving up, a user starts again; the robot may have been another machine by then."""
    disconnect(robot.address)
    robot._trouble, robot._machine_id, robot._homing = None, None, ""
    return robot


def _calm(program: Program) -> None:
    """An operator, whose answers are changed like all others, looks until the fault is gone."""
    program.runtime.latch.clear()
    program.runtime.state = "idle"


# Towards the watchdog ------------------------------------------------------------------------------------------------

DRIVER = """
import mmap, numpy as np

class Machine:
    # Counts what must not happen in a file that the fuzzer sees: writes, wrong ones, neutrals.
    def __init__(self, counts):
        self.counts = np.memmap(counts, np.int64, "r+", shape=(4,))
        self.position = 0.0

    def read(self):
        return [self.position, 0.0]

    def write(self, command):
        self.counts[0] += 1
        good = command.shape == (2,) and np.isfinite(command).all() and (np.abs(command) <= 1.0 + 1e-5).all()
        self.counts[1] += not good
        self.counts[3] = 1

    def neutral(self):
        self.counts[2] += 1
        self.counts[3] = 0
"""
LIMITS = CommandLimits(
    -np.ones(2), np.ones(2), np.zeros(2), np.full(2, 0.5), 0.01, 0.1
)  # a step of 0.5 per period of 10 ms: fast enough to be moved at all by a fuzzer


def fuzz_watchdog(seconds: float, rng: random.Random) -> dict[str, Any]:
    """Packets towards the watchdog; no command outside its limits reaches the machine, and silence is neutral."""
    escapes: Counter[str] = Counter()
    packets = restarts = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fuzzed_machine.py").write_text(DRIVER)
        np.zeros(4, np.int64).tofile(folder / "counts")
        counts = np.memmap(folder / "counts", np.int64, "r", shape=(4,))
        end = time.monotonic() + seconds
        process, channel = _start_watchdog(folder)
        try:
            while time.monotonic() < end:
                for _ in range(200):
                    packets += 1
                    with contextlib.suppress(OSError):
                        channel.send(_packet(rng))
                    with contextlib.suppress(OSError):
                        while channel.recv(watchdog.MAX_PACKET):
                            pass
                    if rng.random() < 0.02:
                        time.sleep(rng.choice((0.0, 0.01, 0.06)))
                time.sleep(0.2)  # longer than its timeout
                if process.poll() is not None:
                    restarts += 1
                    escapes["it ended and left the machine moving"] += bool(counts[3])
                    channel.close()
                    process, channel = _start_watchdog(folder)
                escapes["silence, and not neutral"] += bool(counts[3])
        finally:
            channel.close()
            process.wait(20)
        escapes["left moving at the end"] += bool(counts[3])
        escapes["commands outside their limits"] += int(counts[1])
        writes = int(counts[0])
    escapes = +escapes
    return {
        "packets": packets, "writes": writes, "restarts": restarts, "escapes": dict(escapes),
        "ok": not escapes and writes > 0 and not restarts,
    }  # fmt: skip


def _start_watchdog(folder: Path) -> tuple[subprocess.Popen, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "firsthand_onboard.watchdog", "--fd", str(theirs.fileno()), "--timeout", "0.05"]
    command += ["--machine", f"{folder / 'fuzzed_machine.py'}:Machine"]
    command += ["--machine-option", f"counts={folder / 'counts'}"]
    process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    real_time(process.pid)  # as `serve` does; else a busy computer is taken for a slow watchdog
    theirs.close()
    ours.settimeout(60)
    ours.send(packet(watchdog.LIMIT, 1, LIMITS.pack()))
    ours.recv(watchdog.MAX_PACKET)
    ours.setblocking(False)
    return process, ours


def packet(kind: int, number: int, values: Any = ()) -> bytes:
    """A packet of the loop."""
    return watchdog.HEAD.pack(kind, number) + np.asarray(values, "<f8").tobytes()


def _packet(rng: random.Random) -> bytes:
    way = rng.random()
    number = rng.randrange(1 << 40)
    if way < 0.5:  # nearly a command
        read_at = since_boot() - rng.choice((0.0, 0.0, 0.0, 0.01, 0.2, -5.0, math.nan, math.inf))
        size = rng.choice((2, 2, 2, 2, 2, 0, 1, 3, 500))
        values = [rng.choice((*NUMBERS, 0.1, -0.2, 0.4)) for _ in range(size)]
        return packet(watchdog.WRITE, number, [read_at, *values])
    if way < 0.7:
        return packet(watchdog.RESUME, number)
    if way < 0.85:
        kinds = (watchdog.READ, watchdog.HOLD, watchdog.INPUTS, watchdog.DESCRIBE, watchdog.RESET, 99, 0, 255)
        return packet(rng.choice(kinds), number, [rng.choice(NUMBERS) for _ in range(rng.randrange(4))])
    if way < 0.9:  # invalid limits: the ones before stay
        row = LIMITS.pack()
        row[rng.randrange(len(row))] = rng.choice((math.nan, -1.0, -math.inf))
        return packet(watchdog.LIMIT, number, row[: rng.choice((0, 1, 3, len(row) - 1))])
    return rng.randbytes(rng.randrange(1, 300))


FUZZERS: dict[str, Callable[[float, random.Random], dict[str, Any]]] = {
    "serve": fuzz_serve,
    "trainer": fuzz_trainer,
    "watchdog": fuzz_watchdog,
}


def main() -> None:
    """Run them one after another, print what came out, end with 1 if something escaped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", choices=FUZZERS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    ok = True
    for name in given.only or FUZZERS:
        result = FUZZERS[name](given.seconds, random.Random(given.seed))
        results[name] = {"seconds": given.seconds, "seed": given.seed, **result, "load": round(os.getloadavg()[0], 1)}
        ok &= result["ok"]
        print(name, json.dumps(results[name]), flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
