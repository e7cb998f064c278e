"""What is remembered of each machine of a fleet, without machines."""

import threading
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import pytest

from firsthand.models import Controller, Dynamics, Policy
from firsthand.robots import EpisodeRecord
from firsthand.robots.fleet import Fleet
from firsthand.robots.remote import RemoteRobot, RobotAway
from firsthand.tasks import Task
from firsthand.training.fleet_guard import FleetGuard, fleet_metrics
from firsthand.training.learning import read_record
from firsthand.training.parts import AbstractSupervisor, Candidate, Decision, EpisodeSummary
from firsthand.training.recorder import MemoryRecorder


class Machine(RemoteRobot):
    """A machine of which only what a fleet asks for is there."""

    def __init__(self, task: Task, address: str) -> None:
        super().__init__(address, task)
        self._machine_id = f"id of {address}"
        self.looked = 0
        self.stopped = self.closed = False
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def measured_if_ready(self) -> np.ndarray:
        self.looked += 1
        self.asked.set()
        self.may_answer.wait(10.0)
        raise RobotAway("no program answers")

    def stop_at_once(self) -> str:
        self.stopped = True
        return "It stands."

    def close(self) -> None:
        self.closed = True


class Chooser(AbstractSupervisor):
    """A supervisor of one machine that goes on with a policy of its own."""

    def __init__(self, policy: Controller) -> None:
        self.policy, self.judged = policy, []

    def decide(self, candidate: Candidate, meanwhile: Any) -> Decision:
        return Decision(self.policy, prediction_holds=self.policy is candidate.policy)

    def judge(self, summary: EpisodeSummary, policy: Controller) -> None:
        self.judged.append(policy)

    def resume(self, recorder: Any, episode: int, robot: Any, name: str) -> list[str]:
        return []


def probe(make_probe_task, steps: int = 5) -> Task:
    return make_probe_task(
        measured=2, command_memory=2, steps=steps, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    )


def fleet_of(task: Task, *addresses: str) -> Fleet:
    return Fleet([Machine(task, address) for address in addresses])


def record_of(task: Task, machines: list[int]) -> EpisodeRecord:
    spec, count = task.spec, len(machines)
    parts = (
        np.zeros((count, spec.layout.size)),
        np.zeros((count, task.steps + 1, 2)),
        np.zeros((count, task.steps, 1)),
        np.zeros((count, task.steps + 1, spec.num_outputs)),
    )
    return EpisodeRecord.from_arrays({**EpisodeRecord.complete(*parts).arrays(), "machines": np.asarray(machines)})


def test_each_supervisor_judges_the_policy_that_its_machine_ran(make_probe_task):
    task = probe(make_probe_task)
    fleet = fleet_of(task, "tcp/a:1", "tcp/b:1")
    new, old = (Controller(Policy.random(task.spec, key=jax.random.key(i))) for i in range(2))
    choosers = iter([Chooser(new), Chooser(old)])  # the second refuses the new one
    guard = FleetGuard(fleet, lambda robot: next(choosers))
    dynamics = Dynamics.random(task.spec, (8,), key=jax.random.key(2))
    decision = guard.decide(Candidate(new, dynamics, False), lambda: None)
    rows = [{"index": 0}, {"index": 1}]
    summary = EpisodeSummary(1, MappingProxyType({"machines": rows}), record_of(task, [0, 1]))
    guard.judge(summary, decision.policy)
    assert [guard.guards[i].judged for i in (0, 1)] == [[new], [old]]  # pyright: ignore
    fleet.run_alike()  # an operator has chosen a policy for all of them
    guard.judge(summary, new)
    assert [guard.guards[i].judged[-1] for i in (0, 1)] == [new, new]  # pyright: ignore


def test_a_machine_that_is_away_does_not_speak_for_the_others(make_probe_task):
    task = probe(make_probe_task)
    fleet = fleet_of(task, "tcp/a:1", "tcp/b:1")
    new, old = (Controller(Policy.random(task.spec, key=jax.random.key(i))) for i in range(2))
    choosers = iter([Chooser(new), Chooser(old)])
    guard = FleetGuard(fleet, lambda robot: next(choosers))
    candidate = Candidate(new, Dynamics.random(task.spec, (8,), key=jax.random.key(2)), False)
    decision = guard.decide(candidate, lambda: None)
    assert decision.policy is new
    assert decision.prediction_holds
    fleet.members[0].away = "its link was lost"
    decision = guard.decide(candidate, lambda: None)
    assert decision.policy is old
    assert not decision.prediction_holds
    fleet.members[1].away = "so was this one's"
    assert guard.decide(candidate, lambda: None).policy is new  # nobody is there yet: they may join


def test_a_machine_keeps_what_was_seen_of_it_where_a_run_goes_on_with_the_addresses_in_another_order(
    make_probe_task, monkeypatch
):
    task = probe(make_probe_task)
    fleet = fleet_of(task, "tcp/new:1", "tcp/b:1", "tcp/a:1")
    guard = FleetGuard(fleet, lambda robot: Chooser(None))  # pyright: ignore
    rows = [
        {"machine": f"tcp/{name}:1", "machine_id": f"id of tcp/{name}:1", "index": i} for i, name in enumerate("abx")
    ]
    recorder = MemoryRecorder()
    monkeypatch.setattr(recorder, "metrics", lambda: [{"episode": 1, "machines": rows}])
    monkeypatch.setattr(recorder, "load_record", lambda number, spec: record_of(task, [0, 1, 1, 2]))
    guard.resume(recorder, 1, fleet, "probe")
    assert guard._episodes[0].machines.tolist() == [2, 1, 1, -3]  # the last one is there no more


def test_a_machine_is_not_judged_by_what_its_sensors_invented(make_probe_task):
    """Both machines are 0.3 off all the time; the second one's sensor reports a spike in each trajectory besides."""
    task = probe(make_probe_task, steps=20)
    fleet = fleet_of(task, "tcp/a:1", "tcp/b:1")
    record = record_of(task, [0, 0, 1, 1])
    record.references[...] = 0.3
    record.measured[2:, 3, 0] = 5.0
    sound = np.asarray(read_record(task.spec, record)[1])
    first, second = fleet_metrics(fleet, task, record, sound, "run", 1, 0.0)["machines"]
    assert [entry["measured_tracking_error"] for entry in (first, second)] == pytest.approx([0.3, 0.3])
    assert [entry["trajectories"] for entry in (first, second)] == [2, 2]
    assert first["valid_share"] == 1.0
    assert second["valid_share"] == pytest.approx(1.0 - 2 / 20)  # the step to the spike, and the one from it
    blind = fleet_metrics(fleet, task, record, np.zeros_like(sound), "run", 1, 0.0)["machines"]
    assert [entry["valid_share"] for entry in blind] == [0.0, 0.0]  # they moved, and nobody knows how


def test_nobody_looks_for_a_machine_of_a_fleet_that_was_closed(make_probe_task, monkeypatch):
    monkeypatch.setattr("firsthand.robots.fleet.LOOK_S", 0.01)
    fleet = fleet_of(probe(make_probe_task), "tcp/a:1", "tcp/b:1")
    member, machine = fleet.members[1], fleet.members[1].robot
    assert isinstance(machine, Machine)
    before = set(threading.enumerate())
    fleet._leave(member, "it is away")
    looker = (set(threading.enumerate()) - before).pop()
    assert machine.asked.wait(5.0)
    fleet.close()  # while it is being asked
    machine.may_answer.set()
    looker.join(5.0)
    assert not looker.is_alive()
    assert machine.looked == 1
    assert machine.closed
    assert fleet.present == fleet.members  # whoever uses it again asks all of them


def test_a_stop_reaches_a_machine_that_takes_no_part(make_probe_task):
    fleet = fleet_of(probe(make_probe_task), "tcp/a:1", "tcp/b:1")
    fleet.members[1].away = "its link was lost"
    assert fleet.stop_at_once() == "tcp/a:1: It stands. tcp/b:1: It stands."
    assert all(member.robot.stopped for member in fleet.members)  # pyright: ignore
