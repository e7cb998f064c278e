"""A whole work session: a run's policy at work on a machine in processes of its own, with updates in the background."""

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.remote import RemoteRobot
from firsthand.runs import RunFolder
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.work import WorkSettings
from firsthand.training.work.session import WorkSession

from .processes import Rig, wait_for
from .test_fleet import SERVE, SPEED, toy_task
from .test_work import circle

WORK = WorkSettings(blocks=1, eager_updates=1, chunks=40, recent_chunks=20, surprise=50.0, better=0.01)


def test_the_policy_of_a_run_learns_from_work(tmp_path, monkeypatch):
    task = toy_task()
    machine = Rig(tmp_path, *SERVE, simulate=("--speed", str(SPEED)))
    said: list[str] = []
    try:
        changes = {"model.steps": 5, "excitation.amplitude": 0.0, "observer.use": 2}
        config = TrainingConfig.of("toy@tcp/127.0.0.1:1", "paper-exact", episodes=1, changes=changes)
        robot = RemoteRobot(machine.address, task, run="before")
        stored = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
        with RunFolder.create(tmp_path / "run", stored, provenance={}) as folder:
            Trainer(robot, config, FolderRecorder(folder)).train()
        robot.close()

        options = {"task": task, "work": WORK, "say": said.append}
        with pytest.raises(UserError, match="authority is 2, but must be above 0 and at most 1"):
            WorkSession(machine.address, tmp_path / "run", authority=2.0, **options)
        with pytest.raises(UserError, match=r"The machine is lost: .*127\.0\.0\.1:1"):
            WorkSession("tcp/127.0.0.1:1", tmp_path / "run", authority=1.0, **options)
        with WorkSession(machine.address, tmp_path / "run", **options) as work:
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
        assert left == ["machine", "update"]  # the machine does not wait for an update
    finally:
        machine.end()
