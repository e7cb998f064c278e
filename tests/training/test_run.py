"""A run read back."""

from pathlib import Path

import numpy as np
import pytest

from firsthand.agent import LearnerState
from firsthand.agent.buffer import Buffer
from firsthand.robots import registry
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.robots.registry import make_task
from firsthand.runs import RunFolder
from firsthand.runs.pytrees import to_arrays
from firsthand.training import TrainingConfig
from firsthand.training.run import Run


def test_the_newest_policy_is_read_without_a_robot_and_a_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainingConfig.of("excavator", "paper", episodes=1000)
    task = make_task("excavator")
    state = LearnerState.random(task.spec, config.settings, seed=3)
    stored = {**config.as_dict(), ROBOT_DESCRIPTION: RobotDescription.of(task).as_dict()}
    with RunFolder.create(tmp_path / "run", stored, provenance={}) as run:
        run.save_checkpoint(1, to_arrays({"learner": state, "robot": {"position": np.zeros(4)}}), {})
    monkeypatch.setattr(Buffer, "empty", staticmethod(lambda *_: pytest.fail("no buffer is needed")))
    monkeypatch.setattr(registry, "find_source", lambda _: pytest.fail("no robot is needed"))
    policy = Run.open(tmp_path / "run").newest_policy()
    for (weight, bias), (kept_weight, kept_bias) in zip(policy.layers, state.policy.layers, strict=True):
        np.testing.assert_array_equal(weight, kept_weight)
        np.testing.assert_array_equal(bias, kept_bias)
