"""The experiment of the fast preset in its smallest form."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand_lab.experiments import Job, Result, Size, fast, files, worker
from firsthand_lab.experiments.fast import Fast, Marks, at_mark, largest_jump, recoveries
from firsthand_lab.experiments.study import Study

pytestmark = pytest.mark.usefixtures("compile_quickly")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Killed once between an episode's checkpoint and the test after it."""
    with Study(tmp_path_factory.mktemp("experiments") / "fast", Fast(), Size("tiny", 1)) as study:
        for job in pick_jobs(study):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fast, "tested", killed)
                with pytest.raises(Killed):
                    worker.perform(study.prepare(job), lambda done, note="": None)
            worker.perform(study.prepare(job), lambda done, note="": None)
        return study


class Killed(BaseException):
    """Nobody can catch it."""


def killed(*_: object) -> None:
    raise Killed


def pick_jobs(study: Study) -> list[Job]:
    """One of each is enough here: the others differ in their parameters."""
    return [job for job in study.jobs if job.name == "payloads-seed-0"]


@pytest.mark.slow
def test_a_run_leaves_its_curves_and_marks(study: Study) -> None:
    for job in pick_jobs(study):
        marks = files.read_csv(study.folder(job) / "marks.csv")
        assert list(marks["episode"]) == job.parameters["marks"]
        for column in ("newest_random_m", "newest_shapes_m", "kept_random_m", "kept_shapes_m"):
            assert np.isfinite(marks[column]).all()
        assert len(files.read_csv(study.folder(job) / "curves.csv")["episode"]) == job.parameters["episodes"]
        assert not (study.folder(job) / files.CHECKPOINT).exists()


def test_a_mark_without_a_test_is_not_another_marks(tmp_path: Path) -> None:
    job = Job("fast-seed-0", "m:f", {"episodes": 25})
    files.write_csv(tmp_path / "marks.csv", {"episode": [8, 25], "newest_random_m": [0.02, 0.01]})
    assert list(at_mark([Result(job, tmp_path)], 8, "newest_random_m")) == [0.02]
    assert list(at_mark([Result(job, tmp_path)], 60, "newest_random_m")) == [0.01]  # the end of a smaller size
    with pytest.raises(UserError, match="no test after episode 15"):
        at_mark([Result(job, tmp_path)], 15, "newest_random_m")


def test_a_test_that_can_no_longer_be_made_is_told(tmp_path: Path) -> None:
    trainer = SimpleNamespace(episode=10)
    files.write_json(tmp_path / "marks.json", [{"episode": 4}, {"episode": 12}])
    assert [row["episode"] for row in Marks(tmp_path / "marks.json", trainer, None, [4, 25]).rows] == [4]
    with pytest.raises(UserError, match="past episode 8"):
        Marks(tmp_path / "marks.json", trainer, None, [4, 8, 25])


def test_a_jump_is_counted_against_the_median_before_it() -> None:
    errors = np.concatenate([np.full(10, 2.0), [3.0, 2.0, 8.0, 2.0]])
    assert largest_jump(errors) == pytest.approx(4.0)


def test_recovery_is_counted_from_the_switch(tmp_path: Path) -> None:
    errors = [1.0] * 6 + [2.4, 1.3, 1.2, 1.1] + [1.2] * 5
    files.write_csv(tmp_path / "curves.csv", {"tracking_error": errors})
    job = Job("payloads-seed-0", "m:f", {"payloads": [[1, 0.0], [7, 300.0]]})
    assert recoveries(Result(job, tmp_path)) == [(pytest.approx(2.4), 2.0)]
