"""Keeps a work session on disk, and has the next one go on where it ended.

A block is stored when it is done, and all that was learned when an update is adopted. To go on, the newest checkpoint
is loaded and the learner takes the stored blocks after it once more. So a process that is killed loses the block in
progress and the update under way, no more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from firsthand_onboard import ControlSpec
from firsthand_onboard.spec import SpecError

from ...errors import UserError
from ...robots import EpisodeRecord
from ...robots.description import spec_difference
from ...runs import atomic
from ...runs.work_folder import BEGIN_ANEW, WorkFolder
from .learner import WorkLearner, WorkReport
from .snapshot import restore_snapshot, take_snapshot

CHECKPOINT_BLOCKS = 20
"""A checkpoint is made after so many blocks, too, where no update was adopted: it bounds what is taken once more."""


class WorkStore:
    """The folder of a work session, as its learner fills it."""

    def __init__(self, folder: WorkFolder, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self._checkpoint = 0
        """The block of the newest checkpoint."""
        self._problem = ""

    def resume(self, learner: WorkLearner) -> None:
        """Put a new learner where the last session ended; says what cannot be used. Nothing where there was none."""
        folder, spec = self.folder, learner.task.spec
        _check_spec(folder, spec)
        lines = folder.lines.read()
        found, newest = folder.load_checkpoint(), folder.newest_checkpoint
        if found is not None:
            with _naming(f"checkpoint {found.episode} in {folder.path / 'checkpoints'}"):
                restore_snapshot(learner, found.arrays, found.info)
            for note in found.notes:
                self.say(note)
        # Where a damaged checkpoint is passed over, other policies have run the blocks since than the one restored.
        same_policy = found is None or found.episode == newest
        self._take_again(learner, written=lines[-1]["block"] if lines else 0, same_policy=same_policy)
        learner.block = max([learner.block, newest, *(line["block"] for line in lines[-1:])])
        learner.base_alone = folder.base_alone
        if learner.block:
            count = len(learner.contexts)
            kinds = "one kind" if count == 1 else f"{count} kinds"
            self.say(f"goes on with the work in {folder.path}: {learner.block} blocks, {kinds} of conditions")
            if learner.base_alone:
                self.say("the base alone drives, as the operator has chosen, until the learned part is given back")
            learner.compare_with_base()
            self.keep_checkpoint(learner)

    def _take_again(self, learner: WorkLearner, *, written: int, same_policy: bool) -> None:
        for block in self.folder.blocks(after=learner.block):
            where = f"block {block.number} in {self.folder.path / 'blocks'}"
            try:
                if block.damage:
                    raise UserError(f"{where} is damaged ({block.damage}).")
                with atomic.using(where):
                    record = EpisodeRecord.from_arrays(block.arrays)
                    record.check(learner.task.spec)
                    ran, alone, time_utc = (
                        int(block.info["ran"]),
                        bool(block.info["base_alone"]),
                        block.info["time_utc"],
                    )
                    learner.block, learner.base_alone = block.number - 1, alone
                    report = learner.take(record, ran=ran if same_policy else 0)
            except UserError as error:
                self.say(f"{error} It is left out.")
                continue
            if block.number > written:  # killed between the block and its line
                self._write_line(learner, report, ran, time_utc)

    def keep_block(self, learner: WorkLearner, record: EpisodeRecord, report: WorkReport, ran: int) -> None:
        """Store the block that the learner has just taken."""
        with self._problems_said():
            time_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
            info = {"ran": ran, "base_alone": learner.base_alone, "time_utc": time_utc}
            self.folder.save_block(learner.block, record.arrays(), info)
            self._write_line(learner, report, ran, time_utc)
        if learner.block - self._checkpoint >= CHECKPOINT_BLOCKS:
            self.keep_checkpoint(learner)

    def keep_checkpoint(self, learner: WorkLearner) -> None:
        """Store all that was learned."""
        with self._problems_said():
            self.folder.save_checkpoint(learner.block, *take_snapshot(learner))
            self._checkpoint = learner.block

    def keep_operators_choice(self, base_alone: bool) -> None:
        """Store whether the operator has taken the base back."""
        with self._problems_said():
            self.folder.base_alone = base_alone

    def close(self) -> None:
        """Let another session go on."""
        self.folder.close()

    def _write_line(self, learner: WorkLearner, report: WorkReport, ran: int, time_utc: str) -> None:
        updates = learner.contexts[report.context].updates
        about = {"block": learner.block, "time_utc": time_utc, **report._asdict()}
        self.folder.lines.append({**about, "updates": updates, "ran": ran, "base_alone": learner.base_alone})

    @contextmanager
    def _problems_said(self) -> Iterator[None]:
        """Say once what cannot be written: a full disk must not stop a machine that works."""
        try:
            yield
            self._problem = ""
        except UserError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self.say(f"{error} Work goes on, but what is learned is not stored.")


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """One sentence that names the file, for whatever is wrong with what it holds."""
    try:
        with atomic.using(where):
            yield
    except UserError as error:
        text = str(error) if str(error).startswith(where) else f"{where} cannot be used: {error}"
        raise UserError(f"{text.removesuffix('.')}; {BEGIN_ANEW}.") from None


def _check_spec(folder: WorkFolder, spec: ControlSpec) -> None:
    where = folder.path / "work.json"
    try:
        stored = ControlSpec.from_json(folder.info.spec)
    except SpecError as error:
        raise UserError(f"{where} is damaged: {error}; {BEGIN_ANEW}.") from None
    if difference := spec_difference(stored, spec):
        raise UserError(f"{where} is of another robot: {difference}; {BEGIN_ANEW}.")
