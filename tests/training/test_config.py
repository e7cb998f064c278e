"""Configuration: presets with changes, checked where they are made, and back from a file unchanged."""

import dataclasses
import json
import math
import re

import pytest

from firsthand.agent import Hyperparameters
from firsthand.errors import UserError
from firsthand.runs import plain
from firsthand.training import PRESETS, TrainingConfig, preset


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_configuration_comes_back_from_its_file(name: str) -> None:
    config = TrainingConfig.of(
        "excavator", name, episodes=7, seed=3, payload_kg=120.0, eta=0.25, model_hidden=(32, 16), imagined=None
    )
    text = json.dumps(plain.values(config.as_dict(), nonfinite="text"))
    assert TrainingConfig.from_dict(json.loads(text)) == config
    assert config.hyper == dataclasses.replace(preset(name), eta=0.25, model_hidden=(32, 16))


def test_the_presets() -> None:
    paper = preset("paper")
    assert (paper.alpha, paper.epsilon, paper.eta) == (0.01, 0.05, 0.5)
    assert (paper.policy_steps, paper.imagined, paper.model_steps) == (1, 0, 300)
    assert TrainingConfig.of("excavator").preset == "fast"
    assert TrainingConfig.of("excavator", "paper").episodes == 200
    with pytest.raises(UserError, match=re.escape("no preset 'fats' (did you mean 'fast'?)")):
        preset("fats")


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Hyperparameters) if f.name != "model_hidden"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, -math.inf])
def test_every_hyperparameter_is_checked(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{field} is {value}, but must be .+[.]$"):
        Hyperparameters(**{field: value})


@pytest.mark.parametrize("hidden", [(), (16, 0), (-1,)])
def test_the_widths_of_the_model_are_checked(hidden: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="model_hidden is"):
        Hyperparameters(model_hidden=hidden)
