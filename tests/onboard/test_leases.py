"""Leases and their ages, with a clock that the test moves."""

import pytest

from firsthand_onboard import leases
from firsthand_onboard.leases import Lease
from firsthand_onboard.messages import Message, Refusal


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(leases, "since_boot", made)
    return made


def sent(at: float, session: str = "ours", kind: str = "lease") -> Message:
    return Message(kind, "run", session, "robot", 1, now=at)


def test_a_lease_counts_from_when_its_holder_sent_something(clock: Clock) -> None:
    lease = Lease(2.0)
    assert not lease.has_run_out()
    lease.grant(sent(999.0))  # a second on its way
    assert lease.is_held_by(sent(1000.0))
    assert not lease.is_held_by(sent(1000.0, "theirs"))
    clock.now = 1000.9
    assert not lease.has_run_out()
    clock.now = 1001.1
    assert lease.has_run_out()
    lease.renew(sent(998.0))  # a backlog extends nothing
    assert lease.has_run_out()
    lease.renew(sent(1001.0))
    assert not lease.has_run_out()
    lease.renew(sent(2000.0))  # a time in the future counts as now
    clock.now = 1003.2
    assert lease.has_run_out()
    lease.lose()
    assert (lease.holder, lease.lost, lease.has_run_out()) == ("", 1, False)


def test_a_new_holder_does_not_inherit_time(clock: Clock) -> None:
    lease = Lease(2.0)
    lease.grant(sent(1000.0))
    lease.give_back()
    lease.grant(sent(997.0, "theirs"))
    assert lease.has_run_out()


def test_an_old_message_is_refused_and_counted(clock: Clock) -> None:
    lease = Lease(2.0)
    lease.check_recent(sent(998.5), 2.0)
    with pytest.raises(Refusal, match=r"arm came 3.00 s after it was sent, but counts for 2 s"):
        lease.check_recent(sent(997.0, kind="arm"), 2.0)
    assert lease.stale == 1


def test_the_loop_was_away_when_it_read_nothing_for_a_lease(clock: Clock) -> None:
    lease = Lease(2.0)
    clock.now += 1.9
    assert not lease.loop_was_away()
    clock.now += 0.2
    assert lease.loop_was_away()
    lease.mark_polled()
    assert not lease.loop_was_away()


def test_in_lock_step_messages_have_no_age(clock: Clock) -> None:
    lease = Lease(2.0, lock_step=True)
    lease.grant(sent(0.0))
    lease.check_recent(sent(0.0), 1.0)
    assert not lease.has_run_out()
    clock.now += 2.1
    assert lease.has_run_out()
    assert not lease.loop_was_away()
