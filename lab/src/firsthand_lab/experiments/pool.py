"""Where jobs run: what every pool can do, and the pool of processes on this machine."""

import json
import os
import queue
import subprocess
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from firsthand_onboard.child_process import module_command

from . import files


@dataclass(frozen=True)
class Progress:
    """A job has come so far."""

    id: str
    """Which job."""
    done: float
    """Steps behind it."""
    note: str = ""
    """A short note of the job about its progress."""


@dataclass(frozen=True)
class Ended:
    """A job's worker has ended."""

    id: str
    """Which job."""
    error: str | None = None
    """The error; None when the job is finished."""
    lost: bool = False
    """Whether the worker died, so that the job may be tried again from its last checkpoint."""


Event = Progress | Ended


class Pool(ABC):
    """Runs jobs, several at a time."""

    slots: int
    """How many at a time."""

    @abstractmethod
    def start(self, id: str, folder: Path) -> None:
        """Start the job whose job.json is in `folder`."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Event]:
        """What has happened; waits this long at most when nothing has."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers at once. Their folders hold their last checkpoints."""


class LocalPool(Pool):
    """A process per job, each on its own share of the cores."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._shares = shares(slots)
        self._running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
        self._events: queue.Queue[Event] = queue.Queue()

    def start(self, id: str, folder: Path) -> None:
        """A new process; its errors go to log.txt in the folder."""
        used = {slot for _, slot in self._running.values()}
        slot = next(i for i in range(self.slots) if i not in used)
        given = ",".join(map(str, self._shares[slot]))
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [*module_command("firsthand_lab.experiments.worker"), str(folder), given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_environment(len(self._shares[slot])),
                start_new_session=True,  # Ctrl-C is for us; we end the workers
            )
        self._running[id] = (process, slot)
        threading.Thread(target=self._listen, args=(id, folder, process), daemon=True).start()

    def _listen(self, id: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        error = None
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "error" in message:
                error = message["error"]
            else:
                self._events.put(Progress(id, message["done"], message["note"]))
        code = process.wait()
        if (folder / files.DONE).exists():
            self._events.put(Ended(id))
        elif error is not None:
            self._events.put(Ended(id, error))
        else:
            self._events.put(Ended(id, f"its process ended with code {code}; see {folder / 'log.txt'}", lost=True))

    def poll(self, timeout_s: float) -> list[Event]:
        """From the threads that listen to the processes."""
        events: list[Event] = []
        try:
            events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            pass
        for event in events:
            if isinstance(event, Ended):
                process, _ = self._running.pop(event.id)
                assert process.stdin is not None
                process.stdin.close()
        return events

    def stop(self) -> None:
        """Nothing is lost but what came after the last checkpoints."""
        for process, _ in self._running.values():
            process.kill()
        for process, _ in self._running.values():
            process.wait()
        self._running.clear()


def shares(slots: int) -> list[list[int]]:
    """The cores of this machine for each of `slots` workers: disjoint and of equal size, as far as they go."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(slots)]
    cores = sorted(os.sched_getaffinity(0))
    if slots >= len(cores):
        return [[cores[i % len(cores)]] for i in range(slots)]
    bounds = [round(i * len(cores) / slots) for i in range(slots + 1)]
    return [cores[low:high] for low, high in pairwise(bounds)]


MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""glibc's allocator keeps freed memory, so that XLA's large temporaries are not fetched page by page each time."""


def worker_environment(threads: int) -> dict[str, str]:
    """Environment variables that keep a worker to its share of the cores; one core computes without extra threads."""
    environment = {**MEMORY, **os.environ}
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "NPROC": str(threads)}
    if threads == 1:
        flag = "--xla_cpu_multi_thread_eigen=false"
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = flags if flag in flags else f"{flags} {flag}".strip()
    return environment
