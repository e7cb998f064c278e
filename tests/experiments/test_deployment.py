"""The job of `deployment` after a kill."""

from pathlib import Path

import numpy as np

from firsthand.robots import EpisodeRecord
from firsthand.runs import RunFolder
from firsthand.tasks import excavator_task
from firsthand_lab.experiments import files
from firsthand_lab.experiments.deployment_job import KEPT, TimedRobot, Watch

PARAMETERS = {"marks": [2], "machine": {"warming_rate": 1.0}}


def record() -> EpisodeRecord:
    free = np.array([[[True], [True], [False], [False]]])
    shape = {"starts": (1, 3), "measured": (1, 5, 2), "commands": (1, 4, 1), "references": (1, 6, 1)}
    return EpisodeRecord(
        **{n: np.zeros(s, np.float32) for n, s in shape.items()}, free=free, valid=np.ones((1, 4), bool)
    )


def test_what_was_not_noted_is_rebuilt_from_the_run(tmp_path: Path) -> None:
    """Killed after the second episode's checkpoint, before its row and record."""
    robot = TimedRobot("tcp/127.0.0.1:9", excavator_task(), run="test")  # never connected
    noted = {"episode": 1, "between_s": 3.0}
    with RunFolder.create(tmp_path / "run", {}, provenance={}) as run:
        for episode in (1, 2):
            run.save_episode(episode, record().arrays(), {})
            metrics = {name: 0.5 for name in KEPT} | {"episode": episode, "update_time_s": 2.0}
            run.append_metrics(metrics | {"prediction_error": float("nan")})
        files.write_json(tmp_path / files.CHECKPOINT / "rows.json", [noted, {"episode": 9}])
        watch = Watch(PARAMETERS, tmp_path, robot, lambda done, note="": None)
        watch.resume(run)
    assert watch.rows[0] == noted
    assert [row["episode"] for row in watch.rows] == [1, 2]
    lost = watch.rows[1]
    assert (lost["tracking_error"], lost["between_s"], lost["free_share"]) == (0.5, 2.0, 0.5)
    assert np.isnan([lost["prediction_error"], lost["moving_s"]]).all()
    assert (tmp_path / "records" / "000002.safetensors").exists()
    assert not (tmp_path / "records" / "000001.safetensors").exists()
