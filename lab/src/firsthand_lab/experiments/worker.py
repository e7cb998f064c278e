"""One job, from its folder: `python -m firsthand_lab.experiments.worker FOLDER CORES`.

Progress goes to standard output, a JSON object per line; what the job itself prints goes to standard error. The process
ends when its standard input is closed: a job does not outlive the experiment that started it.
"""

import hashlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import firsthand
from firsthand.errors import UserError
from firsthand.runs import atomic, provenance

from . import files
from .base import Job, Report

JOB = "job.json"
LAB = "firsthand_lab"
MODULES = "FIRSTHAND_LAB_MODULES"
STARTS = "starts.json"
"""Beside a job's checkpoint: the code that it was started with, and others that it went on with."""
_DATA_COMES_FROM = (
    "optim",
    "models",
    "agent",
    "tasks",
    "plants",
    "robots",
    "training",
    "evaluation",
    "inspection",
    "controllers",
    "simulators",
    "logs",
)


Runner = Callable[[dict[str, Any], Path, Report], object]


def read_job(folder: Path) -> Job:
    """The job that a folder is for."""
    try:
        return Job(**files.read_json(folder / JOB))
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder / JOB} is damaged: {error}.") from error


def find_runner(name: str) -> Runner:
    """The function that `module:function` names, if the lab defines it: a folder cannot make anything else run.

    The environment variable `FIRSTHAND_LAB_MODULES` names more modules that jobs may use, with commas between them.
    """
    module, _, function = name.partition(":")
    more = [entry.strip() for entry in os.environ.get(MODULES, "").split(",")]
    if not module.startswith(f"{LAB}.") and module not in more:
        raise UserError(
            f"the job's runner is {name!r}, but must be a function of {LAB}, or of a module that {MODULES} names."
        )
    try:
        found = getattr(import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise UserError(f"the job's runner is {name!r}, but {error}.") from error
    home = getattr(found, "__module__", None) or ""
    if not isinstance(found, FunctionType) or not (home == module or home.startswith(f"{LAB}.")):
        raise UserError(f"the job's runner is {name!r}, but {module} defines no such function.")
    return cast(Runner, found)


def perform(folder: Path, report: Report) -> None:
    """Run the job of this folder to its end, from where it stopped; a finished one is left as it is.

    One that was begun with other code goes on all the same, and `done.json` names both.
    """
    if not (folder / files.DONE).exists():
        job = read_job(folder)
        atomic.remove_temporary_files(folder)
        if not _has_checkpoint(folder):
            _clear(folder)
        runner = find_runner(job.runner)
        version = note_version(folder, job.runner)  # before it runs: the files may be others when it ends
        began, used = time.monotonic(), sum(os.times()[:4])
        runner(dict(job.parameters), folder, report)
        done = {
            "seconds": round(time.monotonic() - began, 3),
            "core_seconds": round(sum(os.times()[:4]) - used, 3),  # with the processes that it has started and ended
            "cores": cores(),
            **version,
        }
        files.write_json(folder / files.DONE, done)
    shutil.rmtree(folder / files.CHECKPOINT, ignore_errors=True)


def _has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    checkpoint = folder / files.CHECKPOINT
    return checkpoint.is_dir() and any(path.name != STARTS for path in checkpoint.iterdir())


def _clear(folder: Path) -> None:
    """Remove what an earlier try has left: a job without a checkpoint begins anew."""
    shutil.rmtree(folder / files.CHECKPOINT, ignore_errors=True)
    for path in folder.iterdir():
        if path.is_file() and path.name not in (JOB, "log.txt"):
            atomic.remove(path)


def note_version(folder: Path, runner: str) -> dict[str, str | None]:
    """`code` and `commit` of this start, behind those of earlier ones with other code."""
    now = {"code": code_digest(runner), "commit": commit()}
    path = folder / files.CHECKPOINT / STARTS
    if path.exists():
        starts = files.read_json(path)
    else:
        starts = [{"code": "unknown", "commit": "unknown"}] if path.parent.exists() else []
    if starts and starts[-1]["code"] != now["code"]:
        print(f"This job was begun with other code ({starts[-1]['commit']}); it goes on with {now['commit']}.")
    if not starts or starts[-1]["code"] != now["code"]:
        starts.append(now)
    files.write_json(path, starts)
    if len(starts) == 1:
        return now
    return {"code": "+".join(s["code"] for s in starts), "commit": " then ".join(str(s["commit"]) for s in starts)}


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def commit() -> str | None:
    """The commit of the code, with a plus where tracked files differ from it; None when it is not in a checkout."""
    git = provenance.collect()["git"]
    return None if git is None else git["commit"][:12] + ("+" if git["dirty"] else "")


def code_digest(runner: str) -> str:
    """A hash of the sources that a job's data depends on: two jobs are the same only if this is, too."""
    digest = hashlib.sha256()
    for path in sources(runner):
        digest.update(path.name.encode() + b"\0" + (path.read_bytes() if path.exists() else b"") + b"\0")
    return digest.hexdigest()[:16]


def sources(runner: str) -> list[Path]:
    """The files that `code_digest` looks at; more of them than most jobs use, and none too few."""
    root, product = Path(__file__).parent.parent, Path(firsthand.__file__).parent
    found = [p for name in _DATA_COMES_FROM for p in sorted((product / name).rglob("*.py"))]
    found += sorted((root / "experiments").rglob("*.py"))
    if runner.startswith(f"{__name__.partition('.')[0]}.baselines."):
        found += sorted((root / "baselines").rglob("*.py"))
    for module in ("firsthand_onboard", runner.partition(":")[0]):
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            found += sorted(origin.parent.glob("*.py")) if origin.name == "__init__.py" else [origin]
    return found


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _say(channel: int, message: dict[str, Any]) -> None:
    atomic.write_all(channel, json.dumps(message).encode() + b"\n")


def main() -> int:
    """Run the job named on the command line. Exit code 1 and a message with `error` when it fails."""
    folder, given = Path(sys.argv[1]), sys.argv[2]
    if given and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in given.split(",")})
    channel = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        perform(folder, lambda done, note="": _say(channel, {"done": done, "note": note}))
    except UserError as error:
        _say(channel, {"error": str(error)})
        return 1
    except Exception as error:
        traceback.print_exc()
        _say(channel, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
