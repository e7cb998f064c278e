"""Stops under floods, and kills in motion with a latch: scenes of `make soak`, and by themselves.

python -m onboard_runtime.stops [--quick] [--floods 100] [--latch-kills 200] [--out FILE]
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from firsthand_onboard.messages import Message, encode
from firsthand_onboard.network import FROM_ROBOT_KEY, OPERATOR_KEY, TO_ROBOT_KEY, open_session, split_address
from firsthand_onboard.stop_way import send_stop

from .processes import GOALS, PATIENCE, SPEC, Rig, begin, ordinary, real_time, rig, serve_priority, wait_for

WITHIN_S = 0.1
KEYS = {"operators' key": OPERATOR_KEY, "trainers' key": TO_ROBOT_KEY, "robot's key": FROM_ROBOT_KEY}
FRAMES = {
    "garbage": b"x" * 40,
    "hello": encode(Message("hello", "flood", "flood", "", 1)),
    "long": encode(Message("hello", "flood", "flood", "", 1, arrays={"much": np.zeros(1 << 17)})),
}


def fill(address: str, key: str, frame: bytes, go: Event, over: Event) -> None:
    """Send as fast as possible while `go` is set."""
    session = open_session("client", address, None)
    publisher = session.declare_publisher(key)
    while not over.is_set():
        if not go.wait(0.1):
            continue
        for _ in range(20):
            publisher.put(frame)
    session.close()


class Flood:
    """A process that floods one key when it is told to."""

    def __init__(self, address: str, key: str, frame: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.go, self._over = context.Event(), context.Event()
        self._process = context.Process(target=fill, args=(address, key, frame, self.go, self._over), daemon=True)
        self._process.start()

    def end(self) -> None:
        self.go.clear()
        self._over.set()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def neutral_after(made: Rig, moment: float) -> float:
    """Seconds from a moment until the machine's command was neutral for good; 0 where it was so before."""
    lines = made.lines()
    last = max((line["t"] for line in lines if any(line["command"])), default=moment)
    first = min(line["t"] for line in lines if line["t"] > last)
    return max(first - moment, 0.0)


def ready(made: Rig, name: str) -> Any:
    """The machine moves, whatever was before."""

    def is_calm() -> bool:
        client = made.client("calm", operator=True)
        status = client.ask("status").body
        if status["state"] == "fault":
            client.acknowledge(status["fault_number"], patience_s=PATIENCE)
        client.close()
        return status["state"] != "fault"

    wait_for(is_calm, "the acknowledgement")
    made.log.write_text("")
    client = made.client(name)
    begin(client, SPEC, name, GOALS)
    wait_for(made.moving, "motion")
    return client


def floods(count: int, rng: random.Random) -> dict[str, Any]:
    """A stop while a key is flooded, `count` times per key and kind of message, at a random instant of the flood.

    Soon the flood itself is a fault; `before_fault` counts the stops that came earlier than that. The program, the
    simulated machine, which notes the times, and who sends the stop are real-time processes where that is permitted:
    what is looked for is the program's delay, not that of a busy computer.
    """
    priority = serve_priority()
    times: dict[str, list[float]] = {}
    before_fault, unheard = 0, 0
    for where, key in KEYS.items():
        for kind, frame in FRAMES.items():
            share = count if kind == "garbage" else max(count // 10, 1)
            taken = times[f"{where}, {kind}"] = []
            with tempfile.TemporaryDirectory() as folder, rig(Path(folder), "--lease", "20", *priority) as made:
                real_time(made.machine.popen.pid)
                flood = Flood(made.address, key, frame)
                for i in track(range(share), f"{where}, {kind}"):
                    client = ready(made, f"flood-{i}")
                    flood.go.set()
                    time.sleep(rng.uniform(0.02, 0.3))
                    real_time()
                    moment = time.monotonic()
                    try:
                        fault = send_stop(*split_address(made.address))["fault"]
                    except Exception as error:
                        print(error)
                        fault, unheard = "", unheard + 1
                    ordinary()
                    before_fault += fault == "the operator stopped it"
                    flood.go.clear()
                    wait_for(lambda made=made: not made.moving(), "neutral")
                    taken.append(neutral_after(made, moment))
                    client.close()
                    time.sleep(0.3)
                flood.end()
    everything = [t for taken in times.values() for t in taken]
    late = sum(t > WITHIN_S for t in everything)
    return {
        "stops": len(everything),
        "slowest_ms": {name: round(1000 * max(taken), 1) for name, taken in times.items()},
        "median_ms": round(1000 * statistics.median(everything), 1),
        "before_fault": before_fault,
        "unheard": unheard,
        "real_time": bool(priority),
        "late": late,
        "ok": not late and not unheard,
    }


def latch_kills(count: int, rng: random.Random) -> dict[str, Any]:
    """The program is killed while the machine moves; nobody may arm afterwards without the operator."""
    armed = 0
    with tempfile.TemporaryDirectory() as folder:
        latch = Path(folder) / "fault.json"
        with rig(Path(folder), "--latch", str(latch), "--rearm", "operator", "--lease", "10") as made:
            for i in track(range(count), "kills with latch"):
                client = ready(made, f"kill-{i}")
                time.sleep(rng.uniform(0.0, 0.3))
                made.onboard.signal(signal.SIGKILL)
                client.close()
                made.onboard.end()
                made.start()
                client = made.client("again")
                armed += client.ask("arm").kind != "refused"
                client.close()
    return {"kills": count, "armed_without_operator": armed, "ok": not armed}


def main() -> None:
    """Run both, print what came out, end with 1 if something did not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--floods", type=int, default=100)
    parser.add_argument("--latch-kills", type=int, default=200)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rng, share = random.Random(0), 10 if given.quick else 1
    results = {}
    for name, run, count in (
        ("stop under a flood", floods, given.floods // share),
        ("killed with a latch", latch_kills, given.latch_kills // share),
    ):
        if count:
            results[name] = {**run(count, rng), "load": round(os.getloadavg()[0], 1)}
            print(name, json.dumps(results[name]), flush=True)
            if given.out:
                given.out.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(0 if all(result["ok"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
