"""What the robot's computer does: holds, executes jobs under lease and gate, latches faults, answers messages.

| state | what the machine does | leaves it by |
|---|---|---|
| `idle` | neutral | `arm` from a trainer |
| `armed` | neutral | a job; the lease running out; `stop` |
| `moving` | trajectories under the gate | the end of the job; a fault; the lease running out; `stop` |
| `fault` | neutral | `acknowledge` by the operator, and nothing else |

A `stop` by anybody but the holder of the lease is the operator's: it latches like a fault, in every state. A lease
counts from when its holder sent something, and what moves the machine is not acted on when it is older than that: links
and queues hold things up. What came while the loop was away for longer than the lease is not acted on either, except a
stop: nobody knows who still stands by it. None of this holds for lock-step machines, which are simulations.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .gate import GateLimits
from .homing import HomingController
from .link import ACKNOWLEDGE_S, RobotEnd
from .loop import DONE, Executor, Trajectory
from .machine import MachineError
from .messages import MOST_PAYLOAD, Message
from .policy import NumpyPolicy
from .spec import ControlSpec, SpecError
from .timing import LockStep, RealTime, no_garbage_collection, since_boot

log = logging.getLogger("firsthand-onboard")

IDLE, ARMED, MOVING, FAULT = "idle", "armed", "moving", "fault"
LEASE_LOST = "the lease ran out"
STOPPED = "stopped"
OPERATOR_STOP = "the operator stopped it"
OPERATORS = ("hello", "status", "stop", "acknowledge")
"""What an operator may ask for; acknowledging is for operators alone."""
TIMELY = ("arm", "job", "reset")
"""What moves the machine or lets it be moved: not acted on when it is older than the lease."""
HELD_UP_S = 2.0
"""So old may an acknowledgement be, also where the lease is shorter: whoever sent it still waits for the answer."""
MOST_STEPS = 200_000
MOST_POLICIES = 4


@dataclass(frozen=True)
class Settings:
    """How the runtime behaves."""

    lease_s: float = 1.0
    """Without a sign of life from the trainer for this long, the lease is gone."""
    on_lost: str = "finish"
    """What happens to a running trajectory then: `finish` it under the gate, or `stop` at once."""
    rearm: str = "trainer"
    """Who may arm again after a lost lease: the `trainer`, or the `operator` (it latches like a fault)."""
    latch: Path | None = None
    """Where a fault is kept, so that it also survives a restart."""

    def __post_init__(self) -> None:
        if not 0.05 <= self.lease_s <= 60:
            raise SpecError(f"lease is {self.lease_s} s, but must lie between 0.05 and 60")
        if self.on_lost not in ("finish", "stop"):
            raise SpecError(f"on_lost is {self.on_lost!r}, but must be 'finish' or 'stop'")
        if self.rearm not in ("trainer", "operator"):
            raise SpecError(f"rearm is {self.rearm!r}, but must be 'trainer' or 'operator'")


@dataclass
class Job:
    """Something to execute, and what came of it."""

    name: str
    kind: str
    arrays: Mapping[str, np.ndarray]
    policy: NumpyPolicy | None
    authority: float
    asked: Message
    """The message that asked for it: trajectories go to its sender."""
    count: int
    ended: str = ""
    """Empty while it runs, then `done` or why it ended."""
    trajectories: list[Trajectory] = field(default_factory=list)


class Refusal(Exception):
    """Something that was asked for and cannot be done now; the message says why."""


def policy_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a policy's weights: names, shapes and float32 bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], "<f4")
        digest.update(f"{name} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def beside(path: Path) -> Path:
    """Where a file is written before it takes its name."""
    return path.with_name(path.name + ".new")


def answer_bytes(spec: ControlSpec, steps: int) -> int:
    """About how large the message with a trajectory of so many steps is, rather too much than too little."""
    layout = spec.layout
    per_step = 4 * (layout.num_measured + layout.num_commands + spec.num_outputs) + layout.num_commands + 1
    return per_step * (steps + 1 + spec.preview[-1]) + 4 * layout.size + 4096


class Runtime:
    """The onboard program without its command line."""

    def __init__(
        self,
        spec: ControlSpec,
        machine: Any,
        limits: GateLimits,
        link: RobotEnd,
        settings: Settings,
        period_s: float,
        homing: HomingController | None = None,
    ) -> None:
        self.spec, self.machine, self.link, self.settings = spec, machine, link, settings
        self.homing = homing
        """How the machine goes home between episodes; None where it holds."""
        self.lock_step = bool(machine.lock_step)
        clock = LockStep(period_s) if self.lock_step else RealTime(period_s)
        self.state, self.fault, self.fault_number = IDLE, "", 0
        self.holder, self.lease_until = "", 0.0
        self.policies: OrderedDict[str, NumpyPolicy] = OrderedDict()
        self.job: Job | None = None
        self.last: Job | None = None
        self.interrupt, self.last_trajectory = "", False
        self.operator_stop = False
        """Whether the operator has stopped the job that is coming to its end."""
        self.outbox: list[tuple[Job, int]] = []
        self.refused, self.leases_lost, self.stale = 0, 0, 0
        self.stopping = False
        self._polled = since_boot()
        self.executor = Executor(spec, machine, limits, clock, self.poll)
        self._recall_fault()

    def run(self) -> None:
        """Until `stopping` is set."""
        self.executor.clock.restart()
        while not self.stopping:
            if self.job is not None and self.state == ARMED:
                self._execute(self.job)
                self.executor.clock.restart()
            else:
                self._hold()
        self.machine.neutral()

    def _hold(self) -> None:
        if self.lock_step or self.state == FAULT:
            self.machine.neutral()
            deadline = time.monotonic() + self.executor.clock.period_s
            while time.monotonic() < deadline and not (self.lock_step and self.job is not None):
                self.poll()
                time.sleep(0.001)
            return
        try:
            self.executor.hold()
        except MachineError as error:
            self._latch(str(error))

    # Jobs ---------------------------------------------------------------------------------------------------------

    def _execute(self, job: Job) -> None:
        self.state, self.interrupt, self.last_trajectory, self.operator_stop = MOVING, "", False, False
        lost_before = self.leases_lost
        log.info("job %s: %d %s, authority %.2f", job.name, job.count, job.kind, job.authority)
        with no_garbage_collection():  # which takes a while: only then the machine is read and the clock starts
            try:
                self.executor.begin()
                job.ended = self._trajectories(job)
            except MachineError as error:
                job.ended = str(error)
                self._latch(job.ended)
        self.machine.neutral()
        self.job = None
        if self.state == MOVING:
            self.state = ARMED if job.ended == DONE and self.holder else IDLE
            if self.operator_stop:
                self._latch(OPERATOR_STOP)
            elif self.leases_lost > lost_before and self.settings.rearm == "operator":
                self._latch(LEASE_LOST)
        log.info("job %s: %s", job.name, job.ended)
        while self.outbox:
            self._tell_trajectory(*self.outbox.pop(0))

    def _trajectories(self, job: Job) -> str:
        """One after the other; why the job ended."""
        for i in range(job.count):
            reason = self.poll()  # the loop may have been away since the job came, or since the last trajectory
            if reason or self.last_trajectory:
                return reason or LEASE_LOST
            trajectory = self._trajectory(job, i)
            job.trajectories.append(trajectory)
            self.outbox.append((job, i))
            if trajectory.fault:
                self._latch(trajectory.ended)
            if trajectory.ended != DONE:
                return trajectory.ended
        return DONE

    def _trajectory(self, job: Job, i: int) -> Trajectory:
        executor, arrays = self.executor, job.arrays
        if job.kind == "play":
            return executor.play(arrays["commands"], job.authority, self._until)
        if job.kind == "home":
            assert self.homing is not None
            return executor.home(self.homing, job.authority, self._until)
        assert job.policy is not None
        if job.kind == "follow":
            return executor.follow(job.policy, arrays["reference"], None, job.authority, self._until)
        excitation = arrays["excitation"][i] if "excitation" in arrays else None
        return executor.visit(job.policy, arrays["goals"][i], excitation, job.authority)

    def _until(self, done: int) -> str:
        """A long motion is a chain of trajectories of the usual length: to be finished is only the one that runs."""
        return LEASE_LOST if self.last_trajectory and done % self.spec.reference.steps == 0 else ""

    def _tell_trajectory(self, job: Job, i: int) -> None:
        trajectory = job.trajectories[i]
        self.link.send(
            "trajectory", job.asked, {"job": job.name, "index": i, "ended": trajectory.ended}, trajectory.arrays()
        )

    # Faults and leases --------------------------------------------------------------------------------------------

    def _latch(self, fault: str) -> None:
        """Neutral, and stay there until the operator acknowledges."""
        self.machine.neutral()
        self._drop_job(fault)
        self.state, self.fault, self.holder = FAULT, fault, ""
        self.fault_number += 1
        log.error("fault %d: %s; latched until the operator acknowledges it", self.fault_number, fault)
        self._keep_fault()

    def _keep_fault(self) -> None:
        """On disk, if there is a file for it; a disk that is full or gone must not end the program."""
        path = self.settings.latch
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = beside(path)
            with temporary.open("w") as file:
                file.write(json.dumps({"fault": self.fault, "number": self.fault_number}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            log.error("%s cannot be written (%s): the fault is latched, but would not survive a restart", path, error)

    def _drop_job(self, why: str) -> None:
        """What has not begun will not begin, also not when somebody arms again."""
        if self.job is not None and self.state != MOVING:
            self.job.ended = why
        self.job = None

    def _recall_fault(self) -> None:
        path = self.settings.latch
        if path is None or not path.exists():
            return
        try:
            kept = json.loads(path.read_text())
            self.fault, self.fault_number = str(kept["fault"]), int(kept["number"])
        except (ValueError, KeyError, TypeError):
            self.fault = f"the file {path} is damaged"
        self.state = FAULT
        log.error("fault from before the restart: %s; it still waits for the operator", self.fault)

    def _lose_lease(self) -> None:
        self.holder = ""
        self.leases_lost += 1
        log.warning("%s while %s", LEASE_LOST, self.state)
        if self.state == MOVING:
            if self.settings.on_lost == "stop":
                self.interrupt = LEASE_LOST
            self.last_trajectory = True
        elif self.state == ARMED:
            self._drop_job(LEASE_LOST)
            self.state = IDLE
        if self.settings.rearm == "operator" and self.state == IDLE:
            self._latch(LEASE_LOST)

    def poll(self) -> str:
        """Messages and lease; returns why a running trajectory must end now, or an empty text."""
        now = since_boot()
        was_away = not self.lock_step and now - self._polled > self.settings.lease_s
        if was_away and self.holder and now > self.lease_until:
            self._lose_lease()  # before messages are read that have waited for who knows how long
        for message in self.link.receive(everything=was_away):
            if was_away and message.kind != "stop":
                self.stale += 1
            else:
                self._answer(message)
        if self.holder and since_boot() > self.lease_until:
            self._lose_lease()
        self._polled = since_boot()
        if self.outbox:
            self._tell_trajectory(*self.outbox.pop(0))
        if self.stopping:
            return STOPPED
        return self.interrupt if self.state == MOVING else ""

    # Messages -----------------------------------------------------------------------------------------------------

    def _answer(self, message: Message) -> None:
        if self.holder == message.session:
            self._renew_lease(message)
        if message.kind == "lease":
            return
        try:
            if message.operator and message.kind not in OPERATORS:
                raise Refusal(f"an operator does not send {message.kind}: that is for trainers")
            if message.kind in TIMELY:
                self._check_recent(message, self.settings.lease_s)
            body = getattr(self, f"_on_{message.kind}")(message) or {}
        except (Refusal, SpecError, MachineError) as error:
            self.refused += 1
            self.link.send("refused", message, {"why": str(error)[:1000], **self.status(message)})
            return
        self.link.send("reply", message, {**self.status(message), **body}, {"measured": self.executor.measured})

    def _age(self, message: Message) -> float:
        """Seconds since it was sent, rather too many than too few: queues and links may have held it up."""
        return 0.0 if self.lock_step else max(since_boot() - message.now, 0.0)

    def _renew_lease(self, message: Message) -> None:
        """From when its holder sent this, not from when it came: a trainer that is gone holds nothing by a backlog."""
        self.lease_until = max(self.lease_until, since_boot() - self._age(message) + self.settings.lease_s)

    def _check_recent(self, message: Message, within_s: float) -> None:
        if (age := self._age(message)) > within_s:
            self.stale += 1
            raise Refusal(
                f"{message.kind} came {min(age, 999):.2f} s after it was sent, but counts for {within_s:g} s; "
                "if that comes again, the link is too slow for this --lease"
            )

    def status(self, message: Message) -> dict[str, Any]:
        """What everybody may know."""
        job, clock = self.last, self.executor.clock
        return {
            "state": self.state,
            "fault": self.fault,
            "fault_number": self.fault_number,
            "yours": self.holder == message.session,
            "taken": bool(self.holder),
            "job": None if job is None else self._about(job),
            "steps": self.executor.steps,
            "overruns": clock.overruns,
            "worst_late_ms": 1000 * clock.worst_late_s,
            "leases_lost": self.leases_lost,
            "refused": self.refused,
            "messages": {**self.link.counts(), "stale": self.stale},
        }

    def _about(self, job: Job) -> dict[str, Any]:
        about = {"name": job.name, "kind": job.kind, "ended": job.ended, "count": len(job.trajectories)}
        if job.kind == "home" and job.ended and self.homing is not None:
            measured = self.executor.measured
            about["away"] = self.homing.away(measured) if np.isfinite(measured).all() else None
        return about

    def _on_hello(self, message: Message) -> dict[str, Any]:
        return {
            "spec": self.spec.to_json(),
            "limits": self.executor.gate.limits.to_json(),
            "lock_step": self.lock_step,
            "can_reset": self.machine.can_reset,
            "homes": self.homing is not None,
            "lease_s": self.settings.lease_s,
            "period_s": self.executor.clock.period_s,
        }

    def _on_status(self, message: Message) -> None:
        pass

    def _on_arm(self, message: Message) -> None:
        if self.state == FAULT:
            raise Refusal(f"there is a fault that the operator must acknowledge: {self.fault}")
        if self.holder and self.holder != message.session:
            raise Refusal("another trainer holds the lease")
        if self.state == MOVING:
            raise Refusal("the machine still moves")
        self.holder, self.state, self.lease_until = message.session, ARMED, 0.0
        self._renew_lease(message)
        log.info("armed by run %s", message.run)

    def _on_release(self, message: Message) -> None:
        if self.holder == message.session:
            self.holder = ""
            if self.state == MOVING:
                self.last_trajectory = True
            elif self.state == ARMED:
                self._drop_job("released")
                self.state = IDLE

    def _on_policy(self, message: Message) -> dict[str, Any]:
        if self.holder != message.session:
            raise Refusal("only the holder of the lease may send a policy; arm first")
        if message.body.get("spec") != self.spec.digest():
            raise Refusal("the policy was made for another control specification than this robot's")
        digest = policy_digest(message.arrays)
        if message.body.get("digest") != digest:
            raise Refusal("the policy's weights do not have the digest that was announced")
        try:
            names = range(len(self.spec.policy.hidden) + 1)
            layers = [(message.arrays[f"policy.{i}.weight"], message.arrays[f"policy.{i}.bias"]) for i in names]
        except KeyError as error:
            raise Refusal(f"the policy lacks {error}") from None
        self.policies[digest] = NumpyPolicy(self.spec, layers)
        while len(self.policies) > MOST_POLICIES:
            self.policies.popitem(last=False)
        return {"policy": digest}

    def _on_job(self, message: Message) -> None:
        name = message.body.get("name")
        if self.last is not None and name == self.last.name:
            return  # asked again because an answer got lost
        if self.holder != message.session or self.state != ARMED or self.job is not None:
            raise Refusal(
                f"the robot is {self.state}, and {'yours' if self.holder == message.session else 'not yours'}"
            )
        self.job = self.last = self._job(message)
        self.outbox.clear()

    def _job(self, message: Message) -> Job:
        body, arrays, spec = message.body, message.arrays, self.spec
        name, kind, authority = body.get("name"), body.get("kind"), body.get("authority", 1.0)
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            raise Refusal("a job needs a name of 1 to 64 characters")
        if isinstance(authority, bool) or not isinstance(authority, (int, float)) or not 0 < authority <= 1:
            raise Refusal(f"authority is {authority!r}, but must be above 0 and at most 1")
        commands, steps = spec.layout.num_commands, spec.reference.steps
        shapes: dict[str, tuple[int, ...]]
        if kind == "visit":
            count = len(arrays["goals"]) if "goals" in arrays and arrays["goals"].ndim else 0
            shapes = {"goals": (count, spec.goal_size), "excitation": (count, steps, commands)}
            length = count * steps
        elif kind == "follow":
            points = len(arrays["reference"]) if "reference" in arrays and arrays["reference"].ndim else 0
            shapes, count, length = {"reference": (points, spec.num_outputs)}, 1, points - spec.preview[-1]
        elif kind == "play":
            length = len(arrays["commands"]) if "commands" in arrays and arrays["commands"].ndim else 0
            shapes, count = {"commands": (length, commands)}, 1
        elif kind == "home":
            if self.homing is None or not np.isfinite(self.executor.measured).all():
                raise Refusal("this machine holds between episodes: it is not served with --between home")
            shapes, count, length = {}, 1, len(self.homing.reference(self.executor.measured))
        else:
            raise Refusal(f"a job of kind {str(kind)[:40]!r} is unknown")
        needed = next(iter(shapes), "home")
        if (shapes and needed not in arrays) or not 1 <= length <= MOST_STEPS:
            raise Refusal(f"{needed} asks for {length} steps, but a job has 1 to {MOST_STEPS}")
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused
            single = {key: array.astype(np.float32) for key, array in arrays.items()}
        for key, array in arrays.items():
            fits = key in shapes and array.shape == shapes[key] and array.dtype != bool
            if not fits or not np.isfinite(single[key]).all():
                raise Refusal(f"the array {key!r} of shape {array.shape} does not belong into a job of kind {kind!r}")
        if answer_bytes(spec, length // count) > MOST_PAYLOAD:
            raise Refusal(f"{needed} asks for {length // count} steps at once, more than one message can bring back")
        policy = self.policies.get(str(body.get("policy")))
        if kind in ("visit", "follow") and policy is None:
            raise Refusal("the policy is not known here; send it first")
        return Job(name, str(kind), single, policy, float(authority), message, count)

    def _on_fetch(self, message: Message) -> None:
        index = message.body.get("index")
        if self.last is None or message.body.get("job") != self.last.name:
            raise Refusal("that job is not known here any more")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(self.last.trajectories):
            raise Refusal(f"trajectory {index!r} of that job is not known here")
        self.last.asked = message
        self._tell_trajectory(self.last, index)

    def _on_reset(self, message: Message) -> None:
        if self.holder != message.session or self.state != ARMED or not self.machine.can_reset:
            raise Refusal("only a simulated machine can be put somewhere, and only by the holder of the lease")
        position = message.arrays.get("position")
        if position is None or position.shape != (len(self.spec.layout.position),) or not np.isfinite(position).all():
            raise Refusal("position must have one finite number per position")
        self.machine.reset(position)
        self.executor.look()

    def _on_stop(self, message: Message) -> None:
        by_operator = message.operator or self.holder != message.session
        self.machine.neutral()
        self._drop_job(STOPPED)
        self.holder = ""
        log.warning("stopped by %s", message.run)
        if self.state == MOVING:
            self.interrupt = STOPPED
            self.operator_stop = self.operator_stop or by_operator
        elif self.state == FAULT:
            # A new number: an acknowledgement that is under way is of somebody who does not know of this stop.
            self._latch(self.fault if OPERATOR_STOP in self.fault else f"{self.fault}; and {OPERATOR_STOP}")
        elif by_operator:
            self._latch(OPERATOR_STOP)
        elif self.state == ARMED:
            self.state = IDLE

    def _on_acknowledge(self, message: Message) -> None:
        if not message.operator:
            raise Refusal("only the operator acknowledges: firsthand-onboard acknowledge")
        self._check_recent(message, max(self.settings.lease_s, HELD_UP_S))
        if self.state != FAULT:
            raise Refusal("there is no fault to acknowledge")
        if message.body.get("number") != self.fault_number:
            raise Refusal(f"the fault is number {self.fault_number}, not {message.body.get('number')!r}: {self.fault}")
        try:
            self.machine.resume()
            self.executor.look()
        except MachineError as error:
            self._latch(str(error))
            raise Refusal(f"the fault came back: {error}") from None
        if self._age(message) > ACKNOWLEDGE_S:
            raise Refusal("the machine is connected again, but that took long: look, and acknowledge again")
        if self.settings.latch is not None:
            try:
                self.settings.latch.unlink(missing_ok=True)
            except OSError as error:
                raise Refusal(f"{self.settings.latch} cannot be removed, the fault stays: {error}") from None
        log.warning("fault %d acknowledged by %s", self.fault_number, message.run)
        self.state, self.fault = IDLE, ""
