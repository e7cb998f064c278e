"""Leases: who may move the machine and until when, and how old a message may be.

A lease counts from the time at which its holder sent a message, not from its arrival: links and queues delay messages,
and the backlog of a trainer that is gone must not keep its lease alive. A message that moves the machine is ignored if
it is older than the lease. In lock-step, where time passes only while a command is carried out, messages have no age.
"""

from __future__ import annotations

from .messages import Message, Refusal
from .timing import since_boot

LEASE_LOST = "the lease ran out"


class Lease:
    """The right to move the machine, which at most one trainer's session holds."""

    def __init__(self, length_s: float, *, lock_step: bool = False) -> None:
        self.length_s = length_s
        """Without a sign of life from its holder for this long, the lease is gone."""
        self.holder = ""
        """The session that holds the lease; empty without one."""
        self.lost = 0
        """How many leases have run out."""
        self.stale = 0
        """How many messages came too late to be acted on."""
        self._lock_step = lock_step
        self._until = 0.0
        self._polled = since_boot()

    def is_held_by(self, message: Message) -> bool:
        """Whether the sender of the message holds the lease."""
        return self.holder == message.session

    def grant(self, message: Message) -> None:
        """Give the lease to the sender."""
        self.holder, self._until = message.session, 0.0
        self.renew(message)

    def renew(self, message: Message) -> None:
        """Extend the holder's lease, from when this message was sent."""
        self._until = max(self._until, since_boot() - self.age_s(message) + self.length_s)

    def give_back(self) -> None:
        """End the lease."""
        self.holder = ""

    def lose(self) -> None:
        """Take the lease from a holder who has been silent for too long."""
        self.holder = ""
        self.lost += 1

    def has_run_out(self) -> bool:
        """Whether somebody holds the lease but has been silent for too long."""
        return bool(self.holder) and since_boot() > self._until

    def age_s(self, message: Message) -> float:
        """Seconds since a message was sent, an upper bound: queues and links may have held it up."""
        return 0.0 if self._lock_step else max(since_boot() - message.now, 0.0)

    def check_recent(self, message: Message, within_s: float) -> None:
        """Raise `Refusal` for a message that is older than `within_s`."""
        if (age := self.age_s(message)) > within_s:
            self.stale += 1
            raise Refusal(
                f"{message.kind} came {min(age, 999):.2f} s after it was sent, but counts for {within_s:g} s; "
                "if this happens again, the link is too slow for this --lease"
            )

    def loop_was_away(self) -> bool:
        """Whether messages have not been read for longer than a lease: their senders may be gone."""
        return not self._lock_step and since_boot() - self._polled > self.length_s

    def mark_polled(self) -> None:
        """Messages have been read just now."""
        self._polled = since_boot()
