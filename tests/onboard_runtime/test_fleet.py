"""Several machines, one learner: two onboard programs in processes of their own, one of them killed in mid-motion."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.robots.address import join_addresses
from firsthand.robots.fleet import LOOK_S, Fleet, FleetAddress
from firsthand.robots.remote import RemoteRobot
from firsthand.tasks.base import EvaluationReference, Task
from firsthand.tasks.cost import tracking_cost
from firsthand.training import Trainer, TrainingConfig
from firsthand.training.fleet_guard import FleetGuard, MachineView
from firsthand.training.guard import Guard
from firsthand.training.judgement import GuardSettings
from firsthand.training.recorder import MemoryRecorder
from firsthand_onboard.toy import toy_spec

from .processes import Rig, stop, wait_for

SPEED = 10
SERVE = ("--speed", str(SPEED), "--lease", "5")


def toy_task() -> Task:
    spec = toy_spec()

    def goals(rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        return rng.uniform((-0.9, 0.6), (-0.1, 1.4), (count, 2))

    def evaluation(speed: float) -> tuple[EvaluationReference, ...]:
        return (EvaluationReference("stay", np.zeros((4, 2)), np.zeros(2)),)

    cost = tracking_cost(spec, length_scale=1.0)
    return Task(spec, cost, goals, evaluation, 0.1, (-0.5, 1.0), trajectories=5)


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Iterator[list[Rig]]:
    made = []
    try:
        for _ in range(2):
            made.append(Rig(tmp_path_factory.mktemp("rig"), *SERVE, simulate=("--speed", str(SPEED))))
        yield made
    finally:
        for each in made:
            each.end()


def trainer_of(machines: list[Rig], task: Task) -> tuple[Trainer, Fleet]:
    fleet = Fleet([RemoteRobot(machine.address, task, run="fleet") for machine in machines], patience_s=60.0)
    changes = {"model.steps": 5, "excitation.amplitude": 0.0}
    config = TrainingConfig.of("toy@fleet", "paper-exact", episodes=9, changes=changes)
    guard = FleetGuard(fleet, lambda robot: Guard(task, GuardSettings()))
    return Trainer(fleet, config, MemoryRecorder(), supervisor=guard), fleet


def test_a_machine_that_is_killed_and_comes_back_does_not_stop_the_other(machines, capsys):
    task = toy_task()
    trainer, fleet = trainer_of(machines, task)
    first, second = machines
    try:
        metrics = trainer.run_episode().metrics
        shares = {entry["machine"]: entry["trajectories"] for entry in metrics["machines"]}
        assert shares == {first.address: 3, second.address: 2}
        assert metrics["robot_time_s"] == pytest.approx(3 / 5 * task.episode_s)
        assert {entry["authority"] for entry in metrics["machines"]} == {0.5}
        identities = {entry["machine_id"] for entry in metrics["machines"]}

        killer = threading.Thread(target=lambda: (wait_for(second.moving), os.kill(second.onboard.pid, signal.SIGKILL)))
        killer.start()
        summary = trainer.run_episode()
        killer.join()
        by_machine = [summary.record.valid[summary.record.machines == index] for index in (0, 1)]
        assert by_machine[0].all()
        assert not by_machine[1].all()
        assert summary.metrics["valid_share"] < 1
        assert np.isfinite(summary.metrics["tracking_error"])

        alone = trainer.run_episode().metrics
        assert [entry["machine"] for entry in alone["machines"]] == [first.address]
        assert alone["machines"][0]["trajectories"] == 5

        second.onboard.popen.wait()
        second.start()
        wait_for(lambda: len(fleet.present) == 2, "the machine to be found again")
        both = trainer.run_episode().metrics
        assert {entry["machine"] for entry in both["machines"]} == {first.address, second.address}
        assert {entry["machine_id"] for entry in both["machines"]} == identities
        said = capsys.readouterr()
        assert f"{second.address} takes no part" in said.out + said.err
        assert f"{second.address} takes part from the next episode on" in said.out + said.err
        view = MachineView(trainer.recorder, "", second.address)
        assert [row["episode"] for row in view.metrics() if row["valid_share"] == 1] == [1, 4]
        assert len(view.load_record(4, task.spec).valid) == both["machines"][1]["trajectories"]

        guard, again = trainer.supervisor, FleetGuard(fleet, lambda robot: Guard(task, GuardSettings()))
        assert isinstance(guard, FleetGuard)
        assert again.resume(trainer.recorder, trainer.episode, fleet, "toy@fleet") == []
        for index, known in guard.guards.items():  # each machine's own, after a resume
            remembered = again.guards[index]
            assert isinstance(known, Guard)
            assert isinstance(remembered, Guard)
            assert remembered.state == known.state
        assert len(again._episodes) == len(guard._episodes) == 4
    finally:
        fleet.close()


def test_a_pause_holds_every_machine_and_nothing_is_lost(machines):
    trainer, fleet = trainer_of(machines, toy_task())
    paused, records = threading.Event(), []

    def wait() -> bool:
        waited = paused.is_set()
        while paused.is_set():
            time.sleep(0.01)
        return waited

    goals = np.tile(np.asarray([[-0.8, 0.7], [-0.2, 1.3]], np.float32), (30, 1))
    fleet.before_trajectory = wait
    try:
        assert fleet.pauses_between_trajectories
        policy = trainer.state.controller
        episode = threading.Thread(target=lambda: records.append(fleet.run_episode(policy, goals)))
        episode.start()
        for machine in machines:
            wait_for(lambda m=machine: m.moving() and m.last().get("command"), "motion")
        time.sleep(1.0)  # some trajectories are done
        paused.set()
        fleet.finish_trajectory()
        wait_for(lambda: not any(machine.moving() for machine in machines), "rest")
        time.sleep(0.5)
        assert not any(machine.moving() for machine in machines)
        paused.clear()
        episode.join()
        assert records[0].valid.all()
        assert (np.bincount(records[0].machines) == 30).all()
    finally:
        paused.clear()
        fleet.close()


def test_a_machine_that_waits_for_its_operator_gets_no_share(machines, monkeypatch):
    monkeypatch.setattr("firsthand.robots.fleet.DROP_S", 0.5)
    _, fleet = trainer_of(machines, toy_task())
    try:
        assert [share for share, _ in fleet.shares(4)] == [2, 2]
        operator = machines[1].client("operator", operator=True)
        stop(operator)
        operator.close()
        assert [share for share, _ in fleet.shares(4)] == [4]
        assert "waits for its operator" in fleet.members[1].away
        time.sleep(2.5 * LOOK_S)
        assert [member.index for member in fleet.present] == [0]  # it can be read, but would not move
        assert machines[1].acknowledge() == "idle"
        wait_for(lambda: len(fleet.present) == 2, "the machine to take part again")
    finally:
        fleet.close()


def test_two_kinds_of_machines_do_not_learn_together(machines, monkeypatch):
    one, other = toy_spec(), toy_spec(period_s=0.05)
    specs = {machines[0].address: one, machines[1].address: other}
    monkeypatch.setattr("firsthand.robots.remote.RemoteAddress.ask_spec", lambda self: specs[self.address])
    with pytest.raises(UserError, match=r"not of the kind .* period_s is 0.05 there and 0.04 here"):
        FleetAddress(tuple(specs)).full_name()


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("excavator", "tcp/127.0.0.1:1"), "only machines"),
        (("excavator@tcp/127.0.0.1:1", "soft-arm@tcp/127.0.0.1:2"), "of one kind"),
        (("tcp/127.0.0.1:1", "tcp/127.0.0.1:1"), "more than once"),
    ],
)
def test_what_cannot_learn_together(names, why):
    with pytest.raises(UserError, match=why):
        join_addresses(names)


def test_the_name_of_several_machines():
    name = join_addresses(("toy@tcp/127.0.0.1:1", "toy@tcp/127.0.0.1:2"))
    assert name == "toy@tcp/127.0.0.1:1,tcp/127.0.0.1:2"
    assert FleetAddress.parse(name) == FleetAddress(("tcp/127.0.0.1:1", "tcp/127.0.0.1:2"), "toy")
    assert join_addresses(("excavator",)) == "excavator"
