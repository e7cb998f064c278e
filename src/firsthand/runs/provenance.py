"""Which code, on which machine, made a run."""

import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("firsthand", "firsthand-onboard", "jax", "jaxlib", "equinox", "optax", "numpy")


def collect() -> dict[str, Any]:
    """Everything that helps to make the same run again. Never fails: what is not known is None."""
    return {
        "run_id": secrets.token_hex(16),  # so that no other config.json is like this one
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        # These change what JAX computes, down to the bits.
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("JAX_", "XLA_"))},
        "git": _git(Path(__file__)),
    }


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One sentence for each difference that may change the bits of a run that is resumed."""
    notes = []
    for group in ("packages", "environment"):
        before, after = stored.get(group) or {}, now.get(group) or {}
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                notes.append(_difference(name, before.get(name), after.get(name)))
    for name in ("python", "machine", "cpu_count"):
        if stored.get(name) != now.get(name):
            notes.append(_difference(name, stored.get(name), now.get(name)))
    commit_before, commit_after = ((side.get("git") or {}).get("commit") for side in (stored, now))
    if commit_before != commit_after:
        notes.append(_difference("the git commit", commit_before, commit_after))
    return notes


def _difference(name: str, before: Any, after: Any) -> str:
    return f"{name} was {before or 'not set'} when the run started and is now {after or 'not set'}."


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(file: Path) -> dict[str, Any] | None:
    """The commit that `file` is checked out from, and whether tracked files differ from it."""
    # A file that is not tracked is installed below someone else's checkout, whose commit says nothing about it.
    if _run_git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    commit = _run_git(file.parent, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _run_git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip()
