"""The live page in a process of its own, beside the training: neither slows the other down nor ends with it.

`python -m firsthand.dashboard.child RUN` prints its address. Its standard input is a pipe from the trainer: when that
closes, for whatever reason, the page stays as long as a browser looks at it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from firsthand_onboard.child_process import module_command

from ..errors import UserError


@contextmanager
def page_process(run: Path, notify: Callable[[str], object]) -> Iterator[None]:
    """Show the page of a run while the block runs; `notify` gets what it prints, such as its address."""
    child = subprocess.Popen(
        [*module_command("firsthand.dashboard.child"), str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for the trainer
        text=True,
    )

    def forward() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            notify(line.rstrip("\n"))

    threading.Thread(target=forward, daemon=True).start()
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()


def main() -> None:
    """Serve one run until its trainer has ended and no browser is connected."""
    from .run_list import RunList
    from .server import listen, serve

    gone = threading.Event()

    def wait() -> None:
        while os.read(0, 1024):
            pass
        gone.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        runs, place = RunList([Path(sys.argv[1])]), listen()
        print(f"Live page: {place.address}", flush=True)
        serve(runs, place, unwanted=gone.is_set)
    except UserError as error:
        print(f"no live page: {error}", flush=True)


if __name__ == "__main__":
    main()
