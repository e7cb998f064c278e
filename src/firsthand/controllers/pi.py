"""A PI controller with feed-forward: inverse kinematics, an inverse valve map and PI per joint.

What an engineer would set up by hand, as a procedure:

1. `identify_axes` inspects the robot: dead time, lag and the static map from command to speed of every joint.
2. Gains follow the SIMC rule (Skogestad 2003) for an integrator with effective dead time θ, which is what a joint
   behind its inverted map is: K = 1/(2θ), integral time 8θ, and θ = dead time + half of the lag.
3. `GainSearch` tries multiples of these gains, an episode each, until the error rises, and keeps the best.

At every step the joint reference advances along the reference of the tip, by a weighted pseudo-inverse; the redundant
motion pulls the joints to the middle of their ranges. The speed that each joint needs after its own dead time and lag
is read off the preview, corrected by the PI controller, and turned into a command by the inverse map.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from firsthand_onboard import ControlSpec, PlanarChain
from firsthand_onboard.kinematics import chain_jacobian, chain_points

from ..errors import UserError
from ..inspection import InspectionSettings, conclude, excite
from ..inspection.findings import ChannelFindings
from ..inspection.plan import usual_minutes
from ..robots.base import AbstractRobot
from ..tasks import Task

GAIN_FACTORS = (1.0, 1.5, 2.2, 3.3, 5.0)
"""Multiples of the rule's gains to try, in this order."""
INSPECTION_AMPLITUDE = 0.9
"""Share of the command range that identification goes up to: the map has to cover what will be commanded."""
INSPECTION_OVERRUN = 1.2
"""An inspection takes at most this many times the time that it is given."""
CENTERING_S = 4.0
"""Time constant of the pull to the middle of the joints' ranges, in seconds."""
CREEP = 0.02
"""Below this share of a joint's highest speed the jump over the dead band is made gradually: less chatter."""
MARGIN = 0.03
"""The joint reference keeps this share of the range away from the limits."""


@dataclass(frozen=True)
class Axis:
    """What identification found out about one joint."""

    sign: float
    """−1 where a positive command lowers the position."""
    up: tuple[np.ndarray, np.ndarray]
    """Towards higher positions: size of the command as a share of the half range, from the edge of the dead band on,
    and the speed that it leads to."""
    down: tuple[np.ndarray, np.ndarray]
    """The same towards lower positions."""
    dead_s: float
    lag_s: float

    @property
    def fastest(self) -> float:
        """The highest speed."""
        return float(max(self.up[1][-1], self.down[1][-1]))

    @property
    def theta_s(self) -> float:
        """Effective dead time: dead time and half of the lag."""
        return self.dead_s + self.lag_s / 2

    def inverse(self, rate: float) -> float:
        """The command for a speed, as a share of the half range; beyond ±1 for a speed that cannot be had."""
        size, speed = self.up if rate > 0 else self.down
        wanted = abs(rate)
        command = np.interp(wanted, speed, size)
        if wanted > speed[-1]:
            command = command * wanted / speed[-1]
        jump = size[0] * max(1.0 - wanted / (CREEP * self.fastest), 0.0)
        return float(self.sign * np.sign(rate) * (command - jump))


def axis_from_findings(found: ChannelFindings, half_range: float, period_s: float) -> Axis:
    """The map of one joint, from the findings of an inspection. Raise `UserError` for a joint that has none."""
    if not found.responds or found.kind != "rate":
        raise UserError(
            f"the command {found.name} sets {found.kind or 'nothing that is measured'}, "
            "but the PI controller needs joints whose speed follows their command."
        )
    sign = float(np.sign(sum(p.command * p.response for p in found.curve)))
    maps = {}
    for direction, band in ((1.0, found.dead_band_plus), (-1.0, found.dead_band_minus)):
        edge = 0.0 if band is None or not math.isfinite(band.edge) else band.edge / half_range
        mine = sorted((abs(p.command) / half_range, abs(p.response)) for p in found.curve if p.command * direction > 0)
        mine = [(size, speed) for size, speed in mine if size > edge]
        if not mine:
            raise UserError(f"the command {found.name} moves its joint in one direction only.")
        size = np.asarray([edge, *(size for size, _ in mine)])
        speed = np.maximum.accumulate([0.0, *(speed for _, speed in mine)])
        slope = (speed[-1] - speed[-2]) / max(size[-1] - size[-2], 1e-9)
        if size[-1] < 1.0:
            size, speed = np.append(size, 1.0), np.append(speed, speed[-1] + (1.0 - size[-1]) * slope)
        maps[direction * sign] = (size, speed + 1e-9 * np.arange(len(speed)))
    lag = found.lag_steps * period_s if math.isfinite(found.lag_steps) else period_s
    dead = ((found.dead_time_steps or 0) + 0.5) * period_s
    return Axis(sign, maps[1.0], maps[-1.0], dead, max(lag, 0.0))


def require_chain(spec: ControlSpec) -> PlanarChain:
    """The robot's kinematics. Raise `UserError` unless they are known as a planar chain."""
    if not isinstance(spec.kinematics, PlanarChain):
        raise UserError(
            f"the PI controller needs a robot whose kinematics are known as a chain; {spec.robot} has none."
        )
    return spec.kinematics


@dataclass
class _Memory:
    """State of the controller for one robot."""

    reference: np.ndarray
    """Joint reference."""
    integral: np.ndarray


class PIController:
    """Commands for a batch of robots with the same axes, from the policy's own inputs.

    Args:
        spec: the robot's control specification; its kinematics must be a planar chain.
        axes: one per joint, from `identify_axes`.
        factor: the gains, as a multiple of the SIMC rule's.
    """

    def __init__(self, spec: ControlSpec, axes: tuple[Axis, ...], factor: float) -> None:
        self.spec, self.chain, self.axes = spec, require_chain(spec), axes
        theta = np.asarray([axis.theta_s for axis in axes])
        self.gain, self.integral_s = factor / (2 * theta), 8 * theta
        self.low, self.high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2
        self.weight = np.asarray([axis.fastest for axis in axes])
        self.ahead = np.asarray([0, *spec.preview], float) * spec.period_s
        self.memory: list[_Memory] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], a row per robot.

        Args:
            seen: what the policy would see, a row per robot.
            first: whether a trajectory begins with this step, one per robot.
        """
        if len(self.memory) != len(seen):
            self.memory = [_Memory(np.zeros(0), np.zeros(len(self.axes))) for _ in seen]
            first = np.ones(len(seen), bool)
        return np.stack([self._one(i, row.astype(float), bool(first[i])) for i, row in enumerate(seen)])

    def _one(self, i: int, seen: np.ndarray, first: bool) -> np.ndarray:
        spec, layout = self.spec, self.spec.layout
        measured = seen[: layout.num_measured] * np.asarray(spec.scales.measured_scale)
        measured = measured + np.asarray(spec.scales.measured_center)
        position = measured[list(layout.position)]
        size = layout.size
        now = chain_points(self.chain, position)[-1] + seen[size : size + 2] * np.asarray(spec.scales.error)
        motion = seen[size + 2 :].reshape(-1, 2) * np.asarray(spec.scales.preview)
        points = np.concatenate([now[None], now + motion])
        memory = self.memory[i]
        if first:  # a reference begins where the machine is; what the integral has learned of the valves stays
            memory.reference = np.clip(position, *self._range())
        for _ in range(2):
            memory.reference = memory.reference + self._step(
                memory.reference, now - chain_points(self.chain, memory.reference)[-1]
            )
        memory.reference = np.clip(memory.reference + spec.period_s * self._pull(memory.reference), *self._range())
        error = memory.reference - position
        feedback = self.gain * (error + memory.integral / self.integral_s)
        action = np.zeros(len(self.axes))
        for j, axis in enumerate(self.axes):
            rate = self._rate_ahead(memory.reference, points, axis.dead_s + axis.lag_s)[j] + feedback[j]
            action[j] = axis.inverse(rate)
        free = np.abs(action) < 1.0  # no wind-up: the integral of a saturated joint stands still
        memory.integral = memory.integral + spec.period_s * np.where(free, error, 0.0)
        return np.clip(action, -1.0, 1.0)

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        margin = MARGIN * (self.high - self.low)
        return self.low + margin, self.high - margin

    def _inverse(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Jacobian, and its pseudo-inverse weighted by what the joints can do."""
        jacobian = chain_jacobian(self.chain, position)
        weighted = jacobian * self.weight**2
        return jacobian, weighted.T @ np.linalg.inv(jacobian @ weighted.T + 1e-6 * np.eye(2))

    def _step(self, position: np.ndarray, residual: np.ndarray) -> np.ndarray:
        return self._inverse(position)[1] @ residual

    def _pull(self, position: np.ndarray) -> np.ndarray:
        """Speeds that leave the tip where it is and draw the joints to the middle of their ranges."""
        jacobian, inverse = self._inverse(position)
        wanted = (self.middle - position) / CENTERING_S
        return wanted - inverse @ (jacobian @ wanted)

    def _rate_ahead(self, position: np.ndarray, points: np.ndarray, ahead_s: float) -> np.ndarray:
        """The joints' speeds along the reference after a time."""
        half = 1.5 * self.spec.period_s
        before, at, after = (
            np.asarray([np.interp(t, self.ahead, points[:, axis]) for axis in range(2)])
            for t in (max(ahead_s - half, 0.0), ahead_s, ahead_s + half)
        )
        there = np.clip(position + self._step(position, at - points[0]), *self._range())
        velocity = (after - before) / (ahead_s + half - max(ahead_s - half, 0.0))
        return self._inverse(there)[1] @ velocity + self._pull(there)


@dataclass(frozen=True)
class Identification:
    """The axes of a robot, and what it cost to find them."""

    axes: tuple[Axis, ...]
    robot_time_s: float
    processor_time_s: float
    """For the evaluation of what was recorded."""


def identify_axes(robot: AbstractRobot, task: Task, *, seed: int = 0) -> Identification:
    """Inspect the robot, joint by joint. This moves it, with up to 90 % of the command range."""
    settings = InspectionSettings(usual_minutes(task.spec), INSPECTION_AMPLITUDE, seed)
    recorded = excite(robot, settings)
    began = time.process_time()
    inspection = conclude(task.name, task.spec, settings, recorded)
    taken = time.process_time() - began
    axes = tuple(
        axis_from_findings(found, inspection.half_range(i), task.spec.period_s)
        for i, found in enumerate(inspection.findings.channels)
    )
    return Identification(axes, inspection.robot_time_s, taken)


def episodes_for_tuning(task: Task, factors: int = len(GAIN_FACTORS)) -> int:
    """Episodes of robot time that identification and tuning take at most."""
    inspection_s = INSPECTION_OVERRUN * 60 * usual_minutes(task.spec)
    return math.ceil(inspection_s / task.episode_s) + factors


class GainSearch:
    """Which gains to try next: each of `factors` in turn until the error rises, then the best one."""

    def __init__(self, factors: tuple[float, ...] = GAIN_FACTORS) -> None:
        self.factors = factors
        self.errors: dict[float, float] = {}
        """The error of the first episode with each factor."""

    @property
    def best(self) -> float:
        """The factor with the smallest error."""
        return min(self.errors, key=lambda factor: self.errors[factor])

    def next_factor(self) -> float:
        """The factor for the next episode."""
        untried = [factor for factor in self.factors if factor not in self.errors]
        tried = list(self.errors.values())
        rising = len(tried) > 1 and tried[-1] > min(tried)
        return untried[0] if untried and not rising else self.best

    def record(self, factor: float, error: float) -> None:
        """The tracking error of an episode with `factor`."""
        self.errors.setdefault(factor, error)
