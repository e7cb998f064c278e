"""A whole work session: a run's policy at work on a machine in processes of its own, with updates in the background."""

import dataclasses
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from firsthand.control.files import Request, read_events, send
from firsthand.errors import UserError
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.remote import RemoteRobot
from firsthand.runs import RunFolder
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.base_guard import BaseGuard
from firsthand.training.bases import Base
from firsthand.training.origin import BaseOrigin
from firsthand.training.parts import NoSupervisor
from firsthand.training.prior import Prior
from firsthand.training.work import WorkSettings
from firsthand.training.work.session import WorkSession, newest_state
from firsthand_onboard.base_control import PIBase
from firsthand_onboard.jobs import policy_digest

from .processes import Rig, wait_for
from .test_fleet import SERVE, SPEED, toy_task
from .test_work import circle
from .work_program import WORK, started


class Place(NamedTuple):
    """A machine, and a run that has learned one episode on it."""

    machine: Rig
    run: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    folder, task = tmp_path_factory.mktemp("place"), toy_task()
    machine = Rig(folder, *SERVE, simulate=("--speed", str(SPEED)))
    try:
        changes = {"model.steps": 5, "excitation.amplitude": 0.0, "observer.use": 2}
        config = TrainingConfig.of("toy@tcp/127.0.0.1:1", "paper-exact", episodes=1, changes=changes)
        robot = RemoteRobot(machine.address, task, run="before")
        stored = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
        with RunFolder.create(folder / "run", stored, provenance={}) as made:
            Trainer(robot, config, FolderRecorder(made)).train()
        robot.close()
        yield Place(machine, folder / "run")
    finally:
        machine.end()


def blocks_written(folder: Path) -> list[int]:
    path = folder / "work.jsonl"
    return [json.loads(line)["block"] for line in path.read_text().splitlines()] if path.exists() else []


def test_the_policy_of_a_run_learns_from_work(place, monkeypatch):
    task, machine, said = toy_task(), place.machine, list[str]()
    options = {"task": task, "work": WORK, "say": said.append}
    with pytest.raises(UserError, match="authority is 2, but must be above 0 and at most 1"):
        WorkSession(machine.address, place.run, authority=2.0, **options)
    with pytest.raises(UserError, match=r"The machine is lost: .*127\.0\.0\.1:1"):
        WorkSession("tcp/127.0.0.1:1", place.run, authority=1.0, **options)
    with WorkSession(machine.address, place.run, **options) as work:
        assert work.client.authority == 0.5  # what the run has used on this machine
        assert work.learner.controller.observer is not None  # what the policy has learned to see through
        left: list[str] = []
        for name, part, method in (("machine", work.client, "close"), ("update", work._thread, "shutdown")):
            end = getattr(part, method)
            monkeypatch.setattr(part, method, lambda *a, n=name, e=end, **k: (left.append(n), e(*a, **k)))
        steps, block = task.steps, work.learner.block_trajectories
        with pytest.raises(UserError, match="begins 5 away"):
            work.send(circle(work.start() + 5.0, 10))
        start, before = work.start(), work.learner.controller
        work.send(circle(start, (block + 1) * steps))

        def learned() -> bool:
            work.send(circle(start, steps))
            return work.learner.contexts[0].updates > 0

        wait_for(learned, "an update", 300)
        assert [report.context for report in work.reports][:1] == [0]
        assert work.reports[0].due
        assert np.isfinite(work.reports[0].error)
        after = work.learner.controller
        assert not np.array_equal(before.layers[-1][0], after.layers[-1][0])
        assert work.client.running
        assert any(chunk.policy == work._policy for chunk in work._chunks) or len(work.reports) > 1
        done = work.learner.block
    assert left == ["machine", "update"]  # the machine does not wait for an update

    assert blocks_written(place.run / "work") == list(range(1, done + 1))
    kinds = [event.kind for event in read_events(place.run / "work")]
    assert (kinds[0], kinds[-1]) == ("session", "update")
    with WorkSession(machine.address, place.run, **options) as work:
        assert (work.learner.block, work.learner.contexts[0].updates) == (done, 1)
        assert work._policy == policy_digest(work.learner.controller.arrays())
        np.testing.assert_array_equal(work.learner.controller.layers[-1][0], after.layers[-1][0])
        with pytest.raises(UserError, match="learned without a base"):
            work.take_back()


def test_a_session_that_was_killed_goes_on_where_it_was(place, tmp_path):
    folder, task, said = tmp_path / "work", toy_task(), list[str]()
    program = started(place.machine.address, place.run, folder)
    try:
        wait_for(lambda: blocks_written(folder), "a block", 300)  # now it learns from it
        program.signal(signal.SIGKILL)
        program.popen.wait()
    finally:
        program.end()
    done = blocks_written(folder)
    options = {"folder": folder, "task": task, "work": WORK, "say": said.append}
    with WorkSession(place.machine.address, place.run, **options) as work:
        learner = work.learner
        assert said[0].startswith(f"goes on with the work in {folder}: {learner.block} blocks, one kind of conditions")
        assert learner.block in (len(done), len(done) + 1)  # killed between a block and its line
        assert len(learner.contexts[0].store.chunks) == min(learner.block * learner.block_trajectories, 40)
        start: list[np.ndarray] = []

        def works() -> bool:
            """Once the lease of the program that was killed is over."""
            try:
                start[:] = start or [work.start()]
                work.send(circle(start[0], task.steps))
            except UserError:
                start.clear()
            return bool(work.reports)

        wait_for(works, "another block", 300)
        assert blocks_written(folder) == list(range(1, learner.block + 1))
        assert np.isfinite(work.reports[0].error)


def toy_pi() -> Base:
    """A PI controller that knows the toy's speeds."""
    ones, speeds = np.ones(2), np.tile(np.asarray([[0.0, 1.0], [0.0, 1.0]]), (2, 1, 1))
    return Base(BaseOrigin("pi"), PIBase(ones, 5.0 * ones, 0.1 * ones, ones, speeds, speeds))


@pytest.mark.slow
def test_work_goes_on_on_top_of_the_base_that_a_run_had(tmp_path):
    """The base alone first, then both; the operator takes the learned part back in mid-motion."""
    task, base, said = toy_task(), toy_pi(), list[str]()
    machine = Rig(tmp_path, *SERVE, simulate=("--speed", str(SPEED)))
    try:
        changes = {"model.steps": 5, "excitation.amplitude": 0.0, "observer.use": 2}
        config = TrainingConfig.of("toy@tcp/127.0.0.1:1", "paper-exact", episodes=1, changes=changes)
        config = dataclasses.replace(config, base=base.origin)
        robot = RemoteRobot(machine.address, task, run="before")
        prior = Prior(base=base)
        stored = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
        with RunFolder.create(tmp_path / "run", stored, provenance={}, data=prior.files()) as folder:
            guard = BaseGuard(task.spec, NoSupervisor())
            Trainer(robot, config, FolderRecorder(folder), prior=prior, supervisor=guard).train()
        robot.close()

        work = WorkSettings(blocks=1, eager_updates=1, chunks=40, recent_chunks=20, surprise=50.0, better=0.01)
        with WorkSession(machine.address, tmp_path / "run", task=task, work=work, say=said.append) as session:
            steps, start = task.steps, session.start()
            session.send(circle(start, 6 * steps))

            def seen(count: int) -> bool:
                session.send(circle(start, steps))
                return len(session.reports) >= count

            wait_for(lambda: seen(1), "a block of the base alone", 300)
            assert session.reports[0].authority == 0.0
            wait_for(lambda: any(report.authority > 0 for report in session.reports if seen(1)), "both", 300)
            memory = [np.asarray(chunk.arrays["memory"]) for chunk in session._chunks]
            assert all(each.shape == (6,) for each in memory)
            folder = session.store.folder.path
            send(folder, Request("take_back", session.control.session))  # as the live page does
            session.look()
            control = session.learner.controller.policy.control
            assert control is not None
            assert float(control.authority) == 0.0
            count = len(session.reports)
            wait_for(lambda: seen(count + 2), "the base alone", 300)
            assert session.reports[-1].authority == 0.0
            assert session.client.running
            earned = session.learner.contexts[0].standing
            assert earned is not None
        said.clear()
        with WorkSession(machine.address, tmp_path / "run", task=task, work=work, say=said.append) as session:
            assert session.learner.base_alone  # the operator's choice outlives the session
            assert "the base alone drives, as the operator has chosen" in said[1]
            standing = session.learner.contexts[0].standing
            assert standing is not None
            assert standing.authority == earned.authority
            session.give_back()
            assert not session.store.folder.base_alone
    finally:
        machine.end()


def test_a_base_that_is_a_function_does_not_work_on_a_machine():
    config = SimpleNamespace(base=BaseOrigin("/home/me/robot.py:controller"))
    folder = SimpleNamespace(checkpoints=lambda: [1], load_checkpoint=lambda: SimpleNamespace(arrays={}))
    run: Any = SimpleNamespace(
        path="runs/before", config=config, folder=folder, description=SimpleNamespace(spec=toy_task().spec)
    )
    with pytest.raises(UserError, match=r"on top of /home/me/robot.py:controller, a function, which no machine"):
        newest_state(run)
