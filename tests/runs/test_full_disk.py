"""A disk that is really full, and a file that really may not grow."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
from firsthand.errors import UserError
from firsthand.runs import RunFolder

def fill_until_refused(act):
    for number in range(1, 100000):
        try:
            act(number)
        except UserError as error:
            return number, str(error)

run = RunFolder.create(sys.argv[1], {}, provenance={})
state = lambda k: {"weights": np.full(20000, float(k))}
result = {}
run.save_best(state(0), {})
last, result["checkpoint"] = fill_until_refused(lambda k: run.save_checkpoint(k, state(k), {"k": k}, keep=1000))
_, result["best"] = fill_until_refused(lambda k: run.save_best(state(k), {}))
_, result["episode"] = fill_until_refused(lambda k: run.save_episode(k, state(k), {}))
lines, result["metrics"] = fill_until_refused(lambda k: run.append_metrics({"episode": k, "text": "x" * 500}))
run.close()

run = RunFolder.open(sys.argv[1])
loaded = run.load_checkpoint()
result["loaded"] = loaded.episode == last - 1 and loaded.notes == [] and bool(loaded.arrays["weights"][0] == last - 1)
result["best_is_old"] = bool(run.load_best()[0]["weights"][0] == 0)
result["metrics_whole"] = [m["episode"] for m in run.read_metrics()] == list(range(1, lines))
result["leftovers"] = [str(file) for file in Path(sys.argv[1]).rglob("*.tmp")]
result["episodes"] = run.episodes()
print(json.dumps(result))
"""


def check(result: dict) -> None:
    assert result["loaded"], "the last checkpoint before the disk was full is the one that is loaded"
    assert result["best_is_old"]
    assert result["metrics_whole"]
    assert result["leftovers"] == []


def test_a_full_disk(tmp_path: Path) -> None:
    mount = shutil.which("mount")
    unshare = shutil.which("unshare")
    if mount is None or unshare is None:
        pytest.skip("mount or unshare is not installed")
    # A mount namespace of its own: the tiny disk goes away with the process, whatever happens.
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = [unshare, "--mount", "sh", "-c"]
    script = f'{mount} -t tmpfs -o size=1m tmpfs "$1"'
    if subprocess.run([*inside, script, "sh", str(disk)], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    script += ' && exec "$2" -c "$3" "$1/run"'
    done = subprocess.run(
        [*inside, script, "sh", str(disk), sys.executable, PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    check(result)
    assert result["episodes"] == []
    folder = disk / "run"
    for what, file in {
        "checkpoint": "checkpoints/",
        "best": "best.safetensors",
        "episode": "episodes/000001.safetensors",
        "metrics": "metrics.jsonl",
    }.items():
        assert result[what].startswith(f"cannot write {folder}/{file}")
        assert result[what].endswith(": the disk is full.")


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    # 170 kB: the states of 160 kB fit, the later ones of 240 kB do not, and the metrics grow until they do not.
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (170_000, 170_000))\n"
    limited = limit + PROGRAM.replace("np.full(20000,", "np.full(20000 if k < 5 else 30000,")
    done = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    result["best_is_old"] = True  # Here four small ones could be saved.
    check(result)
    assert result["episodes"] == [1, 2, 3, 4]
    for what in ("checkpoint", "best", "episode", "metrics"):
        assert result[what].endswith(": the file would be larger than this process or file system allows.")
