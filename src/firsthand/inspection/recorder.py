"""Holds commands on the robot for a few control periods at a time, and records what it measures."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ..errors import UserError
from ..robots.base import AbstractRobot, neutral, operating_point
from .guard import Guard, InspectionStopped, Positions
from .plan import CHUNK

Progress = Callable[[int, int, str], None]
"""Called with the periods done, the periods in all, and what is going on."""


class Recorder:
    """The robot, as the inspection moves it. Commands are fractions of half the command range from neutral."""

    def __init__(
        self,
        robot: AbstractRobot,
        guard: Guard,
        total_steps: int,
        *,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        spec = robot.task.spec
        self.robot, self.spec, self.guard = robot, spec, guard
        self.total_steps, self.progress, self.stop = total_steps, progress, stop
        self.neutral = operating_point(spec).astype(float)
        """Where pushes begin and end: neutral, or the middle of the range of a command that only goes one way."""
        self.half_range = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
        self.rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        """Command, measurement before it, measurement after it, per control period."""
        self.joined: list[bool] = []
        """Whether a period followed its predecessor without a restart in between."""
        self._fresh = False
        """Whether the robot was restarted at the end of the last chunk."""
        self.activity = ""
        """The current activity, for people."""
        self.positions = self._read_positions()
        """The newest ones."""
        self.speed: Positions = np.zeros(len(guard.index))
        """Change of the positions per period, in the newest chunk."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def steps_left(self) -> int:
        """Control periods left."""
        return self.total_steps - len(self.rows)

    def play(self, fractions: Float[np.ndarray, " commands"]) -> Positions | None:
        """Hold a command for a few periods; how far the positions moved, or None when the robot was restarted."""
        if self.stop is not None and self.stop():
            raise InspectionStopped("interrupted")
        limits = self.spec.limits
        command = np.clip(self.neutral + fractions * self.half_range, limits.command_low, limits.command_high)
        seen, applied = self.robot.play_applied(np.tile(command, (CHUNK, 1)).astype(np.float32))
        measured = np.asarray(seen, float)
        finite = np.asarray(np.isfinite(measured).all(axis=1))
        if not finite[0]:
            self._read_positions()
            raise InspectionStopped("The robot's measurement before a command is not a finite number.")
        joined = not self.rows or self.guard.is_continuous(self.rows[-1][2], measured[0])
        steps = CHUNK if finite.all() else int(np.argmin(finite))
        for k in range(steps):
            self.rows.append((np.asarray(applied[k], float), measured[k], measured[k + 1]))
            self.joined.append(joined or k > 0)
        self.positions = self._read_positions()
        self.guard.check_limits(self.positions)
        self.guard.check_runaway(self.positions, self.robot.angles)
        if self.progress is not None:
            self.progress(min(len(self.rows), self.total_steps), self.total_steps, self.activity)
        self.speed = np.zeros(len(self.guard.index))
        begins, self._fresh = joined or self._fresh, not finite.all()
        if not (begins and finite.all()):
            return None
        moved = (measured[-1] - measured[0])[self.guard.index]
        self.speed = moved / CHUNK
        return moved

    def forget(self) -> None:
        """Begin anew: what was recorded so far was on the way to where the robot is now."""
        self.rows.clear()
        self.joined.clear()

    def play_neutral(self) -> Positions | None:
        """Hold the neutral command for a few periods."""
        return self.play(np.zeros_like(self.half_range))

    def leave_neutral(self) -> None:
        """Hold the neutral command once more, even when the inspection was stopped."""
        stop, self.stop = self.stop, None
        try:
            self.play_neutral()
            if not np.array_equal(self.neutral, neutral(self.spec)):
                self.robot.play(np.tile(neutral(self.spec), (CHUNK, 1)))  # not a part of the recording
        except InspectionStopped:
            pass
        finally:
            self.stop = stop

    def changes(self, start: int, steps: int) -> Float[np.ndarray, "steps positions"]:
        """Change of the positions in each of some periods."""
        rows = self.rows[start : start + steps]
        return np.stack([after - before for _, before, after in rows])[:, self.guard.index]

    def _read_positions(self) -> Positions:
        measured = np.asarray(self.robot.measured(), float)
        bad = np.flatnonzero(~np.isfinite(measured))
        if len(bad):
            name = self.spec.layout.measured[bad[0]]
            when = f"after {len(self.rows) * self.spec.period_s:.1f} s of robot time" if self.rows else "at the start"
            raise UserError(
                f"The robot measures {measured[bad[0]]} for {name!r} {when}, but must measure a finite number."
            )
        return measured[self.guard.index]
