"""The same jobs on a real Ray cluster with two workers, one of which is killed while it works."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import UserError
from firsthand_lab.experiments import Job, Size, Verdict, files, worker
from firsthand_lab.experiments.cluster import OWN_CLUSTER, RayPool, require_ray
from firsthand_lab.experiments.display import Display
from firsthand_lab.experiments.run import carry_out
from firsthand_lab.experiments.study import Study

from .counting import STEPS, Counting

os.environ.update(OWN_CLUSTER)
ray: Any = pytest.importorskip("ray")


class KillsOne(Display):
    """Kills the worker of the first job that has come halfway."""

    killed: int | None = None

    def progress(self, job: Job, done: int, note: str) -> None:
        """The note ends in the worker's process."""
        super().progress(job, done, note)
        if self.killed is None and done >= STEPS // 2:
            self.killed = int(note.rpartition(" ")[2])
            os.kill(self.killed, signal.SIGKILL)


class Remembers(KillsOne):
    """And notes which jobs were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[str] = []

    def started(self, study: Study, job: Job) -> None:
        """The cluster is up."""
        super().started(study, job)
        assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}, "reachable from nowhere else"

    def lost(self, study: Study, job: Job, why: str) -> None:
        """A worker is gone."""
        super().lost(study, job, why)
        self.losses.append(job.name)


def test_a_job_whose_worker_is_killed_goes_on_from_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv(worker.MODULES, Counting.__module__)
    experiment = Counting(pause_s=0.4)
    with Study(tmp_path / "out", experiment, Size("tiny", 2)) as study, Remembers() as display:
        finding = carry_out([study], lambda jobs: RayPool(None, 2), display)["counting"]
    assert finding.verdict is Verdict.PASS
    assert len(display.losses) == 1
    for job in study.jobs:
        data = json.loads((study.folder(job) / "total.json").read_text())
        assert data["added"] == list(range(STEPS)), "no step is lost, none is done twice"
        assert data["pid"] not in (display.killed, os.getpid())
        assert not (study.folder(job) / files.CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9"),
        ("ray://127.0.0.1:9", "no Ray cluster answers at ray://127.0.0.1:9"),
        ("nonsense", "address is 'nonsense'"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(address: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        require_ray(address)
