"""`make soak`: the long forms of the onboard tests, with the times that they took.

python -m onboard_runtime.soak [--cuts 200] [--kills 50] [--trainer-kills 50] [--commands 100000]
    [--messages 100000] [--floods 100] [--latch-kills 200] [--clock-jumps 50] [--sleeps 50] [--both-stopped 50]
    [--ros2 1] [--fuzz 600] [--only SCENE]... [--out FILE]

A count of 0 leaves a scene out, and so does `--only` with those that are not named. What is already in FILE of other
scenes stays there: each has the commit that it is of.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zenoh
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import track
from rich.table import Table

from firsthand_onboard.link import ClientEnd
from firsthand_onboard.messages import Message, encode
from firsthand_onboard.network import TO_ROBOT_KEY, LinkError
from firsthand_onboard.toy import toy_spec

from . import test_gate
from .fuzz import FUZZERS
from .processes import Rig, begin, real_time, rig, wait_for
from .stops import floods, latch_kills
from .test_messages import mutate
from .test_ros2 import missing
from .test_runtime import SCENES
from .time_scenes import both_stopped, clock_jumps, moving_client, sleeps

SPEC = toy_spec()
GOALS = np.tile(np.asarray([[0.8, -0.8], [-0.8, 0.8]], np.float32), (200, 1))
LEASE_S, PERIOD_S = 0.5, 0.04
NEUTRAL_WITHIN_S, ALONE_WITHIN_S = 0.1, 0.2
"""The second is without the machine's own timeout: a period until the loop asks, 80 ms of patience, 50 ms to kill."""


class Cable:
    """A TCP connection to the robot that can be cut without either side being told."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp/").split(":")
        self.target = (host, int(port))
        self.intact = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp/127.0.0.1:{self.listener.getsockname()[1]}"
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
            except OSError:
                return
            self.ends += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if self.intact:
                    sink.sendall(data)
        except OSError:
            pass

    def remove(self) -> None:
        self.listener.close()
        for end in self.ends:
            end.close()


def neutral_after(made: Rig, moment: float) -> float:
    """Seconds from a moment until the machine's command was neutral for good."""
    last = max((line["t"] for line in made.lines() if line["t"] > moment and any(line["command"])), default=moment)
    first = min(line["t"] for line in made.lines() if line["t"] > last and not any(line["command"]))
    return first - moment


def still(made: Rig, seconds: float) -> bool:
    """Whether the machine stays in neutral for a while."""
    began = time.monotonic()
    time.sleep(seconds)
    return not any(any(line["command"]) for line in made.lines() if line["t"] > began)


def cuts(count: int, rng: random.Random) -> dict[str, Any]:
    """The link is cut at random instants."""
    late, wrong, times = 0, 0, []
    for on_lost in ("stop", "finish"):
        with (
            tempfile.TemporaryDirectory() as folder,
            rig(Path(folder), "--lease", str(LEASE_S), "--on-lost", on_lost) as made,
        ):
            for i in track(range(count // 2), f"cuts, {on_lost}"):
                made.log.write_text("")
                cable = Cable(made.address)
                client = ClientEnd(cable.address, run="soak")
                client.hello()
                begin(client, SPEC, f"{on_lost}-{i}", GOALS)
                wait_for(made.moving, "motion")
                time.sleep(rng.uniform(0.0, 1.0))
                cable.intact, moment = False, time.monotonic()
                wait_for(lambda: not made.moving(), "neutral")
                watcher = made.client("watcher")
                job = wait_for(lambda w=watcher: (j := w.ask("status").body["job"])["ended"] and j, "end of the job")
                if on_lost == "stop":
                    times.append(neutral_after(made, moment))
                    late += times[-1] > LEASE_S + PERIOD_S
                else:
                    watcher.ask("fetch", {"job": job["name"], "index": job["count"] - 1})
                    wrong += watcher.others[-1].body["ended"] != "done"
                wrong += job["ended"] != "the lease ran out"
                cable.intact = True
                wrong += not still(made, 0.2)
                client.close()
                watcher.close()
                cable.remove()
    return {
        "cuts": count,
        "lease_s": LEASE_S,
        "slowest_ms": round(1000 * max(times), 1),
        "late": late,
        "wrong": wrong,
        "ok": not late and not wrong,
    }


def kills(count: int, rng: random.Random, *, machine_timeout: bool = True) -> dict[str, Any]:
    """The loop or the watchdog is killed or frozen at random instants, with or without the machine's own timeout."""
    within = NEUTRAL_WITHIN_S if machine_timeout else ALONE_WITHIN_S
    simulate = () if machine_timeout else ("--timeout", "1000")
    times: dict[str, list[float]] = {name: [] for name in SCENES}
    for i in track(range(count), "kills"):
        scene = list(SCENES)[i % len(SCENES)]
        who, number = SCENES[scene]
        with tempfile.TemporaryDirectory() as folder, rig(Path(folder), strict=True, simulate=simulate) as made:
            real_time(made.machine.popen.pid)
            client = moving_client(made, "kill")
            time.sleep(rng.uniform(0.0, 0.5))
            assert made.onboard is not None
            moment = time.monotonic()
            os.kill(made.onboard.pid if who == "onboard" else made.onboards_watchdog(), number)
            time.sleep(0.4)
            wait_for(lambda made=made: not made.moving(), "neutral")
            times[scene].append(neutral_after(made, moment))
            client.close()
    slowest = {name: round(1000 * max(values), 1) for name, values in times.items() if values}
    every = [t for values in times.values() for t in values]
    late = sum(t > within for t in every)
    return {"kills": count, "slowest_ms": slowest, "late": late, "ok": not late}


def commands(count: int) -> dict[str, Any]:
    """Hostile commands through the gate, made by Hypothesis."""
    seen = 0

    @settings(max_examples=count // 20 + 1, database=None, deadline=None, derandomize=True)
    @given(st.lists(test_gate.steps, min_size=20, max_size=30))
    def hostile(sequence: list[Any]) -> None:
        nonlocal seen
        state = test_gate.GATE.start()
        for proposed, measured, authority in sequence:
            before, change = state.command.astype(float), state.change
            with np.errstate(over="ignore"):
                result = test_gate.GATE(state, np.asarray(proposed), np.asarray(measured), authority=authority)
                test_gate.check(result, before, change, np.asarray(proposed))
            state = result.state
            seen += 1

    hostile()
    return {"commands": seen, "ok": seen >= count}


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def mutated(count: int) -> dict[str, Any]:
    """Mutated messages over a real link."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder), "--lease", "5") as made:
        assert made.onboard is not None
        client = made.client()
        client.ask("arm")
        client.keep_lease(0.3)
        frames = [
            encode(Message("stop", client.run, client.session, client.robot, 10**9)),
            encode(Message("job", client.run, client.session, client.robot, 10**9, arrays={"goals": GOALS})),
            encode(Message("release", client.run, client.session, client.robot, 10**9)),
        ]
        config = zenoh.Config()
        config.insert_json5("mode", '"client"')
        config.insert_json5("connect/endpoints", json.dumps([made.address]))
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("transport/shared_memory/enabled", "false")
        before, sent = memory_mb(made.onboard.pid), 0
        with zenoh.open(config) as session:
            for i in track(range(count), "messages"):
                frame = frames[i % 3]
                changed = mutate(rng, frame)
                if changed != frame:
                    session.put(TO_ROBOT_KEY, changed)
                    sent += 1
                if i % 50 == 0:
                    time.sleep(0.1)  # below what counts as a flood, which is a fault: see `stops`
            status = wait_for(lambda: status_of(client), "an answer after the flood")
        grown = memory_mb(made.onboard.pid) - before
        read = sum(
            status["messages"][name] for name in ("malformed", "oversized", "unknown", "misdirected", "replayed")
        )
        client.close()
    ok = grown < 64 and status["state"] == "armed" and status["yours"] and read > 0.5 * sent
    return {"sent": sent, "read": read, "memory_growth_mb": round(grown, 1), "state": status["state"], "ok": ok}


def status_of(client: ClientEnd) -> dict[str, Any] | None:
    try:
        return dict(client.ask("status").body)
    except LinkError:
        return None


def trainer_kills(count: int, rng: random.Random) -> dict[str, Any]:
    """The trainer is killed at random instants, also while it saves, and resumed."""
    from cli.conftest import SETTINGS, Firsthand

    from .test_remote import Served, rows

    episodes = 3 * count
    with tempfile.TemporaryDirectory() as folder:
        firsthand = Firsthand(Path(folder) / "cache", Path(folder))
        served, out = Served(firsthand), Path(folder) / "run"
        small = ("--episodes", str(episodes), *SETTINGS["fast"], "--no-report")
        try:
            done = 0
            for i in track(range(count), "trainer kills"):
                again = ("--resume",) if (out / "config.json").exists() else ()
                trainer = firsthand.start("train", served.address, "--out", out, *again, *small)
                wait_for(lambda d=done: len(rows(out)) > d, f"an episode after kill {i}", 600)
                time.sleep(rng.uniform(0.0, 2.5))
                trainer.send_signal(signal.SIGKILL)
                trainer.communicate(timeout=60)
                done = len(rows(out))  # the newest may lack its checkpoint: then it is the one that is lost
                print(f"killed {i + 1} times, {done} episodes", flush=True)
            trainer = firsthand.start("train", served.address, "--out", out, "--resume", *small)
            wait_for(lambda: len(rows(out)) > done, "an episode after the last kill", 600)
            trainer.send_signal(signal.SIGKILL)
            trainer.communicate(timeout=60)
            numbers = [row["episode"] for row in rows(out)]
        finally:
            served.end()
    ok = numbers == list(range(1, len(numbers) + 1)) and len(numbers) > count
    return {"kills": count, "episodes": len(numbers), "ok": ok}


def ros2_bridge() -> dict[str, Any]:
    """The tests of the bridge with real rclpy or, where that cannot be had, what `serve` says: one sentence."""
    why = missing()
    if not why:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "onboard_runtime/test_ros2.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return {"rclpy": "there", "said": done.stdout.strip().splitlines()[-1], "ok": done.returncode == 0}
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(SPEC.to_json())
        command = [sys.executable, "-m", "firsthand_onboard", "serve", "--priority", "0", "--stop-lag", "0.5"]
        command += ["--machine", "firsthand_onboard.ros2:Ros2Machine", "--machine-option", f"spec={spec}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stderr.strip().splitlines()
    said = lines[-1] if lines else ""
    ok = done.returncode == 2 and len(lines) == 1 and "rclpy" in said and not done.stdout
    return {"rclpy": why, "refused": said, "ok": ok}


DEFAULTS = {
    "cuts": 200, "kills": 50, "trainer-kills": 50, "commands": 10**5, "messages": 10**5, "floods": 100,
    "latch-kills": 200, "clock-jumps": 50, "sleeps": 50, "both-stopped": 50, "ros2": 1, "fuzz": 600,
}  # fmt: skip
"""How often each scene is played; of the fuzzers, seconds."""


def commit() -> str:
    """Of the code that was tried."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Run all, print a table, end with 1 if something did not hold."""
    parser = argparse.ArgumentParser()
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", action="append", help="a scene by its name; may be given several times")
    parser.add_argument("--out", type=Path)
    given_ = parser.parse_args()
    rng = random.Random(0)
    runs: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
        "hostile commands": (given_.commands, commands),
        "mutated messages": (given_.messages, mutated),
        "link cut": (given_.cuts, lambda n: cuts(n, rng)),
        "onboard killed or frozen": (given_.kills, lambda n: kills(n, rng)),
        "the same, machine without a timeout": (given_.kills, lambda n: kills(n, rng, machine_timeout=False)),
        "trainer killed": (given_.trainer_kills, lambda n: trainer_kills(n, rng)),
        "stop under a flood": (given_.floods, lambda n: floods(n, rng)),
        "killed with a latch": (given_.latch_kills, lambda n: latch_kills(n, rng)),
        "clock set while it moves": (given_.clock_jumps, lambda n: clock_jumps(n, rng)),
        "computer asleep": (given_.sleeps, lambda n: sleeps(n, rng)),
        "both processes stopped": (given_.both_stopped, lambda n: both_stopped(n, rng)),
        "ROS 2 bridge": (given_.ros2, lambda n: ros2_bridge()),
        **{
            f"fuzzed: {name}": (given_.fuzz, lambda n, f=fuzzer: {"seconds": n, **f(float(n), rng)})
            for name, fuzzer in FUZZERS.items()
        },
    }
    if unknown := set(given_.only or ()) - set(runs):
        parser.error(f"there is no scene {min(unknown)!r}: {', '.join(runs)}")
    results = json.loads(given_.out.read_text()) if given_.out and given_.out.exists() else {}
    for name, (count, run) in runs.items():
        if count and (not given_.only or name in given_.only):
            results[name] = {**run(count), "load": round(os.getloadavg()[0], 1), "commit": commit()}
            print(name, json.dumps(results[name]), flush=True)
            if given_.out:  # after every scene: an hour's work shall not be lost in the last one
                given_.out.write_text(json.dumps(results, indent=2) + "\n")
    table = Table("scene", "result", "holds")
    for name, result in results.items():
        table.add_row(
            name, ", ".join(f"{k} {v}" for k, v in result.items() if k != "ok"), "yes" if result["ok"] else "NO"
        )
    Console().print(table)
    sys.exit(0 if all(result["ok"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
