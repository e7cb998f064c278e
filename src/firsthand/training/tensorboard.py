"""The metrics of a run as TensorBoard event files, for labs that watch all their runs there."""

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, how_to_install
from ..runs import atomic
from .parts import Callback, EpisodeSummary


def check_installed() -> None:
    """Raise `UserError` where the package is missing."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise UserError(f"TensorBoard event files need tensorboardX: {how_to_install('tensorboard')}.")


class EventFiles(Callback):
    """Every number of metrics.jsonl as a scalar of the same name, over episodes. For a `with`.

    The folder is written anew from the lines that are there, so that it never holds what a resumed run has dropped.
    """

    def __init__(self, folder: Path, read_metrics: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        check_installed()
        self.folder, self.read_metrics = folder, read_metrics
        self.writer: Any = None

    def __enter__(self) -> "EventFiles":
        # Not the package's SummaryWriter: its thread writes later, and keeps a full disk to itself.
        from tensorboardX.event_file_writer import EventsWriter

        atomic.make_own_folder(self.folder)
        try:
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.writer = EventsWriter(str(self.folder / "events"))
        except OSError as error:
            raise self._writing_error(error) from error
        self._add(self.read_metrics())
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def after_episode(self, summary: EpisodeSummary) -> None:
        """Add the episode, at once: somebody is watching."""
        self._add([summary.metrics])

    def _add(self, metrics: Iterable[Mapping[str, Any]]) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        try:
            for line in metrics:
                values = [
                    Summary.Value(tag=name, simple_value=value)
                    for name, value in line.items()
                    if name != "episode" and isinstance(value, int | float)  # also true and false; null is left out
                ]
                summary = Summary(value=values)
                self.writer.write_event(Event(wall_time=time.time(), step=line["episode"], summary=summary))
            self.writer.flush()
        except OSError as error:
            raise self._writing_error(error) from error

    def _writing_error(self, error: OSError) -> UserError:
        return UserError(f"cannot write to {self.folder}: {atomic.cause(error)}.")
