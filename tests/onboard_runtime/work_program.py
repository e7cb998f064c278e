"""A program of a user's that works without end, in a process of its own, to be killed."""

from pathlib import Path

import jax

from firsthand.training.work import WorkSettings
from firsthand.training.work.session import WorkSession

from .processes import Process
from .test_fleet import toy_task
from .test_work import circle

WORK = WorkSettings(blocks=1, eager_updates=1, chunks=40, recent_chunks=20, surprise=50.0, better=0.01)


def main(address: str, run: str, folder: str) -> None:
    task = toy_task()
    with WorkSession(address, run, folder=folder, task=task, work=WORK, say=lambda text: None) as work:
        start = work.start()
        print("works", flush=True)
        while True:
            work.send(circle(start, task.steps))


def started(address: str, run: Path, folder: Path) -> Process:
    """The program, once it works."""
    tests = str(Path(__file__).parents[1])
    given = (address, str(run), str(folder))
    compiled = {  # what the tests have compiled serves here
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,  # pyright: ignore
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    first = f"import os, sys; os.environ.update({compiled!r}); sys.path.insert(0, {tests!r})"
    return Process("-c", f"{first}; from {__name__} import main; main(*{given!r})")
