"""The live display of a training run in a terminal; plain lines where there is none."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .callbacks import Callback, EpisodeSummary
from .config import TrainingConfig

console = Console(stderr=True)


def say(text: str) -> None:
    """A sentence to the user, outside the progress display."""
    console.print(text, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Robot time for people: 50 s, 8.3 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


class TrainingDisplay(Callback):
    """Episode, robot time, tracking error, model loss, time left."""

    def __init__(self, config: TrainingConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.live = console.is_terminal
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.bar: Any = None

    def __enter__(self) -> "TrainingDisplay":
        say(
            f"Training {self.config.robot} with preset {self.config.preset}, seed {self.config.seed}, "
            f"{self.config.episodes} episodes, into {self.folder}"
        )
        if self.live:
            self.progress.start()
            self.bar = self.progress.add_task(
                "episode", total=self.config.episodes, status="compiling (about 20 s the first time)"
            )
        else:
            say("Compiling; about 20 s the first time.")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.progress.stop()

    def note(self, text: str) -> None:
        """A line above the bar."""
        (self.progress.console if self.live else console).print(text)

    def before_episode(self, trainer: Any, episode: int) -> None:
        """After a resume the bar starts where the run is."""
        if self.live and episode - 1 != self.progress.tasks[self.bar].completed:
            self.progress.reset(self.bar, total=self.config.episodes, completed=episode - 1)

    def after_episode(self, trainer: Any, summary: EpisodeSummary) -> None:
        """One more."""
        metrics = summary.metrics
        status = (
            f"robot time {duration(metrics['robot_time_s'])} · error {100 * metrics['tracking_error_m']:.1f} cm · "
            f"model loss {metrics['model_loss']:.4f}"
        )
        if not metrics["update_accepted"]:
            self.note(f"episode {summary.episode}: the update was refused because something was not finite")
        if self.live:
            self.progress.update(self.bar, completed=summary.episode, status=status)
        else:
            say(
                f"episode {summary.episode}/{self.config.episodes} · {status} · update {metrics['update_time_s']:.1f} s"
            )
