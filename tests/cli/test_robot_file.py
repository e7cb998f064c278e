"""The README's robot file through the real command line: trained, found again from elsewhere, failing in the middle."""

import json
from pathlib import Path

import numpy as np
import pytest

from documented import documented_files
from firsthand.runs import RunFolder

from .conftest import Firsthand

SMALL = ("--preset", "paper", "--model.steps", "20", "--no-report")
FAILING = """

class Failing(gymnasium.Wrapper):
    count = 0

    def step(self, action):
        self.count += 1
        if self.count == 1250:
            raise OSError("lost the serial port")
        return self.env.step(action)


import dataclasses

failing = dataclasses.replace(task, env=lambda: Failing(gymnasium.make("Pendulum-v1")))
walking = dataclasses.replace(task, env=lambda: gymnasium.make("CartPole-v1"))
"""


@pytest.mark.slow
def test_the_readmes_robot_is_trained_and_found_again(firsthand: Firsthand, tmp_path: Path) -> None:
    firsthand.environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"  # optimised as for users
    file = tmp_path / "my_robot.py"
    file.write_text(documented_files("README.md")["my_robot.py"])
    trained = firsthand("train", "my_robot.py:task", "--episodes", "1", *SMALL)
    assert trained.returncode == 0, trained.stderr
    run = tmp_path / "runs" / "my_robot-task-paper-seed0"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = file.rename(elsewhere / "my_robot.py")
    file.write_text(file.read_text() + FAILING)
    gone = firsthand("evaluate", run, "--json", cwd=elsewhere)
    assert gone.returncode == 2
    assert "which does not exist any more; name it where it is now: --robot FILE.py:NAME." in gone.stderr
    evaluated = firsthand("evaluate", run, "--json", "--robot", "my_robot.py:task", cwd=elsewhere)
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"was in {tmp_path / 'my_robot.py'}; using {file}." in evaluated.stderr
    assert f"{file} has changed since this run was started" in evaluated.stderr
    assert set(json.loads(evaluated.stdout)["references"]) == {"line", "loop"}

    resumed = firsthand("train", "elsewhere/my_robot.py:task", "--out", run, "--resume", "--episodes", "2", *SMALL)
    assert resumed.returncode == 0, resumed.stderr
    assert "has changed since this run was started" in resumed.stderr
    assert RunFolder.open(run).episodes() == [1, 2]

    failed = firsthand("train", f"{file}:failing", "--episodes", "2", "--out", "failed", *SMALL)
    assert failed.returncode == 2
    assert "The environment Pendulum-v1 raised OSError in step(): lost the serial port" in failed.stderr
    assert "What it did before is kept (2 episodes); continue with: firsthand train" in failed.stderr
    assert "Traceback" not in failed.stderr
    kept, _ = RunFolder.open(tmp_path / "failed").load_episode(2)
    np.testing.assert_array_equal(kept["valid"].sum(axis=1), [100, 100, 49, 0, 0, 0, 0, 0, 0, 0])

    discrete = firsthand("train", f"{file}:walking", "--out", "discrete", *SMALL)
    assert discrete.returncode == 2
    assert "CartPole-v1 has the action space Discrete(2), but actions must be continuous" in discrete.stderr
    assert not (tmp_path / "discrete").exists()
