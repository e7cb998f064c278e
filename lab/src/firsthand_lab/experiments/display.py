"""What an experiment shows while it runs: a bar with the time left; plain lines where there is no terminal."""

import time
from typing import Any, Self

from rich.progress import Progress, TextColumn

from firsthand.console import console, notify, progress_columns

from .base import Finding, Job
from .study import Study

EVERY_S = 30.0
"""How often a line is printed where there is no terminal."""


class Display:
    """The progress of all jobs together, and of each that is running."""

    def __init__(self) -> None:
        self.live = console.is_terminal
        self.bars = Progress(
            *progress_columns(
                (TextColumn("{task.description}"),),
                (TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.fields[note]}")),
            ),
            console=console,
            speed_estimate_period=600,
        )
        self._rows: dict[str, Any] = {}
        self._finished_before: list[str] = []
        self._done: dict[str, float] = {}
        self._total = self._at_start = 0.0
        self._all: Any = None
        self._began = self._reported = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    # Before the first job.

    def finished_before(self, study: Study, job: Job) -> None:
        """A job was finished by an earlier call."""
        self._finished_before.append(f"{study.experiment.name}/{job.name}")

    def borrowed(self, study: Study, job: Job) -> None:
        """A job's data was found in a neighbouring folder."""
        notify(f"{study.experiment.name}/{job.name}: taken from another experiment that ran the same job.")

    def plan(self, jobs: list[Job]) -> None:
        """These jobs will be run."""
        if count := len(self._finished_before):
            notify(f"Kept from an earlier call: {count} finished job{'s' if count > 1 else ''}.")
        self._total = sum(job.steps * job.weight for job in jobs)
        self._began = self._reported = time.monotonic()
        if self.live and jobs:
            self.bars.start()
            self._all = self.bars.add_task(f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}", total=self._total, note="")

    # While they run.

    def started(self, study: Study, job: Job) -> None:
        """A worker has it."""
        name = f"{study.experiment.name}/{job.name}"
        if self.live:
            self._rows[job.id] = self.bars.add_task(name, total=job.steps, note="starting")
        else:
            notify(f"{name}: started.")

    def progress(self, job: Job, done: float, note: str) -> None:
        """It has come so far."""
        if job.id not in self._done:
            self._at_start += done * job.weight  # behind us already when it was started: says nothing about the speed
        self._done[job.id] = done * job.weight
        if self.live:
            self.bars.update(self._rows[job.id], completed=done, note=note)
            self.bars.update(self._all, completed=sum(self._done.values()))
        elif time.monotonic() - self._reported >= EVERY_S:
            self._reported = time.monotonic()
            share = 100 * sum(self._done.values()) / self._total
            notify(f"{share:.0f} % done, {self._time_left()} left; {job.name}: {note}")

    def _time_left(self) -> str:
        done = sum(self._done.values())
        if done <= self._at_start:
            return "unknown time"
        seconds = (time.monotonic() - self._began) * (self._total - done) / (done - self._at_start)
        return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"

    def _remove(self, job: Job) -> None:
        if job.id in self._rows:
            self.bars.remove_task(self._rows.pop(job.id))

    def finished(self, study: Study, job: Job) -> None:
        """Show that a job is finished."""
        self._remove(job)
        self._done[job.id] = job.steps * job.weight
        if self.live:
            self.bars.update(self._all, completed=sum(self._done.values()))
        else:
            notify(f"{study.experiment.name}/{job.name}: done.")

    def lost(self, study: Study, job: Job, why: str) -> None:
        """Its worker died; it will be run again from its last checkpoint."""
        self._remove(job)
        notify(f"{study.experiment.name}/{job.name}: worker lost ({why}); it goes on from its last checkpoint.")

    def failed(self, study: Study, job: Job, why: str) -> None:
        """It cannot be finished."""
        self._remove(job)
        notify(f"{study.experiment.name}/{job.name}: failed: {why}")

    def show_finding(self, study: Study, finding: Finding) -> None:
        """All jobs of an experiment are done."""
        notify(f"{study.experiment.name}: {finding.verdict.value}; written: {study.path / 'finding.md'}")
