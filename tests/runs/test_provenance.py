import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import jax

from firsthand.runs import provenance


def test_what_is_collected() -> None:
    collected = provenance.collect()
    assert collected["run_id"] != provenance.collect()["run_id"]
    assert json.loads(json.dumps(collected)) == collected
    assert collected["packages"]["jax"] == jax.__version__
    assert set(collected["packages"]) >= {"firsthand", "jaxlib", "equinox", "optax", "numpy"}
    assert datetime.fromisoformat(collected["started_utc"]).utcoffset() == timedelta(0)
    assert collected["cpu_count"] >= 1
    assert collected["argv"]


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("1")
    assert provenance._git(file) is None
    git(tmp_path, "init")
    assert provenance._git(file) is None
    git(tmp_path, "add", "module.py")
    assert provenance._git(file) is None
    git(tmp_path, "commit", "-m", "x")
    clean = provenance._git(file)
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    file.write_text("2")
    assert provenance._git(file) == {"commit": clean["commit"], "dirty": True}
    installed = tmp_path / "installed.py"
    installed.touch()
    assert provenance._git(installed) is None


def test_it_never_fails(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance.collect()["git"] is None
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    assert provenance.collect()["packages"] == {"no-such-package": None}


def test_differences_that_may_change_the_bits() -> None:
    now = provenance.collect()
    assert provenance.differences(now, {**now, "argv": ["other"], "started_utc": "later"}) == []
    before = {**now, "packages": {**now["packages"], "jax": "0.1"}, "environment": {"XLA_FLAGS": "x"}, "python": "3"}
    notes = provenance.differences(before, {**now, "environment": {}})
    assert notes == [
        f"jax was 0.1 when the run started and is now {jax.__version__}.",
        "XLA_FLAGS was x when the run started and is now not set.",
        f"python was 3 when the run started and is now {now['python']}.",
    ]
    assert provenance.differences({}, now)
