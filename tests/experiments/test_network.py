"""The judgement of `network` on made-up data."""

from pathlib import Path

import numpy as np
import pytest

from firsthand_lab.experiments import Finding, Size, Verdict, files, learning
from firsthand_lab.experiments.network import EPISODES, FITTED, MARKS, TIP, Network
from firsthand_lab.experiments.study import Study


def conclude(folder: Path, exponents: list[float], shapes_m: float = 0.03) -> Finding:
    """The finding where the loss of each seed falls like t^−exponent."""
    experiment, size = Network(), Size("full", len(exponents))
    with Study(folder, experiment, size) as study:
        (job,) = study.jobs
        here = study.prepare(job)
        episode, seed = np.divmod(np.arange(EPISODES["full"] * size.seeds), size.seeds)
        curves = dict.fromkeys(learning.CURVE_COLUMNS, (episode + 1.0) ** -np.asarray(exponents)[seed])
        files.write_csv(here / learning.CURVES, {"episode": episode + 1, "seed": seed, **curves})
        marks = np.repeat(MARKS["full"], size.seeds)
        shapes = {"episode": marks, "reference": ["together"] * len(marks), "mean_error": [shapes_m] * len(marks)}
        files.write_csv(here / learning.SHAPES, shapes)
        errors = {TIP: 0.012, "positions": 0.5}  # the tip is not the last
        ahead = {"seconds": 1.0, "simulator": errors, "standing_still": {**errors, TIP: 0.34}}
        files.write_json(here / FITTED / "simulator.json", {"accuracy": {"held out": [ahead]}})
        return experiment.conclude(size, study.results())


@pytest.mark.parametrize(
    ("exponents", "shapes_m", "verdict"),
    [
        ([3.9, 4.0, 4.1], 0.03, Verdict.PASS),
        ([3.9, 4.0, 4.1], 0.08, Verdict.FAIL),
        ([0.9, 1.0, 1.1], 0.03, Verdict.FAIL),
        ([4.0, 4.0], 0.03, Verdict.NOT_COMPARABLE),
    ],
)
def test_law_and_shapes_decide(tmp_path: Path, exponents: list[float], shapes_m: float, verdict: Verdict) -> None:
    assert conclude(tmp_path / "network", exponents, shapes_m).verdict is verdict


def test_the_full_size_has_seeds_enough_for_an_interval(tmp_path: Path) -> None:
    finding = conclude(tmp_path / "network", [4.0] * Network.seeds.full)
    assert finding.verdict is Verdict.PASS


def test_the_networks_error_is_the_tips(tmp_path: Path) -> None:
    finding = conclude(tmp_path / "network", [4.0, 4.0, 4.0])
    assert finding.rows[-1].measured == "1.20 (34.00)"
