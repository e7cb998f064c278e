"""A run with a cost of the user's own: judged by that cost, and readable where the file with it is gone."""

import json
from pathlib import Path

import pytest

from firsthand.cli.results import print_evaluation
from firsthand.dashboard.run_info import RunInfo
from firsthand.export import write_export
from firsthand.report import write_report
from firsthand.training.run import Run
from firsthand.units import unit_of
from probe_runs import finished_run

ROBOT = """
import gymnasium
import jax.numpy as jnp
import numpy as np

from firsthand.robots.gymnasium import GymnasiumTask


class Tank(gymnasium.Env):
    action_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    dt = 0.1

    def reset(self, *, seed=None, options=None):
        self.level = np.full(1, 0.3)
        return self.level.copy(), {}

    def step(self, action):
        self.level = self.level + 0.02 * action - 0.05 * self.level
        return self.level.copy(), 0.0, False, False, {}


def cost(x, u, r):
    return jnp.cosh(x["level"] - 0.7) - 1.0 + 1e-4 * u[0] ** 2


task = GymnasiumTask(
    env=Tank, positions=("level",), position_low=0.0, position_high=2.0, names=("level",), units=("m",),
    command_names=("pump",), command_units=("V",), neutral=0.0, cost=cost, steps=8, trajectories=2,
    command_memory=1, preview=(1, 2), hidden=(8,),
)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("own"), "tank.py", ROBOT)


def test_the_cost_is_what_policies_are_judged_by(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(finished)
    lines = run.metrics()
    assert all(line["score"] == line["cost"] > 0 for line in lines)
    best = run.folder.load_best()
    assert best is not None
    assert best[1]["tracking_error"] == lines[best[1]["episode"] - 1]["cost"]
    stored = run.evaluation(best[1]["episode"])
    assert stored is not None
    assert len(stored.evaluation.costs) == len(stored.evaluation.references) == 2
    assert stored.evaluation.as_dict()["cost"] == pytest.approx(sum(stored.evaluation.costs) / 2)
    print_evaluation("tank", unit_of("m"), stored.evaluation, None)
    assert "per step" in capsys.readouterr().out


def test_reading_shows_names_units_and_cost(finished: Path, tmp_path: Path) -> None:
    page = write_report(finished).read_text()
    for text in ("cost per step", "pump (V)", "level (m)"):
        assert text in page
    config = json.loads((finished / "config.json").read_text())["config"]
    info = RunInfo.from_config(config)
    assert (info.score.key, info.score.label) == ("cost", "cost per step")
    files = write_export(finished, "c", tmp_path / "out")
    card = next(file for file in files if file.suffix == ".h").read_text()
    for text in ("level (m)", "pump (V) 0 to 10, neutral 0", "Mean cost of a step"):
        assert text in card
