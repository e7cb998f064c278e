"""Asking an operator whether a new policy may run: in the terminal or through a file.

The live page asks with `training.live.LiveControl.ask`.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..console import notify
from ..errors import UserError, suggest
from ..robots.base import EpisodeAbandoned
from ..runs import atomic
from .parts import Meanwhile

Approval = Callable[[str, Meanwhile], bool]
"""Shows the operator what is about to run, waits, and returns whether it may; `EpisodeAbandoned` where he stops."""
WAYS_TO_ASK = ("ask", "page")
"""How approval can be asked for, besides through a file."""


def check_way_to_ask(way: str) -> None:
    """Raise `UserError` where approval could not be asked for in this way: before the robot is ready, not then."""
    if way == "ask" and not sys.stdin.isatty():
        raise UserError("approve is 'ask', but there is no terminal to ask in; give a file: --approve FILE.")
    if way in WAYS_TO_ASK:
        return
    if os.sep not in way and "." not in way:
        raise UserError(
            f"approve is {way!r}, but must be ask, page or a file{suggest(way, WAYS_TO_ASK)}; a file in this folder is "
            f"./{way or 'FILE'}."
        )
    path = Path(way)
    if path.is_dir():
        raise UserError(f"approve is {way}, which is a folder; name a file in it.")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UserError(f"approve is {way}, but {path.parent} is not a folder that can be written to.")


def ask_in_terminal(stopped: Callable[[], bool], *, period_s: float = 0.2) -> Approval:
    """Approval by typing y; the end of the input (Ctrl-D) is a no. Given up once `stopped()` is true."""

    def ask(question: str, meanwhile: Meanwhile) -> bool:
        notify(f"The new policy: {question}.")
        print("Run it on the robot? [y/N] ", end="", flush=True)
        while True:
            typed, _, _ = select.select([sys.stdin], [], [], period_s)
            if stopped():
                raise EpisodeAbandoned
            if typed:
                return sys.stdin.readline().strip().lower() in ("y", "yes")
            meanwhile()

    return ask


def ask_by_file(path: Path, stopped: Callable[[], bool], *, period_s: float = 0.5) -> Approval:
    """Approval by a file: the question is written to `path`, and the operator writes yes or no to `path`.answer.

    Given up once `stopped()` is true.
    """
    answer = path.with_name(path.name + ".answer")

    def ask(question: str, meanwhile: Meanwhile) -> bool:
        try:
            answer.unlink(missing_ok=True)
            path.write_text(question + "\n")
        except OSError as error:
            raise UserError(f"cannot ask through {path}: {atomic.cause(error)}.") from None
        notify(f"Waiting for yes or no in {answer}: {question}.")
        try:
            while (word := _read_word(answer)) not in ("yes", "no"):
                if stopped():
                    raise EpisodeAbandoned
                meanwhile()
                time.sleep(period_s)
        finally:
            for file in (path, answer):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)
        return word == "yes"

    return ask


MAX_WORD = 4096
"""Bytes of an answer in a file."""


def _read_word(path: Path) -> str:
    """The content of the file, as far as it can be read."""
    try:
        return atomic.read_bytes(path, MAX_WORD).decode().strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""
