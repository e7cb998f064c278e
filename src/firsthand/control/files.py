"""The control folder of a run: what a person asks for, and what the trainer says about itself.

    control/status.json          the trainer's, replaced several times a second, never read half written
    control/requests/….json      one file per request, written by anybody, removed by the trainer when it is dealt with
    control/events.jsonl         the trainer's: a line for everything that a curve should be marked with

A work session has the same inside the folder of its work, which is then "the run" of these functions.

Anybody who may write to the run's folder may control the run; there is no other lock. A request names the session of
the trainer that it is meant for, so that none outlives it: a stop that came too late does not stop the next trainer.
"""

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..runs import atomic, packed

FORMAT = 1
FOLDER, REQUESTS, STATUS, EVENTS = "control", "requests", "status.json", "events.jsonl"
MAX_STATUS_BYTES = 1 << 20
MAX_REQUEST_BYTES = 4096
"""A larger request is refused."""
MAX_TAG_LENGTH = 60
"""Characters of a payload tag, at most."""
ANSWERS = 16
"""How many of the newest answers the status shows."""
_NAME = re.compile(r"\d{20}-[0-9a-f]{8}\.json")

NUMBERED = ("acknowledge", "approve", "reject", "return", "restore")
"""Requests with a whole number: of the fault, of the question, of the episode."""
WORK = ("take_back", "give_back")
"""Requests to a work session: the base alone drives, or the learned part takes part again."""
KINDS = ("pause", "resume", "stop", "checkpoint", "payload", *NUMBERED, *WORK)


@dataclass(frozen=True)
class Request:
    """Something that a person asks of the trainer."""

    kind: str
    """One of `KINDS`."""
    session: str
    """The trainer that it is meant for."""
    value: int | str | None = None
    """A number for `NUMBERED`, the tag for `payload`, otherwise nothing."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"the request is {self.kind!r}, but must be one of {', '.join(KINDS)}.")
        if not isinstance(self.session, str) or not 1 <= len(self.session) <= 64:
            raise UserError("the request must name the session of a trainer.")
        if self.kind in NUMBERED:
            number = isinstance(self.value, int) and not isinstance(self.value, bool)
            if not number or not 0 <= int(self.value or 0) < 2**31:
                raise UserError(f"{self.kind} needs a whole number, but has {self.value!r}.")
        elif self.kind == "payload":
            text = self.value if isinstance(self.value, str) else ""
            if not 1 <= len(text.strip()) <= MAX_TAG_LENGTH or not text.isprintable():
                raise UserError(f"the payload tag must be 1 to {MAX_TAG_LENGTH} printable characters.")
        elif self.value is not None:
            raise UserError(f"{self.kind} takes no value, but has {self.value!r}.")


@dataclass(frozen=True)
class Status:
    """The trainer's report about itself."""

    session: str
    """Drawn anew by every trainer."""
    beat: int = 0
    """Counts up while the trainer lives: clocks of two computers need not agree."""
    host: str = ""
    """Where it runs."""
    pid: int = 0
    """Its process there."""
    state: str = "starting"
    """starting, running, pausing, paused, asking, stopping; at the end finished, stopped or failed."""
    phase: str = ""
    """While running: what the robot and the learner are doing."""
    episode: int = 0
    """Episodes done; of a work session, blocks."""
    episodes: int = 0
    """Episodes in all."""
    seconds_left: float | None = None
    """Of the clock on the wall, when it goes on like this."""
    robot_seconds_left: float | None = None
    """Of robot time."""
    payload: str = ""
    """The tag that holds now."""
    question: Mapping[str, Any] | None = None
    """`number` and `text` of what waits to be approved."""
    machine: Mapping[str, Any] | None = None
    """The report of a machine across the network: `state`, `fault`, `fault_number`, `reachable`; None for others."""
    message: str = ""
    """Why it failed, or what else a person should know."""
    pending: tuple[str, ...] = ()
    """Requests that wait for the end of the episode."""
    work: Mapping[str, Any] | None = None
    """Of a work session: what `training.work.control.WorkControl` reports."""
    answers: tuple[Mapping[str, Any], ...] = ()
    """To the newest requests: `request` (the name), `kind`, `ok`, `text`."""

    @property
    def ended(self) -> bool:
        """Whether this trainer has ended in an orderly way."""
        return self.state in ("finished", "stopped", "failed")


@dataclass(frozen=True)
class Event:
    """Something that happened and that a curve is marked with."""

    episode: int
    """The first episode that it holds for, from 1; of a work session, the first block."""
    kind: str
    """payload, return, restore, checkpoint, pause, reject, fault; of a work session see `training.work.session`."""
    text: str
    """Description for people."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """State for a resumed trainer: the payload."""


def folder_of(run: str | os.PathLike[str]) -> Path:
    """The control folder of a run."""
    return Path(run) / FOLDER


# Requests.


def send(run: str | os.PathLike[str], request: Request) -> str:
    """Ask for something; the name under which the answer will appear in the status."""
    folder = folder_of(run) / REQUESTS
    if not folder.is_dir():
        raise UserError(f"{run} has no trainer that could be asked: {folder} does not exist.")
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    atomic.write_bytes(folder / name, json.dumps({"format": FORMAT, **asdict(request)}).encode())
    return name


def waiting(run: str | os.PathLike[str]) -> list[str]:
    """The names of requests that are still open, oldest first."""
    try:
        return sorted(name for name in os.listdir(folder_of(run) / REQUESTS) if _NAME.fullmatch(name))
    except OSError:
        return []


def read_request(run: str | os.PathLike[str], name: str) -> Request:
    """One request; `UserError` for anything else."""
    path = folder_of(run) / REQUESTS / name
    try:
        # Not a pipe, which would keep the trainer waiting, and not a link to somewhere else.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UserError(f"{path} is not a regular file.")
            data = file.read(MAX_REQUEST_BYTES + 1)
        if len(data) > MAX_REQUEST_BYTES:
            raise UserError(f"{path} is larger than a request may be.")
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise UserError(f"{path} has the format {content['format']!r}, and this version reads {FORMAT}.")
        return Request(**{name: content[name] for name in ("kind", "session", "value")})
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a request.") from error


# Status.


def publish(run: str | os.PathLike[str], status: Status) -> None:
    """Replace the status in one step. Not flushed to the disk: after a power failure it means nothing anyway."""
    path = folder_of(run) / STATUS
    temporary = path.with_name(f".{STATUS}.{os.getpid():08x}.tmp")
    content = packed.plain_values({"format": FORMAT, **asdict(status)}, nonfinite="null")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(json.dumps(content, allow_nan=False).encode())
    os.replace(temporary, path)


def read_status(run: str | os.PathLike[str]) -> Status | None:
    """The last status of the trainer; None when there is nothing to read. `UserError` for an unknown version."""
    path = folder_of(run) / STATUS
    try:
        content = json.loads(atomic.read_bytes(path, MAX_STATUS_BYTES))
        version = content.pop("format")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    if version != FORMAT:
        raise UserError(f"{path} has the format {version!r}, and this version of firsthand reads {FORMAT}.")
    known = {f.name for f in fields(Status)}
    if not _sound(content):
        return None
    return Status(**{name: value for name, value in content.items() if name in known})


def _sound(content: Mapping[str, Any]) -> bool:
    """Whether the parts that are taken apart by others have the parts that they should."""
    needed = (
        ("question", ("number", "text")),
        ("machine", ("state", "fault", "fault_number", "reachable")),
        ("work", ("address", "block", "context", "on_base", "authority", "measuring", "base_alone")),
    )
    for name, parts in needed:
        value = content.get(name)
        if value is not None and not (isinstance(value, dict) and all(part in value for part in parts)):
            return False
    answers = content.get("answers", [])
    return (
        all(isinstance(content.get(name), str) for name in ("session", "state"))
        and isinstance(answers, list)
        and all(isinstance(one, dict) and {"request", "ok", "text"} <= set(one) for one in answers)
    )


# Events.


def append_event(run: str | os.PathLike[str], event: Event) -> None:
    """Add a line. A line counts when its newline is there; what a crash tore off is cut here."""
    path = folder_of(run) / EVENTS
    line = json.dumps(packed.plain_values(asdict(event), nonfinite="null"), allow_nan=False) + "\n"
    with os.fdopen(atomic.open_to_change(path, os.O_RDWR | os.O_APPEND), "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode())


def read_events(run: str | os.PathLike[str]) -> list[Event]:
    """All events, oldest first; damaged lines are left out."""
    try:
        lines = atomic.read_bytes(folder_of(run) / EVENTS).split(b"\n")[:-1]
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            content = json.loads(line)
            events.append(
                Event(int(content["episode"]), str(content["kind"]), str(content["text"]), dict(content["extra"]))
            )
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue
    return events
