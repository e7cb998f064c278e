"""The control loop: executes trajectories at a fixed rate by itself, every command through the gate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .features import build_reference, initial_state, next_state
from .gate import Gate
from .gate_limits import GateLimits
from .homing import AWAY, HomingController
from .machine import Machine, MachineError, as_measured
from .numpy_observer import NumpyObserver
from .policy import NumpyPolicy
from .recovery import Recovery
from .spec import ControlSpec
from .timing import LockStep, RealTime

Propose = Callable[[int, np.ndarray], np.ndarray]
"""From the step and the state vector to the command that is wanted."""

GoOn = Callable[[int], str]
"""From the number of steps done to the reason why the trajectory ends there, or an empty text."""

DONE = "done"
HAND_OVER_S = 0.5
"""A new policy takes over from the one before it within this time, while the machine moves."""
MAX_BRAKING_S = 5.0
"""How long a machine that neutral does not stop is braked at the end of a motion."""


@dataclass(frozen=True)
class Trajectory:
    """What happened in one trajectory, float32; see `EpisodeRecord` for the fields."""

    start: np.ndarray
    measured: np.ndarray
    commands: np.ndarray
    reference: np.ndarray
    free: np.ndarray
    valid: np.ndarray
    ended: str
    """`done`, or why it was cut short."""
    fault: bool
    """Whether the reason is a fault that latches."""
    restarts: np.ndarray | None = None
    """How often the observer restarted each entry from its measurement; None without an observer."""
    memory: np.ndarray | None = None
    """What the policy's base remembered at the start; None without a base."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        names = ("start", "measured", "commands", "reference", "free", "valid")
        optional = {name: getattr(self, name) for name in ("restarts", "memory")}
        there = {name: array for name, array in optional.items() if array is not None}
        return {**{name: getattr(self, name) for name in names}, **there}


def never_interrupt() -> str:
    """The poll of a loop without interruptions."""
    return ""


def never_end(done: int) -> str:
    """A trajectory that does not end before its last step."""
    return ""


class Executor:
    """A machine, its gate and its clock. One thread; nothing here knows a network."""

    def __init__(
        self,
        spec: ControlSpec,
        machine: Machine,
        limits: GateLimits,
        clock: RealTime | LockStep,
        poll: Callable[[], str] = never_interrupt,
    ) -> None:
        self.spec, self.machine, self.clock, self.poll = spec, machine, clock, poll
        self.gate = Gate(spec, limits)
        self.gate_state = self.gate.start()
        self.work_s = np.zeros(4096)
        """How long the last steps took (observer, policy and gate), as a ring."""
        self.steps = 0
        self.chatter_steps = 0
        """In how many steps a command chattered."""
        self._holding = False
        """Whether the gate's state is that of a machine that holds."""
        self._live: NumpyObserver | None = None
        """The observer that has followed the machine without a gap; None where an estimate must begin anew."""
        self._driving: NumpyPolicy | None = None
        """The policy that has driven the machine without a gap; None where its base must begin anew."""
        machine.neutral()
        self.look()

    def look(self) -> None:
        """Read the machine, which stands in neutral."""
        self.settle(self._read())

    def settle(self, measured: np.ndarray) -> None:
        """Take the machine as standing like this, in neutral, for a long time."""
        self.state = initial_state(self.spec.layout, measured, self.gate.neutral)
        self.newest = measured
        """The newest measurement, with what is missing in it."""
        self.forget_estimate()
        self.gate_state = self.gate.start(self.gate_state)

    @property
    def measured(self) -> np.ndarray:
        """What was measured last; a missing value is the last one that came."""
        return self.state[: self.spec.layout.num_measured]

    def begin(self) -> None:
        """Read again and start the clock: what was read before a pause is older than a command may be."""
        before, held = self._look_again()
        if np.isfinite(before).all():
            self.state = np.concatenate([held, self.state[len(held) :]])
        else:
            self.state = initial_state(self.spec.layout, held, self.gate.neutral)
        self.forget_estimate()
        self.clock.restart()

    def forget_estimate(self) -> None:
        """Observer and base begin anew with the next trajectory: there was a pause, or others follow now."""
        self._live = self._driving = None

    def hold(self) -> None:
        """One period in neutral. The state vector follows, so that the next trajectory starts from the truth.

        The gate goes on watching: a joint that drifts towards its limit although the command is neutral is braked.
        """
        command = self._guard()
        if (command == self.gate.neutral).all():
            self.machine.neutral()
        else:
            self.machine.write(command)
        self.forget_estimate()
        if isinstance(self.clock, LockStep):
            return
        self.clock.wait(self.poll)
        self._move_on(command)

    def _guard(self) -> np.ndarray:
        """What the gate makes of neutral while the machine holds; standing outside a limit is not a fault here."""
        if not self._holding:
            self._holding, self.gate_state = True, self.gate.start(self.gate_state)
        gated = self.gate(self.gate_state, self.gate.neutral, self.newest, recovering=True)
        self.gate_state = gated.state if not gated.fault else self.gate.start(self.gate_state)
        return gated.command

    def come_to_rest(self) -> None:
        """The end of a motion: neutral, after braking what neutral does not stop."""
        if self.gate.brakes:
            self._brake()
        self.machine.neutral()

    def _brake(self) -> None:
        """Neutral while a measurement is missing; where too many are, nobody knows which way to brake."""
        missing = 0
        try:
            for _ in range(math.ceil(MAX_BRAKING_S / self.spec.period_s)):
                known = bool(np.isfinite(self.newest).all())
                missing = 0 if known else missing + 1
                if missing > self.gate.limits.dropouts or (known and self.gate.is_slow(self.gate_state, self.newest)):
                    break
                command = self.gate.rest(self.gate_state, self.newest)
                self.machine.write(command)
                self.clock.wait(self.poll)
                self._move_on(command)
                self.gate_state = self.gate.follow(self.gate_state, command, self.newest)
        except MachineError:
            pass  # neutral is what is left
        self.gate_state = self.gate.start(self.gate_state)

    def describe_outside(self) -> str:
        """One sentence where the machine stands outside its limits; empty where it does not, or nothing is known."""
        values = self.newest.tolist()
        return self.gate.joints.describe_outside(values) if np.isfinite(self.newest).all() else ""

    def visit(
        self,
        policy: NumpyPolicy,
        goal: np.ndarray,
        excitation: Any = None,
        authority: float = 1.0,
        observer: NumpyObserver | None = None,
    ) -> Trajectory:
        """Go to a goal: the reference is built from what is measured, also where the policy sees an estimate.

        Only an outlier that the observer does not believe is replaced by what its estimate shows.
        """
        self._start_estimate(observer)
        measured = self.measured if observer is None else observer.trust(self.measured)
        reference = build_reference(self.spec, measured, np.asarray(goal, np.float32))
        return self.follow(policy, reference, excitation, authority, observer=observer)

    def follow(
        self,
        policy: NumpyPolicy,
        reference: np.ndarray,
        excitation: Any = None,
        authority: float = 1.0,
        until: GoOn = never_end,
        observer: NumpyObserver | None = None,
        hand_over: bool = False,
    ) -> Trajectory:
        """Follow a given reference: its points, and the preview beyond the last step.

        With an observer the policy sees its estimate, which goes on from the trajectory before. With `hand_over` a
        policy that takes over from another one in mid-motion does so within `HAND_OVER_S`, without a jump: it goes on
        with the estimate that the other one saw, and with what their base remembers.
        """
        spec = self.spec
        low, high = np.asarray(spec.limits.command_low, np.float32), np.asarray(spec.limits.command_high, np.float32)
        reference, offsets = np.asarray(reference, np.float32), np.asarray((0, *spec.preview))

        before = self._driving if hand_over and self._driving is not policy else None
        fading = 0 if before is None else max(round(HAND_OVER_S / spec.period_s), 1)

        def propose(step: int, state: np.ndarray) -> np.ndarray:
            command = policy(state, reference[step + offsets])
            if before is not None and step < fading:
                share = np.float32((step + 1) / (fading + 1))
                command = (1 - share) * before(state, reference[step + offsets]) + share * command
            return command if excitation is None else np.clip(command + excitation[step], low, high)

        steps = len(reference) - spec.preview[-1]
        self._start_estimate(observer, hand_over)
        seen = self.state if observer is None else observer.state
        memory = None
        if isinstance(policy, NumpyPolicy):  # any function of state and points can be followed; it has no base
            memory = policy.begin(seen, motion=policy is not self._driving, before=before)
            self._driving = policy
        trajectory = self._run(propose, steps, reference, authority, until, observer)
        return trajectory if memory is None else replace(trajectory, memory=memory)

    def play(self, commands: np.ndarray, authority: float = 1.0, until: GoOn = never_end) -> Trajectory:
        """Apply commands open loop, through the gate."""
        self.forget_estimate()
        return self._run(lambda step, _: commands[step], len(commands), None, authority, until)

    def home(self, controller: HomingController, authority: float = 1.0, until: GoOn = never_end) -> Trajectory:
        """Go home slowly, without a policy; a joint that goes another way than its reference is a fault."""
        self.forget_estimate()
        path, size = controller.reference(self.measured), self.spec.layout.num_measured

        def propose(step: int, state: np.ndarray) -> np.ndarray:
            if controller.leads_away(path[step], state[:size]):
                raise MachineError(AWAY)
            return controller.command(path[step], state[:size])

        return self._run(propose, len(path), None, min(authority, controller.homing.authority), until)

    def recover(self, until: GoOn = never_end) -> Trajectory:
        """Lead joints that stand outside their limits back inside, slowly."""
        self.forget_estimate()
        size = self.spec.layout.num_measured
        recovery = Recovery(self.spec, self.gate.limits, self.measured)

        def propose(step: int, state: np.ndarray) -> np.ndarray:
            return recovery.command(state[:size])

        def ends(done: int) -> str:
            return until(done) or (DONE if recovery.is_done(self.measured) else "")

        return self._run(propose, recovery.steps, None, 1.0, ends, recovering=True)

    def _start_estimate(self, observer: NumpyObserver | None, hand_over: bool = False) -> None:
        """Begin a motion, unless this observer has followed the robot until now, or takes over from one that has."""
        if observer is not None and observer is not self._live:
            if hand_over and self._live is not None:
                observer.go_on_from(self._live)
            else:
                observer.start_motion(self.state)
        self._live = observer

    def _run(
        self,
        propose: Propose,
        steps: int,
        reference: Any,
        authority: float,
        until: GoOn,
        observer: NumpyObserver | None = None,
        recovering: bool = False,
    ) -> Trajectory:
        layout, observing_s, self._holding = self.spec.layout, 0.0, False
        self._start_estimate(observer)
        start = self.state if observer is None else observer.state.copy()
        restarts_before = 0 if observer is None else observer.restarts.copy()
        measured = np.repeat(self.newest[None], steps + 1, axis=0)
        commands = np.repeat(self.gate.neutral[None], steps, axis=0)
        free, valid = np.zeros((steps, layout.num_commands), bool), np.zeros(steps, bool)
        ended, fault = DONE, False
        try:
            for k in range(steps):
                if reason := until(k):
                    ended = reason
                    break
                began = time.perf_counter()
                proposed = propose(k, self.state if observer is None else observer.state)
                gated = self.gate(
                    self.gate_state,
                    proposed,
                    self.newest,
                    reference=None if reference is None else reference[k],
                    age_s=self.clock.now() - self._read_at,
                    authority=authority,
                    recovering=recovering,
                )
                self.work_s[self.steps % len(self.work_s)] = observing_s + time.perf_counter() - began
                self.steps += 1
                self.gate_state = gated.state
                self.chatter_steps += gated.state.chattered > 0
                if gated.fault:
                    ended, fault = gated.fault, True
                    break
                self.machine.write(gated.command)
                reason = self.clock.wait(self.poll)
                if reason:
                    ended = reason
                    break
                self._move_on(gated.command)
                measured[k + 1], commands[k], free[k], valid[k] = self.newest, gated.command, gated.free, True
                if observer is not None:
                    began = time.perf_counter()
                    observer.observe(gated.command, self.newest)
                    observing_s = time.perf_counter() - began
                    if observer.fault:
                        ended, fault = observer.fault, True
                        break
        except MachineError as error:
            ended, fault = str(error), True
        measured[valid.sum() + 1 :] = measured[valid.sum()]  # what did not happen is padded
        if ended != DONE:
            self.come_to_rest()
            self.gate_state = self.gate.start(self.gate_state)
            self.forget_estimate()
        if reference is None:
            reference = np.zeros((steps, self.spec.num_outputs), np.float32)
        restarts = None
        if observer is not None:
            restarts = (observer.restarts - restarts_before).astype(np.float32)
        return Trajectory(start, measured, commands, reference, free, valid, ended, fault, restarts)

    def _move_on(self, command: np.ndarray) -> None:
        """The state after a command. What is missing in the measurement stays out of it: the last value is held."""
        before, held = self._look_again()
        if np.isfinite(before).all():
            self.state = next_state(self.spec.layout, self.state, command, held)
        else:  # nothing whole has come yet
            self.state = initial_state(self.spec.layout, held, command)

    def _look_again(self) -> tuple[np.ndarray, np.ndarray]:
        """What was measured before, and what is measured now; for what is missing the value before."""
        before = self.measured
        self.newest = self._read()
        return before, np.where(np.isfinite(self.newest), self.newest, before)

    def _read(self) -> np.ndarray:
        self._read_at = self.clock.now()
        return as_measured(self.machine.read(), self.spec.layout.num_measured)
