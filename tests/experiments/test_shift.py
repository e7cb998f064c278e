"""The judgement of `shift` on made-up days."""

from pathlib import Path

import numpy as np
import pytest

from firsthand.training.work import WorkSettings
from firsthand_lab.experiments import Finding, Size, Verdict, files
from firsthand_lab.experiments.shift import BLOCK_S, LOADS, Shift, changes, steady_levels, unevenness, visits
from firsthand_lab.experiments.shift_job import schedule
from firsthand_lab.experiments.study import Study

BLOCKS, WORN_AFTER = 960, 600
FULL = Size("full", 1)


def day(*, learning: float | None = None) -> dict[str, np.ndarray]:
    """A day on which the base has 4 cm, the morning's policy 1 cm and more under loads, and both more when worn.

    The learner feels a load in the first block of a visit and is then at 0.8 cm; or it has a constant error.
    """
    load = schedule(BLOCKS, 16, 24, list(LOADS), seed=0)
    worn = (np.arange(BLOCKS) >= WORN_AFTER).astype(int)
    noise = np.exp(0.1 * np.random.default_rng(1).standard_normal((3, BLOCKS)))
    felt = np.zeros(BLOCKS)
    felt[[visit.start for visit in visits(load)]] = 1.0
    errors = {
        "base": 0.04 * (1 + 0.3 * worn) * noise[0],
        "fixed": 0.01 * (1 + load / 600 + worn) * noise[1],
        "learning": 0.008 * (1 + 2 * felt) * noise[2] if learning is None else np.full(BLOCKS, learning),
    }
    columns = {"block": np.arange(BLOCKS), "hour": (np.arange(BLOCKS) + 1) * BLOCK_S / 3600, "load_kg": load}
    return {**columns, "worn": worn, **errors}


def conclude(folder: Path, table: dict[str, np.ndarray]) -> Finding:
    experiment = Shift()
    with Study(folder, experiment, FULL) as study:
        files.write_csv(study.prepare(study.jobs[0]) / "shift.csv", table)
        return experiment.conclude(FULL, study.results())


def failed(finding: Finding) -> list[str]:
    return [row.quantity for row in finding.rows if row.verdict is Verdict.FAIL]


def test_a_learner_that_is_better_and_recovers_passes(tmp_path: Path) -> None:
    finding = conclude(tmp_path / "shift", day())
    assert failed(finding) == []
    assert finding.verdict is Verdict.PASS


def test_a_constant_error_fails_although_it_never_changes(tmp_path: Path) -> None:
    """50 cm: the learner has learned nothing. Measured against itself it would always be back at once."""
    finding = conclude(tmp_path / "shift", day(learning=0.5))
    assert finding.verdict is Verdict.FAIL
    assert {"a load met before: back within 60 s", "a new load: back within 150 s"} < set(failed(finding))
    assert sum(quantity.startswith("learning over") for quantity in failed(finding)) == 6


def test_a_load_under_which_it_stays_bad_fails_even_where_nobody_is_better(tmp_path: Path) -> None:
    """Five times the error at 1200 kg, where base and fixed policy have more still."""
    table = day()
    heavy = table["load_kg"] == 1200.0
    table["learning"][heavy] *= 5.0
    table["base"][heavy] = table["fixed"][heavy] = 0.2
    finding = conclude(tmp_path / "shift", table)
    assert failed(finding) == ["learning: steady error in the end, the hardest load over the easiest"]
    assert unevenness(table) == pytest.approx(5.0, rel=0.2)


@pytest.mark.parametrize(
    ("arm", "factor", "where"),
    [("fixed", 0.2, "worn valve"), ("base", 0.1, "worn valve"), ("fixed", 0.4, "by load")],
)
def test_an_arm_that_is_better_somewhere_fails_it(tmp_path: Path, arm: str, factor: float, where: str) -> None:
    table = day()
    there = table["worn"] == 1 if where == "worn valve" else table["load_kg"] == 0.0
    table[arm][there] *= factor
    finding = conclude(tmp_path / "shift", table)
    assert finding.verdict is Verdict.FAIL
    assert any(where in quantity for quantity in failed(finding))


def test_a_difference_smaller_than_what_visits_differ_by_is_none(tmp_path: Path) -> None:
    table = day()
    each = np.exp(0.5 * np.random.default_rng(2).standard_normal(len(visits(table["load_kg"]))))
    for factor, visit in zip(each, visits(table["load_kg"]), strict=True):
        table["fixed"][visit] = table["learning"][visit].mean() * factor
    finding = conclude(tmp_path / "shift", table)
    assert any("the morning's policy: geometric mean" in quantity for quantity in failed(finding))


def test_back_is_counted_from_the_change_and_against_the_best_of_all() -> None:
    """By hand: visits of 0, 300, 0 kg, four blocks each. The base has 2 cm under 300 kg, the learner 4."""
    table = {
        "load_kg": np.repeat([0.0, 300.0, 0.0], 4),
        "learning": np.asarray([3, 1, 1, 1, 6, 4, 4, 3, 9, 9, 1.4, 1]),
        "base": np.full(12, 2.0),
        "fixed": np.full(12, 5.0),
    }
    assert steady_levels(table) == {0.0: 1.0, 300.0: 2.0}
    known, new = changes(table)
    np.testing.assert_array_equal(known, [3 * BLOCK_S])  # 1.4 is at most 1.5 times 1
    np.testing.assert_array_equal(new, [4 * BLOCK_S])  # 3 is at most 1.5 times the base's 2


def test_the_day_has_the_presets_refinement_as_a_work_session_does() -> None:
    (job,) = Shift().jobs(FULL)
    assert job.parameters["settings"]["refinement.steps"] > 0
    assert job.parameters["work"]["chunks"] == WorkSettings().chunks
