"""Pushes a robot gently and records what it does, with nothing but `AbstractRobot.play`.

One channel after the other, from small to larger: a push for a while, the opposite until the robot is back, rest. The
positions are checked every few control periods; a push that leads towards a limit, or far away, is cut short and
reversed. Then all channels at once. At the end, and after any error, the command is neutral.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ..errors import UserError
from ..robots.base import AbstractRobot, check_observed
from .findings import MAX_WANDER
from .guard import Guard, InspectionStopped
from .plan import MIN_REPEATS, Plan, make_plan, steps_of_repeats
from .pusher import Pusher
from .recorder import Progress, Recorder
from .recording import TOGETHER, Push, Recording
from .settings import InspectionSettings

MAX_REPEATS = 32
"""Pushes at a channel's largest amplitude."""
MAX_RESTS = 6
"""Rests, each as long as planned, after which something that has not settled is pushed all the same."""
SLOWER = 0.8
"""What goes less than this share as far in the second half of a rest as in the first one is settling."""
CLOSE = 1.15
"""The largest push without a response and the smallest with one are close enough at this ratio."""


def excite(
    robot: AbstractRobot,
    settings: InspectionSettings,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Recording:
    """Push the robot; what it did until the time was over, or until `stop()` or a failure ended it."""
    spec = robot.task.spec
    plan = make_plan(settings, spec)
    guard = Guard(spec, plan)
    recorder = Recorder(robot, guard, plan.total, progress=progress, stop=stop)
    pusher = Pusher(recorder, guard, plan)
    reason, rest_steps = "", 0
    try:
        try:
            rest_steps = _stand_still(pusher)
            _push_channels(pusher, np.random.Generator(np.random.Philox(key=settings.seed)))
        finally:
            recorder.leave_neutral()
    except InspectionStopped as end:
        reason = str(end)
    except UserError as error:  # the robot itself says why it cannot go on
        if not pusher.pushes:
            raise
        reason = str(error)
    if not recorder.rows:
        raise UserError(reason or "The robot was not moved: there is no robot time.")
    commands, before, after = (np.stack(column) for column in zip(*recorder.rows, strict=True))
    joined = np.asarray(recorder.joined)
    return Recording(commands, before, after, joined, tuple(pusher.pushes), rest_steps, plan.push, reason)


def _stand_still(pusher: Pusher) -> int:
    """Stand still, to see noise and drift; for how many periods. What settles is waited for, and then forgotten."""
    recorder = pusher.recorder
    recorder.activity = "standing still"
    falls = _rest(pusher)
    for _ in range(MAX_RESTS - 1):
        if falls or not is_settling(recorder.changes(0, len(recorder)), pusher.guard.range):
            break
        recorder.activity = "waiting until it settles"
        recorder.forget()
        falls = _rest(pusher)
    after = np.stack([measured for _, _, measured in recorder.rows])
    check_observed(recorder.robot, np.asarray(np.isfinite(after).all(axis=1)), "every motion")
    pusher.watch_falls(falls)
    steps = len(recorder)
    pusher.guard.calibrate(recorder.changes(0, steps), recorder.positions)
    pusher.homing.home = recorder.positions
    return steps


def _rest(pusher: Pusher) -> list[int]:
    """Neutral for a while; after how many periods each the robot had to be restarted."""
    recorder = pusher.recorder
    stood, falls = 0, []
    while len(recorder) < pusher.plan.rest:
        before = len(recorder)
        restarted = recorder.play_neutral() is None
        stood += len(recorder) - before
        if restarted:
            falls.append(stood)
            stood = 0
    return falls


def is_settling(changes: Float[np.ndarray, "steps positions"], extent: Float[np.ndarray, " positions"]) -> bool:
    """Whether a position still comes to rest: it goes on in one direction, less and less, over more than noise."""
    half = len(changes) // 2
    early, late = changes[:half].sum(axis=0), changes[half : 2 * half].sum(axis=0)
    jumps = np.median(np.abs(np.diff(changes, axis=0)), axis=0)
    noise = 1.48 * jumps / np.sqrt(3)  # standard deviation of the difference of two measurements
    far = np.abs(early) > np.maximum(MAX_WANDER * extent, 4 * noise)
    slower = np.abs(late) < SLOWER * np.abs(early)
    onward = (late * early >= 0) | (np.abs(late) < 4 * noise)
    return bool((far & slower & onward).any())


def _push_channels(pusher: Pusher, rng: np.random.Generator) -> None:
    """One channel after the other, then all of them together."""
    names = pusher.recorder.spec.layout.commands
    for channel, name in enumerate(names):
        _ChannelExcitation(pusher, rng, channel, name).run()
    if len(names) > 1:
        _push_together(pusher, rng)


class _ChannelExcitation:
    """One channel: climb the amplitudes, look more closely at where the response begins, then repeat the largest."""

    def __init__(self, pusher: Pusher, rng: np.random.Generator, channel: int, name: str) -> None:
        self.pusher, self.rng, self.channel, self.name = pusher, rng, channel, name
        self.plan: Plan = pusher.plan
        self.end = len(pusher.recorder) + self.plan.per_channel
        self.silent = 0.0
        """The largest amplitude without a response, below the smallest with one."""
        self.responding = 0.0
        """The smallest amplitude with a response; 0 when there is none."""

    def run(self) -> None:
        """Push the channel for its share of the time."""
        self.pusher.amplitudes[self.channel] = self._climb()
        self._search_onset()
        self._repeat_largest()

    def _climb(self) -> float:
        """Push harder and harder; the largest amplitude whose pushes were not cut."""
        pusher, levels = self.pusher, self.plan.levels
        largest = levels[0]
        for i, level in enumerate(levels):
            self._report(f"{level:.2g} of half the range")
            pushes = self._push_both_ways(level)
            pusher.amplitudes[self.channel] = level
            if any(push.cut for push in pushes):
                between = np.sqrt(level * largest)
                if i > 0 and not any(push.cut for push in self._push_both_ways(between)):
                    largest = between
                break
            largest = level
            motion = pusher.mean_motion(pushes)
            if pusher.guard.responds(motion):
                self.responding = self.responding or level
                growth = (levels[min(i + 1, len(levels) - 1)] / level) ** 1.2
                if pusher.falls_after is None and pusher.guard.may_go_too_far(motion * growth):
                    break
            elif not self.responding:
                self.silent = level
        return largest

    def _search_onset(self) -> None:
        """Halve the gap between silent and responding amplitudes while there is time."""
        repeats = steps_of_repeats(self.plan.push)
        while (
            self.responding
            and self.silent
            and self.responding / self.silent > CLOSE
            and len(self.pusher.recorder) + repeats < self.end
        ):
            level = (self.silent + self.responding) / 2
            self._report(f"where the response begins, {level:.2g}")
            if self.pusher.guard.responds(self.pusher.mean_motion(self._push_both_ways(level))):
                self.responding = level
            else:
                self.silent = level

    def _repeat_largest(self) -> None:
        """Push at the largest amplitude, with random signs and lengths, until the channel's time is over."""
        pusher, amplitude = self.pusher, self.pusher.amplitudes[self.channel]
        self._report(f"repeating {amplitude:.2g}")
        done = 0
        while done < MIN_REPEATS or (len(pusher.recorder) < self.end and done < MAX_REPEATS):
            for choice in self.rng.permutation(4):
                sign, short = (1.0, -1.0)[choice % 2], choice < 2
                steps = self.plan.short_push if short else self.plan.push
                pusher.push(self.channel, sign * amplitude, randomized=True, steps=steps)
                done += 1
                if done >= MIN_REPEATS and len(pusher.recorder) >= self.end:
                    break

    def _push_both_ways(self, level: float) -> list[Push]:
        """A push and its opposite, in a random order."""
        return [self.pusher.push(self.channel, sign * level) for sign in self.rng.permutation([1.0, -1.0])]

    def _report(self, activity: str) -> None:
        self.pusher.recorder.activity = f"{self.name}: {activity}"


def _push_together(pusher: Pusher, rng: np.random.Generator) -> None:
    """All channels at once, each with a sign of its own; the first pushes are half as large."""
    recorder, amplitudes = pusher.recorder, pusher.amplitudes
    recorder.activity = "all channels together"
    min_pushes = 2 * len(amplitudes) + 6
    for i in range(4 * MAX_REPEATS):
        if i >= min_pushes and recorder.steps_left < 3 * pusher.plan.push:
            return
        signs = rng.choice([-1.0, 1.0], len(amplitudes))
        share = 0.5 if i < 2 else 1.0
        pusher.push(TOGETHER, signs * share * amplitudes, randomized=True)
