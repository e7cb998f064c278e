"""The ablation's rule on made-up errors: what carries the preset has to pay, and nothing may do harm."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from firsthand_lab.experiments import Finding, Size, Verdict, files, learning
from firsthand_lab.experiments.contrasts import contrast
from firsthand_lab.experiments.ingredients import CARRY, COMPLETE, EPISODES, LATE, LEFT_OUT, LOOKS, SENSORS, Ingredients
from firsthand_lab.experiments.study import Study

SEEDS, NOISE = 3, 0.1
EVERY = tuple(LEFT_OUT)


def conclude(
    folder: Path, factors: dict[tuple[str, str], float], parts: tuple[str, ...] = EVERY, seeds: int = SEEDS
) -> Finding:
    """The finding where errors are 1 cm, times a factor for some (sensors, part left out); seeds and runs differ."""
    experiment, size = Ingredients(), Size("full", seeds)
    rng = np.random.default_rng(4)
    hard = np.exp(0.4 * rng.standard_normal(seeds))
    by_file = {f"{sensors}-{part.replace(' ', '-')}": (sensors, part) for sensors in SENSORS for part in LEFT_OUT}
    with Study(folder, experiment, size) as study:
        for job in study.jobs:
            sensors, part = by_file[job.name]
            if part not in parts:
                continue
            error = 0.01 * factors.get((sensors, part), 1.0) * hard * np.exp(NOISE * rng.standard_normal(seeds))
            episode, seed = np.divmod(np.arange(EPISODES["full"] * seeds), seeds)
            curves = dict.fromkeys(learning.CURVE_COLUMNS, error[seed])
            here = study.prepare(job)
            files.write_csv(here / learning.CURVES, {"episode": episode + 1, "seed": seed, **curves})
            backwards = np.arange(seeds)[::-1]  # seeds are told by their number, not by their place
            shapes = {"seed": backwards, "reference": ["together"] * seeds, "mean_error": error[backwards]}
            files.write_csv(here / learning.SHAPES, shapes)
            files.write_json(here / files.DONE, {"core_seconds": 1.0, "commit": None})
        results = [result for result in study.results() if result.finished]
    return experiment.conclude(size, results)


def verdicts(finding: Finding) -> dict[str, Verdict | None]:
    return {row.quantity.removesuffix(" (cm, random/shapes)"): row.verdict for row in finding.rows}


PAYING = {(SENSORS[i % 2], part): 2.0 for i, part in enumerate(CARRY)}


def test_it_passes_where_what_carries_the_preset_pays_somewhere(tmp_path: Path) -> None:
    """The other parts make no difference: they have no verdict, and do not decide."""
    finding = conclude(tmp_path / "ingredients", PAYING)
    assert finding.verdict is Verdict.PASS
    assert verdicts(finding) == {part: Verdict.PASS if part in CARRY else None for part in LEFT_OUT}
    assert all(part in finding.text.lower() for part in LATE)


@pytest.mark.parametrize("missing", CARRY[1:3])
def test_it_fails_where_one_of_them_pays_nowhere(tmp_path: Path, missing: str) -> None:
    finding = conclude(tmp_path / "ingredients", {key: f for key, f in PAYING.items() if key[1] != missing})
    assert finding.verdict is Verdict.FAIL
    assert [part for part, verdict in verdicts(finding).items() if verdict is Verdict.FAIL] == [missing]


def test_it_fails_where_a_part_does_harm(tmp_path: Path) -> None:
    """Half the error without it; 0.9 of it is within what runs differ by."""
    harmful = {("exact", "no running mean"): 0.5, ("real", "no trust region"): 0.9}
    finding = conclude(tmp_path / "ingredients", PAYING | harmful)
    assert finding.verdict is Verdict.FAIL
    assert [part for part, verdict in verdicts(finding).items() if verdict is Verdict.FAIL] == ["no running mean"]


def test_two_seeds_and_some_parts_alone_decide_nothing(tmp_path: Path) -> None:
    assert conclude(tmp_path / "two", PAYING, seeds=2).verdict is Verdict.NOT_COMPARABLE
    finding = conclude(tmp_path / "some", PAYING, parts=(COMPLETE, "no observer"))
    assert finding.verdict is Verdict.NOT_COMPARABLE
    assert len(finding.rows) == 2
    first, second = finding.tables["ingredients"]["exact, random, ratio"]
    assert first == 1.0
    assert second == pytest.approx(2.0, rel=0.2)


def test_noise_alone_neither_pays_nor_harms() -> None:
    """The largest of four ratios of medians reached 1.1 for nothing in a third of the parts and more."""
    rng, runs, parts = np.random.default_rng(0), 150, EVERY[1:]
    pays = np.zeros((runs, len(parts)), bool)
    harms = np.zeros(runs, bool)
    for run in range(runs):
        for _ in LOOKS:
            hard = 0.4 * rng.standard_normal(SEEDS)
            look = contrast({part: np.exp(hard + 0.3 * rng.standard_normal(SEEDS)) for part in EVERY}, COMPLETE)
            pays[run] |= [look.ratio(part, len(LOOKS))[1] > 1 for part in parts]
            harms[run] |= any(look.ratio(part, len(LOOKS) * len(parts))[2] < 1 for part in parts)
    assert pays.mean() < 0.05
    assert harms.mean() < 0.06


def test_two_ways_are_compared_as_by_a_paired_t_test() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = np.exp(rng.standard_normal((2, 5)))
    expected = stats.ttest_rel(np.log(theirs), np.log(ours)).confidence_interval(0.95)
    _, low, high = contrast({"ours": ours, "theirs": theirs}, "ours").ratio("theirs", 1)
    assert (np.log(low), np.log(high)) == pytest.approx((expected.low, expected.high))


def test_a_way_that_broke_down_is_left_out_of_the_comparison() -> None:
    errors = {"ours": np.asarray([1.0, 2.0, 3.0]), "theirs": np.asarray([2.0, 4.0, 6.5])}
    broken = contrast({**errors, "broken": np.asarray([1.0, np.nan, 1.0])}, "ours")
    assert broken == contrast(errors, "ours")
    assert np.isnan(broken.ratio("broken", 1)).all()
    assert np.isnan(contrast(errors, "broken").ratio("theirs", 1)).all()
