"""`firsthand experiment`: what is listed, what is refused, and Ctrl-C."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firsthand.cli import main
from firsthand_lab.experiments import Size
from firsthand_lab.experiments.registry import EXPERIMENTS, find
from firsthand_lab.experiments.study import Study

PATIENCE_S = 180
"""After so long a process counts as hanging; machines are slow when they are busy."""


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """`refusal(*arguments)`: the one sentence that the command line says, with exit code 2."""
    monkeypatch.chdir(tmp_path)
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # main() sets them; this restores them

    def run(*arguments: str | Path) -> str:
        before = sorted(p for p in tmp_path.rglob("*") if p.name != "lock")
        with pytest.raises(SystemExit) as end:
            main(["experiment", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert end.value.code == 2
        assert out == ""
        assert re.fullmatch(r"firsthand: [^\n]+\.\n", err), err
        assert sorted(p for p in tmp_path.rglob("*") if p.name != "lock") == before
        return err

    return run


def test_the_list_names_every_experiment_with_its_cost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as end:
        main(["experiment", "--list"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    for name in EXPERIMENTS:
        line = next(line for line in out.splitlines() if line.split()[:1] == [name])
        assert find(name).figure.split()[0] in line
        assert f"{find(name).cost.full_min:.0f} min" in line


def test_an_unknown_experiment_is_answered_with_the_near_one(refusal: Callable[..., str]) -> None:
    assert "did you mean 'convergence'?" in refusal("convergance")


def test_the_experiment_must_be_named(refusal: Callable[..., str]) -> None:
    assert "--list" in refusal("--quick")


def test_zero_seeds_are_refused(refusal: Callable[..., str]) -> None:
    assert "seeds is 0, but must be at least 1" in refusal("convergence", "--seeds", "0")


def test_too_many_seeds_are_refused(refusal: Callable[..., str]) -> None:
    assert "seeds is 1000" in refusal("convergence", "--seeds", "1000")


def test_no_workers_are_refused(refusal: Callable[..., str]) -> None:
    assert "workers is 0, but must be at least 1" in refusal("convergence", "--workers", "0")


def test_the_folder_of_another_experiment_is_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    with Study(tmp_path / "out", find("payload"), Size("quick", 2)):
        pass
    said = refusal("convergence", "--quick", "--seeds", "2", "--out", tmp_path / "out")
    assert "holds the experiment 'payload'" in said
    assert "--out" in said


def test_an_address_needs_ray(refusal: Callable[..., str]) -> None:
    assert "--on ray" in refusal("convergence", "--address", "host:6379")


def test_a_cluster_that_does_not_answer_is_named(refusal: Callable[..., str]) -> None:
    assert "no Ray cluster answers at 127.0.0.1:9" in refusal("convergence", "--on", "ray", "--address", "127.0.0.1:9")


def test_ray_that_is_not_installed_is_named(refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # what Python does for a module that cannot be imported
    assert "lab[ray]" in refusal("convergence", "--on", "ray")


@pytest.mark.slow
def test_all_of_them_in_the_smallest_form(tmp_path: Path) -> None:
    """Through the command line, in processes; what they share is run once."""
    command = [sys.executable, "-m", "firsthand", "experiment", "all", "--tiny", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "out" / "summary.md").read_text()
    for name in EXPERIMENTS:
        assert f"[{name}]({name}/finding.md)" in summary
        assert (tmp_path / "out" / name / "finding.json").exists()


def test_ctrl_c_leaves_everything_resumable_and_says_how_to_continue(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "firsthand", "experiment", "payload", "--tiny", "--out", str(tmp_path / "my out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    while not list((tmp_path / "my out").glob("jobs/*/log.txt")):
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    again = err.rpartition("Continue with: ")[2].strip()
    assert shlex.split(again)[:3] == ["firsthand", "experiment", "payload"]
    assert str(tmp_path / "my out") in shlex.split(again)
    with Study(tmp_path / "my out", find("payload"), Size("tiny", 2)) as study:
        assert not any(study.is_finished(job) for job in study.jobs)
