"""A PID controller with feed-forward for any robot that can be pushed: what its outputs do is identified, not given.

The procedure of an engineer who knows nothing but the robot's limits:

1. `identify_outputs` inspects the robot (pushes inside its limits) and fits, per controlled output o and control period
   T, ÿ = γ − α ẏ − β y + κ u(t − θ) by least squares: κ is a row of the coupling matrix, signs included.
2. The commands are decoupled by the pseudo-inverse of that matrix.
3. Gains place all closed-loop poles at ω = factor/(2θ), where θ is the dead time and one period: a PID for what is
   accelerated, a PI for what is driven at a speed, integral action for what settles.
4. `GainSearch` tries multiples of ω, an episode each, until the error rises, and keeps the best.

Outputs are the tracked entries of the measurement; where kinematics stand between, the positions: their reference
follows that of the tip by a damped pseudo-inverse.
"""

import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec, SelectedOutput
from firsthand_onboard.kinematics import output_after, output_error, output_of_positions

from ..errors import UserError
from ..inspection import InspectionSettings, excite
from ..inspection.findings import identify
from ..inspection.plan import usual_minutes
from ..inspection.recording import Recording
from ..robots.base import AbstractRobot, neutral
from ..tasks import Task

FACTORS = (0.15, 0.3, 0.6, 1.0, 1.6, 2.5)
"""Multiples of the rule's bandwidth to try, in this order."""
DEAD_TRIES = 3
"""Dead times that are tried, from the one that the inspection found on, in control periods."""
OUTLIER = 10.0
"""A change this many times as large as all but 2 % is a spike of a sensor."""
MIN_ROWS_PER_COEFFICIENT = 5
SIGNIFICANT = 3.0
"""A command acts on an output where its coefficient is this many standard errors from zero."""
SPEED_FILTER = 0.5
"""Share of the newest difference in a speed that is not measured."""
DAMPING = 1e-3
"""Of the pseudo-inverses, relative to their largest singular value."""
AMPLITUDE = 0.5
"""Share of the command range that the pushes of identification go up to."""


@dataclass(frozen=True)
class OutputModel:
    """ÿ = offset − damping ẏ − stiffness y + coupling · a(t − dead time), a the command in half ranges from neutral."""

    entries: tuple[int, ...]
    """Entries of the measurement that are controlled."""
    damping: Float[np.ndarray, " outputs"]
    stiffness: Float[np.ndarray, " outputs"]
    offset: Float[np.ndarray, " outputs"]
    coupling: Float[np.ndarray, "outputs commands"]
    dead_steps: int
    robot_time_s: float = 0.0
    """Robot time that its identification took."""
    processor_time_s: float = 0.0


def controlled_entries(spec: ControlSpec) -> tuple[int, ...]:
    """The tracked entries of the measurement; the positions where kinematics stand between."""
    return spec.kinematics.indices if isinstance(spec.kinematics, SelectedOutput) else spec.layout.position


def identify_outputs(robot: AbstractRobot, task: Task, *, seed: int = 0) -> OutputModel:
    """Inspect the robot and fit the model. This moves it, with up to half of the command range."""
    settings = InspectionSettings(usual_minutes(task.spec), AMPLITUDE, seed)
    return fit_outputs(task.spec, excite(robot, settings))


def fit_outputs(spec: ControlSpec, recorded: Recording) -> OutputModel:
    """The model that fits a recording best, near the dead time that the inspection found.

    `UserError` where no command moves an output.
    """
    began = time.process_time()
    found_dead = [c.dead_time_steps for c in identify(recorded, spec).channels if c.dead_time_steps is not None]
    first = int(np.median(found_dead)) if found_dead else 0
    entries, period = controlled_entries(spec), spec.period_s
    half = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
    actions = (recorded.commands - neutral(spec)) / half
    now, change = recorded.before[:, entries], recorded.change[:, entries]
    moving = _recent_motion(spec, recorded, entries)
    usual = np.nanquantile(np.abs(change), 0.98, axis=0)
    spiked = (np.abs(change) > OUTLIER * np.maximum(usual, 1e-12)).any(axis=1)
    spiked[1:] |= spiked[:-1]
    fits = []
    for dead in range(first, first + DEAD_TRIES):
        rows = np.arange(dead + 1, len(actions))
        together = np.all([recorded.joined[rows - k] for k in range(dead + 1)], axis=0)
        together &= np.isfinite(change[rows]).all(axis=1) & np.isfinite(moving[rows]).all(axis=1) & ~spiked[rows]
        rows = rows[together]
        count = 3 + actions.shape[1]
        if len(rows) < MIN_ROWS_PER_COEFFICIENT * count:
            continue
        found, error, missed = [], [], 0.0
        for i in range(len(entries)):
            inputs = np.column_stack([np.ones(len(rows)), now[rows, i], moving[rows, i], actions[rows - dead]])
            scale = np.maximum(np.abs(inputs).max(axis=0), 1e-12)
            solution, *_ = np.linalg.lstsq(inputs / scale, change[rows, i], rcond=None)
            left = change[rows, i] - inputs / scale @ solution
            variance = np.sum(left**2) / (len(rows) - count)
            spread = np.sqrt(np.maximum(variance * np.diag(np.linalg.pinv((inputs / scale).T @ (inputs / scale))), 0))
            found.append(solution / scale)
            error.append(np.maximum(spread, 1e-12) / scale)
            missed += np.log(max(variance, 1e-24))
        fits.append((missed, dead, np.stack(found), np.stack(error)))
    if not fits:
        raise UserError(f"{spec.robot} was pushed for too short a time to identify it; see: firsthand inspect.")
    _, dead, found, error = min(fits, key=lambda fit: fit[0])
    effect = np.where(np.abs(found[:, 3:]) > SIGNIFICANT * error[:, 3:], found[:, 3:], 0.0)
    idle = np.flatnonzero(~effect.any(axis=1))
    if len(idle):
        name = spec.layout.measured[entries[idle[0]]]
        largest = max((push.amplitude for push in recorded.pushes), default=0.0)
        raise UserError(
            f"no command of {spec.robot} moved {name} above the noise at pushes of up to {largest:.2g} of half the "
            "command range, and a PID needs one that does; wider position limits allow larger pushes."
        )
    return OutputModel(
        entries=tuple(entries),
        damping=np.clip(1.0 - found[:, 2], 0.0, 1.0) / period,
        stiffness=np.maximum(-found[:, 1], 0.0) / period**2,
        offset=found[:, 0] / period**2,
        coupling=effect / period**2,
        dead_steps=dead,
        robot_time_s=len(recorded) * period,
        processor_time_s=time.process_time() - began,
    )


def _recent_motion(spec: ControlSpec, recorded: Recording, entries: tuple[int, ...]) -> np.ndarray:
    """How far each output moved in the period before: from its measured speed, or the difference to the row before."""
    layout = spec.layout
    before = np.full((len(recorded), len(entries)), np.nan)
    before[1:] = np.where(recorded.joined[1:, None], recorded.change[:-1][:, entries], np.nan)
    for i, entry in enumerate(entries):
        if layout.velocity and entry in layout.position:
            velocity = layout.velocity[layout.position.index(entry)]
            before[:, i] = spec.period_s * recorded.before[:, velocity]
    return before


@dataclass
class _Memory:
    """State of the controller for one robot."""

    reference: np.ndarray
    """Of the positions, where kinematics stand between."""
    integral: np.ndarray
    last: np.ndarray | None = None
    speed: np.ndarray | None = None


class PIDController:
    """Commands for a batch of robots, from the policy's own inputs.

    Args:
        spec: the robot's control specification.
        model: from `identify_outputs`.
        factor: the bandwidth, as a multiple of the rule's.
    """

    def __init__(self, spec: ControlSpec, model: OutputModel, factor: float) -> None:
        self.spec, self.model = spec, model
        period = spec.period_s
        self.dead_s = (model.dead_steps + 1) * period
        omega = factor / (2 * self.dead_s)
        damping, stiffness = model.damping, model.stiffness
        as_speed = damping >= 3 * omega  # what is driven at a speed: two poles are placed, and one is its own
        self.derivative = np.where(as_speed, 0.0, 3 * omega - damping)
        proportional = np.where(as_speed, 2 * omega * damping, 3 * omega**2) - stiffness
        self.proportional = np.maximum(proportional, 0.0)
        integral = np.where(as_speed, damping * omega**2, omega**3)
        self.integral = np.where(proportional > 0, integral, stiffness * omega)
        coupling = model.coupling
        u, s, v = np.linalg.svd(coupling, full_matrices=False)
        self.decoupling = (v.T * (s / (s**2 + (DAMPING * s.max()) ** 2))) @ u.T
        self.half = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
        self.middle = (np.asarray(spec.limits.command_high) + np.asarray(spec.limits.command_low)) / 2
        self.ahead = np.asarray([0, *spec.preview], float) * period
        self.memory: list[_Memory] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], a row per robot; `first` is true where a trajectory begins."""
        if len(self.memory) != len(seen):
            self.memory = [_Memory(np.zeros(0), np.zeros(len(self.model.entries))) for _ in seen]
            first = np.ones(len(seen), bool)
        return np.stack([self._one(self.memory[i], row.astype(float), bool(first[i])) for i, row in enumerate(seen)])

    def _one(self, memory: _Memory, seen: np.ndarray, first: bool) -> np.ndarray:
        spec, model, layout = self.spec, self.model, self.spec.layout
        measured = seen[: layout.num_measured] * np.asarray(spec.scales.measured_scale)
        measured = measured + np.asarray(spec.scales.measured_center)
        output, speed = measured[list(model.entries)], self._speed(memory, measured, first)
        points = self._points(seen, measured)
        if first:
            memory.reference = measured[list(layout.position)]
        wanted = self._reference(memory, points)
        now = wanted(0.0)
        step = 2 * spec.period_s
        before, at, after = (wanted(max(self.dead_s + t, 0.0)) for t in (-step, 0.0, step))
        rate, bend = (after - before) / (2 * step), (after - 2 * at + before) / step**2
        error = now - output
        slope = (wanted(step) - now) / step - speed
        feedback = self.proportional * error + self.derivative * slope + self.integral * memory.integral
        force = bend + model.damping * rate + model.stiffness * at - model.offset + feedback
        action = self.decoupling @ force
        command = np.asarray(neutral(spec), float) + action * self.half
        low, high = spec.limits.command_low, spec.limits.command_high
        if ((command > np.asarray(low)) & (command < np.asarray(high))).all():  # no wind-up
            memory.integral = memory.integral + spec.period_s * error
        return (np.clip(command, low, high) - self.middle) / self.half

    def _points(self, seen: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """The reference now and at each step of the preview, as the policy sees it."""
        spec, size, outputs = self.spec, self.spec.layout.size, self.spec.num_outputs
        if isinstance(spec.kinematics, SelectedOutput):
            here = measured[list(spec.kinematics.indices)]
        else:
            here = np.asarray(output_of_positions(spec.kinematics, measured[list(spec.layout.position)]))
        now = output_after(spec, here, seen[size : size + outputs] * np.asarray(spec.scales.error))[None]
        motion = seen[size + outputs :].reshape(-1, outputs) * np.asarray(spec.scales.preview)
        return np.concatenate([now, output_after(spec, now, motion)])

    def _reference(self, memory: _Memory, points: np.ndarray):
        """The reference of the controlled outputs, as a function of the time from now."""

        def at(t: float) -> np.ndarray:
            return np.asarray([np.interp(t, self.ahead, column) for column in points.T])

        if isinstance(self.spec.kinematics, SelectedOutput):
            return at
        moved = output_error(self.spec, points, points[:1])

        def ahead(t: float) -> np.ndarray:
            return np.asarray([np.interp(t, self.ahead, column) for column in moved.T])

        limits = self.spec.limits
        for _ in range(2):
            there = np.asarray(output_of_positions(self.spec.kinematics, memory.reference))
            missing = output_error(self.spec, points[0], there)
            memory.reference = memory.reference + self._inverse(memory.reference) @ missing
            memory.reference = np.clip(memory.reference, limits.position_low, limits.position_high)
        inverse, reference = self._inverse(memory.reference), memory.reference
        return lambda t: reference + inverse @ ahead(t)

    def _inverse(self, position: np.ndarray) -> np.ndarray:
        """The damped pseudo-inverse of the Jacobian of the kinematics, by central differences."""
        size, step = len(position), 1e-5
        shifts = step * np.eye(size)
        tips = [np.asarray(output_of_positions(self.spec.kinematics, position + s)) for s in (*shifts, *-shifts)]
        jacobian = output_error(self.spec, np.stack(tips[:size]), np.stack(tips[size:])).T / (2 * step)
        gram = jacobian @ jacobian.T
        return jacobian.T @ np.linalg.inv(gram + DAMPING * np.trace(gram) / len(gram) * np.eye(len(gram)))

    def _speed(self, memory: _Memory, measured: np.ndarray, first: bool) -> np.ndarray:
        layout, entries = self.spec.layout, self.model.entries
        output = measured[list(entries)]
        if memory.last is None or memory.speed is None or first:
            memory.speed = np.zeros(len(entries)) if memory.speed is None else memory.speed
        else:
            difference = (output - memory.last) / self.spec.period_s
            memory.speed = memory.speed + SPEED_FILTER * (difference - memory.speed)
        memory.last = output
        speed = memory.speed.copy()
        for i, entry in enumerate(entries):
            if layout.velocity and entry in layout.position:
                speed[i] = measured[layout.velocity[layout.position.index(entry)]]
        return speed
