"""Real processes. They share a compilation cache, so that only the first one of each kind compiles."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

SETTINGS = {
    "fast": (
        "--model.steps",
        "20",
        "--policy-step.steps",
        "2",
        "--imagination.trajectories",
        "2",
        "--refinement.steps",
        "0",
    ),
    "paper": ("--preset", "paper", "--model.steps", "20"),
}
"""Small runs of both presets."""
EPISODES = 4
"""Three or fewer have a smaller buffer, and everything would be compiled again."""
PATIENCE = 600
"""Seconds after which a process counts as hanging; machines are slow when they are busy."""


WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ONE_CORE = (
    "import os, sys; cores = sorted(os.sched_getaffinity(0)); "
    f"os.sched_setaffinity(0, {{cores[{WORKER} % len(cores)]}}); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Runs a program on one core, each test worker on its own: then XLA has one thread, and gives the same bits."""


class Firsthand:
    """Runs `python -m firsthand` in processes of its own."""

    def __init__(self, cache: Path, cwd: Path) -> None:
        self.cwd = cwd
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "COLUMNS"))},
            "JAX_COMPILATION_CACHE_DIR": str(cache.parent),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XDG_CACHE_HOME": str(cache),
            "XLA_FLAGS": os.environ["XLA_FLAGS"],  # as in tests/conftest.py: what the tests have compiled serves here
        }
        self.command = [sys.executable, "-c", ONE_CORE, sys.executable, "-m", "firsthand"]

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        """A process whose output can be read while it runs."""
        return subprocess.Popen(
            [*self.command, *map(str, arguments)],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __call__(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return self.run([*self.command, *map(str, arguments)], **options)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run any command in the same surroundings."""
        settings = {"cwd": self.cwd, "env": self.environment, **options}
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **settings)

    def train(self, out: Path, preset: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """A small run, without a report; it must succeed."""
        done = self("train", "excavator", "--out", out, *SETTINGS[preset], "--no-report", *arguments)
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="session")
def cache(compiled: Path) -> Path:
    """What the processes of this session keep, in the folder of what this session has compiled."""
    return compiled / "processes"


@pytest.fixture
def firsthand(cache: Path, tmp_path: Path) -> Firsthand:
    """Runs the command line in a folder of its own."""
    return Firsthand(cache, tmp_path)


def train_once(cache: Path, preset: str, episodes: int) -> Path:
    """The folder of a small run, which the first worker that asks for it trains for all."""
    cache.mkdir(parents=True, exist_ok=True)
    out = cache / f"{preset}-{episodes}"
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            new = out.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            Firsthand(cache, cache).train(new, preset, "--episodes", str(episodes))
            new.rename(out)
    return out


@pytest.fixture(scope="session")
def uninterrupted(cache: Path) -> Callable[[str], Path]:
    """The run of a preset that was never stopped; not to be changed."""
    return lambda preset: train_once(cache, preset, EPISODES)


@pytest.fixture(scope="session")
def begun(cache: Path) -> Callable[[str, Path], Path]:
    """Copies a run of two episodes to a folder."""
    return lambda preset, to: Path(shutil.copytree(train_once(cache, preset, 2), to))


@pytest.fixture(scope="session")
def halfway(uninterrupted: Callable[[str], Path]) -> Callable[[str, Path], Path]:
    """Copies a run that was killed after two episodes to a folder: what came later is not there."""

    def copy(preset: str, to: Path) -> Path:
        shutil.copytree(uninterrupted(preset), to)
        for file in [*to.glob("episodes/*.safetensors"), *to.glob("checkpoints/*.safetensors")]:
            if int(file.stem) > 2:
                file.unlink()
        lines = (to / "metrics.jsonl").read_text().splitlines(keepends=True)
        (to / "metrics.jsonl").write_text("".join(lines[:2]))
        return to

    return copy


def contents(run: Path) -> dict[str, Any]:
    """Everything that must be equal in equal runs: every byte of data, every metric but the times."""
    # Not `evaluations`: another test may have evaluated this run.
    written = [
        file for part in ("data", "episodes", "checkpoints") for file in sorted(run.glob(f"{part}/*.safetensors"))
    ]
    files = [*written, run / "best.safetensors"]
    found: dict[str, Any] = {str(file.relative_to(run)): file.read_bytes() for file in files}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{k: v for k, v in line.items() if k not in ("update_time_s", "sha256")} for line in lines]
    return found


def assert_same(run: Path, expected: Path) -> None:
    """Two runs, bit for bit."""
    ours, theirs = contents(run), contents(expected)
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []
