"""The commands and measurements of an inspection, as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

TOGETHER = -1
"""The channel of a push of all channels at once."""


@dataclass(frozen=True)
class Push:
    """A constant command from (as near as it gets to) rest."""

    channel: int
    """Which channel was pushed, or `TOGETHER`."""
    fractions: tuple[float, ...]
    """The command per channel, as a share of half its range from neutral, in [-1, 1]."""
    start: int
    """The control period in which it began."""
    steps: int
    """How long it lasted."""
    cut: bool
    """Whether it was ended before its time: a position came near its limit, or the robot ended there."""
    randomized: bool
    """Whether its sign was drawn at random, whatever had happened before."""

    @property
    def amplitude(self) -> float:
        """The largest share of the half range."""
        return max(abs(f) for f in self.fractions)

    @property
    def sign(self) -> float:
        """Direction of the channel that was pushed alone."""
        return float(np.sign(self.fractions[self.channel]))


@dataclass(frozen=True)
class Recording:
    """Every control period of an inspection. Row k: `before[k]`, then `commands[k]` for one period, then `after[k]`."""

    commands: Float[np.ndarray, "steps commands"]
    """As sent, in the unit of the command."""
    before: Float[np.ndarray, "steps measured"]
    """The measurement before the command."""
    after: Float[np.ndarray, "steps measured"]
    """The measurement one period later; NaN where the robot ended or measured nothing, and was restarted."""
    joined: Bool[np.ndarray, " steps"]
    """Whether a period followed its predecessor without a restart in between."""
    pushes: tuple[Push, ...]
    """In the order in which they were made."""
    rest: int
    """Number of neutral periods at the beginning."""
    push_steps: int
    """The length of a push that is not cut."""
    stopped: str = ""
    """Why it ended before its time; empty if it did not."""

    def __len__(self) -> int:
        return len(self.commands)

    @property
    def change(self) -> Float[np.ndarray, "steps measured"]:
        """The change in each period; NaN where the robot was restarted."""
        return self.after - self.before

    def alone(self, channel: int) -> tuple[Push, ...]:
        """The pushes of one channel alone."""
        return tuple(push for push in self.pushes if push.channel == channel)

    def arrays(self) -> Mapping[str, np.ndarray]:
        """For a file."""
        return {
            "commands": self.commands.astype(np.float32),
            "before": self.before.astype(np.float32),
            "after": self.after.astype(np.float32),
            "joined": self.joined,
            "push.start": np.asarray([p.start for p in self.pushes], np.int64),
            "push.steps": np.asarray([p.steps for p in self.pushes], np.int64),
            "push.channel": np.asarray([p.channel for p in self.pushes], np.int64),
            "push.randomized": np.asarray([p.randomized for p in self.pushes], bool),
            "push.fractions": np.asarray([p.fractions for p in self.pushes], np.float32).reshape(
                len(self.pushes), self.commands.shape[1]
            ),
        }


def paths(recording: Recording, starts: np.ndarray, steps: int) -> Float[np.ndarray, "starts steps measured"]:
    """How far each quantity had moved since `starts`, after 1, 2, … `steps` periods; NaN beyond the end or a restart.

    Summed from the changes: an angle that is counted from another turn in between does not matter.
    """
    size = recording.before.shape[1]
    rows = np.asarray(starts, int)[:, None] + np.arange(steps)
    change = np.concatenate([recording.change, np.full((steps, size), np.nan)])[rows]
    apart = ~np.concatenate([recording.joined, np.ones(steps, bool)])[rows]
    apart[:, :1] = False
    return np.cumsum(np.where(apart[:, :, None], np.nan, change), axis=1)
