"""Answers messages: checks each request, has the runtime carry it out, and reports the result to the sender."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .jobs import Job
from .link import RobotEnd
from .machine import MachineError
from .messages import MAX_HEADER, Message, Refusal
from .spec import SpecError

if TYPE_CHECKING:
    from .runtime import Runtime

OPERATOR_KINDS = ("hello", "status", "stop", "acknowledge", "recover")
"""What an operator may ask for; the last two are for operators alone."""
TIMELY_KINDS = ("arm", "job", "more", "reset", "recover")
"""What moves the machine or lets it be moved: not acted on when it is older than the lease."""

MAX_HELLO = MAX_HEADER - 8192
"""Bytes of what a robot says about itself; the rest of the header is for its status."""


class Requests:
    """The robot's side of the conversation with trainers and operators."""

    def __init__(self, runtime: Runtime, link: RobotEnd) -> None:
        self.runtime, self.link = runtime, link
        self.refused = 0
        """How many requests were refused."""
        self._handlers = {
            "hello": self._hello,
            "status": lambda _: None,
            "arm": runtime.arm,
            "release": runtime.release,
            "policy": self._policy,
            "job": runtime.take_job,
            "fetch": self._fetch,
            "reset": runtime.reset,
            "stop": runtime.stop,
            "acknowledge": self._acknowledge,
            "recover": runtime.recover,
            "meet": self._meet,
            "prove": self._prove,
            "more": runtime.take_more,
        }

    def check_hello(self) -> None:
        """Raise `SpecError` where the answer to a hello would be too long, before anybody asks."""
        size = len(json.dumps(self._hello(Message("hello", "", "", "", 0))))
        if size > MAX_HELLO:
            raise SpecError(
                f"the specification and the gate's limits take {size} bytes as JSON, but must fit into {MAX_HELLO}; "
                "use shorter names"
            )

    def read(self, *, was_away: bool) -> None:
        """Answer what waits. Where the loop was away that is everything, and none of it is acted on, except a stop."""
        for message in self.link.receive(everything=was_away):
            if was_away and message.kind != "stop":
                self.runtime.lease.stale += 1
            else:
                self.answer(message)

    def answer(self, message: Message) -> None:
        """Do what a message asks for, or refuse it, and reply."""
        lease = self.runtime.lease
        if lease.is_held_by(message):
            lease.renew(message)
        if message.kind == "lease":
            return
        try:
            if message.operator and message.kind not in OPERATOR_KINDS:
                raise Refusal(f"an operator does not send {message.kind}: that is for trainers")
            if message.kind in TIMELY_KINDS:
                lease.check_recent(message, lease.length_s)
            body = self._handlers[message.kind](message) or {}
        except (Refusal, SpecError, MachineError) as error:
            self.refused += 1
            self.link.send("refused", message, {"why": str(error)[:1000], **self.status(message)})
            return
        arrays = {"measured": self.runtime.executor.measured}
        self.link.send("reply", message, {**self.status(message), **body}, arrays)

    def send_trajectory(self, job: Job, index: int) -> None:
        """Send a trajectory of a job to the trainer that asked for it."""
        trajectory = job.trajectories[index]
        if trajectory is None:  # of a stream, long ago
            return
        body = {"job": job.name, "index": index, "ended": trajectory.ended}
        if job.stream is not None:
            body["policy"] = job.policies[index]
        self.link.send("trajectory", job.asked, body, trajectory.arrays())

    def status(self, message: Message) -> dict[str, Any]:
        """What everybody may know; `yours` tells whether the sender holds the lease."""
        runtime, clock = self.runtime, self.runtime.executor.clock
        return {
            "state": runtime.state,
            "fault": runtime.latch.fault,
            "fault_number": runtime.latch.number,
            "yours": runtime.lease.is_held_by(message),
            "taken": bool(runtime.lease.holder),
            "job": None if runtime.last is None else self._describe_job(runtime.last),
            "steps": runtime.executor.steps,
            "chatter_steps": runtime.executor.chatter_steps,
            "overruns": clock.overruns,
            "worst_late_ms": 1000 * clock.worst_late_s,
            "leases_lost": runtime.lease.lost,
            "refused": self.refused,
            "messages": {**self.link.counts(), "stale": runtime.lease.stale},
        }

    def _describe_job(self, job: Job) -> dict[str, Any]:
        about: dict[str, Any] = {
            "name": job.name,
            "kind": job.kind,
            "ended": job.ended,
            "count": len(job.trajectories),
        }
        if job.stream is not None:
            about["ahead"] = job.stream.ahead
        homing = self.runtime.homing
        if job.kind == "home" and job.ended and homing is not None:
            measured = self.runtime.executor.measured
            about["away"] = homing.away(measured) if np.isfinite(measured).all() else None
        return about

    def _hello(self, message: Message) -> dict[str, Any]:
        runtime = self.runtime
        return {
            "spec": runtime.spec.to_json(),
            "limits": runtime.executor.gate.limits.to_json(),
            "lock_step": runtime.lock_step,
            "can_reset": runtime.machine.can_reset,
            "homes": runtime.homing is not None,
            "machine": runtime.identity,
            "proves": runtime.proof is not None,
            "lease_s": runtime.lease.length_s,
            "period_s": runtime.executor.clock.period_s,
        }

    def _meet(self, message: Message) -> dict[str, Any]:
        proof = None if self.runtime.state == "moving" else self.runtime.proof  # a disk may be slow
        secret = None if proof is None else proof.meet(str(message.body.get("tag")))
        if secret is None:
            raise Refusal("this machine already knows a trainer of that name, or accepts no new one")
        return {"secret": secret}

    def _prove(self, message: Message) -> dict[str, Any]:
        proof = self.runtime.proof
        answer = None
        if proof is not None:
            answer = proof.prove(str(message.body.get("tag")), str(message.body.get("question")))
        if answer is None:
            raise Refusal("this machine has no key to prove its identity with, or the challenge is malformed")
        return {"answer": answer}

    def _policy(self, message: Message) -> dict[str, Any]:
        if not self.runtime.lease.is_held_by(message):
            raise Refusal("only the holder of the lease may send a policy; arm first")
        return {"policy": self.runtime.policies.add(message)}

    def _fetch(self, message: Message) -> None:
        job, index = self.runtime.last, message.body.get("index")
        if job is None or message.body.get("job") != job.name:
            raise Refusal("that job is not known here any more")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(job.trajectories):
            raise Refusal(f"trajectory {index!r} of that job is not known here")
        if job.trajectories[index] is None:
            raise Refusal(f"trajectory {index} of that job is not kept any more")
        job.asked = message
        self.send_trajectory(job, index)

    def _acknowledge(self, message: Message) -> None:
        if not message.operator:
            raise Refusal("only the operator acknowledges: firsthand-onboard acknowledge")
        self.runtime.acknowledge(message)
