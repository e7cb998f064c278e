"""Carries a job out: its trajectories one after the other, until one is cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .homing import HomingController
from .jobs import Job
from .leases import LEASE_LOST
from .loop import DONE, Executor, Trajectory
from .streams import STOPPED as STREAM_STOPPED
from .streams import Stream

KEPT_CHUNKS = 64
"""Of a stream, the newest chunks that can be fetched again."""


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    reason: str
    """`done`, or why it was cut short."""
    fault: bool = False
    """Whether the reason is a fault that latches."""


class JobRunner:
    """Runs one job at a time on an executor. `poll` reads messages and returns why a trajectory must end now."""

    def __init__(self, executor: Executor, homing: HomingController | None, poll: Callable[[], str]) -> None:
        self.executor, self.homing, self._poll = executor, homing, poll
        self.interruption = ""
        """Why the running trajectory ends at once; empty while it may go on."""
        self._is_last = False

    def start(self) -> None:
        """A new job begins: nothing interrupts it yet."""
        self.interruption, self._is_last = "", False

    def interrupt(self, reason: str) -> None:
        """End the running trajectory at once."""
        self.interruption = reason

    def finish_trajectory(self) -> None:
        """End the job when the running trajectory is over."""
        self._is_last = True

    def run(self, job: Job, on_trajectory: Callable[[int], None]) -> JobEnd:
        """All trajectories of a job; `on_trajectory` is told the index of each that is over."""
        if job.stream is not None:
            return self._run_stream(job, job.stream, on_trajectory)
        for index in range(job.count):
            reason = self._poll()  # the loop may have been away since the job came, or since the last trajectory
            if reason or self._is_last:
                return JobEnd(reason or LEASE_LOST)
            trajectory = self._run_trajectory(job, index)
            job.trajectories.append(trajectory)
            on_trajectory(index)
            if trajectory.ended != DONE:
                return JobEnd(trajectory.ended, trajectory.fault)
        return JobEnd(DONE)

    def _run_stream(self, job: Job, stream: Stream, on_trajectory: Callable[[int], None]) -> JobEnd:
        """Chunks of work, one after the other without a pause, until no more comes."""
        while True:
            reason = self._poll()
            if reason or self._is_last:
                return JobEnd(reason or LEASE_LOST)
            points = stream.next_chunk()
            if points is None:
                return JobEnd(STREAM_STOPPED)
            assert job.controller is not None
            policy, observer = job.controller
            job.policies.append(job.policy)
            chunk = self.executor.follow(policy, points, None, job.authority, observer=observer, hand_over=True)
            job.trajectories.append(chunk)
            on_trajectory(len(job.trajectories) - 1)
            if len(job.trajectories) > KEPT_CHUNKS:
                job.trajectories[-1 - KEPT_CHUNKS] = None
            if chunk.ended != DONE:
                return JobEnd(chunk.ended, chunk.fault)

    def _run_trajectory(self, job: Job, index: int) -> Trajectory:
        executor, arrays = self.executor, job.arrays
        if job.kind == "play":
            return executor.play(arrays["commands"], job.authority, self._ends_at)
        if job.kind == "recover":
            return executor.recover(self._ends_at)
        if job.kind == "home":
            assert self.homing is not None
            return executor.home(self.homing, job.authority, self._ends_at)
        assert job.controller is not None
        policy, observer = job.controller
        if job.kind == "follow":
            return executor.follow(policy, arrays["reference"], None, job.authority, self._ends_at, observer)
        excitation = arrays["excitation"][index] if "excitation" in arrays else None
        return executor.visit(policy, arrays["goals"][index], excitation, job.authority, observer)

    def _ends_at(self, step: int) -> str:
        """A long motion counts as a chain of trajectories of the usual length: only the running one is finished."""
        return LEASE_LOST if self._is_last and step % self.executor.spec.reference.steps == 0 else ""
