"""Time that stands still or leaps: scenes of `make soak`, and in a small form tests.

The robot's programs run with clocks that this process moves (`shifted_clock.c`), as a wall clock that somebody sets, or
a computer that sleeps: then the monotonic clock stands still, and only the clock since the start goes on.
"""

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import track

from firsthand_onboard.network import split_address
from firsthand_onboard.stop_way import send_stop

from .processes import GOALS, SPEC, Rig, begin, ordinary, real_time, rig, serve_priority, wait_for

DAY_S = 86400.0
SOURCE = Path(__file__).with_name("shifted_clock.c")
LEASE_S, NEUTRAL_WITHIN_S = 1.0, 0.1
MACHINE_TIMEOUT_S = 0.08


class Clocks:
    """The clocks of programs that are started while this is entered."""

    def __init__(self, folder: Path) -> None:
        self._file, self._library = folder / "shift", folder / "shifted_clock.so"
        self.set()
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "a C compiler is needed"
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True)

    def set(self, wall_s: float = 0.0, since_start_s: float = 0.0) -> None:
        """So far is each clock off from now on. In place: the programs have the file in their memory."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("<2d", wall_s, since_start_s))

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Programs that are started here see these clocks."""
        before = {name: os.environ.get(name) for name in ("LD_PRELOAD", "CLOCK_SHIFT")}
        os.environ.update(LD_PRELOAD=str(self._library), CLOCK_SHIFT=str(self._file))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


@contextlib.contextmanager
def clocked_rig(folder: Path, *serve: str, **options: Any) -> Iterator[tuple[Rig, Clocks]]:
    """A rig whose programs see clocks that can be set."""
    clocks = Clocks(folder)
    with clocks.shown():
        made = Rig(folder, *serve, **options)
    try:
        yield made, clocks
    finally:
        made.end()


def moved_after(made: Rig, moment: float) -> float:
    """Seconds from a moment until the machine's last command that was not neutral."""
    return max((line["t"] - moment for line in made.lines() if any(line["command"])), default=-1.0)


def moving_client(made: Rig, name: str) -> Any:
    """A trainer whose machine moves, whatever was before; a computer that is busy may be a fault before it begins."""
    client = made.client(name)

    def try_to_move() -> bool:
        if client.ask("status").body["state"] == "fault" and (answer := made.acknowledge()) != "idle":
            print(answer)
            return False
        made.log.write_text("")
        try:
            begin(client, SPEC, f"{name}-{time.monotonic()}"[:64], GOALS)
        except AssertionError:
            return False
        wait_for(lambda: made.moving() or client.ask("status").body["state"] == "fault", "motion")
        return made.moving()

    wait_for(try_to_move, "motion")
    return client


def clock_jumps(count: int, rng: random.Random) -> dict[str, Any]:
    """Somebody sets the robot's wall clock while it moves: it goes on, and can be stopped as fast as ever."""
    jumps = (DAY_S, -DAY_S, 3.0, -3.0, -1.5e9, 1e9, 0.5, -0.5)
    halted, times = [], []
    with tempfile.TemporaryDirectory() as folder, clocked_rig(Path(folder), *serve_priority()) as (made, clocks):
        real_time(made.machine.popen.pid)
        for i in track(range(count), "clock jumps"):
            client = moving_client(made, f"jump-{i}")
            for _ in range(3):
                clocks.set(wall_s=rng.choice(jumps))
                time.sleep(rng.uniform(0.1, 0.3))
            status = client.ask("status").body
            if status["state"] != "moving" or not status["yours"]:
                halted.append(status["fault"] or status["state"])
            real_time()
            moment = time.monotonic()
            send_stop(*split_address(made.address))
            ordinary()
            wait_for(lambda: not made.moving(), "neutral")
            times.append(max(moved_after(made, moment), 0.0))
            client.close()
    late = sum(t > NEUTRAL_WITHIN_S for t in times)
    slowest = round(1000 * max(times), 1)
    return {
        "jumps": 3 * count, "halted": halted, "slowest_stop_ms": slowest, "late": late, "ok": not halted and not late
    }  # fmt: skip


def both_stopped(count: int, rng: random.Random) -> dict[str, Any]:
    """Loop and watchdog are frozen at once: the machine's own timeout stops it, and afterwards nothing moves again."""
    times, again, unlatched = [], 0, 0
    with (
        tempfile.TemporaryDirectory() as folder,
        rig(Path(folder), strict=True, simulate=("--timeout", str(MACHINE_TIMEOUT_S))) as made,
    ):
        real_time(made.machine.popen.pid)
        for i in track(range(count), "both stopped"):
            client = moving_client(made, f"frozen-{i}")
            time.sleep(rng.uniform(0.0, 0.3))
            pids = [made.onboard.pid, made.onboards_watchdog()]
            rng.shuffle(pids)
            real_time()
            moment = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            ordinary()
            time.sleep(rng.uniform(0.25, 2.0))
            times.append(max(moved_after(made, moment), 0.0))
            rng.shuffle(pids)
            real_time()
            moment = time.monotonic()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # a loop that goes on first ends the watchdog
                    os.kill(pid, signal.SIGCONT)
                time.sleep(rng.choice((0.0, 0.05)))
            ordinary()
            time.sleep(0.5)
            # A driver that was frozen in the middle of a write may finish it: then the watchdog takes over at once.
            again += moved_after(made, moment) > NEUTRAL_WITHIN_S
            unlatched += client.ask("status").body["state"] != "fault"
            client.close()
    late = sum(t > NEUTRAL_WITHIN_S for t in times)
    return {
        "freezes": count, "slowest_ms": round(1000 * max(times), 1), "late": late, "moved_again": again,
        "not_latched": unlatched, "ok": not (late or again or unlatched),
    }  # fmt: skip


def sleeps(count: int, rng: random.Random) -> dict[str, Any]:
    """The robot's computer sleeps while it moves, for minutes that its monotonic clock does not count."""
    again, unlatched, slowest = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder, clocked_rig(Path(folder), *serve_priority()) as (made, clocks):
        real_time(made.machine.popen.pid)
        slept = 0.0
        for i in track(range(count), "sleeps"):
            client = moving_client(made, f"asleep-{i}")
            time.sleep(rng.uniform(0.0, 0.2))
            client.drop_lease()  # the trainer's computer sleeps, too, or has gone
            pids = (made.onboard.pid, made.onboards_watchdog())
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            slept += rng.choice((2.0, 60.0, 3600.0))
            clocks.set(since_start_s=slept)
            real_time()
            moment = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            ordinary()
            time.sleep(0.5)
            after = moved_after(made, moment)
            slowest = max(slowest, after)
            again += after > NEUTRAL_WITHIN_S
            client.close()
            watcher = made.client("watcher")
            unlatched += watcher.ask("status").body["state"] != "fault"
            watcher.close()
    return {
        "sleeps": count, "slowest_ms": round(1000 * slowest, 1), "moved_again": again, "not_latched": unlatched,
        "ok": not (again or unlatched),
    }  # fmt: skip
