"""The main loop on the robot's computer: holds, executes jobs under lease and gate, latches faults.

| state | what the machine does | leaves it by |
|---|---|---|
| `idle` | neutral | `arm` from a trainer |
| `armed` | neutral | a job; the lease running out; `stop` |
| `moving` | trajectories under the gate | the end of the job; a fault; the lease running out; `stop` |
| `fault` | neutral | `acknowledge` by the operator, and nothing else |

A `stop` by anybody but the holder of the lease is the operator's: it latches like a fault, in every state. Stops also
have a way of their own (`stop_way`), which is looked at before any message is read; a flood of messages is a fault.
If the loop was away for longer than the lease, waiting messages are dropped, except a stop: their senders may be gone.
This does not hold for lock-step machines, which are simulations.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .faults import FaultLatch
from .gate_limits import GateLimits
from .homing import HomingController
from .identity import MachineIdentity
from .jobs import Job, JobReader, PolicyStore
from .leases import LEASE_LOST, Lease
from .link import ACKNOWLEDGE_S, RobotEnd
from .loop import DONE, Executor
from .machine import MachineError
from .messages import Message, Refusal
from .requests import Requests
from .runner import JobEnd, JobRunner
from .signing import Signer
from .spec import ControlSpec, SpecError
from .stop_way import StopWay
from .streams import check_points
from .timing import LockStep, RealTime, no_garbage_collection, since_boot

log = logging.getLogger("firsthand-onboard")

IDLE, ARMED, MOVING, FAULT = "idle", "armed", "moving", "fault"
STOPPED = "stopped"
RECOVER = "recover"
LET_GO_S, LET_GO = 0.5, "the operator let go"
"""A machine is led back only while its operator asks for it again within this time."""
OPERATOR_STOP = "the operator stopped it"
SAME_STOP_S = 0.1
"""While the machine stands, stops over their own way are latched again at most this often."""
MAX_ACKNOWLEDGE_AGE_S = 2.0
"""How old an acknowledgement may be where the lease is shorter: its sender still waits for the answer."""


@dataclass(frozen=True)
class RuntimeSettings:
    """How the runtime behaves."""

    lease_s: float = 1.0
    """Without a sign of life from the trainer for this long, the lease is gone."""
    on_lost: str = "finish"
    """What happens to a running trajectory then: `finish` it under the gate, or `stop` at once."""
    rearm: str = "trainer"
    """Who may arm again after a lost lease: the `trainer`, or the `operator` (it latches like a fault)."""
    latch: Path | None = None
    """Where a fault is kept, and that the machine moves, so that a fault or a crash in motion survives a restart."""

    def __post_init__(self) -> None:
        if not 0.05 <= self.lease_s <= 60:
            raise SpecError(f"lease is {self.lease_s} s, but must lie between 0.05 and 60")
        if self.on_lost not in ("finish", "stop"):
            raise SpecError(f"on_lost is {self.on_lost!r}, but must be 'finish' or 'stop'")
        if self.rearm not in ("trainer", "operator"):
            raise SpecError(f"rearm is {self.rearm!r}, but must be 'trainer' or 'operator'")


class Runtime:
    """The onboard program without its command line: the state, and how it changes."""

    def __init__(
        self,
        spec: ControlSpec,
        machine: Any,
        limits: GateLimits,
        link: RobotEnd,
        settings: RuntimeSettings,
        period_s: float,
        homing: HomingController | None = None,
        stop_way: StopWay | None = None,
        identity: str | MachineIdentity = "",
        signer: Signer | None = None,
    ) -> None:
        self.spec, self.machine, self.settings = spec, machine, settings
        self._link, self._stop_way = link, stop_way
        self.proof = identity if isinstance(identity, MachineIdentity) else None
        """How the machine proves who it is; None where it cannot."""
        self.identity = identity.name if isinstance(identity, MachineIdentity) else identity
        """Identity of the machine, wherever it is served; empty if it is not known."""
        self.homing = homing
        """How the machine goes home between episodes; None where it holds."""
        self.lock_step = bool(machine.lock_step)
        self.lease = Lease(settings.lease_s, lock_step=self.lock_step)
        self.policies = PolicyStore(spec, signer)
        self.job: Job | None = None
        """What waits to begin, or runs."""
        self.last: Job | None = None
        """The newest job, also when it is over."""
        self.stopping = False
        """Set it from anywhere to end `run`."""
        self.state = IDLE
        self._latch_later = ""
        """What is latched when the running job has ended; empty where nothing is."""
        self._asked_to_recover = 0.0
        self._stop_asked, self._stopped_at = False, -math.inf
        self._unsent: deque[tuple[Job, int]] = deque()
        self._reader = JobReader(spec, self.policies, homing)
        self._requests = Requests(self, link)
        clock = LockStep(period_s) if self.lock_step else RealTime(period_s)
        self.executor = Executor(spec, machine, limits, clock, self.poll)
        self._runner = JobRunner(self.executor, homing, self.poll)
        self._requests.check_hello()
        self.latch = FaultLatch(settings.latch)
        if self.latch.is_set:
            self.state = FAULT

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

    def poll(self) -> str:
        """Stops, messages and lease; returns why a running trajectory must end now, or an empty text."""
        self._look_for_stops()
        was_away = self.lease.loop_was_away()
        if was_away and self.lease.has_run_out():
            self._lose_lease()  # before messages are read that have waited for who knows how long
        self._requests.read(was_away=was_away)
        if self.lease.has_run_out():
            self._lose_lease()
        self.lease.mark_polled()
        if self._unsent:
            self._requests.send_trajectory(*self._unsent.popleft())
        if self.stopping:
            return STOPPED
        if self.job is not None and self.job.kind == RECOVER and since_boot() - self._asked_to_recover > LET_GO_S:
            return LET_GO
        return self._runner.interruption if self.state == MOVING else ""

    def _look_for_stops(self) -> None:
        """What comes over the way for stops alone, and floods, in which a stop over the link may be lost."""
        way, flood = self._stop_way, self._link.flood()
        if way is not None:
            self._stop_asked |= way.asked()
            if self._stop_asked and (self.state != FAULT or time.monotonic() - self._stopped_at > SAME_STOP_S):
                self._stop("the way for stops", latch=OPERATOR_STOP)
                self._stop_asked = False
            if way.awaited and self.state == FAULT and not self._stop_asked:
                way.answer(state=self.state, fault=self.latch.fault, fault_number=self.latch.number)
            if way.flood:
                flood, way.flood = flood or way.flood, ""
        if flood and self.state != FAULT:
            self._stop(f"a flood: {flood}", latch=flood)

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

    def _execute(self, job: Job) -> None:
        try:
            self.latch.begin_motion()
        except OSError as error:
            self._drop_job(f"{self.latch.path} cannot be written, and the machine does not move without it: {error}")
            log.error("job %s: %s", job.name, job.ended)
            return
        self.state, self._latch_later = MOVING, ""
        self._runner.start()
        lost_before = self.lease.lost
        log.info("job %s: %d %s, authority %.2f", job.name, job.count, job.kind, job.authority)
        with no_garbage_collection():  # which takes a while: only then the machine is read and the clock starts
            try:
                self.executor.begin()
                end = self._runner.run(job, lambda index: self._unsent.append((job, index)))
            except MachineError as error:
                end = JobEnd(str(error), fault=True)
            job.ended = end.reason
            if end.fault:
                self._latch(end.reason)
        self.executor.come_to_rest()
        self.job = None
        if self.state == MOVING:
            self.state = ARMED if job.ended == DONE and self.lease.holder else IDLE
            if self._latch_later:
                self._latch(self._latch_later)
            elif self.lease.lost > lost_before and self.settings.rearm == "operator":
                self._latch(LEASE_LOST)
        self.latch.end_motion()
        log.info("job %s: %s", job.name, job.ended)
        while self._unsent:
            self._requests.send_trajectory(*self._unsent.popleft())

    def _latch(self, fault: str) -> None:
        """Neutral, and stay there until the operator acknowledges."""
        self.machine.neutral()
        self._drop_job(fault)
        self.state = FAULT
        self.lease.give_back()
        self.latch.set(fault)

    def _drop_job(self, why: str) -> None:
        """What has not begun will not begin, even when somebody arms again."""
        if self.job is not None and self.state != MOVING:
            self.job.ended = why
        self.job = None

    def _lose_lease(self) -> None:
        self.lease.lose()
        log.warning("%s while %s", LEASE_LOST, self.state)
        if self.state == MOVING:
            if self.settings.on_lost == "stop":
                self._runner.interrupt(LEASE_LOST)
            self._runner.finish_trajectory()
        elif self.state == ARMED:
            self._drop_job(LEASE_LOST)
            self.state = IDLE
        if self.settings.rearm == "operator" and self.state == IDLE:
            self._latch(LEASE_LOST)

    # What messages ask for ----------------------------------------------------------------------------------------

    def arm(self, message: Message) -> None:
        """Give the lease to the sender, who may then move the machine."""
        if self.state == FAULT:
            raise Refusal(f"there is a fault that the operator must acknowledge: {self.latch.fault}")
        if self.lease.holder and not self.lease.is_held_by(message):
            raise Refusal("another trainer holds the lease")
        if self.state == MOVING or (self.job is not None and self.job.kind == RECOVER):
            raise Refusal("the machine still moves")
        self.state = ARMED
        self.lease.grant(message)
        log.info("armed by run %s", message.run)

    def release(self, message: Message) -> None:
        """Take the lease back from the sender; what moves finishes its trajectory."""
        if self.lease.is_held_by(message):
            self.lease.give_back()
            if self.state == MOVING:
                self._runner.finish_trajectory()
            elif self.state == ARMED:
                self._drop_job("released")
                self.state = IDLE

    def take_job(self, message: Message) -> None:
        """Accept a job from the holder of the lease; it begins when the loop is next free."""
        if self.last is not None and message.body.get("name") == self.last.name:
            return  # asked again because an answer got lost
        is_holder = self.lease.is_held_by(message)
        if not is_holder or self.state != ARMED or self.job is not None:
            raise Refusal(f"the robot is {self.state}, and {'yours' if is_holder else 'not yours'}")
        if why := self.executor.describe_outside() or self._hindrance():
            raise Refusal(why)
        self.job = self.last = self._reader.read(message, self.executor.measured)
        self._unsent.clear()

    def take_more(self, message: Message) -> None:
        """More work for the stream that runs, and the policy from the next chunk on where one is named."""
        job = self.job
        if job is None or job.stream is None or job.name != message.body.get("job"):
            raise Refusal("that stream of work does not run (any more)")
        if not self.lease.is_held_by(message):
            raise Refusal("only the holder of the lease may send work")
        if (digest := message.body.get("policy")) is not None:
            controller = self.policies.find(digest)
            if controller is None:
                raise Refusal("the policy is not known here; send it first")
            job.controller, job.policy = controller, str(digest)
        if message.arrays:
            number = message.body.get("number")
            if number is not None and number == job.newest_work:
                return  # asked again because an answer got lost
            job.stream.add(check_points(message.arrays))
            job.newest_work = number

    def recover(self, message: Message) -> None:
        """Lead joints that stand outside their limits back inside, for as long as the operator goes on asking."""
        if not message.operator:
            raise Refusal("only the operator leads a machine back: firsthand-onboard recover")
        recovering = self.job is not None and self.job.kind == RECOVER
        if recovering and self.job is not None and self.job.asked.session == message.session:
            self._asked_to_recover = since_boot()
            return
        if self.state != IDLE or self.lease.holder:
            raise Refusal(f"the machine is {self.state}: it can be led back while it is idle and nobody has armed it")
        if not self.executor.describe_outside():
            raise Refusal("no joint stands outside its limits")
        if why := self._hindrance():
            raise Refusal(why)
        self._asked_to_recover = since_boot()
        self.job = self.last = Job(f"recover {message.number}", RECOVER, {}, None, 1.0, message, 1)
        self.state = ARMED

    def _hindrance(self) -> str:
        """What the machine's own inputs say against moving."""
        hindrance = getattr(self.machine, "hindrance", None)
        return "" if hindrance is None else hindrance()

    def reset(self, message: Message) -> None:
        """Put a simulation at rest in a configuration."""
        if not self.lease.is_held_by(message) or self.state != ARMED or not self.machine.can_reset:
            raise Refusal("only a simulated machine can be put somewhere, and only by the holder of the lease")
        position = message.arrays.get("position")
        if position is None or position.shape != (len(self.spec.layout.position),) or not np.isfinite(position).all():
            raise Refusal("position must have one finite number per position")
        self.machine.reset(position)
        self.executor.look()

    def stop(self, message: Message) -> None:
        """Neutral at once. From anybody but the holder of the lease it latches."""
        by_operator = message.operator or not self.lease.is_held_by(message)
        self._stop(message.run, latch=OPERATOR_STOP if by_operator else "")

    def _stop(self, by: str, *, latch: str) -> None:
        self._stopped_at = time.monotonic()
        self.machine.neutral()
        self._drop_job(STOPPED)
        self.lease.give_back()
        log.warning("stopped by %s", by)
        if self.state == MOVING:
            self._runner.interrupt(STOPPED)
            self._latch_later = self._latch_later or latch
        elif self.state == FAULT:
            # A new number: an acknowledgement that is under way is of somebody who does not know of this stop.
            fault = self.latch.fault
            self._latch(fault if OPERATOR_STOP in fault else f"{fault}; and {OPERATOR_STOP}")
        elif latch:
            self._latch(latch)
        elif self.state == ARMED:
            self.state = IDLE

    def acknowledge(self, message: Message) -> None:
        """Forget the fault that the operator has looked at, if the machine can be read again."""
        self.lease.check_recent(message, max(self.settings.lease_s, MAX_ACKNOWLEDGE_AGE_S))
        if self.state != FAULT:
            raise Refusal("there is no fault to acknowledge")
        latch, number = self.latch, message.body.get("number")
        if number != latch.number:
            raise Refusal(f"the fault is number {latch.number}, not {number!r}: {latch.fault}")
        try:
            self.machine.resume()
            self.executor.look()
        except MachineError as error:
            self._latch(str(error))
            raise Refusal(f"the fault came back: {error}") from None
        if self.lease.age_s(message) > ACKNOWLEDGE_S:
            raise Refusal("the machine is connected again, but that took long: look, and acknowledge again")
        try:
            latch.clear()
        except OSError as error:
            raise Refusal(f"{latch.path} cannot be removed, the fault stays: {error}") from None
        log.warning("fault %d acknowledged by %s", latch.number, message.run)
        self.state = IDLE
