"""The experiments on the theory and the discussion in their smallest form: everything is run, nothing is learned."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from firsthand_lab.experiments import Size, Verdict, worker
from firsthand_lab.experiments.registry import find
from firsthand_lab.experiments.study import Study

LONG = ("self-correction", "regret", "noise", "fidelity", "deployment")
"""They compile for half a minute or more."""
EVERY = ("step-bound", *(pytest.param(name, marks=pytest.mark.slow) for name in LONG))


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> Iterator[None]:
    """What is computed here is small; how fast does not matter."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("name", EVERY)
def test_data_figures_and_a_finding(name: str, tmp_path: Path) -> None:
    experiment = find(name)
    with Study(tmp_path / name, experiment, Size("tiny", experiment.seeds.tiny)) as study:
        reports: dict[str, list[float]] = {}
        for job in study.jobs:
            said = reports[job.name] = []
            worker.perform(study.prepare(job), lambda done, note="", said=said: said.append(done))
            assert said == sorted(said)
            assert said[-1] <= job.steps
        finding = study.conclude()
        assert finding.verdict is (Verdict.PASS if name == "step-bound" else Verdict.NOT_COMPARABLE)
        data = json.loads((study.path / "finding.json").read_text())
        assert len(data["rows"]) == len(finding.rows) > 3
        for figure in finding.figures:
            assert (study.path / f"{figure}.png").stat().st_size > 10_000
            assert (study.path / f"{figure}.svg").exists()
        assert all((study.path / f"{table}.csv").exists() for table in finding.tables)
        assert not list((study.path / "jobs").glob("*/checkpoint"))
