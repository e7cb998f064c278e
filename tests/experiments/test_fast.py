"""The experiment of the fast preset in its smallest form."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from firsthand.experiments import Job, Result, Size, files, worker
from firsthand.experiments.fast import Fast, largest_jump, recoveries
from firsthand.experiments.study import Study


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> Iterator[None]:
    """What is computed here is small; how fast does not matter."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    with Study(tmp_path_factory.mktemp("experiments") / "fast", Fast(), Size("tiny", 1)) as study:
        for job in chosen(study):
            worker.perform(study.prepare(job), lambda done, note="": None)
        return study


def chosen(study: Study) -> list[Job]:
    """One of each is enough here: the others differ in their parameters."""
    return [job for job in study.jobs if job.name == "payloads-seed-0"]


@pytest.mark.slow
def test_a_run_leaves_its_curves_and_marks(study: Study) -> None:
    for job in chosen(study):
        marks = files.read_csv(study.folder(job) / "marks.csv")
        assert list(marks["episode"]) == job.parameters["marks"]
        for column in ("newest_random_m", "newest_shapes_m", "kept_random_m", "kept_shapes_m"):
            assert np.isfinite(marks[column]).all()
        assert len(files.read_csv(study.folder(job) / "curves.csv")["episode"]) == job.parameters["episodes"]
        assert not (study.folder(job) / files.CHECKPOINT).exists()


def test_a_jump_is_counted_against_the_median_before_it() -> None:
    errors = np.concatenate([np.full(10, 2.0), [3.0, 2.0, 8.0, 2.0]])
    assert largest_jump(errors) == pytest.approx(4.0)


def test_recovery_is_counted_from_the_switch(tmp_path: Path) -> None:
    errors = [1.0] * 6 + [2.4, 1.3, 1.2, 1.1] + [1.2] * 5
    files.write_csv(tmp_path / "curves.csv", {"tracking_error_m": errors})
    job = Job("payloads-seed-0", "m:f", {"payloads": [[1, 0.0], [7, 300.0]]})
    assert recoveries(Result(job, tmp_path)) == [(pytest.approx(2.4), 2.0)]
