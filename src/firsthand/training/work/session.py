"""A machine at work that learns: references from a program of yours, updates in the background.

    import firsthand as fh

    with fh.WorkSession("tcp/127.0.0.1:7447", "runs/excavator") as work:
        for points in my_program():       # (n, outputs), one point per control period
            work.send(points)

Finished chunks are taken whenever `send` or `look` is called, in the caller's thread. Only updates run in a thread of
their own, while the machine goes on; the new policy takes over at the next chunk. What was learned is kept in a folder,
with which the next session goes on.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard.jobs import policy_digest
from firsthand_onboard.link import identity
from firsthand_onboard.network import LinkError
from firsthand_onboard.work import LOOK_S, DoneChunk, WorkClient, WorkRefused

from ...agent import LearnerState
from ...errors import UserError
from ...robots.description import spec_difference
from ...robots.onboard import Arrays, as_record
from ...robots.remote import RemoteAddress, RemoteRobot, security, signing_key
from ...robots.user_file import is_robot_file
from ...runs.pytrees import from_arrays
from ...runs.work_folder import NAME, WorkFolder, WorkInfo
from ...tasks import Task
from ..base_guard import BaseSettings
from ..bases import FIRST_AUTHORITY, Base
from ..run import Run
from .control import WorkControl
from .learner import Update, WorkLearner, WorkReport, WorkSettings
from .store import WorkStore

BLOCK_S = 30.0
"""Work is looked at in blocks of about this length."""
TAKEN_BACK = ("take_back", "the base alone drives, as the operator has chosen")
GIVEN_BACK = ("give_back", "the learned part takes part again, as the operator has chosen")
"""Kinds of marks are these, session, update, conditions, policy, gap and ended."""


class WorkSession:
    """A stream of work on one machine, and the learner that watches it."""

    def __init__(
        self,
        address: str,
        run: str | Path,
        *,
        folder: str | Path | None = None,
        resume: bool = True,
        task: Task | None = None,
        authority: float | None = None,
        work: WorkSettings | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """
        `UserError` where the run, the machine or an argument cannot be used.

        Args:
            address: of the machine, tcp/host:port or tls/host:port.
            run: the folder of the run whose policy and model the day begins with.
            folder: where the work is kept; by default RUN/work, which the live page shows.
            resume: whether to go on with the work that is there; otherwise it is set aside under another name.
            task: the machine's; by default that of the run's robot.
            authority: share of the command range; by default what the run has earned on this machine.
            work: how work is learned from.
            say: told what happens, as sentences.
        """
        at, source = RemoteAddress.parse(address), Run.open(run)
        if authority is not None and not 0 < authority <= 1:
            raise UserError(f"authority is {authority:g}, but must be above 0 and at most 1.")
        task = source.find_robot().task if task is None else task
        if difference := spec_difference(source.description.spec, task.spec):
            raise UserError(f"the policy of {run} cannot be used for this task: {difference}.")
        settings, state = source.config.settings, newest_state(source)
        self.say = say
        authority = _earned_authority(source, at, task) if authority is None else authority
        options = {"authority": authority, "key": signing_key(), "run": f"work-{identity()[:8]}"}
        block = max(round(BLOCK_S / (task.steps * task.spec.period_s)), 1)
        mode = "add" if source.config.base is None else source.config.base.mode
        options_of_base = BaseSettings(first_authority=FIRST_AUTHORITY[mode])
        self.learner = WorkLearner(
            task, settings, state, work, block_trajectories=block, seed=source.config.seed, on_base=options_of_base
        )
        with self._report_refusals(), ExitStack() as undo:
            self.client = WorkClient(at.address, self.learner.controller.arrays(), security(), **options)
            undo.callback(self.client.close)
            if difference := spec_difference(self.client.spec, task.spec):
                raise UserError(f"the policy of {run} cannot work on {address}: {difference}.")
            self.store = WorkStore(self._open_folder(source, folder, address, resume), say)
            undo.callback(self.store.close)
            self.store.resume(self.learner)
            self.control = WorkControl(self.store.folder.path, at.address, self.learner, self._choose_base_alone)
            self.control.begin()
            undo.pop_all()
        self.client.use(self.learner.controller.arrays())
        self._policy = policy_digest(self.learner.controller.arrays())
        self.control.mark("session", "a session began")
        self.reports: list[WorkReport] = []
        """The result of each block of work of this session."""
        self._chunks: list[DoneChunk] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="update")
        self._update: Future[Update] | None = None

    def _open_folder(self, source: Run, folder: str | Path | None, address: str, resume: bool) -> WorkFolder:
        learner, spec = self.learner, self.learner.task.spec
        info = WorkInfo(
            run=source.folder.identity,
            spec=spec.to_json(),
            block_trajectories=learner.block_trajectories,
            block_s=learner.block_trajectories * learner.task.steps * spec.period_s,
            on_base=learner.contexts[learner.current].standing is not None,
            address=address,
            begun_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        opened, aside = WorkFolder.open(source.path / NAME if folder is None else folder, info, resume=resume)
        if aside is not None:
            self.say(f"the earlier work is kept as {aside}")
        return opened

    def __enter__(self) -> "WorkSession":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._close((str(error) or type(error).__name__) if isinstance(error, Exception) else "")

    def start(self) -> np.ndarray:
        """The tracked output now: where work has to begin."""
        with self._report_refusals():
            return self.client.start()

    def send(self, points: Any) -> None:
        """More work; waits, and learns, while a minute of it lies ahead. `UserError` says what is wrong with it.

        If the machine has ended earlier work early, this is reported once, as a `UserError`.
        """
        with self._report_refusals():
            self._look()
            while not self.client.has_room:
                time.sleep(LOOK_S)
                self._look()
            self.client.send(points)
            self._look()

    def take_back(self) -> None:
        """The base alone drives, from the next chunk on, until `give_back`; what it does is learned from."""
        self._set_base_alone(True)

    def give_back(self) -> None:
        """The learned part takes part again, with the authority that it had, once the base was compared with."""
        self._set_base_alone(False)

    def _set_base_alone(self, alone: bool) -> None:
        with self._report_refusals():
            try:
                self._look()  # what was done until now was done as before
            finally:
                self._choose_base_alone(alone)

    def _choose_base_alone(self, alone: bool) -> None:
        """An operator's choice, here or at the live page; it outlives the session."""
        if self.learner.contexts[self.learner.current].standing is None:
            raise UserError("The run has learned without a base: there is nothing that could drive alone.")
        self.learner.base_alone = alone
        self.store.keep_operators_choice(alone)
        self._tell(*TAKEN_BACK if alone else GIVEN_BACK)
        self._hand_over()

    def look(self) -> None:
        """Take what the machine has done, and hand over what was learned."""
        with self._report_refusals():
            self._look()

    @contextmanager
    def _report_refusals(self) -> Iterator[None]:
        """Turn a refusal of the machine, or the loss of the machine, into a `UserError`."""
        try:
            yield
        except WorkRefused as error:
            raise UserError(f"The machine refuses the work: {error}.") from None
        except LinkError as error:
            raise UserError(f"The machine is lost: {error}.") from None

    def _look(self) -> None:
        for chunk in self.client.done():
            if chunk.gap:
                lost = f"{chunk.gap} chunks of work before chunk {chunk.index} were lost on the way to this computer"
                self._tell("gap", lost)
            if chunk.ended != "done":
                self._tell("ended", f"work ended: {chunk.ended}")
            if np.asarray(chunk.arrays["valid"]).any():
                self._chunks.append(chunk)
        while len(self._chunks) >= self.learner.block_trajectories:
            block, self._chunks = self._split()
            self._take(block)
        if self._update is not None and self._update.done():
            done, self._update = self._update, None
            update = done.result()
            if self.learner.adopt(update):
                self.store.keep_checkpoint(self.learner)
                self.control.mark("update", f"an update was adopted under conditions {update.number}")
                if not self.learner.is_measuring:
                    self._hand_over()
        self.control.look()

    def _split(self) -> tuple[list[DoneChunk], list[DoneChunk]]:
        count = self.learner.block_trajectories
        return self._chunks[:count], self._chunks[count:]

    def _take(self, block: list[DoneChunk]) -> None:
        newest = itertools.takewhile(lambda chunk: chunk.policy == self._policy, reversed(block))
        ran = len(list(newest))
        record = as_record(_alike([chunk.arrays for chunk in block]))
        report = self.learner.take(record, ran=ran)
        self.store.keep_block(self.learner, record, report, ran)
        self.reports.append(report)
        if report.choice != "same":
            self._tell("conditions", f"{report.choice} conditions (number {report.context})")
        if report.taken_back:
            self._tell("policy", "the policy was worse than the one before it, and was taken back")
        if policy_digest(self.learner.controller.arrays()) != self._policy:
            self._hand_over()
        if report.due and self._update is None:
            self._update = self._thread.submit(self.learner.begin_update())

    def _hand_over(self) -> None:
        arrays = self.learner.controller.arrays()
        self._policy = policy_digest(arrays)
        self.client.use(arrays)

    def _tell(self, kind: str, text: str) -> None:
        self.say(text)
        self.control.mark(kind, text)

    def close(self) -> None:
        """The machine finishes its chunk and rests; an update that is under way is thrown away."""
        self._close("")

    def _close(self, message: str) -> None:
        try:
            self.client.close()  # first: the machine does not go on while an update is waited for
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self.control.end(message)
            self.store.close()


def newest_state(run: Run) -> LearnerState:
    """The learner's state after a run's last episode: model, policy, and the observer that the policy sees through."""
    if not run.folder.checkpoints():
        raise UserError(f"{run.path} has no finished episode, so there is no policy to work with.")
    arrays, prefix = run.folder.load_checkpoint().arrays, "learner."
    spec, origin = run.description.spec, run.config.base
    control = None
    if origin is not None:
        if is_robot_file(origin.name):
            raise UserError(f"{run.path} has learned on top of {origin.name}, a function, which no machine can run.")
        control = Base.of_run(run.folder, origin, spec).control
    template = LearnerState.random(spec, run.config.settings, seed=run.config.seed, control=control)
    mine = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    try:
        return from_arrays(template, mine)
    except UserError as error:
        raise UserError(f"the checkpoint of {run.path} cannot be used: {error}") from None


def _alike(chunks: list[Arrays]) -> list[Arrays]:
    """With an observer's restarts in all of them where one ran in any: a policy may be handed over within a block."""
    if not any("restarts" in chunk for chunk in chunks):
        return chunks
    none = np.zeros(chunks[0]["measured"].shape[-1], np.float32)
    return [{"restarts": none, **chunk} for chunk in chunks]


def _earned_authority(run: Run, at: RemoteAddress, task: Task) -> float:
    """Share of the command range that the run has earned on this machine."""
    robot = RemoteRobot(at.address, task)
    try:
        return run.earned_authority(robot)
    finally:
        robot.close()
