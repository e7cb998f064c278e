"""`firsthand evaluate`, with and without an oracle beside it."""

import json
from pathlib import Path

import pytest

from firsthand.evaluation.oracle import OracleResult, store_oracle
from firsthand.training.run import Run

from .conftest import Firsthand

SHAPES = {"circle": 0.0, "square": 0.0, "line": 0.0}


def oracle(run: Path, cache: Path, error: float) -> None:
    """Put an oracle into the processes' cache, as if it had been computed."""
    robot = Run.open(run).find_robot().make()
    assert robot.plant is not None
    result = OracleResult(random_error=error, shapes_error=error, shapes=SHAPES)
    store_oracle(result, robot.plant, robot.task, cache / "firsthand" / "oracles")


@pytest.mark.parametrize(("error", "failed"), [pytest.param(99.0, True, marks=pytest.mark.slow), (0.001, False)])
def test_a_policy_that_beats_the_oracle_means_that_the_oracle_failed(
    error: float, failed: bool, firsthand: Firsthand, uninterrupted, cache: Path, tmp_path: Path
) -> None:
    run = uninterrupted("fast")
    firsthand.environment["XDG_CACHE_HOME"] = str(tmp_path)
    oracle(run, tmp_path, error)
    if failed:
        done = firsthand("evaluate", run)
        assert done.returncode == 0, done.stderr
        words = " ".join(done.stdout.split())
        assert "The policy is better than the oracle, which is no lower bound" in words
        for name in ("circle", "square", "line", "together", "v avg", "limit"):
            assert name in words
        assert "…" not in words, "the table fits into 80 columns"
        assert max(map(len, done.stdout.splitlines())) <= 80
    done = firsthand("evaluate", run, "--json")
    assert json.loads(done.stdout)["oracle"] == {
        "random_error": error,
        "shapes_error": error,
        "shapes": SHAPES,
        "failed": failed,
    }


def test_the_policy_of_an_earlier_episode_and_another_speed(firsthand: Firsthand, uninterrupted) -> None:
    done = firsthand("evaluate", uninterrupted("fast"), "--episode", "1", "--speed", "0.4", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["max_speed"] == pytest.approx(0.4, abs=0.01)
    assert "oracle" not in data, "it is known for the task's own speed only"
