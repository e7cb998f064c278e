"""The ablation's rule on made-up errors: every part has to pay behind one kind of sensors or the other."""

from pathlib import Path

import numpy as np
import pytest

from firsthand_lab.experiments import Finding, Size, Verdict, files, learning
from firsthand_lab.experiments.ingredients import COMPLETE, EPISODES, LEFT_OUT, SENSORS, Ingredients
from firsthand_lab.experiments.study import Study

SEEDS = 3


def conclude(folder: Path, factors: dict[tuple[str, str], float], parts: tuple[str, ...] = tuple(LEFT_OUT)) -> Finding:
    """The finding where errors are 1 cm, times a factor for some (sensors, part left out)."""
    experiment = Ingredients()
    with Study(folder, experiment, Size("full", SEEDS)) as study:
        for job in study.jobs:
            sensors, part = next(
                (sensors, part)
                for sensors in SENSORS
                for part in LEFT_OUT
                if job.name == f"{sensors}-{part.replace(' ', '-')}"
            )
            if part not in parts:
                continue
            error = 0.01 * factors.get((sensors, part), 1.0)
            each = EPISODES["full"] * SEEDS
            curves = {name: np.full(each, error) for name in learning.CURVE_COLUMNS}
            episode, seed = np.divmod(np.arange(each), SEEDS)
            here = study.prepare(job)
            files.write_csv(here / learning.CURVES, {"episode": episode + 1, "seed": seed, **curves})
            shapes = {"reference": ["together"] * SEEDS, "mean_error": [error] * SEEDS}
            files.write_csv(here / learning.SHAPES, shapes)
            files.write_json(here / files.DONE, {"core_seconds": 1.0, "commit": None})
        results = [result for result in study.results() if result.finished]
    return experiment.conclude(Size("full", SEEDS), results)


PAYING = {("real" if i % 2 else "exact", part): 1.3 for i, part in enumerate(LEFT_OUT) if part != COMPLETE}


def test_parts_that_pay_behind_one_kind_of_sensors_pass(tmp_path: Path) -> None:
    assert conclude(tmp_path / "ingredients", PAYING).verdict is Verdict.PASS


def test_a_part_that_pays_nowhere_fails_and_is_named(tmp_path: Path) -> None:
    factors = {key: factor for key, factor in PAYING.items() if key[1] != "no observer"}
    finding = conclude(tmp_path / "ingredients", {**factors, ("real", "no observer"): 1.05})
    assert finding.verdict is Verdict.FAIL
    failed = [row.quantity for row in finding.rows if row.verdict is Verdict.FAIL]
    assert failed == ["no observer (cm, random/shapes)"]


def test_some_parts_alone_decide_nothing(tmp_path: Path) -> None:
    finding = conclude(tmp_path / "ingredients", PAYING, parts=(COMPLETE, "no observer"))
    assert finding.verdict is Verdict.NOT_COMPARABLE
    assert len(finding.rows) == 2
    assert finding.tables["ingredients"]["real, random, ratio"] == pytest.approx([1.0, 1.0])
