"""Real processes: a tiny robot in training, and the live page."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 600.0
"""Seconds after which something counts as hanging; machines are slow when they are busy."""
ROBOT = f"{Path(__file__).with_name('tiny_robot.py')}:arm"
SMALL = ("--preset", "paper-exact", "--model.steps", "5", "--no-report")
"""Episodes take a few hundredths of a second."""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Ask until the answer is true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def environment(cache: Path) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("JAX_")},
        "JAX_COMPILATION_CACHE_DIR": str(cache.parent),  # what the tests have compiled serves here
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XDG_CACHE_HOME": str(cache),
    }


@contextlib.contextmanager
def started(cache: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`firsthand …` in a process that is gone afterwards."""
    piped = arguments[0] != "train"  # the address of a page is read from its pipe; nobody reads a run's
    process = subprocess.Popen(
        [sys.executable, "-m", "firsthand", *map(str, arguments)],
        env=environment(cache),
        stdout=subprocess.PIPE if piped else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """What the page printed."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError(said)


def episodes(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def status(run: Path) -> dict[str, Any]:
    path = run / "control" / "status.json"
    return json.loads(path.read_bytes()) if path.exists() else {"state": "", "answers": [], "question": None}
