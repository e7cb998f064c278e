"""Real processes, really killed."""

import random
import subprocess
import sys
import time
from pathlib import Path

from . import writer

WRITER = [sys.executable, str(Path(writer.__file__))]


def kill_after(path: Path, seconds: float) -> int:
    """Start a trainer, SIGKILL it, and return the last episode that it said was safe."""
    process = subprocess.Popen([*WRITER, "train", str(path), "1000000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
    finally:
        process.kill()
        said = process.stdout.read().split("\n")
        process.wait()
        process.stdout.close()
    # The last piece follows the last newline; it may be a torn number.
    return max((int(line) for line in said[:-1]), default=0)


def test_sigkill_at_random_instants_loses_at_most_the_episode_in_progress(tmp_path: Path) -> None:
    chance = random.Random(3)
    path, safe = tmp_path / "run", 0
    for _ in range(20):
        # Short waits hit the start and the resume, longer ones the loop.
        said = kill_after(path, chance.choice([0.003, 0.02, 0.06]) * chance.random())
        safe = max(safe, said)
        safe = writer.check(path, at_least=safe)
    writer.train(path, safe + 3)
    assert writer.check(path) == safe + 3
    writer.train(tmp_path / "whole", safe + 3)
    assert writer.contents(path) == writer.contents(tmp_path / "whole")


def test_a_crash_before_each_step_that_touches_the_disk_is_survived(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WRITER, "crash-everywhere", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80
