"""Pushes a robot gently and records what it does, with nothing but `AbstractRobot.play`.

One channel after the other, from small to larger: a push for a while, the opposite until the robot is back, rest. Every
few control periods the positions are looked at; a push that leads towards a limit, or far away, is cut and taken
back. Then all channels at once. At the end, and whenever something goes wrong, the command is neutral.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import UserError
from ..robots.base import AbstractRobot, neutral
from .recording import TOGETHER, Push, Recording
from .settings import CHUNK, FEWEST_REPEATS, InspectionSettings, make_plan, repeats_steps

MOST_TRAVEL = 0.25
"""A push is cut before a position is this share of its range away from where the push began."""
MARGIN = 0.05
"""Share of a position's range that is kept free at either limit."""
WANDERS = 0.2
"""A position that moves over this share of its range under the neutral command cannot be guarded by pushing less."""
MOST_JUMP = 0.05
"""A position that is this share of its range from where it was measured last shows that the robot started anew."""
GOES_ON = 0.5
"""A position whose speed at the end of a push is this share of its mean speed goes on moving under the command."""
EVER_FASTER = 1.4
"""One whose speed at the end is this multiple of its speed in the middle of a push is accelerated."""
CARRIED_ON = 0.2
"""One that has this share of its speed left after most of the opposite push has to be braked."""
NOT_HOME, HOME = 0.05, 0.02
"""Shares of its range: from where on a position is brought back, and to where."""
CALM = 0.005
"""A position that would drift by less than this share of its range during a push has come to rest."""
BEYOND = 0.02
"""A position that is this share of its range outside a limit ends the inspection."""
MOST_REPEATS = 32
MOST_NEW_STARTS = 50
"""So many pushes in a row may end in a new start of the robot."""

Progress = Callable[[int, int, str], None]
"""Periods done, periods in all, what is going on."""


class _Stop(Exception):
    """Ends the excitation; the message says why."""


def excite(
    robot: AbstractRobot,
    settings: InspectionSettings,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Recording:
    """Push the robot; what it did until the time was over, or until `stop()` or a failure ended it."""
    return _Excitation(robot, settings, progress, stop).run()


@dataclass(frozen=True)
class _Drive:
    """A channel that can bring a position back."""

    position: int
    direction: float
    """Sign of the motion that a positive command leads to."""
    braking: float
    """How much slower it gets per period at the full command; ∞ when it stops by itself."""


class _Excitation:
    def __init__(
        self,
        robot: AbstractRobot,
        settings: InspectionSettings,
        progress: Progress | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        spec = robot.task.spec
        self.robot, self.spec, self.settings = robot, spec, settings
        self.plan = make_plan(settings, spec)
        self.progress, self.stop = progress, stop
        self.rng = np.random.Generator(np.random.Philox(key=settings.seed))
        self.neutral = neutral(spec).astype(float)
        self.half = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
        self.low, self.high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self.range = self.high - self.low
        self.index = np.asarray(spec.layout.position)
        self.coast = self.plan.push / 4
        # Per period: so slowly that the time between two looks and a dead time do no harm.
        self.slow = 0.25 / (CHUNK + self.coast)
        self.guarded = np.zeros(len(self.index), bool)
        self.still, self.still_chunk, self.noise_chunk = (np.zeros(len(self.index)) for _ in range(3))
        self.top = np.full(spec.layout.num_commands, self.plan.levels[0])
        self.drives: dict[int, _Drive] = {}
        self.rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.joined: list[bool] = []
        self.pushes: list[Push] = []
        self.speed = np.zeros(len(self.index))
        self.rested = 0
        self.new_starts = 0
        self.doing = ""

    def run(self) -> Recording:
        reason = ""
        self.at = self._read()
        try:
            try:
                self._rest()
                for channel in range(self.spec.layout.num_commands):
                    self._channel(channel)
                if self.spec.layout.num_commands > 1:
                    self._together()
            finally:
                self._leave_neutral()
        except _Stop as end:
            reason = str(end)
        except UserError as error:  # the robot itself says why it cannot go on
            if not self.pushes:
                raise
            reason = str(error)
        if not self.rows:
            raise UserError(reason or "The robot was not moved: there is no robot time.")
        commands, before, after = (np.stack(column) for column in zip(*self.rows, strict=True))
        return Recording(
            commands, before, after, np.asarray(self.joined), tuple(self.pushes), self.rested, self.plan.push, reason
        )

    # What the robot does for a few control periods.

    def _read(self) -> np.ndarray:
        measured = np.asarray(self.robot.measured(), float)
        bad = np.flatnonzero(~np.isfinite(measured))
        if len(bad):
            name = self.spec.layout.measured[bad[0]]
            when = f"after {len(self.rows) * self.spec.period_s:.1f} s of robot time" if self.rows else "at the start"
            raise UserError(
                f"The robot measures {measured[bad[0]]} for {name!r} {when}, but must measure a finite number."
            )
        return measured[self.index]

    def _play(self, fractions: np.ndarray) -> np.ndarray | None:
        """Hold a command for a few periods; how far the positions moved, or None when the robot started anew."""
        if self.stop is not None and self.stop():
            raise _Stop("interrupted")
        command = self.neutral + fractions * self.half
        seen, applied = self.robot.play_applied(np.tile(command, (CHUNK, 1)).astype(np.float32))
        played = np.asarray(seen, float)
        finite = np.asarray(np.isfinite(played).all(axis=1))
        if not finite[0]:
            self._read()
            raise _Stop("The robot's measurement before a command is not a finite number.")
        joined = self._joined(played[0])
        happened = CHUNK if finite.all() else int(np.argmin(finite))
        for k in range(happened):
            self.rows.append((np.asarray(applied[k], float), played[k], played[k + 1]))
            self.joined.append(joined or k > 0)
        self.at = self._read()
        self._check_limits()
        if self.progress is not None:
            self.progress(min(len(self.rows), self.plan.total), self.plan.total, self.doing)
        self.speed = np.zeros(len(self.index))
        if not (joined and finite.all()):
            return None
        moved = (played[-1] - played[0])[self.index]
        self.speed = moved / CHUNK
        return moved

    def _check_limits(self) -> None:
        """End the inspection when a position is clearly where it must not be: what was meant to prevent it failed."""
        beyond = BEYOND * self.range
        outside = self.guarded & ((self.at < self.low - beyond) | (self.at > self.high + beyond))
        if outside.any():
            i = int(np.argmax(outside))
            raise _Stop(
                f"{self.spec.layout.measured[self.index[i]]} is {self.at[i]:.3g}, outside its limits {self.low[i]:g} "
                f"and {self.high[i]:g}; the command is neutral, and a smaller --amplitude may help."
            )

    def _joined(self, measured: np.ndarray) -> bool:
        """Whether the robot is where it was; an angle may be counted from another turn."""
        if not self.rows:
            return True
        gap = (measured - self.rows[-1][2])[self.index]
        turns = gap - 2 * np.pi * np.round(gap / (2 * np.pi))
        return bool((np.minimum(np.abs(gap), np.abs(turns)) < MOST_JUMP * self.range).all())

    def _leave_neutral(self) -> None:
        stop, self.stop = self.stop, None
        try:
            self._play(np.zeros_like(self.half))
        except _Stop:
            pass
        finally:
            self.stop = stop

    @property
    def left(self) -> int:
        """Control periods left."""
        return self.plan.total - len(self.rows)

    # The phases.

    def _rest(self) -> None:
        """Stand still, to see noise and drift."""
        self.doing = "standing still"
        while len(self.rows) < self.plan.rest:
            self._play(np.zeros_like(self.half))
        self.rested = len(self.rows)
        moved = np.stack([after - before for _, before, after in self.rows])[:, self.index]
        moved = np.nan_to_num(moved)
        path = np.concatenate([np.zeros((1, len(self.index))), np.cumsum(moved, axis=0)])
        windows = path[self.plan.push :: CHUNK] - path[: -self.plan.push : CHUNK]
        rounding = 8 * np.finfo(np.float32).eps * np.abs(np.stack([self.low, self.high])).max(axis=0)
        self.still = 6 * np.sqrt(np.mean(windows**2, axis=0)) + rounding
        chunks = path[CHUNK:] - path[:-CHUNK]
        self.still_chunk = 3 * np.sqrt(np.mean(chunks**2, axis=0)) + rounding
        self.noise_chunk = 3 * np.std(chunks, axis=0) + rounding  # without drift
        inside = (self.at > self.low) & (self.at < self.high)
        self.guarded = inside & (np.ptp(path, axis=0) < WANDERS * self.range)
        self.home = self.at

    def _channel(self, channel: int) -> None:
        """Climb the amplitudes, look more closely at where the response begins, then repeat the largest."""
        name = self.spec.layout.commands[channel]
        end = len(self.rows) + self.plan.per_channel
        silent, responding, top = 0.0, 0.0, self.plan.levels[0]
        for i, level in enumerate(self.plan.levels):
            self.doing = f"{name}: {level:.2g} of half the range"
            pushes = self._pair(channel, level)
            self.top[channel] = level
            if any(push.cut for push in pushes):
                between = np.sqrt(level * top)
                if i > 0 and not any(push.cut for push in self._pair(channel, between)):
                    top = between
                break
            top = level
            moved = self._moved(pushes)
            if (np.abs(moved) > self.still).any():
                responding = responding or level
                growth = (self.plan.levels[min(i + 1, len(self.plan.levels) - 1)] / level) ** 1.2
                if (np.abs(moved) * growth > MOST_TRAVEL * self.range)[self.guarded].any():
                    break
            else:
                silent = level if not responding else silent
        self.top[channel] = top
        repeats = repeats_steps(self.plan.push)
        while responding and silent and responding / silent > 1.15 and len(self.rows) + repeats < end:
            level = (silent + responding) / 2
            self.doing = f"{name}: where the response begins, {level:.2g}"
            if (np.abs(self._moved(self._pair(channel, level))) > self.still).any():
                responding = level
            else:
                silent = level
        self.doing = f"{name}: repeating {top:.2g}"
        done = 0
        while done < FEWEST_REPEATS or (len(self.rows) < end and done < MOST_REPEATS):
            for toss in self.rng.permutation(4):
                sign, early = (1.0, -1.0)[toss % 2], toss < 2
                self._push(channel, sign * top, tossed=True, steps=self.plan.early if early else self.plan.push)
                done += 1
                if done >= FEWEST_REPEATS and len(self.rows) >= end:
                    break

    def _pair(self, channel: int, level: float) -> list[Push]:
        """A push and its opposite, in an order by coin."""
        return [self._push(channel, sign * level) for sign in self.rng.permutation([1.0, -1.0])]

    def _together(self) -> None:
        """All channels at once, each with a sign of its own; the first pushes are half as large."""
        self.doing = "all channels together"
        least = 2 * len(self.top) + 6
        for i in range(4 * MOST_REPEATS):
            if i >= least and self.left < 3 * self.plan.push:
                return
            signs = self.rng.choice([-1.0, 1.0], len(self.top))
            share = 0.5 if i < 2 else 1.0
            self._push(TOGETHER, signs * share * self.top, tossed=True)

    # One push.

    def _push(
        self, channel: int, fraction: float | np.ndarray, *, tossed: bool = False, steps: int | None = None
    ) -> Push:
        """Push, take it back, rest."""
        self._wait()
        fractions = np.zeros_like(self.half)
        fractions[slice(None) if channel == TOGETHER else channel] = fraction
        wanted = self.plan.push if steps is None else steps
        start, origin, before, cut = len(self.rows), self.at, self.speed, False
        seen: list[np.ndarray] = []
        moved, step = np.zeros(len(self.index)), None
        while len(self.rows) - start < wanted:
            step = self._play(fractions)
            if step is None:
                cut = True
                break
            seen.append(step)
            moved = moved + step
            if self._leads_out(origin + moved, seen):
                cut = len(self.rows) - start < wanted
                break
        push = Push(channel, tuple(fractions.tolist()), start, len(self.rows) - start, cut, tossed)
        self.pushes.append(push)
        if step is None:
            self._after_new_start()
            return push
        self.new_starts = 0
        if (np.abs(moved) > self.still).any():
            back = self._take_back(fractions, moved, push.steps)
            if channel != TOGETHER:
                self._learn(channel, push, np.stack(seen), np.asarray(back), before)
        largest = np.abs(seen).max(axis=0)
        self._settle(largest)
        if self._go_home():
            self._settle(largest)
        return push

    def _learn(self, channel: int, push: Push, seen: np.ndarray, back: np.ndarray, before: np.ndarray) -> None:
        """Which position a channel moves, in which direction, and whether it stops by itself.

        What only an opposite command stops still moves on when most of the push has been taken back.
        """
        moved = seen.sum(axis=0)
        if len(seen) < 4:
            return
        most = int(np.argmax(np.abs(moved) / self.range))
        last = seen[-1, most]
        if np.abs(before[most]) * CHUNK > 0.2 * np.abs(seen[:, most]).max():
            return  # it was still moving: what it did is not the push's doing alone
        known = self.drives.get(channel)
        braked = known is not None and np.isfinite(known.braking)
        if abs(last) * len(seen) < GOES_ON * abs(moved[most]) or not self.guarded[most]:
            if not braked:
                self.drives.pop(channel, None)
            return
        late = 3 * len(seen) // 4 - 1
        left = np.sign(last) * back[late, most] if late < len(back) else -abs(last)
        if abs(left - CARRIED_ON * abs(last)) < self.noise_chunk[most]:
            return  # noise hides which it is
        carried_on = left > CARRIED_ON * abs(last)
        if braked and not carried_on:
            return  # what had to be braked once does not stop by itself
        direction = float(np.sign(moved[most]) * push.sign)
        braking = abs(last) / CHUNK / push.steps if carried_on else np.inf
        self.drives[channel] = _Drive(most, direction, braking / push.amplitude)

    def _leads_out(self, position: np.ndarray, seen: list[np.ndarray]) -> bool:
        """Whether a position would come near a limit, or go too far, before the robot can be stopped.

        What gets ever faster needs as long to be stopped as it has been pushed; what is known to have to be braked also
        gets faster until that takes effect. What rests near a limit, apart from noise,
        leads nowhere.
        """
        step, moved = seen[-1], np.sum(seen, axis=0)
        faster = np.abs(step) > EVER_FASTER * np.abs(seen[len(seen) // 2])
        pushed = len(seen) * CHUNK
        growth = np.ones(len(self.index))
        for drive in self.drives.values():
            if np.isfinite(drive.braking):
                growth[drive.position] = 1 + (CHUNK + self.coast) / pushed
        periods = np.where(faster, growth * (self.coast + CHUNK + pushed / 2), self.coast)
        ahead = step / CHUNK * periods
        margin = MARGIN * self.range
        near = ((position + ahead > self.high - margin) & (step > self.noise_chunk)) | (
            (position + ahead < self.low + margin) & (step < -self.noise_chunk)
        )
        far = np.abs(moved + ahead) > MOST_TRAVEL * self.range
        return bool((self.guarded & (near | far)).any())

    def _take_back(self, fractions: np.ndarray, moved: np.ndarray, steps: int) -> list[np.ndarray]:
        """The opposite command, until the position that moved most is back, at most as long as the push; the motion."""
        most = int(np.argmax(np.abs(moved) / self.range))
        position, start, direction = moved[most], len(self.rows), np.sign(moved[most])
        seen: list[np.ndarray] = []
        while len(self.rows) - start < steps:
            step = self._play(-fractions)
            if step is None:
                break
            seen.append(step)
            position += step[most]
            if direction * (position + step[most] / CHUNK * self.coast / 2) <= 0:
                break
            if direction * step[most] < 0 and self._leads_out(self.at, [step]):
                break
        return seen

    def _go_home(self) -> bool:
        """Bring positions that pushes have led away back to where they were at first; whether there were any."""
        if not any(abs(self._away(d)) > NOT_HOME or self._to_brake(d) for d in self.drives.values()):
            return False
        start = len(self.rows)
        while len(self.rows) - start < 12 * self.plan.push:
            fractions = np.zeros_like(self.half)
            for channel, drive in self.drives.items():
                away = self._away(drive)
                if np.isfinite(drive.braking):
                    wanted = self.slow**2 * away * self.range[drive.position] / drive.braking
                else:
                    wanted = np.sign(away)
                if abs(away) > HOME or self._to_brake(drive):
                    top = self.top[channel]
                    fractions[channel] = -drive.direction * np.clip(wanted, -top, top)
            if not fractions.any() or self._play(fractions) is None:
                break
        return True

    def _to_brake(self, drive: _Drive) -> bool:
        """Whether a position moves that does not stop by itself."""
        return bool(np.isfinite(drive.braking) and self._moving()[drive.position])

    def _moving(self) -> np.ndarray:
        """Which guarded positions move, beyond noise, so that they would go somewhere during a push."""
        moving = np.abs(self.speed) > np.maximum(CALM * self.range / self.plan.push, self.still_chunk / CHUNK)
        return self.guarded & moving

    def _away(self, drive: _Drive) -> float:
        """Where a position is heading, from where it was at first, as a share of its range.

        What stops by itself is taken as it will stand; what has to be braked as a critically damped controller sees it.
        """
        ahead = 2 / self.slow if np.isfinite(drive.braking) else self.coast
        place = self.at[drive.position] + self.speed[drive.position] * ahead
        return float((place - self.home[drive.position]) / self.range[drive.position])

    def _settle(self, largest: np.ndarray) -> None:
        """Neutral until the robot moves no more, at most as long as a push; then a little longer."""
        start = len(self.rows)
        while len(self.rows) - start < self.plan.push:
            step = self._play(np.zeros_like(self.half))
            if step is None or (np.abs(step) <= np.maximum(self.still_chunk, 0.02 * largest)).all():
                break
            if self._leads_out(self.at, [step]):
                return
        self._play(np.zeros_like(self.half))

    def _wait(self) -> None:
        """Neutral before a push until no position moves, at most for two lengths of a push."""
        start = len(self.rows)
        while self._moving().any() and len(self.rows) - start < 2 * self.plan.push:
            if self._play(np.zeros_like(self.half)) is None:
                return

    def _moved(self, pushes: list[Push]) -> np.ndarray:
        """Half the difference between a push and its opposite: drift drops out."""
        total = np.zeros(len(self.index))
        for push in pushes:
            rows = self.rows[push.start : push.start + push.steps]
            total += push.sign * np.sum([after - before for _, before, after in rows], axis=0)[self.index]
        return total / len(pushes)

    def _after_new_start(self) -> None:
        self.new_starts += 1
        if self.new_starts > MOST_NEW_STARTS:
            raise _Stop(
                f"The robot ended or measured no finite number {self.new_starts} times in a row while it was pushed; "
                "a smaller --amplitude may help."
            )
        for _ in range(2):
            self._play(np.zeros_like(self.half))
