"""Every experiment in its smallest form, in one process, so that what is compiled serves all of them."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.plants.excavator import PAYLOADS
from firsthand_lab.experiments import Finding, Job, Size, Verdict, files, learning, worker
from firsthand_lab.experiments.ablations import cycle_share
from firsthand_lab.experiments.convergence import judge_exponent
from firsthand_lab.experiments.curves import Curves, mean_interval, power_law, slope_between
from firsthand_lab.experiments.payload import Response, is_heavier, responses, schedule
from firsthand_lab.experiments.registry import EXPERIMENTS, find
from firsthand_lab.experiments.sensitivity import effect
from firsthand_lab.experiments.study import Study

OURS = (
    "convergence",
    "evaluation",
    "network",
    "tracking-table",
    "payload",
    "soft-arm",
    "freeze-model",
    "sparse-model-updates",
    "sensitivity",
    "deviations",
    "shift",
)

pytestmark = pytest.mark.usefixtures("compile_quickly")


@pytest.fixture(scope="module")
def conclude(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Study, Finding]]:
    """`conclude(name)`: the tiny form of an experiment; jobs that others have done are taken from them."""
    folder = tmp_path_factory.mktemp("experiments")

    def run(name: str) -> tuple[Study, Finding]:
        experiment = find(name)
        with Study(folder / name, experiment, Size("tiny", experiment.seeds.tiny)) as study:
            for job in study.jobs:
                if not study.is_finished(job) and not study.borrow(job, study.neighbours()):
                    worker.perform(study.prepare(job), lambda done, note="": None)
            return study, study.conclude()

    return run


@pytest.mark.parametrize("name", OURS)
def test_every_experiment_leaves_data_figures_and_a_finding(name: str, conclude: Any) -> None:
    study, finding = conclude(name)
    assert finding.verdict is Verdict.NOT_COMPARABLE  # nothing can be learned at this size
    data = json.loads((study.path / "finding.json").read_text())
    assert data["experiment"] == name
    assert len(data["rows"]) == len(finding.rows) >= 3
    text = (study.path / "finding.md").read_text()
    assert text.startswith(f"# {name}: not comparable")
    assert finding.text in text
    assert finding.figures
    for figure in finding.figures:
        assert (study.path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (study.path / f"{figure}.svg").read_bytes()[:1000]
    for table in finding.tables:
        assert files.read_csv(study.path / f"{table}.csv")
    assert not list(study.path.rglob("*.pkl"))


def test_every_experiment_is_in_the_list() -> None:
    for name in EXPERIMENTS:
        experiment = find(name)
        assert experiment.name == name
        for size in ("full", "quick", "tiny"):
            jobs = experiment.jobs(Size(size, experiment.seeds.of(size)))
            assert jobs
            assert len({job.id for job in jobs}) == len(jobs)
            assert [Job(**json.loads(json.dumps(job.as_dict()))).id for job in jobs] == [job.id for job in jobs]


class Killed(Exception):
    pass


def test_a_learning_job_that_was_killed_continues_with_the_same_data(conclude: Any, tmp_path: Path) -> None:
    """Stopped after its checkpoint and in the middle of the episodes that follow it."""
    study, _ = conclude("payload")
    job = study.jobs[0]
    files.write_json(tmp_path / worker.JOB, job.as_dict())
    reports = []

    def report(done: float, note: str = "") -> None:
        reports.append(done)
        if len(reports) == 13:
            raise Killed

    with pytest.raises(Killed):
        worker.perform(tmp_path, report)
    assert reports[-1] == learning.CHECKPOINT_EVERY < job.steps
    again: list[float] = []
    worker.perform(tmp_path, lambda done, note="": again.append(done))
    assert len(again) == job.steps - learning.CHECKPOINT_EVERY + 1, "episodes before the checkpoint are not repeated"
    for name in (learning.CURVES, "records"):
        for path in [study.folder(job) / name] if name.endswith(".csv") else (study.folder(job) / name).iterdir():
            ours = tmp_path / path.relative_to(study.folder(job))
            assert ours.read_bytes() == path.read_bytes(), path.name


def power_law_with(burn_in: int, plateau: int, exponent: float, noise: float) -> Curves:
    """ℓ = 1 until `burn_in`, then a power law, then constant; eight seeds with log-normal noise."""
    episodes = np.arange(1, 401)
    shape = np.clip(episodes, burn_in, plateau) / burn_in
    rng = np.random.default_rng(3)
    return Curves(episodes, shape**-exponent * np.exp(noise * rng.standard_normal((8, 400))))


@pytest.mark.parametrize(("burn_in", "plateau", "exponent"), [(10, 200, 4.0), (3, 40, 2.0), (20, 120, 3.0)])
def test_the_power_law_is_found_where_it_is(burn_in: int, plateau: int, exponent: float) -> None:
    law = power_law(power_law_with(burn_in, plateau, exponent, 0.3))
    assert law.exponent == pytest.approx(exponent, rel=0.08)
    assert law.low <= exponent <= law.high or law.exponent == pytest.approx(exponent, rel=0.04)
    assert law.burn_in == pytest.approx(burn_in, rel=0.35)
    assert law.plateau == pytest.approx(plateau, rel=0.25)
    assert law.explained > 0.9


def test_no_power_law_is_found_where_there_is_none() -> None:
    rising = Curves(np.arange(1, 101), np.exp(np.arange(1, 101) / 30.0)[None].repeat(3, axis=0))
    assert not np.isfinite(power_law(rising).exponent)


@pytest.mark.parametrize(("burn_in", "plateau", "exponent"), [(10, 200, 4.0), (2, 14, 4.0)])
def test_the_law_is_judged_where_the_paper_has_it(burn_in: int, plateau: int, exponent: float) -> None:
    """A law that ends at episode 14 is not the paper's, however steep it is before."""
    there = slope_between(power_law_with(burn_in, plateau, exponent, 0.3), 10, 200)
    assert there.low <= there.exponent <= there.high
    if plateau == 200:
        assert there.exponent == pytest.approx(exponent, rel=0.05)
    else:
        assert there.high < 1.0
    assert not np.isfinite(slope_between(power_law_with(2, 14, 4.0, 0.3), 500, 600).exponent)


def curves_with(exponents: np.ndarray) -> Curves:
    """A seed per exponent: ℓ = t^−exponent."""
    episodes = np.arange(1, 201)
    return Curves(episodes, episodes ** -np.asarray(exponents, float)[:, None])


def test_the_interval_of_an_exponent_is_students_over_seeds() -> None:
    """By hand: mean 2, standard deviation 1, t of two degrees of freedom 4.303, so 4.303 / √3 to either side."""
    slope = slope_between(curves_with(np.asarray([1.0, 2.0, 3.0])), 10, 200)
    assert (slope.exponent, slope.low, slope.high) == pytest.approx((2.0, 2.0 - 2.484, 2.0 + 2.484), abs=1e-3)
    assert all(np.isnan(mean_interval(np.asarray(few))[1:]).all() for few in ([1.0], [1.0, 2.0]))


@pytest.mark.parametrize("seeds", [3, 4])
def test_the_interval_covers_the_truth_as_often_as_it_says(seeds: int) -> None:
    """A percentile interval of resampled seeds covers 0 % with one seed, 49 % with two and 78 % with four."""
    rng = np.random.default_rng(5)
    drawn = rng.normal(4.0, 0.5, (1000, seeds))
    covered = [low <= 4.0 <= high for _, low, high in map(mean_interval, drawn)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("exponents", "verdict"),
    [
        ([3.8, 4.0, 4.2], Verdict.PASS),
        ([0.9, 1.0, 1.1], Verdict.FAIL),
        ([3.8, 4.2], Verdict.NOT_COMPARABLE),
        ([1.0], Verdict.NOT_COMPARABLE),
    ],
)
def test_the_law_is_judged_by_three_seeds_or_more(exponents: list[float], verdict: Verdict) -> None:
    there = slope_between(curves_with(np.asarray(exponents)), 10, 200)
    assert judge_exponent(there, Size("full", len(exponents))).verdict is verdict


def test_the_mean_over_seeds_is_taken_on_a_log_scale() -> None:
    curves = Curves(np.asarray([1, 2]), np.asarray([[1.0, 4.0], [100.0, np.nan]]))
    np.testing.assert_allclose(curves.log_mean(), [10.0, 4.0])
    np.testing.assert_allclose(curves.log_band(), [[1.0, 4.0], [100.0, 4.0]])


def test_payloads_are_switched_every_five_to_ten_episodes() -> None:
    switches = schedule(180, 20)
    starts = [episode for episode, _ in switches]
    assert starts[:2] == [1, 20]
    assert all(5 <= later - earlier <= 10 for earlier, later in pairwise(starts[1:]))
    kilograms = [kg for _, kg in switches]
    assert set(kilograms) == set(PAYLOADS.values())
    assert all(a != b for a, b in pairwise(kilograms))


def test_factor_and_recovery_after_a_switch_are_read_off_right() -> None:
    """Two seeds: one doubles and is back in the third episode after the switch, the other does not come back."""
    error = np.ones((2, 20))
    error[0, 9:12] = 2.0, 1.5, 1.3  # episodes 10, 11, 12
    error[1, 9:] = 4.0
    curves, squared = Curves(np.arange(1, 21), error), Curves(np.arange(1, 21), error**2)
    factor, loss, needed, later = responses(curves, squared, [10], [(1, 0.0), (10, 900.0), (17, 0.0)], 20)
    np.testing.assert_allclose(factor, [2.0, 4.0])
    np.testing.assert_allclose(loss, [4.0, 16.0])
    np.testing.assert_array_equal(needed, [3, np.inf])
    np.testing.assert_allclose(later, [1.0, 4.0])


def test_switches_up_and_down_are_told_apart() -> None:
    """A load that hurts when it is added and helps when it is taken away."""
    switches = [(1, 0.0), (10, 900.0), (17, 0.0), (24, 400.0)]
    assert [is_heavier(switches, episode) for episode, _ in switches] == [False, True, False, True]
    error = np.ones((2, 30))
    error[:, [9, 23]], error[:, 16] = 2.0, 0.5
    curves, squared = Curves(np.arange(1, 31), error), Curves(np.arange(1, 31), error**2)
    heavier = Response.of(curves, squared, [10, 24], switches, 30)
    lighter = Response.of(curves, squared, [17], switches, 30)
    assert (heavier.factor, heavier.loss, heavier.recovery, heavier.within) == (2.0, 4.0, 1.0, 1.0)
    assert (lighter.factor, lighter.recovery) == (0.5, 0.0)
    assert np.isnan(Response.of(curves, squared, [], switches, 30).factor)


def test_a_cycle_is_told_from_noise() -> None:
    rng, time = np.random.default_rng(0), np.arange(480)
    noise = np.exp(rng.standard_normal((2, 480)))
    assert cycle_share(noise, 16) < 0.08
    assert cycle_share(np.exp(np.sin(2 * np.pi * time / 16))[None], 16) == pytest.approx(1.0)
    assert 0.3 < cycle_share(np.exp(np.sin(2 * np.pi * time / 16) * 2**0.5) * noise, 16) < 0.7


def test_the_effect_of_a_setting_is_what_it_alone_changes() -> None:
    """An error that goes with the square of α, not at all with ε, and with η only as its root."""
    grid = (1.0, 2.0, 4.0)
    errors = {(a, e, h): a**2 * h**0.5 for a in grid for e in grid for h in grid}
    assert [effect(errors, name, grid) for name in ("alpha", "epsilon", "eta")] == pytest.approx([16.0, 1.0, 2.0])
