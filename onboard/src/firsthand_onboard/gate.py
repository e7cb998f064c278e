"""The safety gate between policy and machine: pure numpy, no memory but the state that is passed in and returned.

The resulting command is finite, inside the command range, and within the rate and acceleration limits.
In front of a joint limit, near the edge of the workspace box, and while the machine is new, the range shrinks towards
neutral. Only this may move a command faster than its rate limit, and only towards neutral. A command goes past neutral
only to brake a joint that neutral does not stop, at its rate.

A command that oscillates faster than the limits allow (chatter) is replaced by its mean, because cutting its swings
would shift it. The same holds for a command that is cut on one side again and again, such as a saw tooth: the part that
was cut off and not returned is summed up.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from .gate_limits import PER_POSITION, WINDOW, GateLimits
from .joint_limits import JointLimits, JointMemory
from .policy import fast_output
from .signals.live import SensorMemory, SensorWatch, Verdict
from .signals.settings import SignalSettings
from .spec import ControlSpec, SpecError

NOT_FINITE = "the command is not finite"
LOST_MEASUREMENT = "the measurement is not finite"
OUTSIDE_BOX = "the tracked output is outside the workspace box"
TRACKING_ERROR = "the tracking error exceeds its limit"
TOO_OLD = "the command is too old"
CHATTER = "the command chatters"
CHATTER_S = 0.4
"""How long a swing of the command is remembered, and over how long a chattering command is averaged."""
FOLLOWED_S = 0.8
"""How long a swing is remembered once the mean is followed: chatter with pauses is still chatter."""
DEBT_S = 3.0
"""How long it is remembered what the limits have cut off."""
CROSSING_S = 0.3
"""How long the limits that the gate chooses by itself let a command take from one end of its range to the other."""
CHATTERS, CALM = 1.5, 0.5
"""A command chatters from the first score on until it falls below the second: each swing that the limits cut counts 1
and fades over `CHATTER_S`. It also does with a swing that is cut while more is owed than any single step of the command
can explain."""


Chatter = tuple[float, float, float, float, float, bool]
"""Of one channel: the mean of what was lately wanted; what the limits have cut off (command times seconds); in which
direction what was wanted last lay, and what was last cut (or 0); how much it swings; whether its mean is followed."""


@dataclass(frozen=True)
class GateState:
    """The gate's state, carried from one step to the next."""

    command: np.ndarray
    """The last applied command, float32."""
    change: tuple[float, ...]
    """How far the last step went, for the acceleration limit; zero after a cap or neutral."""
    joints: JointMemory
    """The estimated motion of the joints."""
    sensors: SensorMemory
    """The state of the sensors, with the last good measurement."""
    chatter: tuple[Chatter, ...]
    """The recent commands of each channel."""
    output: tuple[float, ...] = ()
    """Where the tracked output was at the last good measurement, if there is a workspace box."""
    age: int = 1
    """How many periods ago that was, when the next measurement comes."""
    lost: tuple[bool, ...] = ()
    """Which of the last measurements were missing, the newest last."""
    chattered: int = 0
    """For how many steps in a row some command has chattered."""

    @property
    def measured(self) -> tuple[float, ...]:
        """The last good measurement; empty before the first."""
        return self.sensors.values


@dataclass(frozen=True)
class GateResult:
    """Commands after the gate."""

    command: np.ndarray
    """The applied command, float32; neutral where there is a fault."""
    free: np.ndarray
    """Which channels the gate left as they were."""
    fault: str
    """Why the machine must stop, or an empty text."""
    state: GateState
    """For the next step."""


class Gate:
    """The limits of one machine, prepared for the loop. A few channels are quicker in plain Python than in numpy."""

    def __init__(self, spec: ControlSpec, limits: GateLimits) -> None:
        if len(limits.low) != spec.layout.num_commands:
            raise SpecError(f"gate.low has {len(limits.low)} entries, but must have {spec.layout.num_commands}")
        if limits.box_low and len(limits.box_low) != spec.num_outputs:
            raise SpecError(f"gate.box_low has {len(limits.box_low)} entries, but must have {spec.num_outputs}")
        positions = len(spec.layout.position)
        for i, joint in enumerate(limits.joint):
            if not -1 <= joint < positions:
                raise SpecError(f"gate.joint[{i}] is {joint}, but must lie between -1 and {positions - 1}")
        for name in PER_POSITION:
            if len(getattr(limits, name)) not in (0, positions):
                raise SpecError(
                    f"gate.{name} has {len(getattr(limits, name))} entries, but must have {positions}, one per position"
                )
        self.spec, self.limits = spec, limits
        self.neutral = np.asarray(limits.neutral, np.float32)
        middle = self.neutral.tolist()
        # The neutral command must survive rounding to float32.
        low = [min(a, m) for a, m in zip(limits.low, middle)]  # noqa: B905 (Python 3.10)
        high = [max(a, m) for a, m in zip(limits.high, middle)]  # noqa: B905
        step = [rate * spec.period_s for rate in limits.rate]
        bend = [acceleration * spec.period_s**2 for acceleration in limits.acceleration]
        self._channels = list(zip(low, high, middle, step, bend, limits.joint, limits.sign))  # noqa: B905
        self._rest = (0.0,) * len(middle)
        self._calm: tuple[Chatter, ...] = tuple((m, 0.0, 0.0, 0.0, 0.0, False) for m in middle)
        self._fades = [
            fades(spec.period_s, b - a, rate, acceleration)
            for a, b, rate, acceleration in zip(low, high, limits.rate, limits.acceleration)  # noqa: B905
        ]
        self._largest_debt = [
            largest_debt(b - a, rate, acceleration)
            for a, b, rate, acceleration in zip(low, high, limits.rate, limits.acceleration)  # noqa: B905
        ]
        """What a single step over a channel's whole range leaves behind its limits."""
        self.joints = JointLimits(spec, limits)
        self._sensors = SensorWatch(spec, SignalSettings(), limits.stop_dead_time_s)
        self._output = fast_output(spec)

    @property
    def brakes(self) -> bool:
        """Whether there are joints that neutral does not stop."""
        return any(share > 0 for share in self.limits.brake)

    def start(self, before: GateState | None = None) -> GateState:
        """The state of a machine that stands in neutral. What was learned about its joints `before` stays."""
        joints = self.joints.start(None if before is None else before.joints)
        return GateState(self.neutral, self._rest, joints, self._sensors.start(), self._calm)

    def __call__(
        self,
        state: GateState,
        proposed: np.ndarray,
        measured: np.ndarray,
        *,
        reference: np.ndarray | None = None,
        age_s: float = 0.0,
        authority: float = 1.0,
        recovering: bool = False,
    ) -> GateResult:
        """What may be applied of `proposed`. `authority` in [0, 1] shrinks the range around neutral.

        While `recovering` a joint may be outside its limits, and is only let back.
        """
        limits = self.limits
        if measured.shape != (self.spec.layout.num_measured,):
            return self._refuse(f"the measurement has the shape {measured.shape}", state)
        values = measured.tolist()
        if not all(map(math.isfinite, values)):
            return self._without(state)
        if proposed.shape != self.neutral.shape or not all(map(math.isfinite, proposed.tolist())):
            return self._refuse(NOT_FINITE, state)
        if not age_s <= limits.command_age_s:
            return self._refuse(TOO_OLD, state)
        efforts, effort = self._efforts(state.command.tolist())
        sensors = state.sensors
        if limits.check_sensors:
            verdict, why, sensors = self._sensors.check(sensors, values, efforts, effort, state.age)
            if verdict is Verdict.FAULT:
                return self._refuse(why, state)
            if verdict is Verdict.MISSING:
                return self._without(state, why)
        else:
            sensors = dataclasses.replace(sensors, values=tuple(values))
        rooms, joints = self.joints(state.joints, values, self._driving(efforts, effort), state.age, recovering)
        if rooms.fault:
            return self._refuse(rooms.fault, dataclasses.replace(state, joints=joints))
        share, output = (min(authority, 1.0) if authority >= 0 else 0.0) * rooms.of_all, ()
        if limits.box_low or (reference is not None and limits.tracking_error < math.inf):
            output = tuple(self._output(np.asarray(measured, np.float32)).tolist())
            if reference is not None and not math.dist(output, reference.tolist()) <= limits.tracking_error:
                return self._refuse(TRACKING_ERROR, state)
            if limits.box_low:
                if not (all(map(math.isfinite, output)) and self._outside(output) <= limits.box_margin):
                    return self._refuse(OUTSIDE_BOX, state)
                share *= self._room_in_box(output, state)
        with np.errstate(over="ignore"):
            wanted = proposed.astype(np.float32)  # beyond float32 it becomes infinite, which is clipped
        targets, chatter, chatters = self._follow_mean(state, wanted.tolist())
        chattered = state.chattered + 1 if chatters else 0
        if not chattered * self.spec.period_s <= limits.chatter_s:
            return self._refuse(CHATTER, state)
        bounds = self._bounds(state, rooms.of_joint, share)
        low, cap_low = round_up(bounds[:2])
        high, cap_high = round_down(bounds[2:])
        ramped = np.maximum(np.minimum(np.asarray(targets, np.float32), high), np.minimum(low, high))
        # A cap leads to neutral at once, and past it, where it brakes, as fast as the ramp.
        cap_high = np.maximum(cap_high, np.minimum(low, self.neutral))
        cap_low = np.minimum(np.minimum(cap_low, np.maximum(high, self.neutral)), cap_high)
        command = np.maximum(np.minimum(ramped, cap_high), cap_low)
        change = [
            new - old if new == free else 0.0
            for new, old, free in zip(command.tolist(), state.command.tolist(), ramped.tolist())  # noqa: B905
        ]
        following = GateState(
            command,
            tuple(change),
            joints,
            sensors,
            self._remember(chatter, wanted.tolist(), command.tolist(), cap_low.tolist(), cap_high.tolist()),
            output,
            lost=append_lost(state.lost, False),
            chattered=chattered,
        )
        return GateResult(command, command == wanted, "", following)

    def rest(self, state: GateState, measured: np.ndarray) -> np.ndarray:
        """The command that brings the machine to rest: neutral, or where that does not stop a joint, its brake."""
        command, limits = self.neutral.copy(), self.limits
        values = measured.tolist()
        if not self.brakes or not all(map(math.isfinite, values)):
            return command
        for channel, (low, high, middle, step, _, joint, sign) in enumerate(self._channels):
            if joint < 0 or not limits.brake[joint] > 0:
                continue
            speed = self.joints.speed(state.joints, joint, values) * sign
            # Deceleration × this time is the speed from which on all of the brake is used.
            gentle_s = 3.0 * (self.joints.joints[joint].dead_time_s + self.spec.period_s)
            share = min(abs(speed) / (limits.deceleration[joint] * gentle_s), 1.0) * limits.brake[joint]
            goal = middle + share * ((low if speed > 0 else high) - middle)
            last = min(max(float(state.command[channel]), min(goal, middle)), max(goal, middle))
            command[channel] = min(max(goal, last - step), last + step)
        return command

    def is_slow(self, state: GateState, measured: np.ndarray) -> bool:
        """Whether no joint that neutral does not stop moves; false where that is not known."""
        return self.joints.stand(state.joints, measured.tolist())

    def follow(self, state: GateState, command: np.ndarray, measured: np.ndarray) -> GateState:
        """The state after a command that was applied without asking the gate: `rest`."""
        values = measured.tolist()
        if not all(map(math.isfinite, values)):
            return dataclasses.replace(state, command=command, change=self._rest, age=state.age + 1)
        joints = self.joints(
            state.joints, values, self._driving(*self._efforts(state.command.tolist())), state.age, True
        )[1]
        sensors = dataclasses.replace(state.sensors, values=tuple(values))
        return GateState(command, self._rest, joints, sensors, self._calm)

    def _refuse(self, fault: str, state: GateState) -> GateResult:
        return self._neutral(fault, self.start(state))

    def _neutral(self, fault: str, following: GateState) -> GateResult:
        return GateResult(self.neutral, np.zeros(len(self.neutral), bool), fault, following)

    def _without(self, state: GateState, why: str = LOST_MEASUREMENT) -> GateResult:
        """A step without a measurement. The last measurement stays, with its age, for speeds after the gap."""
        limits, lost = self.limits, append_lost(state.lost, True)
        in_a_row = all(lost[-limits.dropouts - 1 :]) and len(lost) > limits.dropouts
        often = sum(lost) > max(limits.dropouts, limits.dropouts_of_20)
        following = dataclasses.replace(state, command=self.neutral, change=self._rest, age=state.age + 1, lost=lost)
        return self._neutral(why if in_a_row or often else "", following)

    def _efforts(self, command: list[float]) -> tuple[list[float], float]:
        """Which share of the command range drove each joint up, or, negative, down; and the largest of all channels."""
        efforts, largest = [0.0] * len(self.joints.joints), 0.0
        for value, (low, high, middle, _, _, joint, sign) in zip(command, self._channels):  # noqa: B905
            width = high - middle if value > middle else middle - low
            share = (value - middle) / width if width > 0 else 0.0
            largest = max(largest, abs(share))
            if joint >= 0:
                efforts[joint] = min(max(efforts[joint] + sign * share, -1.0), 1.0)
        return efforts, largest

    def _driving(self, efforts: list[float], largest: float) -> list[float]:
        """What may have driven each joint: any channel where it is not known which one does."""
        joints = self.joints.joints
        return [e if j.driven else largest for e, j in zip(efforts, joints)]  # noqa: B905 (Python 3.10)

    def _follow_mean(self, state: GateState, wanted: list[float]) -> tuple[list[float], tuple[Chatter, ...], bool]:
        """What each channel aims at: what is wanted or, while that chatters, its mean."""
        targets, chatter, chatters = [], [], False
        for want, last, change, channel, most, (fade, fade_followed, _), remembered in zip(  # noqa: B905
            wanted, state.command.tolist(), state.change, self._channels, self._largest_debt, self._fades, state.chatter
        ):
            low, high, _, step, bend, _, _ = channel
            mean, debt, before, cut, swings, followed = remembered
            want = min(max(want, low), high)
            swings *= fade_followed if followed else fade
            above, below = last + min(step, change + bend), last - min(step, bend - change)
            way = math.copysign(1.0, want - last) if want != last else 0.0
            is_cut = not below <= want <= above
            if is_cut and (way * before < 0 or way * cut < 0):
                swings = min(swings + 1.0, 1.5 * CHATTERS)
                if abs(debt) > most:
                    swings = max(swings, CHATTERS)
            follows = swings >= (CALM if followed else CHATTERS)
            targets.append(mean if follows else want)
            chatters = chatters or follows
            chatter.append((mean, debt, way or before, way if is_cut else cut, swings, follows))
        return targets, tuple(chatter), chatters

    def _remember(
        self,
        chatter: tuple[Chatter, ...],
        wanted: list[float],
        command: list[float],
        cap_low: list[float],
        cap_high: list[float],
    ) -> tuple[Chatter, ...]:
        """After a step: what the ramp kept back of what was wanted is owed, and raises or lowers the mean.

        So the mean that is followed gives back what was cut off before. What a cap takes away is not owed.
        """
        period, found = self.spec.period_s, []
        for (mean, debt, way, cut, swings, follows), want, out, low, high, channel, (fade, _, fade_debt) in zip(  # noqa: B905
            chatter, wanted, command, cap_low, cap_high, self._channels, self._fades
        ):
            kept_back = min(max(want, low), high) - out
            mean += (1.0 - fade) * kept_back + (1.0 - fade_debt) * (out - mean)
            mean = min(max(mean, channel[0]), channel[1])
            found.append((mean, fade_debt * debt + period * kept_back, way, cut, swings, follows))
        return tuple(found)

    def _bounds(self, state: GateState, rooms: list[tuple[float, float]], share: float) -> np.ndarray:
        """Rows: lowest by the ramp, lowest by the caps, highest by the ramp, highest by the caps; a column per channel.

        The ramp is range, rate and acceleration. The caps are what joint limits, box and authority leave around
        neutral; where a joint must brake, they lie beyond neutral.
        """
        columns = []
        for (low, high, middle, step, bend, joint, sign), last, change in zip(  # noqa: B905
            self._channels, state.command.tolist(), state.change
        ):
            up = min(step, change + bend, stoppable_step(high - last, bend))
            down = min(step, bend - change, stoppable_step(last - low, bend))
            below, above = rooms[joint] if joint >= 0 and rooms else (1.0, 1.0)
            if sign < 0:
                below, above = above, below
            columns.append(
                (
                    last - down,
                    middle + (share * below * (low - middle) if below >= 0 else -below * (high - middle)),
                    last + up,
                    middle + (share * above * (high - middle) if above >= 0 else -above * (low - middle)),
                )
            )
        return np.asarray(columns).T

    def _outside(self, output: tuple[float, ...]) -> float:
        limits = self.limits
        return max(max(a - p, p - b) for p, a, b in zip(output, limits.box_low, limits.box_high))  # noqa: B905

    def _room_in_box(self, output: tuple[float, ...], state: GateState) -> float:
        """1 where the output may move freely, falling to 0 at the edge of the box while it moves outward."""
        room, limits = 1.0, self.limits
        for p, earlier, low, high in zip(output, state.output, limits.box_low, limits.box_high):  # noqa: B905
            motion = (p - earlier) / (state.age * self.spec.period_s)
            ahead = p + limits.lookahead_s * motion
            left = high - ahead if motion > 0 else ahead - low if motion < 0 else math.inf
            room = min(room, left / limits.box_margin)
        return max(room, 0.0)


def fades(period_s: float, width: float, rate: float, acceleration: float) -> tuple[float, float, float]:
    """What is left after a period of what is remembered for `CHATTER_S`, `FOLLOWED_S` and `DEBT_S`; these times are
    for limits that let a command cross its range in `CROSSING_S`, and longer where it takes longer.
    """
    ramp_s = min(rate, math.sqrt(width * acceleration)) / acceleration if acceleration < math.inf else 0.0
    slowness = max((width / rate + ramp_s) / CROSSING_S, 1.0)
    return tuple(math.exp(-period_s / (slowness * s)) for s in (CHATTER_S, FOLLOWED_S, DEBT_S))  # pyright: ignore


def largest_debt(width: float, rate: float, acceleration: float) -> float:
    """What a single step over a channel's whole range leaves behind its limits, in command times seconds."""
    rate = min(rate, math.sqrt(width * acceleration))
    return width * (width / (2.0 * rate) + rate / acceleration) if rate < math.inf else 0.0


def append_lost(lost: tuple[bool, ...], missing: bool) -> tuple[bool, ...]:
    """The window with one step more."""
    return (*lost, missing)[-WINDOW:] if missing or lost else lost


def stoppable_step(distance: float, bend: float) -> float:
    """The largest step v ≥ 0 after which v, v − bend, v − 2·bend, … down to zero still sum to at most `distance`.

    With n = the number of steps until standstill, the sum is n·v − bend·n(n−1)/2; n is the smallest whole number with
    bend·n(n+1)/2 ≥ distance.
    """
    if distance <= 0.0:
        return 0.0
    if bend == math.inf:
        return distance
    n = max(math.ceil((math.sqrt(1.0 + 8.0 * min(distance / bend, 1e15)) - 1.0) / 2.0), 1)
    return min(distance / n + bend * (n - 1) / 2.0, distance)


def round_down(values: np.ndarray) -> np.ndarray:
    """The largest float32 numbers that are not above `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) > values, np.nextafter(single, np.float32(-np.inf)), single)


def round_up(values: np.ndarray) -> np.ndarray:
    """The smallest float32 numbers that are not below `values`."""
    single = values.astype(np.float32)
    return np.where(single.astype(float) < values, np.nextafter(single, np.float32(np.inf)), single)
