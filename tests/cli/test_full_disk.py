"""Training on a disk that is really full, and going on when there is room."""

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import Firsthand

SMALL = ("--preset", "paper-exact", "--model.steps", "20")
"""The preset that compiles fastest; all write the same files."""

SCRIPT = """
disk=$1; shift
{mount} -t tmpfs -o size=1100k tmpfs "$disk" || exit 77
"$@" 2>"$disk.said"; echo $? >"$disk.code"
find "$disk" -name '*.tmp' >"$disk.leftovers"
{mount} -o remount,size=100m "$disk"
"$@" --resume
"""


def test_training_on_a_full_disk(firsthand: Firsthand, tmp_path: Path) -> None:
    mount, unshare = shutil.which("mount"), shutil.which("unshare")
    if mount is None or unshare is None:
        pytest.skip("mount or unshare is not installed")
    disk = tmp_path / "disk"
    disk.mkdir()
    probe = [unshare, "--mount", mount, "-t", "tmpfs", "tmpfs", str(disk)]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    train = [*firsthand.command, "train", "excavator", "--out", str(disk / "run"), *SMALL]
    script = SCRIPT.format(mount=mount)
    # A mount namespace of its own: the tiny disk goes away with the process, whatever happens.
    done = firsthand.run(
        [unshare, "--mount", "sh", "-c", script, "sh", str(disk), *train, "--episodes", "3", "--no-report"]
    )
    said = Path(f"{disk}.said").read_text()
    assert Path(f"{disk}.code").read_text() == "2\n"
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"firsthand: cannot write {disk / 'run'}/")
    assert said.endswith(": the disk is full.\n")
    assert Path(f"{disk}.leftovers").read_text() == ""
    assert done.returncode == 0, done.stderr
    assert "episode 3/3" in done.stderr
