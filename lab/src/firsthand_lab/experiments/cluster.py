"""Jobs on a Ray cluster. The machines need no common disk: files travel with the jobs.

A worker gets the files that the job's folder holds here, runs the job on a folder of its own, and after each report of
the job sends what has changed to a mailbox, from which it is written here. So this folder always holds the job's last
checkpoint, and a job whose worker was lost goes on from there on another one.
"""

import importlib.util
import logging
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from firsthand.errors import UserError
from firsthand.runs import atomic

from . import files
from .pool import Ended, Event, Pool, Progress, worker_environment
from .worker import cores

INSTALL = "pip install -c constraints.txt -e 'lab[ray]'"
SEND_EVERY_S = 1.0
"""Least time between two sendings of a worker's files; the last ones are always sent."""
OWN_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Before Ray is imported: a cluster of our own listens on the loopback address only, and sends no usage reports."""
PATIENCE_S = 10.0
"""How long an address may take to answer."""


def require_ray(address: str | None) -> None:
    """Say it before anything is begun when Ray is not installed or its cluster does not answer."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"--on ray needs Ray, which is not installed; install it in firsthand's own folder: {INSTALL}.")
    if address is None or address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"address is {address!r}, but must be host:port, ray://host:port or auto.")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}.") from error


class Mailbox:
    """Takes what workers send until it is fetched. An actor of the cluster."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def put(self, message: dict[str, Any]) -> None:
        """From a worker."""
        self._messages.append(message)

    def fetch(self) -> list[dict[str, Any]]:
        """Everything since the last call."""
        messages, self._messages = self._messages, []
        return messages


def work(id: str, attempt: int, contents: dict[str, bytes], mailbox: Any, threads: int) -> str | None:
    """Run a job on a worker: `contents` are the files of its folder. Returns what went wrong, or None."""
    import ray
    from ray.exceptions import RayError

    from firsthand.cache import cache_folder

    from .worker import perform

    os.environ.update(worker_environment(threads))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    folder = Path(tempfile.mkdtemp(prefix="firsthand-job-"))
    sent: dict[str, tuple[int, int]] = {}
    last = -SEND_EVERY_S

    def send(done: float | None, note: str) -> None:
        nonlocal last, sent
        now = snapshot(folder)
        changed = {name: (folder / name).read_bytes() for name, stamp in now.items() if sent.get(name) != stamp}
        gone = [name for name in sent if name not in now]
        told = {"id": id, "attempt": attempt, "done": done, "note": note, "pid": os.getpid()}
        ray.get(mailbox.put.remote({**told, "files": changed, "gone": gone}))
        sent, last = now, time.monotonic()

    def report(done: float, note: str = "") -> None:
        if time.monotonic() - last >= SEND_EVERY_S:
            send(done, note)

    try:
        for name, data in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        sent = snapshot(folder)
        perform(folder, report)
        send(None, "")
    except UserError as error:
        return str(error)
    except RayError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder, with what tells whether it has changed."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not atomic.is_temporary(path.name):
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = (status.st_mtime_ns, status.st_size)
    return found


class RayPool(Pool):
    """A Ray task per job. Without an address, a small cluster on this machine, reachable from nowhere else."""

    def __init__(self, address: str | None, slots: int | None = None) -> None:
        if address is None:
            os.environ.update(OWN_CLUSTER)
        import ray
        from ray.exceptions import RayError

        self._ray, self._lost = ray, RayError
        own: dict[str, Any] = {
            "num_cpus": slots or cores(),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
        try:
            ray.init(
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="firsthand",
                **(own if address is None else {"address": address}),  # pyright: ignore[reportArgumentType]
            )
        except Exception as error:  # Ray raises a bare one where a machine is too busy to start it
            reason = str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
            raise UserError(f"no Ray cluster can be used at {address or 'this machine'}: {reason}.") from error
        self.slots = slots or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        self._mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
        self._work = ray.remote(num_cpus=1, max_retries=0)(work)
        self._running: dict[Any, tuple[str, Path]] = {}
        self._attempts: dict[str, int] = {}

    def start(self, id: str, folder: Path) -> None:
        """Send the job with what its folder holds."""
        contents = {name: (folder / name).read_bytes() for name in snapshot(folder) if name not in ("log.txt",)}
        self._attempts[id] = self._attempts.get(id, 0) + 1
        self._running[self._work.remote(id, self._attempts[id], contents, self._mailbox, 1)] = (id, folder)

    def poll(self, timeout_s: float) -> list[Event]:
        """What workers have sent, and which have ended."""
        ended, _ = self._ray.wait(list(self._running), timeout=timeout_s)  # before the mailbox: it has all they sent
        folders = {id: folder for id, folder in self._running.values()}
        events: list[Event] = []
        for message in self._ray.get(self._mailbox.fetch.remote()):
            if message["attempt"] != self._attempts[message["id"]] or message["id"] not in folders:
                continue  # the last words of a worker that was lost, and whose job has gone on without it
            receive(folders[message["id"]], message)
            if message["done"] is not None:
                note = f"{message['note']} · worker {message['pid']}".removeprefix(" · ")
                events.append(Progress(message["id"], message["done"], note))
        for reference in ended:
            id, folder = self._running.pop(reference)
            try:
                error = self._ray.get(reference)
            except self._lost as died:
                events.append(Ended(id, str(died).splitlines()[0], lost=True))
                continue
            if error is None and not (folder / files.DONE).exists():
                error = "its data did not arrive"
            if error is None:
                shutil.rmtree(folder / files.CHECKPOINT, ignore_errors=True)
            events.append(Ended(id, error))
        return events

    def stop(self) -> None:
        """End the tasks, and the cluster where it is ours."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()


def receive(folder: Path, message: dict[str, Any]) -> None:
    """Write what a worker sent. done.json comes last: it says that the rest is there."""
    for name in sorted(message["files"], key=lambda name: name == files.DONE):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"a worker sent a file for {path}, which is outside the job's folder.")
        atomic.make_folder(path.parent)
        atomic.write_bytes(path, message["files"][name])
    for name in message["gone"]:
        if (folder / name).resolve().is_relative_to(folder.resolve()):
            atomic.remove(folder / name)
