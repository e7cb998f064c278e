"""Robots whose control loop is the onboard executor: the same numpy code in this process or across the network."""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.homing import Homing, HomingController
from firsthand_onboard.loop import Executor, Trajectory
from firsthand_onboard.timing import LockStep

from ..errors import UserError
from ..models import Controller, Policy, as_controller
from ..tasks.base import EvaluationReference, Task
from .base import AbstractRobot, EpisodeRecord

APPROACHES = 4
"""How many trajectories may be spent on going to the start of an evaluation reference."""
NEAR = 0.02
"""Near enough to such a start, as a share of each joint's range."""
FIRST_AUTHORITY = 0.5
"""Share of the command range for a robot of which nothing is known yet."""
SETTLE_S = 1.0
"""How long a machine stands in neutral before it follows an evaluation reference."""

Arrays = Mapping[str, np.ndarray]


class OnboardRobot(AbstractRobot):
    """A robot behind an executor, as training sees it, wherever the executor runs."""

    hardware: bool = True
    has_authority = True
    pauses_between_trajectories = True

    @abstractmethod
    def execute(self, kind: str, policy: Policy | Controller | None, arrays: Arrays, count: int) -> Sequence[Arrays]:
        """Let the executor do something: `visit` goals, `follow` a reference, `play` commands."""

    @abstractmethod
    def place(self, position: np.ndarray) -> None:
        """Put a simulation at rest in a configuration."""

    def run_episode(
        self,
        policy: Policy | Controller,
        goals: Float[np.ndarray, "trajectories goal"],
        excitation: Float[np.ndarray, "trajectories steps commands"] | None = None,
    ) -> EpisodeRecord:
        """The executor visits the goals by itself; what comes back is what was really applied."""
        arrays = {"goals": np.asarray(goals, np.float32)}
        if excitation is not None:
            arrays["excitation"] = np.asarray(excitation, np.float32)
        record = as_record(self.execute("visit", policy, arrays, len(goals)))
        self.go_home()
        return record

    def go_home(self) -> None:
        """Between episodes: slowly, without a policy, and only where the machine is served so; by default it holds."""

    def play(self, commands: Float[np.ndarray, "steps commands"]) -> Float[np.ndarray, "steps_and_last measured"]:
        """Commands open loop, through the gate."""
        return self.play_applied(commands)[0]

    def play_applied(
        self, commands: Float[np.ndarray, "steps commands"]
    ) -> tuple[Float[np.ndarray, "steps_and_last measured"], Float[np.ndarray, "steps commands"]]:
        """Commands open loop; what was measured, and what the gate let through."""
        done = self.execute("play", None, {"commands": np.asarray(commands, np.float32)}, 1)[0]
        return np.asarray(done["measured"], np.float32), np.asarray(done["commands"], np.float32)

    def follow(
        self, policy: Policy | Controller, references: tuple[EvaluationReference, ...]
    ) -> tuple[EpisodeRecord, ...]:
        """Each reference from its start: a simulation is put there, a machine goes there under the policy.

        A machine is left where the last reference ended; it cannot be put back.
        """
        records = []
        for reference in references:
            self._approach(policy, reference)
            points = np.asarray(reference.points, np.float32)
            held = np.concatenate([points, np.repeat(points[-1:], self.task.spec.preview[-1], axis=0)])
            records.append(as_record(self.execute("follow", policy, {"reference": held}, 1)))
        return tuple(records)

    def _approach(self, policy: Policy | Controller, reference: EvaluationReference) -> None:
        if self.can_reset:
            self.place(np.asarray(reference.start, np.float32))
            return
        spec = self.task.spec
        goal = np.asarray(reference.start if spec.reference.space == "position" else reference.points[0], np.float32)
        span = np.asarray(spec.limits.position_high) - np.asarray(spec.limits.position_low)
        away = np.full(len(span), np.inf)
        for _ in range(APPROACHES):
            self.execute("visit", policy, {"goals": goal[None]}, 1)
            away = np.abs(self.measured()[list(spec.layout.position)] - np.asarray(reference.start)) / span
            if (away < NEAR).all():
                break
        else:
            raise UserError(
                f"The robot did not come to the start of the reference {reference.name!r} in {APPROACHES} tries "
                f"({100 * away.max():.0f} % of a joint's range away, {100 * NEAR:.0f} % is near enough); it does not "
                "follow it from there."
            )
        time.sleep(SETTLE_S)

    def snapshot(self) -> Any:
        """Nothing: a machine cannot be rewound."""
        return ()

    def restore(self, snapshot: Any) -> None:
        """The machine is where it is."""


def set_authority(robot: AbstractRobot, share: float | None) -> None:
    """Let a robot across the network use this share of its command range; None leaves it as it is."""
    if share is None:
        return
    if not robot.has_authority:
        raise UserError(f"authority is {share:g}, but only a robot across the network (tcp/host:port) has one.")
    if not 0 < share <= 1:  # NaN is not inside either
        raise UserError(f"authority is {share:g}, but must be above 0 and at most 1.")
    robot.authority = share


def as_record(trajectories: Sequence[Arrays]) -> EpisodeRecord:
    """Trajectories of an executor as training wants them."""
    names = {"start": "starts", "reference": "references"}
    fields = ["start", "measured", "commands", "reference", "free", "valid"]
    fields += [name for name in ("restarts", "memory") if all(name in trajectory for trajectory in trajectories)]
    return EpisodeRecord(
        **{names.get(name, name): np.stack([np.asarray(t[name]) for t in trajectories]) for name in fields}
    )


class ExecutorRobot(OnboardRobot):
    """The onboard executor in this process, in lock-step with a simulated machine: what the link is compared with."""

    machine_id = "in this process"

    def __init__(
        self, machine: Any, task: Task, limits: GateLimits | None = None, homing: Homing | None = None
    ) -> None:
        self.task, self.machine = task, machine
        self.can_reset = hasattr(machine, "reset")
        self.hardware = not self.can_reset
        if limits is None:
            stopping = getattr(machine, "stopping", None)
            limits = GateLimits.of(task.spec, directions=machine.directions, stopping=stopping)
        self.homing = None if homing is None else HomingController(task.spec, limits, homing)
        self.executor = Executor(task.spec, machine, limits, LockStep(task.spec.period_s))

    def measured(self) -> Float[np.ndarray, " measured"]:
        """The last measurement."""
        return np.asarray(self.executor.measured)

    def place(self, position: np.ndarray) -> None:
        """At rest in a configuration."""
        self.executor.settle(np.asarray(self.machine.reset(position), np.float32))

    def go_home(self) -> None:
        """At once."""
        if self.homing is not None:
            _unless_stopped(self.executor.home(self.homing, self.authority))

    def execute(self, kind: str, policy: Policy | Controller | None, arrays: Arrays, count: int) -> Sequence[Arrays]:
        """At once, in this thread."""
        runs, observer = (None, None) if policy is None else as_controller(policy).for_robot()
        self.executor.forget_estimate()
        done = []
        for i in range(count):
            if self.before_trajectory is not None and kind == "visit" and self.before_trajectory():
                self.executor.forget_estimate()
            if runs is None:
                trajectory = self.executor.play(arrays["commands"], self.authority)
            elif kind == "follow":
                trajectory = self.executor.follow(runs, arrays["reference"], None, self.authority, observer=observer)
            else:
                extra = arrays["excitation"][i] if "excitation" in arrays else None
                trajectory = self.executor.visit(runs, arrays["goals"][i], extra, self.authority, observer)
            done.append(_unless_stopped(trajectory).arrays())
        return done


def _unless_stopped(trajectory: Trajectory) -> Trajectory:
    if trajectory.fault:
        raise UserError(f"the gate stopped the machine: {trajectory.ended}.")
    return trajectory
