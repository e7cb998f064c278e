"""A Gymnasium environment, stepped in Python by the policy that also runs on a machine."""

import contextlib
import enum
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec, NumpyController, NumpyObserver
from firsthand_onboard.features import (
    PEAK_OF_QUINTIC,
    build_reference,
    initial_state,
    measured_part,
    next_state,
    preview_points,
    quintic_blend,
)
from firsthand_onboard.kinematics import output_error, output_of_positions, tracked_output

from ..errors import UserError
from ..models import Controller, Policy, as_controller
from ..plants.sensors import Sensors
from ..tasks.base import EvaluationReference, Task
from .base import AbstractRobot, EpisodeRecord, neutral
from .hardware_gate import HardwareGate
from .limits import BEGIN_SLACK, LimitWatch, is_inside
from .sensing import Sensing, fit_sensors

REST_S = 1.0
"""How long the robot is held at a reference's start before it is followed, in seconds."""
STEP_VALUES = 5
"""What Gymnasium's `step` returns: observation, reward, terminated, truncated, info."""
RECOVERY_S = 2.0
"""How long a machine has, in neutral or under its `safe` policy, to come back inside its limits, in seconds."""
AT_START = 0.1
"""A placed robot is at a reference's start within this share of the specification's scale of errors."""
MAX_APPROACHES = 3
"""How often the way to a reference's start is tried, when the environment ends on it."""


class RobotFailed(UserError):
    """The robot cannot go on; the message says why. What it did before is worth keeping."""


class Outcome(enum.Enum):
    """How a step went."""

    GOING = "going"
    """There is a next step."""
    ENDED = "ended"
    """The environment ended here; the step itself happened."""
    NOT_FINITE = "not finite"
    """The observation was not a number; the step counts for nothing. An observer predicts what is missing instead."""
    LIMIT = "limit"
    """A position was about to leave its limits; the step itself happened."""
    LOST = "lost"
    """A measurement was missing for longer than the observer may predict; the step itself happened."""


@runtime_checkable
class Environment(Protocol):
    """What the driver needs to know: how to make the environment, and how to read it."""

    def make(self) -> Any:
        """A new environment without a time limit."""
        ...

    def measure(self, observation: Any) -> Float[np.ndarray, " measured"]:
        """The measurement in an observation."""
        ...

    def place(self, env: Any, position: Float[np.ndarray, " position"]) -> Any | None:
        """Put the environment at rest in a configuration and observe it; None where that is impossible."""
        ...

    @property
    def angles(self) -> tuple[int, ...]:
        """Which entries of the measurement are angles that wrap around."""
        ...


SafePolicy = Callable[[Float[np.ndarray, " measured"]], Any]
"""From a measurement to the command that brings the robot back."""


class Trajectory:
    """One trajectory as it grows; padded with its last state from where it was cut."""

    def __init__(
        self,
        start: Float[np.ndarray, " state"],
        measured: Float[np.ndarray, " measured"],
        true: Float[np.ndarray, " measured"],
        points: Float[np.ndarray, "points outputs"],
        spec: ControlSpec,
    ) -> None:
        steps = len(points) - spec.preview[-1]
        self.start, self.points, self.done = start, points, 0
        self.measured = np.repeat(measured[None], steps + 1, axis=0)
        self.truth = np.repeat(true[None], steps + 1, axis=0)
        self.commands = np.repeat(neutral(spec)[None], steps, axis=0)
        self.free: Bool[np.ndarray, "steps commands"] = np.ones(self.commands.shape, bool)
        self.valid: Bool[np.ndarray, " steps"] = np.zeros(steps, bool)
        self.restarts: Float[np.ndarray, " measured"] | None = None
        self.memory: Float[np.ndarray, " memory"] | None = None

    def add(
        self,
        command: Float[np.ndarray, " commands"],
        measured: Float[np.ndarray, " measured"],
        true: Float[np.ndarray, " measured"],
        free: Bool[np.ndarray, " commands"] | bool = True,
    ) -> None:
        """A step that happened; `free` are the channels whose command was the policy's own."""
        k = self.done
        self.free[k] = free
        self.commands[k], self.measured[k + 1 :], self.truth[k + 1 :], self.valid[k] = command, measured, true, True
        self.done += 1


def as_record(trajectories: Sequence[Trajectory], *, knows_truth: bool) -> EpisodeRecord:
    """Trajectories of one length as a record; the truth is known where the sensors are ours."""

    def stacked(name: str) -> np.ndarray:
        return np.stack([getattr(t, name) for t in trajectories])

    return EpisodeRecord(
        starts=stacked("start"),
        measured=stacked("measured"),
        commands=stacked("commands"),
        references=stacked("points"),
        free=stacked("free"),
        valid=stacked("valid"),
        truth=stacked("truth") if knows_truth else None,
        restarts=stacked("restarts") if all(t.restarts is not None for t in trajectories) else None,
        memory=stacked("memory") if all(t.memory is not None for t in trajectories) else None,
    )


class Driver:
    """An environment and the state vector that the policy sees of it."""

    def __init__(
        self,
        environment: Environment,
        spec: ControlSpec,
        *,
        seed: int,
        sensors: Sensors | None = None,
        gate: HardwareGate | None = None,
    ) -> None:
        self.environment, self.spec, self._gate = environment, spec, gate
        self.applied = neutral(spec)
        """The last command as the robot got it."""
        self.free: Bool[np.ndarray, " commands"] = np.ones(len(self.applied), bool)
        """Where that is what was asked for."""
        self.missing: tuple[int, ...] = ()
        """Entries of the last measurement that were not finite and ended a motion."""
        self.env = environment.make()
        self.space = self.env.action_space
        self.state = self.true = self.newest = np.zeros(0, np.float32)
        self._observer: NumpyObserver | None = None
        self._sensing = None if sensors is None else Sensing(sensors, seed)
        try:
            self.reset(seed)
        except BaseException:
            with contextlib.suppress(RobotFailed):  # why it cannot be used is reported already
                self.close()
            raise

    def close(self) -> None:
        """Give the environment back."""
        self._call("close()", self.env.close)

    def watch(self, observer: NumpyObserver | None) -> None:
        """Let an observer follow the robot; its motion begins here, and anew where the robot is put somewhere."""
        self._observer = observer
        if observer is not None:
            observer.start_motion(self.state)

    @property
    def seen(self) -> Float[np.ndarray, " state"]:
        """The policy's input: the observer's estimate, or the state vector without an observer."""
        return self.state if self._observer is None else self._observer.state

    def begin(self, points: Float[np.ndarray, "points outputs"]) -> Trajectory:
        """A trajectory that begins here."""
        return Trajectory(self.seen.copy(), self.newest, self.true, points, self.spec)

    @property
    def fault(self) -> str:
        """Why the observer's estimate cannot be used any more; empty where it can."""
        return "" if self._observer is None else self._observer.fault

    def rest(self) -> None:
        """One neutral command, so that the robot is not left with the last one; what needs a brake is braked before."""
        for _ in range(0 if self._gate is None else self._gate.braking_steps):
            command = self._gate.brake(self.newest) if self._gate is not None else None
            if command is None or self._gate is None or self._apply(command) is not Outcome.GOING:
                break
            self._gate.follow(command, self.newest)
        if self._apply(neutral(self.spec)) is not Outcome.GOING:
            self.reset()
        elif self._gate is not None:
            self._gate.begin()

    def reset(self, seed: int | None = None) -> None:
        """Start anew, wherever the environment puts the robot."""
        self._stand(self._call("reset()", lambda: self.env.reset(seed=seed))[0])

    def place(self, position: Float[np.ndarray, " position"]) -> bool:
        """Stand at rest in a configuration; False where the environment cannot be put there."""
        observation = self._call("place()", lambda: self.environment.place(self.env, position))
        if observation is not None:
            self._stand(observation)
        return observation is not None

    def _stand(self, observation: Any) -> None:
        measured = self._measure(observation)
        if not np.isfinite(measured).all():
            entry = int(np.flatnonzero(~np.isfinite(measured))[0])
            raise RobotFailed(
                f"{self.name} measures {measured[entry]} in entry {entry} right after a reset, but must measure a "
                "finite number there."
            )
        self.true = measured
        if self._sensing is not None:
            measured = self._sensing.start(measured)
        self.state, self.newest = initial_state(self.spec.layout, measured, neutral(self.spec)), measured
        self.turn_back()
        if self._gate is not None:
            self._gate.begin()
        self.watch(self._observer)

    def turn_back(self) -> None:
        """Count angles from the turn nearest to the middle of their limits, also in what is remembered."""
        layout, limits = self.spec.layout, self.spec.limits
        shift = np.zeros(layout.num_measured, np.float32)
        for entry in self.environment.angles:
            middle = 0.0
            if entry in layout.position:
                i = layout.position.index(entry)
                middle = (limits.position_low[i] + limits.position_high[i]) / 2
            shift[entry] = 2 * np.pi * np.round((middle - self.state[entry]) / (2 * np.pi))
        if shift.any():
            state = self.state.copy()
            state[: layout.command_start] += np.tile(shift, 1 + layout.measurement_memory)
            self.state, self.true, self.newest = state, self.true + shift, self.newest + shift
            if self._observer is not None:
                self._observer.shift(shift)
            if self._sensing is not None:
                self._sensing.shift(shift)
            if self._gate is not None:
                self._gate.begin()

    def measured(self) -> Float[np.ndarray, " measured"]:
        """What was measured last; for what is missing the last value that came. `newest` has NaN there."""
        return measured_part(self.spec.layout, self.state)

    def step(self, command: Float[np.ndarray, " commands"]) -> Outcome:
        """Apply a command for one control period; hardware gets what the gate makes of it."""
        if self._gate is None:
            return self._apply(command)
        command, free, fault = self._gate(command, self.newest)
        if fault:
            with contextlib.suppress(RobotFailed):
                self._apply(neutral(self.spec))
            raise RobotFailed(f"{self.name} was stopped: {fault}.")
        outcome = self._apply(command)
        self.free = free
        return outcome

    def _apply(self, command: Float[np.ndarray, " commands"]) -> Outcome:
        self.applied, self.free = command, np.ones(len(command), bool)
        action = np.clip(command.reshape(self.space.shape), self.space.low, self.space.high).astype(self.space.dtype)
        answer = self._call("step()", lambda: self.env.step(action))
        if not isinstance(answer, tuple) or len(answer) != STEP_VALUES:
            got = f"{len(answer)} values" if isinstance(answer, tuple) else f"{type(answer).__name__}"
            raise RobotFailed(
                f"{self.name} returned {got} from step(), but must return five: observation, reward, terminated, "
                "truncated, info."
            )
        observation, _, terminated, truncated, _ = answer
        measured = self._measure(observation)
        is_here = np.isfinite(measured)
        if self._observer is None and not is_here.all():
            self.missing = tuple(np.flatnonzero(~is_here).tolist())
            return Outcome.NOT_FINITE
        measured = np.where(is_here, measured, self.true)
        for entry in self.environment.angles:  # an angle moves by less than half a turn in a control period
            measured[entry] += 2 * np.pi * np.round((self.true[entry] - measured[entry]) / (2 * np.pi))
        self.true = measured
        if self._sensing is not None:
            measured = self._sensing.advance(measured)
        self.state = next_state(self.spec.layout, self.state, command, measured)
        self.newest = np.where(is_here, measured, np.float32(np.nan))
        if self._observer is not None:
            self._observer.observe(command, self.newest)
        if self.fault:
            return Outcome.LOST
        return Outcome.ENDED if terminated or truncated else Outcome.GOING

    def _measure(self, observation: Any) -> Float[np.ndarray, " measured"]:
        try:
            measured = self.environment.measure(observation)
        except UserError as error:  # what was measured before is worth keeping
            raise RobotFailed(str(error)) from error
        if len(measured) != self.spec.layout.num_measured:
            wanted = self.spec.layout.num_measured
            raise RobotFailed(f"{self.name} measures {len(measured)} quantities now, but measured {wanted} at first.")
        return measured

    def _call(self, what: str, call: Any) -> Any:
        try:
            return call()
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split()) or "without a message"
            raise RobotFailed(f"{self.name} raised {type(error).__name__} in {what}: {text}.") from error

    @property
    def name(self) -> str:
        """Name of the environment in messages."""
        return environment_name(self.env)


def environment_name(env: Any) -> str:
    """Its registered name, or that of its class."""
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__
    return f"The environment {name}"


class GymnasiumRobot(AbstractRobot):
    """An environment as a robot: trajectories follow one another, and each begins where the last one ended.

    Where the environment ends early, or observes something that is not finite, the trajectory is cut there, the
    environment is reset, and the next trajectory starts from the reset. No transition leads across a reset. With an
    observer what is not finite is missing: it is predicted, and the trajectory is cut where that takes too long.
    """

    pauses_between_trajectories = True

    def __init__(
        self,
        environment: Environment,
        task: Task,
        *,
        seed: int = 0,
        hardware: bool = False,
        sensors: Sensors | None = None,
        safe: SafePolicy | None = None,
        gate: Callable[[], HardwareGate] | None = None,
    ) -> None:
        """`safe` brings the robot back inside its limits after it was stopped there; neutral by default.

        `gate` makes what stands before every command; hardware has one.
        """
        self.environment, self.task, self.seed, self.hardware = environment, task, seed, hardware
        self._make_gate = gate
        self.safe = safe
        self.sensors = None if sensors is None else fit_sensors(sensors, task.spec)
        self.angles = tuple(environment.angles)
        self.cuts: Counter[Outcome] = Counter()
        """Why trajectories were cut, and how often."""
        self.lost = ""
        """Which measurement was missing for too long, and how long that is; empty where none was."""
        self._driver: Driver | None = None
        self._failure: RobotFailed | None = None

    @property
    def driver(self) -> Driver:
        """Made when it is first needed: reading a run back must not start a robot."""
        if self._failure is not None:
            raise self._failure
        if self._driver is None:
            self._driver = self._drive(self.seed)
        return self._driver

    @property
    def stand_in(self) -> bool:
        """Whether the environment says that it only stands in for a robot."""
        return bool(getattr(self.driver.env.unwrapped, "stand_in", False))

    @property
    def own_period_s(self) -> float | None:
        """The environment's `dt`, if it has one."""
        dt = getattr(self.driver.env.unwrapped, "dt", None)
        return float(dt) if isinstance(dt, int | float | np.number) else None

    def _drive(self, seed: int) -> Driver:
        gate = None if self._make_gate is None else self._make_gate()
        return Driver(self.environment, self.task.spec, seed=seed, sensors=self.sensors, gate=gate)

    def measured(self) -> Float[np.ndarray, " measured"]:
        """The last measurement; an error with the reason, if the environment failed since."""
        return self.driver.measured()

    def stand_at(self, position: Float[np.ndarray, " position"]) -> Float[np.ndarray, " measured"] | None:
        """With the task's `place`."""
        return self.driver.true.copy() if self.driver.place(position) else None

    def true_measurement(self) -> Float[np.ndarray, " measured"] | None:
        """The environment's exact measurement behind simulated sensors; None without them."""
        return None if self.sensors is None else self.driver.true

    def close(self) -> None:
        """Close the environment, hardware in neutral; the next use makes a new one."""
        if self._driver is None:
            return
        driver = self._driver
        try:
            self._rest()
        finally:
            self._driver = None
            with contextlib.suppress(*((RobotFailed,) if self._failure else ())):  # why it failed is reported already
                driver.close()

    def _rest(self) -> None:
        """Hardware goes neutral, also after a failure; a failure of this itself is raised by the next call."""
        if not self.hardware or self._driver is None:
            return
        try:
            self._driver.rest()
        except RobotFailed as failure:
            self._failure = self._failure or failure

    def run_episode(
        self,
        policy: Policy | Controller,
        goals: Float[np.ndarray, "trajectories goal"],
        excitation: Float[np.ndarray, "trajectories steps commands"] | None = None,
    ) -> EpisodeRecord:
        """Step by step in Python; hardware ends in neutral, however the episode ends.

        When the environment fails in the middle, what it did before is returned, and the failure is raised by the next
        call of any method: what was seen can be learned from and kept.
        """
        try:
            return self._visit(policy, goals, excitation)
        finally:
            self._rest()

    def _visit(self, policy: Policy | Controller, goals: np.ndarray, excitation: np.ndarray | None) -> EpisodeRecord:
        driver, run = self.driver, as_controller(policy).for_robot()
        driver.watch(run.observer)
        trajectories: list[Trajectory] = []
        motion = True
        for i, goal in enumerate(goals):
            if self.before_trajectory is not None and self._failure is None and self.before_trajectory():
                driver.watch(run.observer)
                motion = True
            driver.turn_back()
            self._come_inside(driver, trajectories)
            measured = driver.measured() if run.observer is None else run.observer.trust(driver.measured())
            points = build_reference(self.task.spec, measured, goal.astype(np.float32)).astype(np.float32)
            trajectory = driver.begin(points)
            trajectory.memory = run.policy.begin(driver.seen, motion=motion)
            trajectories.append(trajectory)
            motion = False
            if self._failure is not None:
                continue
            try:
                outcome = track(
                    driver,
                    run,
                    trajectory,
                    None if excitation is None else excitation[i],
                    stop_at_limits=self.task.stop_at_limits,
                    horizon=self.horizon,
                )
                if outcome is not Outcome.GOING:
                    self._count(outcome, driver)
                    self._recover(driver, outcome)
                    motion = True
            except RobotFailed as failure:
                where = f"in trajectory {i + 1}, step {trajectory.done + 1} of an episode"
                self._failure = RobotFailed(f"{str(failure).removesuffix('.')} ({where}).")
                if not any(t.valid.any() for t in trajectories):
                    raise self._failure from failure
        return as_record(trajectories, knows_truth=self.sensors is not None)

    def _come_inside(self, driver: Driver, done: Sequence[Trajectory]) -> None:
        """A motion that limits end begins inside them."""
        inside = not self.task.stop_at_limits or is_inside(self.task.spec, driver.measured(), BEGIN_SLACK, self.angles)
        if inside or self._failure is not None:
            return
        try:
            self._recover(driver, Outcome.LIMIT)
        except RobotFailed as failure:
            self._failure = failure
            if not any(trajectory.valid.any() for trajectory in done):
                raise

    def _recover(self, driver: Driver, outcome: Outcome) -> None:
        """After a motion that was cut: the `safe` policy or neutral, then a reset where it is needed.

        A simulation is reset at once. Hardware that was stopped at a limit goes on from where it came back to inside.
        """
        if outcome is Outcome.LIMIT and (self.hardware or self.safe is not None):
            for _ in range(max(round(RECOVERY_S / self.task.spec.period_s), 1)):
                outcome = driver.step(self._safe_command(driver))
                if outcome is not Outcome.GOING:
                    break
                if is_inside(self.task.spec, driver.measured(), angles=self.angles):
                    if self.hardware:
                        return
                    break
        driver.reset()

    def _safe_command(self, driver: Driver) -> Float[np.ndarray, " commands"]:
        """What the user's `safe` policy commands, inside the limits; neutral without one."""
        spec = self.task.spec
        if self.safe is None:
            return neutral(spec)
        try:
            command = np.asarray(self.safe(driver.measured()), np.float32).reshape(spec.layout.num_commands)
        except (Exception, SystemExit) as error:
            why = " ".join(str(error).split())
            raise RobotFailed(f"safe fails on a measurement with {type(error).__name__}: {why}.") from error
        low, high = (np.asarray(v, np.float32) for v in (spec.limits.command_low, spec.limits.command_high))
        return np.clip(np.where(np.isfinite(command), command, neutral(spec)), low, high)

    def play(self, commands: Float[np.ndarray, "steps commands"]) -> Float[np.ndarray, "steps_and_last measured"]:
        """Open loop. Where the environment ends early, the rest is NaN and the environment is reset.

        So it is where a position is about to leave its limits, if they end motions.
        """
        driver = self.driver
        driver.watch(None)
        driver.turn_back()
        measured = np.full((len(commands) + 1, self.task.spec.layout.num_measured), np.nan, np.float32)
        measured[0] = driver.measured()
        watch = LimitWatch(self.task.spec, measured[0], self.angles) if self.task.stop_at_limits else None
        for k, command in enumerate(np.asarray(commands, np.float32)):
            outcome = driver.step(command)
            if outcome is not Outcome.NOT_FINITE:
                measured[k + 1] = driver.measured()
            if outcome is Outcome.GOING and watch is not None and watch.leaves(measured[k + 1]):
                outcome = Outcome.LIMIT
            if outcome is not Outcome.GOING:
                self._count(outcome, driver)
                self._recover(driver, outcome)
                break
        return measured

    def follow(
        self, policy: Policy | Controller, references: tuple[EvaluationReference, ...]
    ) -> tuple[EpisodeRecord, ...]:
        """In an environment of its own, seeded the same every time, so that training goes on undisturbed.

        The robot is placed at the start where the environment allows it. Where that is not possible, or what is tracked
        is not at the start yet, the policy leads it there and holds it for a second; that does not count. Hardware
        there is only once: training's environment is closed before.
        """
        if self.hardware:
            self.close()
        driver = self._drive(0)
        run = as_controller(policy).for_robot()
        driver.watch(run.observer)
        try:
            return tuple(self._follow_one(driver, run, reference) for reference in references)
        finally:
            try:
                if self.hardware:
                    with contextlib.suppress(RobotFailed):
                        driver.rest()
            finally:
                driver.close()

    def _follow_one(self, driver: Driver, run: NumpyController, reference: EvaluationReference) -> EpisodeRecord:
        spec = self.task.spec
        driver.reset(0)
        if not driver.place(np.asarray(reference.start, float)) or not _is_at_start(driver, reference):
            for _ in range(MAX_APPROACHES):
                points = approach(spec, driver.measured(), reference)
                run.policy.begin(driver.seen, motion=True)
                if track(driver, run, driver.begin(points)) is Outcome.GOING:
                    break
                driver.reset()
        driver.turn_back()
        driver.watch(run.observer)
        points = np.concatenate([reference.points, np.repeat(reference.points[-1:], spec.preview[-1], axis=0)])
        trajectory = driver.begin(points.astype(np.float32))
        run.policy.begin(driver.seen, motion=True)
        outcome = track(driver, run, trajectory, stop_at_limits=self.task.stop_at_limits)
        if outcome is not Outcome.GOING:
            self._count(outcome, driver)
            if self.hardware:
                self._recover(driver, outcome)
        return as_record([trajectory], knows_truth=self.sensors is not None)

    def _count(self, outcome: Outcome, driver: Driver) -> None:
        self.cuts[outcome] += 1
        self.lost = driver.fault or self.lost
        self.missing = driver.missing if outcome is Outcome.NOT_FINITE else ()

    def notes(self) -> list[str]:
        """Notes for the user about the motion so far."""
        why = {
            Outcome.ENDED: " because the environment ended early",
            Outcome.NOT_FINITE: " because an observation was not finite",
            Outcome.LIMIT: " because a position was about to leave its limits",
            Outcome.LOST: f": {self.lost}",
        }
        return [
            f"{count} {'trajectory was' if count == 1 else 'trajectories were'} cut short{why[outcome]}; what was seen "
            "before is used."
            for outcome, count in self.cuts.items()
        ]

    def snapshot(self) -> Any:
        """Empty: an environment cannot be rewound. A resumed run goes on from a reset."""
        return {}

    def restore(self, snapshot: Any) -> None:
        """Nothing to go back to."""


def track(
    driver: Driver,
    run: NumpyController,
    trajectory: Trajectory,
    excitation: Float[np.ndarray, "steps commands"] | None = None,
    *,
    stop_at_limits: bool = False,
    horizon: int | None = None,
) -> Outcome:
    """Follow the trajectory's reference to its end, or to where the environment cuts it; how the last step went.

    It also ends after `horizon` steps, and, with `stop_at_limits`, where a position is about to leave its limits.
    """
    watch = LimitWatch(driver.spec, driver.measured(), driver.environment.angles) if stop_at_limits else None
    spec, observer = driver.spec, run.observer
    before = 0 if observer is None else observer.restarts.copy()
    low, high = (np.asarray(v, np.float32) for v in (spec.limits.command_low, spec.limits.command_high))
    for k in range(len(trajectory.valid) if horizon is None else min(horizon, len(trajectory.valid))):
        command = run.policy(driver.seen, preview_points(spec, trajectory.points, k))
        if excitation is not None:
            command = np.clip(command + excitation[k].astype(np.float32), low, high)
        outcome = driver.step(command)
        if outcome is not Outcome.NOT_FINITE:
            trajectory.add(driver.applied, driver.newest, driver.true, driver.free)
        if observer is not None:
            trajectory.restarts = (observer.restarts - before).astype(np.float32)
        if outcome is Outcome.GOING and watch is not None and watch.leaves(driver.measured()):
            outcome = Outcome.LIMIT
        if outcome is not Outcome.GOING:
            return outcome
    return Outcome.GOING


def _is_at_start(driver: Driver, reference: EvaluationReference) -> bool:
    """Whether a robot that was placed tracks the reference's first point: what is tracked need not be a position.

    A set-point jumps, so a robot that has not reached it is where it shall be.
    """
    spec = driver.spec
    if spec.reference.profile == "hold":
        return True
    off = output_error(spec, reference.points[0], np.asarray(tracked_output(spec, driver.true.astype(float))))
    return bool((np.abs(off) <= AT_START * np.asarray(spec.scales.error)).all())


def approach(
    spec: ControlSpec, measured: Float[np.ndarray, " measured"], reference: EvaluationReference
) -> Float[np.ndarray, "points outputs"]:
    """A smooth way to the reference's start at half the allowed speed, and a rest there."""
    in_position = spec.reference.space == "position"
    here = measured[list(spec.layout.position)] if in_position else tracked_output(spec, measured)
    there = np.asarray(reference.start if in_position else reference.points[0], float)
    way = there - here
    rate = 0.5 * np.where(way < 0, -np.asarray(spec.reference.rate_low), np.asarray(spec.reference.rate_high))
    steps = max(int(np.ceil(np.max(np.abs(way) / rate) * PEAK_OF_QUINTIC / spec.period_s)), 1)
    rest = round(REST_S / spec.period_s) + spec.preview[-1]
    path = here + quintic_blend(np.arange(steps + rest) / steps)[:, None] * way
    return np.asarray(output_of_positions(spec.kinematics, path) if in_position else path, np.float32)
