"""Carrying experiments out: every job once, then the conclusions."""

from collections.abc import Callable
from pathlib import Path

from firsthand.interrupt import Interrupt
from firsthand.runs import atomic

from .base import Finding, Job
from .display import Display
from .pool import Ended, Pool, Progress
from .study import Study

MAX_LOSSES = 3
"""A job that loses this number of workers without progress in between is given up."""


class JobsFailed(Exception):
    """Some jobs could not be finished; the message says which, and where to look."""


def carry_out(studies: list[Study], make_pool: Callable[[int], Pool], display: Display) -> dict[str, Finding]:
    """Run what is not finished, conclude each study when its last job is, and return the findings by name.

    `make_pool` is called with the number of jobs to run; not at all when there is none. Jobs that several studies
    share, or that a neighbouring folder already has, are copied.
    """
    findings: dict[str, Finding] = {}
    waiting: dict[str, list[tuple[Study, Job]]] = {}
    for study in studies:
        for job in study.jobs:
            if study.is_finished(job):
                display.finished_before(study, job)
            elif study.borrow(job, study.neighbours()):
                display.borrowed(study, job)
            else:
                waiting.setdefault(job.id, []).append((study, job))
    todo = sorted((pairs[0] for pairs in waiting.values()), key=lambda p: -p[1].steps * p[1].weight)
    display.plan([job for _, job in todo])

    def conclude() -> None:
        for study in studies:
            if study.experiment.name not in findings and all(study.is_finished(job) for job in study.jobs):
                findings[study.experiment.name] = study.conclude()
                display.show_finding(study, findings[study.experiment.name])

    conclude()
    if todo:
        errors = _run(todo, waiting, make_pool(len(todo)), display, conclude)
        if errors:
            raise JobsFailed(" ".join(errors))
    return findings


def _run(
    todo: list[tuple[Study, Job]],
    waiting: dict[str, list[tuple[Study, Job]]],
    pool: Pool,
    display: Display,
    conclude: Callable[[], None],
) -> list[str]:
    """Run jobs until none is left; what failed, as sentences."""
    errors: list[str] = []
    losses: dict[str, int] = {}
    furthest: dict[str, float] = {}
    running: dict[str, tuple[Study, Job]] = {}
    todo = list(todo)
    with Interrupt() as interrupt:
        try:
            while todo or running:
                while todo and len(running) < pool.slots:
                    study, job = todo.pop(0)
                    running[job.id] = (study, job)
                    pool.start(job.id, study.prepare(job))
                    display.started(study, job)
                for event in pool.poll(0.5):
                    study, job = running[event.id]
                    if isinstance(event, Progress):
                        if event.done > furthest.get(job.id, -1):
                            furthest[job.id] = event.done
                            losses.pop(job.id, None)
                        display.progress(job, event.done, event.note)
                        continue
                    del running[job.id]
                    if event.lost and losses.get(job.id, 0) + 1 < MAX_LOSSES:
                        losses[job.id] = losses.get(job.id, 0) + 1
                        display.lost(study, job, event.error or "")
                        todo.insert(0, (study, job))
                        continue
                    _end(event, study, job, waiting, display, errors)
                    conclude()
                if interrupt.pressed():
                    raise KeyboardInterrupt
        finally:
            pool.stop()
    return errors


def _end(
    event: Ended,
    study: Study,
    job: Job,
    waiting: dict[str, list[tuple[Study, Job]]],
    display: Display,
    errors: list[str],
) -> None:
    """A job is over: pass its data on to the other studies that want it, or note why it has no data."""
    if event.error is not None:
        atomic.write_text(study.folder(job) / "error.txt", event.error + "\n")
        errors.append(f"{study.experiment.name}/{job.name}: {event.error.removesuffix('.')}.")
        display.failed(study, job, event.error)
        return
    atomic.remove(study.folder(job) / "error.txt")
    display.finished(study, job)
    for other, same in waiting[job.id][1:]:
        other.take(same, study.path)


def default_folder(name: str, size: str) -> Path:
    """Where an experiment goes unless told otherwise."""
    return Path("experiments") / (name if size == "full" else f"{name}-{size}")
