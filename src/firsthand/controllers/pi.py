"""A PI controller with feed-forward: inverse kinematics, an inverse valve map and PI per joint.

What an engineer would set up by hand, as a procedure:

1. `identify_axes` inspects the robot: dead time, lag and the static map from command to speed of every joint.
2. Gains follow the SIMC rule (Skogestad 2003) for an integrator with effective dead time θ, which is what a joint
   behind its inverted map is: K = 1/(2θ), integral time 8θ, and θ = dead time + half of the lag.
3. `GainSearch` tries multiples of these gains, an episode each, until the error rises, and keeps the best.

At every step the joint reference advances along the reference of the tip, by a weighted pseudo-inverse; the redundant
motion pulls the joints to the middle of their ranges. The speed that each joint needs after its own dead time and lag
is read off the preview, corrected by the PI controller, and turned into a command by the inverse map. The controller
itself is `firsthand_onboard.base_control.PIBase`.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.base_control import PIBase, check_base
from firsthand_onboard.features import command_feature
from firsthand_onboard.kinematics import tracked_output

from ..errors import UserError
from ..inspection import InspectionSettings, conclude, excite
from ..inspection.findings import ChannelFindings
from ..inspection.plan import usual_minutes
from ..robots.base import AbstractRobot
from ..tasks import Task
from ..training.bases import Recorded

GAIN_FACTORS = (1.0, 1.5, 2.2, 3.3, 5.0)
"""Multiples of the rule's gains to try, in this order."""
INSPECTION_AMPLITUDE = 0.9
"""Share of the command range that identification goes up to: the map has to cover what will be commanded."""
INSPECTION_OVERRUN = 1.2
"""An inspection takes at most this many times the time that it is given."""


@dataclass(frozen=True)
class Axis:
    """One joint as identified."""

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


def axis_from_findings(found: ChannelFindings, half_range: float, period_s: float) -> Axis:
    """The map of one joint, from the findings of an inspection. Raise `UserError` for a joint that has none."""
    if not found.responds or found.kind != "rate":
        raise UserError(
            f"{found.name} sets {found.kind or 'nothing that is measured'}; the PI controller needs joints whose speed "
            "follows their command."
        )
    sign = float(np.sign(sum(p.command * p.response for p in found.curve)))
    maps = {}
    for direction, band in ((1.0, found.dead_band_plus), (-1.0, found.dead_band_minus)):
        edge = 0.0 if band is None or not math.isfinite(band.edge) else band.edge / half_range
        mine = sorted((abs(p.command) / half_range, abs(p.response)) for p in found.curve if p.command * direction > 0)
        mine = [(size, speed) for size, speed in mine if size > edge]
        if not mine:
            raise UserError(f"{found.name} moves its joint in one direction only.")
        size = np.asarray([edge, *(size for size, _ in mine)])
        speed = np.maximum.accumulate([0.0, *(speed for _, speed in mine)])
        slope = (speed[-1] - speed[-2]) / max(size[-1] - size[-2], 1e-9)
        if size[-1] < 1.0:
            size, speed = np.append(size, 1.0), np.append(speed, speed[-1] + (1.0 - size[-1]) * slope)
        maps[direction * sign] = (size, speed + 1e-9 * np.arange(len(speed)))
    lag = found.lag_steps * period_s if math.isfinite(found.lag_steps) else period_s
    dead = ((found.dead_time_steps or 0) + 0.5) * period_s
    return Axis(sign, maps[1.0], maps[-1.0], dead, max(lag, 0.0))


def pi_base(spec: ControlSpec, axes: tuple[Axis, ...], factor: float = 1.0) -> PIBase:
    """The PI controller of a robot with these axes. Raise `UserError` for a robot that it does not fit.

    Args:
        spec: the robot's control specification; its kinematics are a planar chain, or its joints are tracked.
        axes: one per joint, from `identify_axes`.
        factor: the gains, as a multiple of the SIMC rule's.
    """
    theta = np.asarray([axis.theta_s for axis in axes])
    longest = max(len(table[0]) for axis in axes for table in (axis.up, axis.down))

    def stack(tables: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        return np.stack([np.pad(np.stack(t), ((0, 0), (0, longest - len(t[0]))), mode="edge") for t in tables])

    base = PIBase(
        gain=factor / (2 * theta),
        integral_s=8 * theta,
        ahead_s=np.asarray([axis.dead_s + axis.lag_s for axis in axes]),
        sign=np.asarray([axis.sign for axis in axes]),
        up=stack([axis.up for axis in axes]),
        down=stack([axis.down for axis in axes]),
    )
    try:
        check_base(spec, base)
    except SpecError as error:
        raise UserError(f"{error}.") from None
    return base


class PIController:
    """Commands for a batch of robots with the same axes, from the policy's own inputs; see `pi_base`."""

    def __init__(self, spec: ControlSpec, axes: tuple[Axis, ...], factor: float) -> None:
        self.spec, self.base = spec, pi_base(spec, axes, factor)
        self._memories: list[np.ndarray] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], a row per robot.

        Args:
            seen: what the policy would see, a row per robot.
            first: whether a trajectory begins with this step, one per robot.
        """
        if len(self._memories) != len(seen):
            self._memories = [np.asarray(self.base.initial_memory(self.spec)) for _ in seen]
            first = np.ones(len(seen), bool)
        return np.stack([self._one(i, row.astype(float), bool(first[i])) for i, row in enumerate(seen)])

    def _one(self, i: int, seen: np.ndarray, first: bool) -> np.ndarray:
        spec, size, outputs = self.spec, self.spec.layout.size, self.spec.num_outputs
        measured = seen[: spec.layout.num_measured] * np.asarray(spec.scales.measured_scale)
        measured = measured + np.asarray(spec.scales.measured_center)
        now = np.asarray(tracked_output(spec, measured)) + seen[size : size + outputs] * np.asarray(spec.scales.error)
        motion = seen[size + outputs :].reshape(-1, outputs) * np.asarray(spec.scales.preview)
        points = np.concatenate([now[None], now + motion])
        memory = self.base.begin(spec, measured, self._memories[i]) if first else self._memories[i]
        command, self._memories[i] = self.base.step(spec, measured, points, memory)
        return np.asarray(command_feature(spec, command))


@dataclass(frozen=True)
class Identification:
    """The axes of a robot, and what it cost to find them."""

    axes: tuple[Axis, ...]
    robot_time_s: float
    processor_time_s: float
    """For the evaluation of what was recorded."""
    recorded: Recorded | None = None
    """What the robot did meanwhile."""


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
    seen = Recorded(recorded.before, recorded.commands, recorded.joined[1:])
    return Identification(axes, inspection.robot_time_s, taken, seen)


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
