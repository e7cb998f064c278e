"""Jobs in real processes: finished ones are not repeated, killed ones continue, failed ones are named."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import pytest

from firsthand.errors import UserError
from firsthand_lab.experiments import Comparison, Job, Report, Size, Verdict, files, worker
from firsthand_lab.experiments.display import Display
from firsthand_lab.experiments.learning import run_in_order
from firsthand_lab.experiments.pool import LocalPool, shares
from firsthand_lab.experiments.run import JobsFailed, carry_out
from firsthand_lab.experiments.study import Study

from .counting import STEPS, Counting

TWO = Size("tiny", 2)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers must find the counting job, and may run it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv(worker.MODULES, Counting.__module__)


def carried_out(path: Path, experiment: Counting, size: Size = TWO, slots: int = 2) -> Verdict:
    with Study(path, experiment, size) as study, Display() as display:
        return carry_out([study], lambda jobs: LocalPool(min(slots, jobs)), display)["counting"].verdict


def test_jobs_are_done_once_and_concluded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert carried_out(out, Counting()) is Verdict.PASS
    data = json.loads((out / "finding.json").read_text())
    assert data["verdict"] == "PASS"
    assert data["rows"][0]["measured"] == "[0, 28]"
    assert (out / "totals.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "totals.svg").read_bytes().startswith(b"<?xml")
    assert files.read_csv(out / "totals.csv")["total"].tolist() == [0.0, 28.0]
    jobs = sorted((out / "jobs").iterdir())
    pids = {json.loads((job / "total.json").read_text())["pid"] for job in jobs}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert not any((job / files.CHECKPOINT).exists() for job in jobs)
    before = [(job / "total.json").read_bytes() for job in jobs]
    assert carried_out(out, Counting()) is Verdict.PASS
    assert [(job / "total.json").read_bytes() for job in jobs] == before


def test_a_killed_worker_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    assert carried_out(tmp_path / "out", Counting(die_at=5)) is Verdict.PASS
    for job in (tmp_path / "out" / "jobs").iterdir():
        assert (job / "died").exists()
        assert json.loads((job / "total.json").read_text())["added"] == list(range(STEPS))


def test_a_job_that_always_dies_in_the_same_place_is_given_up(tmp_path: Path) -> None:
    """Although it tells each time, before it dies, that it is there."""
    with pytest.raises(JobsFailed, match="counting/factor-0"):
        carried_out(tmp_path / "out", Counting(doomed_at=3))


@pytest.mark.parametrize(
    "runner",
    [
        "evil:run",  # beside the folder
        "os:system",
        "firsthand_lab:os.system",
        "firsthand_lab_evil:run",
        "firsthand_lab.experiments.worker:import_module",
        "firsthand_lab.experiments.worker:Job",
        "firsthand_lab.experiments.nowhere:run",
        "firsthand_lab.experiments.worker:nothing",
    ],
)
def test_a_strangers_folder_names_no_code_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str) -> None:
    for name in ("evil.py", "firsthand_lab_evil.py"):
        (tmp_path / name).write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    stranger = {"name": "a", "runner": runner, "parameters": {}}
    files.write_json(tmp_path / "job" / worker.JOB, stranger)
    with pytest.raises(UserError, match="the job's runner is"):
        worker.perform(tmp_path / "job", lambda done, note="": None)
    with Study(tmp_path / "out", Counting(), Size("tiny", 1)) as study:  # the same in a study that goes on
        (job,) = study.jobs
        files.write_json(study.folder(job) / worker.JOB, stranger)
        assert worker.read_job(study.prepare(job)) == job
    assert not (tmp_path / "ran").exists()


def test_a_job_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    """What an earlier try has left is not taken for its own."""
    with Study(tmp_path / "out", Counting(), Size("tiny", 1)) as study:
        (job,) = study.jobs
        folder = study.prepare(job)
        files.write_json(folder / files.CHECKPOINT / worker.STARTS, [{"code": "old", "commit": "abc"}])
        files.write_json(folder / "curves.json", {"episode": 30})
        worker.perform(folder, lambda done, note="": None)
    assert not (folder / "curves.json").exists()
    assert files.read_json(folder / files.DONE)["code"] == worker.code_digest(job.runner)


def test_a_killed_experiment_continues_without_repeating_finished_jobs(tmp_path: Path) -> None:
    """The whole process is killed while the second job runs; its worker must not live on."""
    script = (
        "import sys; from pathlib import Path; from experiments.counting import Counting; "
        "from experiments.test_framework import carried_out; "
        "carried_out(Path(sys.argv[1]), Counting(pause_s=0.15), slots=1)"
    )
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", script, str(out)])
    jobs = [out / "jobs" / job.id for job in Counting(pause_s=0.15).jobs(TWO)]
    deadline = time.monotonic() + 60
    while not (jobs[1] / files.CHECKPOINT / "state.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = (jobs[0] / "total.json").read_bytes()
    time.sleep(0.5)
    assert not (jobs[1] / files.DONE).exists()
    begun = files.read_json(jobs[1] / files.CHECKPOINT / "state.json")["done"]
    assert carried_out(out, Counting(pause_s=0.15)) is Verdict.PASS
    assert (jobs[0] / "total.json").read_bytes() == first
    assert 0 < begun < STEPS
    assert json.loads((jobs[1] / "total.json").read_text())["added"] == list(range(STEPS))


class Interrupted(LocalPool):
    """Ctrl-C arrives while a process is started, in a hook whose exceptions Python prints and forgets."""

    def start(self, id: str, folder: Path) -> None:
        super().start(id, folder)
        owner = threading.Event()
        hook = weakref.ref(owner, lambda _: signal.raise_signal(signal.SIGINT))
        assert hook() is owner
        del owner


def test_ctrl_c_is_not_lost_in_a_hook(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Study(tmp_path / "out", Counting(), TWO) as study, Display() as display, pytest.raises(KeyboardInterrupt):
        carry_out([study], lambda jobs: Interrupted(1), display)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failing_job_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    class OneFails(Counting):
        def jobs(self, size: Size) -> list[Job]:
            good, bad = super().jobs(size)
            return [good, Job(bad.name, bad.runner, {**bad.parameters, "fail_at": 3}, steps=bad.steps)]

    with pytest.raises(JobsFailed, match="counting/factor-1: RuntimeError: this job always fails"):
        carried_out(tmp_path / "out", OneFails())
    done = [(job / files.DONE).exists() for job in sorted((tmp_path / "out" / "jobs").iterdir())]
    assert done == [True, False]


def test_a_job_that_a_neighbour_has_done_is_copied(tmp_path: Path) -> None:
    carried_out(tmp_path / "one", Counting())
    carried_out(tmp_path / "two", Counting())
    ours, theirs = (
        [(job / "total.json").read_bytes() for job in sorted((tmp_path / name / "jobs").iterdir())]
        for name in ("one", "two")
    )
    assert ours == theirs  # the process that did it is noted in there


def test_a_job_that_was_begun_with_other_code_goes_on_and_says_so(tmp_path: Path) -> None:
    """It keeps what it has done, is never repeated, and is nobody else's."""
    with Study(tmp_path / "one", Counting(), Size("tiny", 1)) as study:
        (job,) = study.jobs
        begun = study.prepare(job) / files.CHECKPOINT
        files.write_json(begun / "state.json", {"done": 5, "total": 0, "added": [5]})
        files.write_json(begun / worker.STARTS, [{"code": "old", "commit": "abc"}])
        worker.perform(study.folder(job), lambda done, note="": None)
    done = files.read_json(study.folder(job) / files.DONE)
    assert done["code"] == f"old+{worker.code_digest(job.runner)}"
    assert done["commit"] == f"abc then {worker.commit()}"
    assert files.read_json(study.folder(job) / "total.json")["added"] == [5, 5, 6, 7]
    assert study.is_finished(job)
    with Study(tmp_path / "two", Counting(), Size("tiny", 1)) as other:
        assert not other.borrow(job, [study.path])
        other.take(job, study.path)
        assert other.is_finished(job)


def test_a_checkpoint_of_which_nobody_knows_the_code_is_no_single_version(tmp_path: Path) -> None:
    (tmp_path / files.CHECKPOINT).mkdir()
    code = worker.note_version(tmp_path, "firsthand_lab.experiments.learning:run")["code"]
    assert code == f"unknown+{worker.code_digest('firsthand_lab.experiments.learning:run')}"
    assert worker.note_version(tmp_path, "firsthand_lab.experiments.learning:run")["code"] == code  # killed once more


def test_the_code_of_a_job_is_everything_that_its_data_may_come_from() -> None:
    found = {path.as_posix().partition("src/")[2] for path in worker.sources("firsthand_lab.experiments.learning:run")}
    for name in ("experiments/theory/setup.py", "experiments/sensitivity.py"):
        assert f"firsthand_lab/{name}" in found
    for package in worker._DATA_COMES_FROM:
        assert f"firsthand/{package}/__init__.py" in found
    assert "firsthand_onboard/features.py" in found
    assert not any(name.startswith("firsthand_lab/baselines") for name in found)


def test_a_job_is_another_one_when_its_parameters_are(tmp_path: Path) -> None:
    job, same, other = (Job("a", "m:f", p) for p in ({"x": 1, "y": 2.5}, {"y": 2.5, "x": 1}, {"x": 1, "y": 2.25}))
    assert job.id == same.id
    assert job.id != other.id


@pytest.mark.parametrize(
    ("verdicts", "overall"),
    [
        ([None, Verdict.PASS, Verdict.PASS], Verdict.PASS),
        ([Verdict.PASS, Verdict.NOT_COMPARABLE], Verdict.NOT_COMPARABLE),
        ([Verdict.NOT_COMPARABLE, Verdict.FAIL, Verdict.PASS], Verdict.FAIL),
        ([None], Verdict.NOT_COMPARABLE),
        ([], Verdict.NOT_COMPARABLE),
    ],
)
def test_one_row_that_fails_fails_the_whole(verdicts: list[Verdict | None], overall: Verdict) -> None:
    assert Verdict.overall(Comparison("q", "1", "2", verdict) for verdict in verdicts) is overall


def test_only_the_full_size_can_tell() -> None:
    assert Verdict.of_full(False, Size("full", 1)) is Verdict.FAIL
    assert Verdict.of_full(True, Size("full", 1)) is Verdict.PASS
    assert Verdict.of_full(True, Size("quick", 1)) is Verdict.NOT_COMPARABLE


def test_parts_in_turn_are_not_repeated(tmp_path: Path) -> None:
    told, ran = [], []

    def part(name: str, report: Report) -> list[dict]:
        ran.append(name)
        report(3)
        if ran == ["a", "b"]:
            raise KeyboardInterrupt
        return [{"part": name, "x": len(ran)}]

    def go() -> None:
        run_in_order(
            tmp_path / "t.csv", "part", {n: partial(part, n) for n in "abc"}, 5, lambda done, note="": told.append(done)
        )

    with pytest.raises(KeyboardInterrupt):
        go()
    go()
    assert ran == ["a", "b", "b", "c"]
    assert told == [3, 8, 8, 13]
    assert files.read_csv(tmp_path / "t.csv")["x"].tolist() == [1, 3, 4]


def test_cores_are_shared_out() -> None:
    cores = sorted(os.sched_getaffinity(0))
    for slots in range(1, 5):
        given = shares(slots)
        assert len(given) == slots
        assert all(given)
        if slots <= len(cores):
            assert sorted(core for share in given for core in share) == cores


@pytest.mark.parametrize(
    ("size", "says"), [(Size("quick", 2), "size is quick"), (Size("tiny", 3), "seeds is 3")], ids=["size", "seeds"]
)
def test_the_folder_of_another_size_is_refused(tmp_path: Path, size: Size, says: str) -> None:
    with Study(tmp_path / "out", Counting(), TWO):
        pass
    with pytest.raises(UserError, match=says), Study(tmp_path / "out", Counting(), size):
        pass


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(UserError, match="holds no experiment"), Study(tmp_path, Counting(), TWO):
        pass
