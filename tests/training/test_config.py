"""Configuration: presets with changes, checked where they are made, and back from a file unchanged."""

import json
import re
from pathlib import Path

import pytest

from firsthand.agent import Settings
from firsthand.errors import UserError
from firsthand.runs import packed
from firsthand.training import PRESETS, TrainingConfig, preset


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_configuration_comes_back_from_its_file(name: str) -> None:
    changes = {"policy_step.eta": 0.25, "model.hidden": (32, 16)}
    config = TrainingConfig.of("excavator", name, episodes=7, seed=3, payload_kg=120.0, changes=changes)
    text = json.dumps(packed.plain_values(config.as_dict(), nonfinite="text"))
    assert TrainingConfig.from_dict(json.loads(text)) == config
    assert config.settings == preset(name).with_changes(changes)


JUDGEMENT = {"policy_step.judged", "policy_step.retries", "policy_step.length_factor", "rollback.factor"}


def test_the_presets_of_the_paper_differ_in_judgement_alone() -> None:
    exact, judged = preset("paper-exact").flat(), preset("paper").flat()
    assert {name for name in exact if exact[name] != judged[name]} == JUDGEMENT
    assert all(exact[name] == 0 for name in JUDGEMENT)
    assert exact == Settings().flat()
    assert not preset("paper-exact").judges
    assert preset("paper").judges
    assert preset("fast").judges


def test_presets_differ_where_the_documentation_says_so() -> None:
    """The table of docs/paper.md has every setting in which the presets differ, with its values."""
    text = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    header, names = re.compile(r"^\| what \| setting \|(.+)\|$", re.MULTILINE), list(PRESETS)
    found = header.search(text)
    assert found is not None
    assert [cell.strip(" `") for cell in found[1].split("|")] == names
    documented = {}
    for line in text[found.end() :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        _, setting, *values = (cell.strip(" `") for cell in line.strip("|").split("|"))
        documented[setting] = tuple(float(value) for value in values)
    flat = {name: tuple(PRESETS[each].flat()[name] for each in names) for name in Settings().flat()}
    assert documented == {name: values for name, values in flat.items() if len(set(values)) > 1}


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
