"""Which robot files may run: those that this user has named or approved, with the content that they had then.

A robot file is Python. A name that the user types is permission to run it; a name read from a file, which somebody else
may have written, is not. Permissions are stored by path and SHA-256 in the user's own state folder.
"""

import contextlib
import json
import sys
from pathlib import Path

from ..cache import state_folder
from ..errors import UserError
from ..runs import atomic

FORMAT = 1
_approved_here: set[tuple[str, str]] = set()
"""Also kept in memory, for a home folder that cannot be written to."""


def approvals_file() -> Path:
    """Where permissions are kept."""
    return state_folder() / "approved.json"


def approve(path: Path, sha256: str) -> None:
    """Keep that this user allows the file with this content to be run."""
    if is_approved(path, sha256):
        return
    name, known = str(path.resolve()), _read()
    _approved_here.add((name, sha256))
    known.setdefault(name, []).append(sha256)
    with contextlib.suppress(UserError):  # then the permission lasts as long as this process
        atomic.make_folder(approvals_file().parent)
        atomic.write_json(approvals_file(), {"format": FORMAT, "files": known}, mode=0o600)


def is_approved(path: Path, sha256: str) -> bool:
    """Whether this user allows the file to be run as it is now."""
    name = str(path.resolve())
    return (name, sha256) in _approved_here or sha256 in _read().get(name, ())


def require_approval(path: Path, sha256: str, robot_file: Path | None = None) -> None:
    """Ask for permission where there is a terminal; `UserError` where there is none, or the answer is no."""
    if is_approved(path, sha256):
        return
    path = path.resolve()
    if sys.stdin.isatty() and sys.stderr.isatty():
        shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(path))
        print(f"The robot needs a file that you have not named yourself; it is code and would be run:\n  {shown}\n"
              f"  SHA-256 {sha256}", file=sys.stderr)  # fmt: skip
        print("Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            approve(path, sha256)
            return
    raise UserError(
        f"{path} (SHA-256 {sha256[:16]}…) is Python that you have not allowed to run; look at it, and name the robot's "
        f"file on the command line if you trust it: --robot {path if robot_file is None else robot_file}:NAME."
    )


def _read() -> dict[str, list[str]]:
    """Permissions by path. A file that is missing or damaged permits nothing."""
    try:
        content = json.loads(atomic.read_bytes(approvals_file()))
        files = content["files"] if content["format"] == FORMAT else {}
        return {str(path): [str(digest) for digest in digests] for path, digests in files.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
