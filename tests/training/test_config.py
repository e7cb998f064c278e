"""Configuration: presets with changes, checked where they are made, and back from a file unchanged."""

import json
import re

import pytest

from firsthand.errors import UserError
from firsthand.runs import atomic
from firsthand.training import PRESETS, TrainingConfig, preset


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_configuration_comes_back_from_its_file(name: str) -> None:
    changes = {"policy_step.eta": 0.25, "model.hidden": (32, 16)}
    config = TrainingConfig.of("excavator", name, episodes=7, seed=3, payload_kg=120.0, changes=changes)
    text = json.dumps(atomic.plain_values(config.as_dict(), nonfinite="text"))
    assert TrainingConfig.from_dict(json.loads(text)) == config
    assert config.settings == preset(name).with_changes(changes)


def test_the_presets() -> None:
    paper = preset("paper")
    assert (paper.policy_step.alpha, paper.policy_step.epsilon, paper.policy_step.eta) == (0.01, 0.05, 0.5)
    assert (paper.policy_step.steps, paper.imagination.trajectories, paper.model.steps) == (1, 0, 300)
    assert TrainingConfig.of("excavator").preset == "fast"
    assert TrainingConfig.of("excavator", "paper").episodes == 200
    with pytest.raises(UserError, match=re.escape("no preset 'fats' (did you mean 'fast'?)")):
        preset("fats")


def test_a_run_of_an_earlier_version_is_refused() -> None:
    stored = TrainingConfig.of("excavator").as_dict()
    stored["hyper"] = {"eta": 0.5}
    del stored["settings"]
    with pytest.raises(UserError, match="written by an earlier version"):
        TrainingConfig.from_dict(stored)
