"""Work for a machine, from a program of yours: send the points that its tool shall follow, while it moves.

    from firsthand_onboard.work import WorkClient

    with WorkClient("tcp/127.0.0.1:7447", controller_arrays) as work:
        for points in my_program():        # (n, outputs), one point per control period, going on from the last
            work.send(points)              # waits while more than a minute of work lies ahead
            for chunk in work.done():      # what the machine did since
                print(chunk.error)

The first point is where the tool is (`work.start()`). The machine follows its work in chunks of the usual trajectory
length, 5 s for the excavator, and needs to know a chunk and the preview beyond it when the chunk begins. Where work
runs out it goes to the last point, stands there for two chunks, and then rests in neutral; what is sent after that
begins a new stream. `use` hands a new policy over, which takes over at the next chunk within half a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .answers import JobStatus, read_about, read_measured, read_status, read_trajectory, refusal
from .jobs import policy_digest
from .kinematics import output_error, tracked_output
from .link import ClientEnd, identity
from .messages import Message
from .network import LinkError, Security
from .signing import SigningKey
from .streams import MAX_AHEAD, STOPPED

FETCH_TRIES = 3
"""A chunk that did not arrive is asked for this many times."""
AHEAD_S = 60.0
"""More work than this does not have to lie ahead."""
LOOK_S = 0.05


GONE = "the machine does not know the stream any more"


class WorkRefused(Exception):
    """The machine does not do what was asked; the message says why."""


@dataclass(frozen=True)
class DoneChunk:
    """What the machine did in one chunk."""

    arrays: Mapping[str, np.ndarray]
    """`start`, `measured`, `commands`, `reference`, `free`, `valid`, as `EpisodeRecord` has them."""
    index: int
    """Which chunk of the stream."""
    ended: str
    """`done`, or why it was cut short."""
    error: float
    """Mean distance between tracked output and reference; NaN where nothing happened."""
    policy: str
    """Digest of the policy that ran it (`policy_digest` of its arrays)."""
    gap: int = 0
    """How many chunks before this one were lost on their way, and are not kept by the machine any more."""


class WorkClient:
    """A stream of work on one machine, for one thread. `LinkError` where the machine is lost or says nonsense."""

    def __init__(
        self,
        address: str,
        controller: Mapping[str, np.ndarray],
        security: Security | None = None,
        *,
        authority: float = 1.0,
        key: SigningKey | None = None,
        run: str = "work",
    ) -> None:
        """`controller` has the arrays of a policy, as a run's `Controller.arrays()` or an exported file has them.

        `key` signs policies, for a machine that runs only those of its signer.
        """
        self.client = ClientEnd(address, security, run=run)
        try:
            about = read_about(self.client.hello())
        except BaseException:
            self.client.close()
            raise
        self.spec, self.authority, self.key, self._lease_s = about.spec, authority, key, about.lease_s
        self._arrays, self._sent, self._job, self._number, self._seen = dict(controller), "", "", 0, 0
        self._done: list[DoneChunk] = []
        """Chunks that have come and were not asked for yet."""
        self._early: dict[int, DoneChunk] = {}
        """Chunks that have come before one that is missing."""
        self._gap = 0
        """Chunks that are lost, since the last one that was not."""

    def __enter__(self) -> WorkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> np.ndarray:
        """The tracked output now: where the first point of a stream has to be."""
        measured = read_measured(self.spec, self.client.ask("status"))
        if not np.isfinite(measured).all():
            raise WorkRefused("the machine does not measure where it is")
        return np.asarray(tracked_output(self.spec, measured.astype(float)))

    @property
    def running(self) -> bool:
        """Whether a stream runs; the machine is asked."""
        return not self._why_ended()

    @property
    def has_room(self) -> bool:
        """Whether `send` would not wait; the machine is asked."""
        job = self._status()
        return job is None or bool(job.ended) or job.ahead * self.spec.period_s < AHEAD_S

    def send(self, points: Any) -> None:
        """More work, `(n, outputs)`; waits while `AHEAD_S` of it lie ahead. `WorkRefused` says what is wrong.

        Where the stream has ended before its work was done, that is refused once, so that no work is left out unseen:
        what is sent next begins a new stream.
        """
        try:
            points = np.asarray(points, np.float32)
        except (TypeError, ValueError):
            raise WorkRefused(f"a stream's points have {self.spec.num_outputs} finite numbers each") from None
        if len(np.atleast_1d(points)) > MAX_AHEAD:
            raise WorkRefused(f"{len(points)} points were sent at once; at most {MAX_AHEAD} may be")
        while not self.has_room:
            time.sleep(LOOK_S)
        self._number += 1
        if self._job:
            if self._try_more({"number": self._number}, {"reference": points}):
                return
            self._leave_stream()
        self._begin(points)

    def use(self, controller: Mapping[str, np.ndarray]) -> None:
        """Another policy, from the next chunk on; without a jump. Where no stream runs, the next one begins with it."""
        self._arrays = dict(controller)
        if self._job:
            try:
                self._try_more({"policy": self._send_policy()}, {})
            except WorkRefused:
                if self.running:
                    raise

    def done(self) -> Iterator[DoneChunk]:
        """What the machine has done since the last call, in order; `DoneChunk.gap` says where something is missing."""
        self._collect()
        chunks, self._done = self._done, []
        yield from chunks

    def wait(self) -> str:
        """Until the stream has ended; why it has."""
        while self._job and not (why := self._why_ended()):
            time.sleep(LOOK_S)
        job = self._status()
        if job is not None:
            self._collect(job.count)
        return why if self._job else ""

    def close(self) -> None:
        """Give the lease back: the machine finishes its chunk and rests."""
        with contextlib.suppress(LinkError):
            self.client.ask("release", patience_s=0.5, tries=1)
        self.client.close()

    def _collect(self, count: int = 0) -> None:
        """Take the chunks of this stream that have arrived, in order; there are at least `count`.

        One that is missing is asked for: the machine keeps the newest. What it does not keep any more is a gap.
        """
        self._take_arrived()
        while self._seen < max([count, *(index + 1 for index in self._early)]):
            chunk = self._early.pop(self._seen, None) or self._fetch(self._seen)
            self._seen += 1
            if chunk is None:
                self._gap += 1
            else:
                self._done.append(replace(chunk, gap=self._gap))
                self._gap = 0

    def _take_arrived(self) -> None:
        """Sort in what has come."""
        while self.client.next(0.0) is not None:
            pass
        arrived, self.client.others[:] = list(self.client.others), []
        for message in arrived:
            if message.body.get("job") == self._job:
                chunk = self._chunk(message)
                if chunk.index >= self._seen:
                    self._early[chunk.index] = chunk

    def _fetch(self, index: int) -> DoneChunk | None:
        """A chunk that did not arrive; None where it is lost."""
        for _ in range(FETCH_TRIES):
            answer = self.client.ask("fetch", {"job": self._job, "index": index})
            self._take_arrived()
            if index in self._early:
                return self._early.pop(index)
            if answer.kind == "refused":  # the machine keeps it no more
                break
        return None

    def _chunk(self, message: Message) -> DoneChunk:
        sent = read_trajectory(self.spec, message, self.spec.reference.steps)
        arrays = sent.arrays
        valid = np.asarray(arrays["valid"], bool)
        found = tracked_output(self.spec, np.asarray(arrays["measured"][1:], float))
        away = np.asarray(output_error(self.spec, np.asarray(arrays["reference"][: len(valid)], float), found))
        errors = np.linalg.norm(away, axis=-1)[valid]
        mean = float(errors.mean()) if len(errors) else float("nan")
        return DoneChunk(arrays, sent.index, sent.ended, mean, str(message.body.get("policy", "")))

    def _status(self) -> JobStatus | None:
        """Of this stream; None without a stream, or if the machine does not know it."""
        if not self._job:
            return None
        job = read_status(self.client.ask("status")).job
        return job if job is not None and job.name == self._job else None

    def _why_ended(self) -> str:
        """Why no stream runs; empty while one does."""
        job = self._status()
        return GONE if job is None else job.ended

    def _leave_stream(self) -> None:
        """The stream has ended; `WorkRefused` where that was not because its work was done."""
        job = self._status()
        why = GONE if job is None else job.ended
        self._collect(0 if job is None else job.count)
        self._job, self._early = "", {}
        if why != STOPPED:
            raise WorkRefused(f"the stream ended before its work was done ({why}); what is sent next begins a new one")

    def _begin(self, points: np.ndarray) -> None:
        """A new stream."""
        status = read_status(self.client.ask("status"))
        if status.state == "fault":
            raise WorkRefused(f"the machine waits for its operator: {status.fault}")
        if not status.yours or status.state != "armed":
            self._ask("arm")
            self.client.keep_lease(self._lease_s / 4)
        self._sent = ""  # others may have sent policies since, of which the machine keeps few
        body = {"name": identity(), "kind": "stream", "authority": self.authority, "policy": self._send_policy()}
        self._ask("job", body, {"reference": points})
        self._job, self._seen = str(body["name"]), 0

    def _send_policy(self) -> str:
        digest = policy_digest(self._arrays)
        if digest != self._sent:
            body = {"spec": self.spec.digest(), "digest": digest}
            if self.key is not None:
                body["signature"] = self.key.sign_policy(body["spec"], digest)
            self._ask("policy", body, self._arrays)
            self._sent = digest
        return digest

    def _try_more(self, body: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether the stream took it; false where it has ended."""
        answer = self.client.ask("more", {"job": self._job, **body}, arrays)
        if answer.kind != "refused":
            return True
        if not self.running:
            return False
        raise WorkRefused(refusal(answer))

    def _ask(self, kind: str, body: Mapping[str, Any] | None = None, arrays: Any = None) -> Message:
        answer = self.client.ask(kind, body, arrays)
        if answer.kind == "refused":
            raise WorkRefused(refusal(answer))
        return answer
