"""The folder of one experiment.

experiment.json     which experiment, size and seeds, and where it was started
jobs/ID/            job.json, the job's data, done.json once it is finished
finding.md, finding.json, NAME.png, NAME.svg, NAME.csv
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from firsthand.errors import UserError
from firsthand.runs import atomic, provenance
from firsthand.runs.atomic import WriterLock

from . import files, worker
from .base import Experiment, Finding, Job, Result, Size
from .finding_files import write_finding

FORMAT = 1
DESCRIPTION = "experiment.json"


class Study:
    """An experiment of one size in one folder. Use it in a `with`: no other process can then write to the folder."""

    def __init__(self, path: Path, experiment: Experiment, size: Size) -> None:
        self.path, self.experiment, self.size = path, experiment, size
        self.jobs = experiment.jobs(size)
        ids = [job.id for job in self.jobs]
        assert len(set(ids)) == len(ids), f"two jobs of {experiment.name} are the same"
        self._lock = WriterLock(path / "lock")

    def __enter__(self) -> Self:
        seeds = None if self.experiment.grows else self.size.seeds
        claim(self.path, self.experiment.name, self.size.name, seeds)
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def folder(self, job: Job) -> Path:
        """Where a job's data is."""
        return self.path / "jobs" / job.id

    def is_finished(self, job: Job) -> bool:
        """Whether it need not be run again."""
        return (self.folder(job) / files.DONE).exists()

    def prepare(self, job: Job) -> Path:
        """The job's folder, ready for a worker. What runs there is `job`, whatever the folder held before."""
        folder = self.folder(job)
        files.write_json(folder / worker.JOB, job.as_dict())
        return folder

    def borrow(self, job: Job, elsewhere: Iterable[Path]) -> bool:
        """Take the data of the same job, run by the same code, from another experiment's folder."""
        code = worker.code_digest(job.runner)
        for other in elsewhere:
            done = other / "jobs" / job.id / files.DONE
            if other != self.path and done.exists() and files.read_json(done).get("code") == code:
                self.take(job, other)
                return True
        return False

    def take(self, job: Job, other: Path) -> None:
        """Copy the finished job from another experiment's folder."""
        target = self.folder(job)
        atomic.make_folder(target.parent)
        shutil.rmtree(target, ignore_errors=True)
        copy = target.with_name(f".{target.name}.copy")
        shutil.rmtree(copy, ignore_errors=True)
        unwanted = shutil.ignore_patterns(files.CHECKPOINT, "log.txt")
        shutil.copytree(other / "jobs" / job.id, copy, ignore=unwanted)
        copy.rename(target)

    def neighbours(self) -> list[Path]:
        """Other experiments in the folder that this one is in."""
        return sorted(p.parent for p in self.path.parent.glob(f"*/{DESCRIPTION}") if p.parent != self.path)

    def results(self) -> list[Result]:
        """The data of all jobs, which must be finished."""
        return [Result(job, self.folder(job)) for job in self.jobs]

    def conclude(self, *, so_far: bool = False) -> Finding:
        """Draw the conclusion and write it down; `so_far` from the jobs that are finished."""
        results = [r for r in self.results() if r.finished or not so_far]
        finding = self.experiment.conclude(self.size, results)
        write_finding(self.path, self.experiment, self.size, results, finding)
        return finding


def claim(path: Path, experiment: str, size: str, seeds: int | None) -> None:
    """Make `path` the folder of this experiment, or make sure that it is."""
    wanted: dict[str, Any] = {"experiment": experiment, "size": size, "seeds": seeds}
    description = path / DESCRIPTION
    if description.exists():
        found = files.read_json(description)
        for name, value in wanted.items():
            if found.get(name) != value:
                raise UserError(
                    f"{path} holds the experiment {found.get('experiment')!r} with {name} {found.get(name)}, and now "
                    f"{name} is {value}; give another folder with --out."
                )
        if found.get("format") != FORMAT:
            raise UserError(f"{path} was written by another version of firsthand; give another folder with --out.")
        return
    if path.exists() and not path.is_dir():
        raise UserError(f"cannot make the folder {path}: a file has that name.")
    if path.exists() and any(p.name not in ("lock",) and not atomic.is_temporary(p.name) for p in path.iterdir()):
        raise UserError(f"{path} is not empty and holds no experiment; give another folder with --out.")
    atomic.make_folder(path)
    atomic.write_json(description, {"format": FORMAT, **wanted, "provenance": provenance.collect()})
