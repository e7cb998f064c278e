"""A machine at work that learns: references from a program of yours, updates in the background.

    import firsthand as fh

    with fh.WorkSession("tcp/127.0.0.1:7447", "runs/excavator") as work:
        for points in my_program():       # (n, outputs), one point per control period
            work.send(points)

Chunks that the machine has done are taken whenever `send` or `look` is called, in the caller's thread. Only an update
is computed in a thread of its own, while the machine goes on; its policy is handed over at the next chunk.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard.link import identity
from firsthand_onboard.work import DoneChunk, WorkClient, WorkRefused

from ...agent import LearnerState
from ...errors import UserError
from ...robots.description import spec_difference
from ...robots.onboard import as_record
from ...robots.remote import RemoteAddress, security, signing_key
from ...tasks import Task
from ..prior import gather
from ..run import Run
from .learner import Update, WorkLearner, WorkReport, WorkSettings

BLOCK_S = 30.0
"""Work is looked at in blocks of about this length."""


class WorkSession:
    """A stream of work on one machine, and the learner that watches it."""

    def __init__(
        self,
        address: str,
        run: str | Path,
        *,
        task: Task | None = None,
        authority: float | None = None,
        work: WorkSettings | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """
        Args:
            address: of the machine, tcp/host:port or tls/host:port.
            run: the folder of the run whose policy and model the day begins with.
            task: the machine's; by default that of the run's robot.
            authority: share of the command range; by default what the run has earned on this machine.
            work: how work is learned from.
            say: told what happens, as sentences.
        """
        source = Run.open(run)
        task = source.find_robot().task if task is None else task
        prior = gather(task.spec, init_from=Path(run))
        settings = source.config.settings
        state = prior.initial(LearnerState.random(task.spec, settings, seed=source.config.seed))
        at = RemoteAddress.parse(address)
        self.say = say
        self.client = WorkClient(
            at.address,
            state.controller.arrays(),
            security(),
            authority=authority if authority is not None else _earned(source, at),
            key=signing_key(),
            run=f"work-{identity()[:8]}",
        )
        if difference := spec_difference(self.client.spec, task.spec):
            self.client.close()
            raise UserError(f"the policy of {run} cannot work on {address}: {difference}.")
        block = max(round(BLOCK_S / (task.steps * task.spec.period_s)), 1)
        self.learner = WorkLearner(task, settings, state, work, block_trajectories=block, seed=source.config.seed)
        self.reports: list[WorkReport] = []
        """What each block of work showed."""
        self._chunks: list[DoneChunk] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="update")
        self._update: Future[Update] | None = None

    def __enter__(self) -> "WorkSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> np.ndarray:
        """The tracked output now: where work has to begin."""
        return self.client.start()

    def send(self, points: Any) -> None:
        """More work; waits while a minute of it lies ahead. `UserError` says what is wrong with it."""
        self.look()
        try:
            self.client.send(points)
        except WorkRefused as error:
            raise UserError(f"The machine refuses the work: {error}.") from None
        self.look()

    def look(self) -> None:
        """Take what the machine has done, and hand over what was learned."""
        for chunk in self.client.done():
            if chunk.ended != "done":
                self.say(f"work ended: {chunk.ended}")
            if np.asarray(chunk.arrays["valid"]).any():
                self._chunks.append(chunk)
        if self._update is not None and self._update.done():
            self.learner.adopt(self._update.result())
            self._update = None
            self._hand_over()
        while len(self._chunks) >= self.learner.block_trajectories:
            block, self._chunks = self._split()
            self._take(block)

    def _split(self) -> tuple[list[DoneChunk], list[DoneChunk]]:
        count = self.learner.block_trajectories
        return self._chunks[:count], self._chunks[count:]

    def _take(self, block: list[DoneChunk]) -> None:
        report = self.learner.take(as_record([chunk.arrays for chunk in block]))
        self.reports.append(report)
        if report.choice != "same":
            self.say(f"{report.choice} conditions (number {report.context})")
        if report.taken_back:
            self.say("the policy was worse than the one before it, and was taken back")
        if report.choice != "same" or report.taken_back:
            self._hand_over()
        if report.due and self._update is None:
            self._update = self._thread.submit(self.learner.begin_update())

    def _hand_over(self) -> None:
        self.client.use(self.learner.controller.arrays())

    def close(self) -> None:
        """The machine finishes its chunk and rests; an update that is under way is thrown away."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.client.close()


def _earned(run: Run, at: RemoteAddress) -> float:
    """Share of the command range that the run has earned on this machine."""
    from ...robots.remote import RemoteRobot

    return run.earned_authority(RemoteRobot(at.address, run.find_robot().task))
