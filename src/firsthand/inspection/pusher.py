"""One push: a constant command from rest, the opposite until the robot is back, rest."""

import numpy as np

from .guard import Guard, InspectionStopped, Positions
from .homing import Homing
from .plan import CHUNK, Plan
from .recorder import Recorder
from .recording import TOGETHER, Push

FALLING_SHARE = 0.5
"""A robot that falls by itself is pushed for this share of the time that it takes."""
MAX_RESTARTS = 50
"""The inspection ends when more pushes in a row than this end in a restart of the robot."""


class Pusher:
    """Pushes the robot, takes each push back, and brings the robot home."""

    def __init__(self, recorder: Recorder, guard: Guard, plan: Plan) -> None:
        self.recorder, self.guard, self.plan = recorder, guard, plan
        self.homing = Homing(guard)
        self.pushes: list[Push] = []
        self.amplitudes = np.full(len(recorder.half_range), plan.levels[0])
        """The largest push of each channel so far that was not cut, as a share of half its range."""
        self.restarts = 0
        """Pushes in a row that ended in a restart of the robot."""
        self.falls_after: int | None = None
        """Control periods after which the robot falls or runs away under the neutral command; None if it does not."""

    def push(
        self, channel: int, fraction: float | np.ndarray, *, randomized: bool = False, steps: int | None = None
    ) -> Push:
        """Push, take it back, rest. A robot that falls is pushed for half the time that it takes, after a restart."""
        if self.falls_after is None:
            self._wait_for_rest()
        else:
            self._fall()
        recorder = self.recorder
        fractions = np.zeros_like(recorder.half_range)
        fractions[slice(None) if channel == TOGETHER else channel] = fraction
        wanted = self.plan.push if steps is None else steps
        if self.falls_after is not None:
            wanted = min(wanted, max(CHUNK, CHUNK * round(FALLING_SHARE * self.falls_after / CHUNK)))
        start, origin, speed_before, cut = len(recorder), recorder.positions, recorder.speed, False
        motions: list[np.ndarray] = []
        moved, motion = np.zeros(len(self.guard.index)), None
        while len(recorder) - start < wanted:
            motion = recorder.play(fractions)
            if motion is None:
                cut = True
                break
            motions.append(motion)
            moved = moved + motion
            if self.falls_after is None and self._leads_out(origin + moved, motions):
                cut = len(recorder) - start < wanted
                break
        push = Push(channel, tuple(fractions.tolist()), start, len(recorder) - start, cut, randomized)
        self.pushes.append(push)
        if motion is None:
            self._rest_after_restart()
            return push
        self.restarts = 0
        if self.falls_after is not None:
            return push
        if self.guard.responds(moved):
            returns = self._take_back(fractions, moved, push.steps)
            if channel != TOGETHER:
                self.homing.learn(push, np.stack(motions), np.asarray(returns), speed_before)
        largest = np.abs(motions).max(axis=0)
        self._settle(largest)
        if self._go_home():
            self._settle(largest)
        return push

    def watch_falls(self, lengths: list[int]) -> None:
        """Take note of how long the robot stood, each time that it was restarted under the neutral command."""
        if lengths:
            self.falls_after = max(int(np.median(lengths)), CHUNK)

    def _fall(self) -> None:
        """Neutral until the robot has fallen and is restarted, at most for ten times as long as usual."""
        assert self.falls_after is not None
        start = len(self.recorder)
        while len(self.recorder) - start < 10 * self.falls_after:
            if self.recorder.play_neutral() is None:
                return

    def mean_motion(self, pushes: list[Push]) -> Positions:
        """Half the difference between a push and its opposite: drift drops out."""
        total = np.zeros(len(self.guard.index))
        for push in pushes:
            total += push.sign * np.sum(self.recorder.changes(push.start, push.steps), axis=0)
        return total / len(pushes)

    def _leads_out(self, position: Positions, motions: list[np.ndarray]) -> bool:
        return self.guard.leads_out(position, motions, self.homing.braked_positions)

    def _take_back(self, fractions: np.ndarray, moved: Positions, steps: int) -> list[np.ndarray]:
        """The opposite command, until the position that moved most is back, at most as long as the push; the motion."""
        recorder = self.recorder
        furthest = int(np.argmax(np.abs(moved) / self.guard.range))
        position, start, direction = moved[furthest], len(recorder), np.sign(moved[furthest])
        motions: list[np.ndarray] = []
        while len(recorder) - start < steps:
            motion = recorder.play(-fractions)
            if motion is None:
                break
            motions.append(motion)
            position += motion[furthest]
            if direction * (position + motion[furthest] / CHUNK * self.guard.coast_steps / 2) <= 0:
                break
            if direction * motion[furthest] < 0 and self._leads_out(recorder.positions, [motion]):
                break
        return motions

    def _go_home(self) -> bool:
        """Bring positions that pushes have led away back to where they were at first; whether there were any."""
        recorder = self.recorder
        if not self.homing.is_needed(recorder.positions, recorder.speed):
            return False
        start = len(recorder)
        while len(recorder) - start < 12 * self.plan.push:
            fractions = self.homing.command(recorder.positions, recorder.speed, self.amplitudes)
            if not fractions.any() or recorder.play(fractions) is None:
                break
        return True

    def _settle(self, largest: Positions) -> None:
        """Neutral until the robot moves no more, at most as long as a push; then a little longer."""
        recorder = self.recorder
        start = len(recorder)
        while len(recorder) - start < self.plan.push:
            motion = recorder.play_neutral()
            if motion is None or self.guard.has_settled(motion, largest):
                break
            if self._leads_out(recorder.positions, [motion]):
                return
        recorder.play_neutral()

    def _wait_for_rest(self) -> None:
        """Neutral before a push until no position moves, at most for two lengths of a push."""
        recorder = self.recorder
        start = len(recorder)
        while self.guard.moving(recorder.speed).any() and len(recorder) - start < 2 * self.plan.push:
            if recorder.play_neutral() is None:
                return

    def _rest_after_restart(self) -> None:
        self.restarts += 1
        if self.restarts > MAX_RESTARTS:
            raise InspectionStopped(
                f"The robot ended or measured no finite number {self.restarts} times in a row while it was pushed; "
                "a smaller --amplitude may help."
            )
        for _ in range(2):
            self.recorder.play_neutral()
