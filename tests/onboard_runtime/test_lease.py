"""Leases that run out, links that hold things up, loops that were away: the onboard program as a real process."""

import signal
import time

import numpy as np
import pytest

from firsthand_onboard import link
from firsthand_onboard.link import ClientEnd
from firsthand_onboard.messages import Message
from firsthand_onboard.timing import since_boot

from .processes import FAST, GOALS, SPEC, begin, finished, random_policy, rig, send_policy, silent, stop, wait_for


@pytest.fixture(scope="module")
def leased(tmp_path_factory: pytest.TempPathFactory):
    """A rig with a short lease, which finishes what runs when the lease is lost."""
    with rig(tmp_path_factory.mktemp("rig"), "--speed", "4", "--lease", "1", **FAST) as made:
        yield made


def last_trajectory(client: ClientEnd, job: dict) -> Message:
    """What came of a job that was cut short."""
    assert client.ask("fetch", {"job": job["name"], "index": job["count"] - 1}).kind == "reply"
    return client.others[-1]


def test_a_lost_lease_lets_the_trajectory_end_and_nothing_moves_again_by_itself(leased):
    client = leased.client()
    begin(client, SPEC, "cut", GOALS)
    wait_for(leased.moving, "motion")
    client.close()  # the link is cut
    wait_for(lambda: not leased.moving(), "neutral")
    again = leased.client()
    job = finished(again)["job"]
    assert job["ended"] == "the lease ran out"
    assert last_trajectory(again, job).body["ended"] == "done"
    again.keep_lease(0.05)  # a link that is back is not permission
    silent(leased)
    begin(again, SPEC, "armed again", GOALS)
    wait_for(leased.moving, "motion after arming again")
    again.close()
    wait_for(lambda: not leased.moving(), "neutral")


def test_of_a_long_motion_only_a_trajectory_is_finished(leased):
    client = leased.client()
    wait_for(lambda: client.ask("arm").kind == "reply", "the end of what was before")
    client.keep_lease(0.05)
    commands = np.tile(np.asarray([[0.5, -0.5], [-0.5, 0.5]], np.float32), (5000, 1))
    client.ask("job", {"name": "long", "kind": "play"}, {"commands": commands})
    wait_for(leased.moving, "motion")
    client.close()
    again = leased.client()
    job = finished(again)["job"]
    assert job["ended"] == "the lease ran out"
    happened = last_trajectory(again, job).arrays["valid"]
    assert happened.any()
    assert happened.sum() % SPEC.reference.steps == 0  # at its end, not in its middle
    silent(leased)
    again.close()


def test_what_waited_while_the_loop_was_away_does_not_move_the_machine(leased):
    client = leased.client()
    client.ask("arm")
    client.keep_lease(0.1)
    policy = send_policy(client, SPEC, random_policy(SPEC))
    before = client.ask("status").body
    leased.onboard.signal(signal.SIGSTOP)
    client.drop_lease()
    for _ in range(3):
        client.send("arm")
        client.send("job", {"name": "long ago", "kind": "visit", "policy": policy}, {"goals": GOALS})
    time.sleep(2.0)  # two leases: nobody knows whether the trainer is still there
    client.close()
    leased.onboard.signal(signal.SIGCONT)
    again = leased.client()
    # Not all of them: what the network brings only after the loop has looked is refused one by one.
    wait_for(lambda: again.ask("status").body["messages"]["stale"] > before["messages"]["stale"], "what waited")
    silent(leased)
    status = again.ask("status").body
    assert (status["state"], status["taken"]) == ("idle", False)
    assert status["job"] is None or status["job"]["name"] != "long ago"
    again.close()


class Held:
    """A link that keeps what is sent until it is let go."""

    def __init__(self, client: ClientEnd) -> None:
        self.outgoing, self.frames = client._outgoing, []
        client._outgoing = self

    def put(self, frame: bytes) -> None:
        self.frames.append(frame)


def test_what_a_link_held_up_for_longer_than_the_lease_moves_nothing(leased):
    """Also where the loop was never away: the backlog of a trainer that is gone comes later, or slowly."""
    client, watcher = leased.client(), leased.client("watcher")
    client.ask("arm")
    client.keep_lease(0.1)
    policy = send_policy(client, SPEC, random_policy(SPEC))
    lost = client.ask("status").body["leases_lost"]
    held = Held(client)
    wait_for(lambda: len(held.frames) >= 5, "beats")
    client.drop_lease()
    for _ in range(3):
        client.send("arm")
        client.send("job", {"name": "held up", "kind": "visit", "policy": policy}, {"goals": GOALS})
    for frame in held.frames[:-6]:  # beats, slower than they were sent
        held.outgoing.put(frame)
        time.sleep(0.3)
    watcher.ask("status")
    now = watcher.ask("status").body  # less than a lease after the last beat came, more than one after it was sent
    assert (now["leases_lost"], now["taken"]) == (lost + 1, False)
    stale = now["messages"]["stale"]
    for frame in held.frames[-6:]:
        held.outgoing.put(frame)
    status = wait_for(lambda: (s := watcher.ask("status").body)["messages"]["stale"] >= stale + 6 and s, "the backlog")
    assert (status["state"], status["taken"]) == ("idle", False)
    silent(leased)
    client._outgoing = held.outgoing
    assert client.ask("arm").body["state"] == "armed"
    client.ask("release")
    client.close()
    watcher.close()


@pytest.mark.parametrize("rate", [0.9991, 1.0009])
def test_a_trainer_whose_clock_is_another_never_takes_the_robots_time_for_later_than_it_is(leased, monkeypatch, rate):
    start, passed = since_boot(), 0.0
    monkeypatch.setattr(link, "since_boot", lambda: 77.0 + rate * (since_boot() - start + passed))
    client = leased.client()
    assert client.ask("arm").kind == "reply"
    client.ask("release")
    for passed in (0.0, 1.0, 60.0, 600.0):  # as if so long nothing had come from the robot
        robots = since_boot() + passed
        assert robots - 0.5 - 2e-3 * passed <= client._robots_time() <= since_boot() + passed
    client.close()


def test_an_acknowledgement_that_was_held_up_acknowledges_nothing(leased):
    operator = leased.client("operator", operator=True)
    number = stop(operator).body["fault_number"]
    held = Held(operator)
    operator.send("acknowledge", {"number": number})
    time.sleep(2.2)
    operator._outgoing = held.outgoing
    for frame in held.frames:
        held.outgoing.put(frame)
    refused = operator.next(60)
    assert refused is not None
    assert (refused.kind, refused.body["state"]) == ("refused", "fault")
    assert "after it was sent" in refused.body["why"]
    assert operator.acknowledge(number).body["state"] == "idle"
    operator.close()


def test_a_lost_lease_stops_at_once_and_only_the_operator_lets_it_go_on_if_so_configured(tmp_path):
    with rig(tmp_path, "--speed", "4", "--lease", "1", "--rearm", "operator", "--on-lost", "stop", **FAST) as made:
        client = made.client()
        begin(client, SPEC, "cut", GOALS)
        wait_for(made.moving, "motion")
        client.close()
        again = made.client()
        job = finished(again)["job"]
        assert job["ended"] == last_trajectory(again, job).body["ended"] == "the lease ran out"
        wait_for(lambda: again.ask("status").body["state"] == "fault", "the latch")
        silent(made)
        assert "operator" in again.ask("arm").body["why"]
        assert made.acknowledge() == "idle"
        assert again.ask("arm").kind == "reply"
        again.close()
