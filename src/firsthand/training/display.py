"""Progress of a training run: for its status file, and in the terminal, or as plain lines without one."""

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ..console import console, notify, progress_columns
from ..units import TRACKING, Score, duration
from .config import TrainingConfig
from .parts import Callback, EpisodeSummary

TIMED_EPISODES = 10
"""The time left follows from this many of the newest episodes."""


LOST_SHARE, LIMIT_SHARE = 0.05, 0.05
"""Shares of lost steps, and of steps at a limit, from which on they are shown."""


def concerns(metrics: Mapping[str, Any]) -> list[str]:
    """Warnings in an episode's line: lost steps, steps at limits, updates without effect."""
    found = []
    if metrics["early_ends"] > LOST_SHARE:
        found.append(f"{100 * metrics['early_ends']:.0f} % ended early, of {metrics['horizon']} steps")
    if metrics["lost_share"] > LOST_SHARE:
        found.append(f"{100 * metrics['lost_share']:.0f} % of the samples lost")
    if metrics["limit_share"] > LIMIT_SHARE:
        found.append(f"at limits {100 * metrics['limit_share']:.0f} %")
    if metrics["rolled_back"]:
        found.append("policy taken back")
    elif metrics["policy_change"] == 0:
        found.append("policy unchanged")
    if metrics["refused_updates"]:
        found.append(f"{metrics['refused_updates']} refused")
    return found


class EpisodeProgress(Callback):
    """Counts episodes and their time."""

    def __init__(self, episodes: int, episode_s: float) -> None:
        self.episodes, self.episode_s = episodes, episode_s
        self.episode = 0
        """Episodes done."""
        self.phase = ""
        """The current phase: the robot is `moving`, or the learner is `learning`; empty between episodes."""
        self._durations: deque[float] = deque(maxlen=TIMED_EPISODES)
        self._began = 0.0

    def before_episode(self, episode: int) -> None:
        """The robot moves."""
        self.episode, self.phase, self._began = episode - 1, "moving", time.monotonic()

    def after_motion(self, episode: int) -> None:
        """The learner learns."""
        self.phase = "learning"

    def after_episode(self, summary: EpisodeSummary) -> None:
        """Count and show the finished episode."""
        self._durations.append(time.monotonic() - self._began)
        self.episode, self.phase = summary.episode, ""

    def fields(self) -> dict[str, Any]:
        """The part of the status that this is about."""
        left = max(self.episodes - self.episode, 0)
        durations = list(self._durations)
        # The first episode compiles, and says little about the next.
        typical = durations[1:] if len(durations) > 1 else durations
        return {
            "phase": self.phase,
            "episode": self.episode,
            "episodes": self.episodes,
            "seconds_left": left * sum(typical) / len(typical) if typical else None,
            "robot_seconds_left": left * self.episode_s,
        }


class _TwoLines(Progress):
    """The bar with its times, and below it the numbers: together they do not fit into 80 columns."""

    numbers = notice = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for line in (self.numbers, self.notice):
            if line:
                yield Text(line, no_wrap=True, overflow="ellipsis")


class TrainingDisplay(Callback):
    """Episode, robot time, tracking error, model loss, time left."""

    def __init__(self, config: TrainingConfig, folder: Path, score: Score = TRACKING) -> None:
        self.config, self.folder, self.score = config, folder, score
        self.live = console.is_terminal
        self.progress = _TwoLines(
            *progress_columns((TextColumn("episode"), MofNCompleteColumn())),
            console=console,
            speed_estimate_period=600,
        )
        self.bar: Any = None

    def __enter__(self) -> "TrainingDisplay":
        notify(
            f"Training {self.config.robot} with preset {self.config.preset}, seed {self.config.seed}, "
            f"{self.config.episodes} episodes, into {self.folder}"
        )
        starting = "compiling, half a minute or more the first time"
        if self.live:
            self.progress.numbers = starting
            self.progress.start()
            self.bar = self.progress.add_task("episode", total=self.config.episodes)
        else:
            notify(starting)
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.progress.stop()

    # A signal handler calls the next two in the middle of anything, also of printing: nothing goes through rich there.

    def show_stopping(self) -> None:
        """Ctrl-C was pressed: what happens now."""
        text = "Stopping after this episode; press Ctrl-C again to stop at once."
        if self.live:
            self.progress.notice = text  # the bar is drawn anew several times a second
        else:
            os.write(2, f"{text}\n".encode())

    def show_last_words(self, text: str) -> None:
        """Before the process ends without any tidying."""
        show_cursor = "\n\x1b[?25h" if self.live else ""
        os.write(2, f"{show_cursor}{text}\n".encode())

    def before_episode(self, episode: int) -> None:
        """After a resume the bar starts where the run is."""
        if self.live and episode - 1 != self.progress.tasks[self.bar].completed:
            self.progress.reset(self.bar, total=self.config.episodes, completed=episode - 1)

    def after_episode(self, summary: EpisodeSummary) -> None:
        """Count and show the finished episode."""
        metrics, score = summary.metrics, self.score
        model_loss = f"{metrics['model_loss']:.4f}" if math.isfinite(metrics["model_loss"]) else "–"
        status = (
            f"robot time {duration(metrics['robot_time_s'])} · {score.short} "
            f"{score.unit.with_unit(metrics[score.key])} · "
            f"model loss {model_loss} · update {metrics['update_time_s']:.1f} s"
        )
        status += "".join(f" · {text}" for text in concerns(metrics))
        if not metrics["update_accepted"]:
            notify(
                f"episode {summary.episode}: the update was refused, because the model or the gradient was not finite "
                "or the step broke its bounds; the policy stays as it was "
                f"({metrics['refused_updates']} refused so far)"
            )
        if self.live:
            self.progress.numbers = status
            self.progress.update(self.bar, completed=summary.episode, refresh=True)
        else:
            notify(f"episode {summary.episode}/{self.config.episodes} · {status}")

    def notify(self, text: str) -> None:
        """A sentence above the bar."""
        notify(text)
