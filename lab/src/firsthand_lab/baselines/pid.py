"""What an engineer has today: inverse kinematics, feed-forward through an inverse valve map, PI per joint.

The procedure, with the robot time of each part counted:

1. `firsthand inspect` moves every joint alone: dead time, lag, and the static map from command to speed.
2. Gains by the SIMC rule (Skogestad 2003) for an integrator with effective dead time θ, which a joint behind its
   inverted map is: K = 1/(2θ), integral time 8θ, and θ = dead time + half of the lag.
3. One episode with each of `FACTORS` times these gains, until the error rises; the best one stays.

At every step the joint reference goes on along the tip's reference (weighted pseudo-inverse; what is left free is
drawn to the middle of the joints' ranges). The speed that each joint needs after its own dead time and lag is read off
the preview, corrected by the PI controller, and turned into a command by the inverse map.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.inspection.findings import ChannelFindings
from firsthand.tasks import Task
from firsthand_onboard import ControlSpec, PlanarChain
from firsthand_onboard.kinematics import chain_jacobian, chain_points

from ..experiments.base import Report
from .ledger import Ledger, Stopwatch
from .setup import plant_and_task
from .view import RobotView

FACTORS = (1.0, 1.5, 2.2, 3.3, 5.0)
"""Shares of the rule's gains that are tried, an episode each."""
INSPECTION_AMPLITUDE = 0.9
"""Share of the command range that identification goes up to: a map has to cover what will be commanded."""
CENTERING_S = 4.0
"""Time constant of the pull to the middle of the joints' ranges, in seconds."""
CREEP = 0.02
"""Below this share of a joint's highest speed the jump over the dead band is made gradually: less chatter."""
IDENTIFYING = 1.2
"""An inspection takes at most so many times the time that is asked for."""
MARGIN = 0.03
"""The joint reference keeps this share of the range away from the limits."""


@dataclass(frozen=True)
class Axis:
    """What identification says of one joint."""

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


def axis_of(found: ChannelFindings, half_range: float, period_s: float) -> Axis:
    """The map of a channel from the findings of an inspection."""
    if not found.responds or found.kind != "rate":
        raise UserError(
            f"the command {found.name} sets {found.kind or 'nothing that is measured'}, "
            "but the pid peer needs joints whose speed follows their command."
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


@dataclass
class _Memory:
    """What the controller remembers of one robot."""

    reference: np.ndarray
    """Joint reference."""
    integral: np.ndarray


class PidController:
    """The controller for several robots; it sees what every peer sees."""

    def __init__(self, spec: ControlSpec, axes: tuple[Axis, ...], factor: float) -> None:
        assert isinstance(spec.kinematics, PlanarChain)
        self.spec, self.chain, self.axes = spec, spec.kinematics, axes
        theta = np.asarray([axis.theta_s for axis in axes])
        self.gain, self.integral_s = factor / (2 * theta), 8 * theta
        self.low, self.high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2
        self.weight = np.asarray([axis.fastest for axis in axes])
        self.ahead = np.asarray([0, *spec.preview], float) * spec.period_s
        self.memory: list[_Memory] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1]."""
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
        now = chain_points(self.chain, position)[-1] + seen[size : size + 2] * spec.scales.error
        motion = seen[size + 2 :].reshape(-1, 2) * spec.scales.preview
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
        held = np.abs(action) < 1.0  # a saturated joint's integral waits
        memory.integral = memory.integral + spec.period_s * np.where(held, error, 0.0)
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


def identified(plant: Any, task: Task, seed: int) -> tuple[tuple[Axis, ...], float, float]:
    """Axes by inspection, the robot time that it took, and the processor time of its evaluation, in seconds."""
    from firsthand.inspection import InspectionSettings, conclude, excite
    from firsthand.inspection.settings import usual_minutes
    from firsthand.robots.simulated import SimulatedRobot

    settings = InspectionSettings(usual_minutes(task.spec), INSPECTION_AMPLITUDE, seed)
    moved = excite(SimulatedRobot(plant, task, seed=seed), settings)
    began = time.process_time()
    inspection = conclude(task.name, task.spec, settings, moved)
    taken = time.process_time() - began
    axes = tuple(
        axis_of(found, inspection.half_range(i), task.spec.period_s)
        for i, found in enumerate(inspection.findings.channels)
    )
    return axes, inspection.robot_time_s, taken


def require(task: Task, episodes: int) -> None:
    """Raise `UserError` for a robot without known kinematics, and for less robot time than identification takes."""
    from firsthand.inspection.settings import usual_minutes

    if not isinstance(task.spec.kinematics, PlanarChain):
        raise UserError(
            f"the pid peer needs a robot whose kinematics are known as a chain; {task.spec.robot} has none: leave pid "
            "out of --peers."
        )
    least = math.ceil(IDENTIFYING * 60 * usual_minutes(task.spec) / task.episode_s) + len(FACTORS)
    if episodes < least:
        raise UserError(
            f"episodes is {episodes}, but pid needs at least {least} for identification and tuning: give more "
            "--episodes, or leave pid out of --peers."
        )


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Identify, tune, and go on with the best gains. Robot time of identification counts in whole episodes."""
    tiny = parameters["setting"] == "tiny"
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    episodes, seed = parameters["episodes"], parameters["seed"]
    view = RobotView(plant, task, seed=seed)
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    whole = plant_and_task(parameters["robot"])[1]
    axes, robot_s, taken = identified(plant, whole, seed)
    spent = 0 if tiny else math.ceil(robot_s / task.episode_s)  # the tests' episodes are much shorter than its pushes
    report(min(spent, episodes), f"identified in {robot_s / 60:.1f} min of robot time")
    watch = Stopwatch(view)
    errors: dict[float, float] = {}
    factor = FACTORS[0]
    for episode in range(spent + 1, episodes + 1):
        untried = [f for f in FACTORS if f not in errors]
        worse = len(errors) > 1 and list(errors.values())[-1] > min(errors.values())
        factor = untried[0] if untried and not worse else min(errors, key=lambda f: errors[f])
        controller = PidController(task.spec, axes, factor)
        steer(view, controller)
        errors.setdefault(factor, view.errors[-1])
        ledger.episode(episode, view.errors[-1], watch.take() + (taken if episode == spent + 1 else 0.0), 0)
        best = min(errors, key=lambda f: errors[f])
        ledger.test(episode, PidController(task.spec, axes, best))
        watch.restart()
    ledger.describe(
        parameters=3 * len(axes),
        setting=f"{robot_s / 60:.1f} min of inspection, then {len(errors)} episodes of tuning; gains {best:g} × SIMC",
    )


def steer(view: RobotView, controller: PidController) -> None:
    """One episode."""
    episode = view.episode
    while view.episode == episode:
        seen, first = view.begin(), True
        while not view.over:
            seen, _ = view.step(controller(seen[None], np.asarray([first]))[0])
            first = False
