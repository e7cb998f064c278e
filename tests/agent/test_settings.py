"""Settings: checked where they are made, named in one place, and a pytree whose numbers can be swept over."""

import dataclasses
import json
import math
import re
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.settings import GROUPS, ExcitationSettings, Settings, all_settings, option_words
from firsthand.agent.trees import stack_settings, take_member
from firsthand.errors import UserError

NAMES = [name for name, _, _ in all_settings()]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "model.hidden"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, -math.inf, "1", True, pytest.param(10**400, id="huge")])
def test_every_setting_is_checked(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(name)} is {value}, but must be .+[.]$"):
        Settings().with_changes({name: value})


@pytest.mark.parametrize("hidden", [(), (16, 0), (-1,), 5, (1.5,)])
def test_the_widths_of_the_model_are_checked(hidden: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"model.hidden is .* must list whole numbers of at least 1[.]"):
        Settings().with_changes({"model.hidden": hidden})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy_step.discount": 1.5}, "policy_step.discount is 1.5, but must be above 0 and at most 1."),
        ({"refinement.memory": 1.0}, "refinement.memory is 1.0, but must be at least 0 and below 1."),
        ({"policy_step.pace_growth": 11}, "policy_step.pace_growth is 11, but must be between 1 and 10."),
        ({"policy_step.alpha": -0.1}, "policy_step.alpha is -0.1, but must be zero or a positive number."),
        ({"model.steps": 2.5}, "model.steps is 2.5, but must be a whole number from 0 to 1000000."),
        ({"model.steps": 1_000_001}, "model.steps is 1000001, but must be a whole number from 0 to 1000000."),
        (
            {"trust_region.max_radius": 0.05},
            "trust_region.max_radius is 0.05, but must be at least trust_region.radius, which is 0.1.",
        ),
        ({"model.batch": 600}, "model.max_batch is 512, but must be at least model.batch, which is 600."),
        (
            {"refinement.steps": 2000, "refinement.batch": 600, "imagination.trajectories": 1},
            "refinement.steps is 2000 and refinement.batch 600, but their product must be at most 1000000.",
        ),
        ({"model.eta": 1.0}, "there is no setting model.eta (did you mean policy_step.eta?)."),
        ({"eta": 1.0}, "there is no setting eta (did you mean policy_step.eta?)."),
        ({"model.stepps": 3}, "there is no setting model.stepps (did you mean model.steps?)."),
        ({"model_steps": 3}, "there is no setting model_steps (did you mean model.steps?)."),
        ({"excitation.radius": 3}, "there is no setting excitation.radius (did you mean trust_region.radius?)."),
        (
            {"excitation.window": 3},
            "there is no setting excitation.window; excitation has "
            + ", ".join(field.name for field in dataclasses.fields(ExcitationSettings))
            + ".",
        ),
        (
            {"nonsense": 3},
            "there is no setting nonsense; the groups are policy_step, model, observer, imagination, refinement, "
            "excitation, trust_region, rollback.",
        ),
    ],
)
def test_one_sentence_says_what_is_wrong(changes: dict, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        Settings().with_changes(changes)
    assert str(error.value) == sentence


def test_plain_data_and_back() -> None:
    settings = Settings().with_changes({"model.hidden": [32, 16], "policy_step.eta": 1, "model.steps": 7})
    stored = json.loads(json.dumps(settings.as_dict()))
    assert Settings.from_dict(stored) == settings
    assert list(stored) == list(GROUPS) == [field.name for field in dataclasses.fields(Settings)]
    assert settings.flat()["model.hidden"] == (32, 16)
    assert isinstance(settings.policy_step.eta, float)
    del stored["model"]["steps"]
    assert Settings.from_dict(stored) == settings.with_changes({"model.steps": Settings().model.steps})  # its default
    stored["model"]["eta"] = 3
    with pytest.raises(UserError, match=r"no setting model.eta \(did you mean policy_step.eta"):
        Settings.from_dict(stored)
    with pytest.raises(UserError, match=r"settings.model is 5"):
        Settings.from_dict({**stored, "model": 5})


def test_what_to_type() -> None:
    settings = Settings().with_changes({"model.hidden": (8, 4), "trust_region.max_radius": 0.7})
    assert option_words(settings, Settings()) == ["--model.hidden", "8", "4", "--trust-region.max-radius", "0.7"]
    assert option_words(settings, settings) == []


def test_every_setting_is_documented() -> None:
    for name, _, field in all_settings():
        assert len(field.metadata["bounds"].doc) > 10, name


def test_numbers_are_leaves_and_the_rest_is_structure() -> None:
    leaves, structure = jax.tree.flatten(Settings())
    assert all(isinstance(leaf, float) for leaf in leaves)
    assert len(leaves) == sum(isinstance(value, float) for value in Settings().flat().values())
    assert jax.tree.unflatten(structure, leaves) == Settings()
    assert structure != jax.tree.structure(Settings().with_changes({"model.steps": 1}))


def test_settings_that_differ_are_swept_over_in_one_program(compilations) -> None:
    members = [Settings().with_changes({"policy_step.eta": eta}) for eta in (0.1, 0.2, 0.4)]
    stacked = stack_settings(members)
    assert stacked.policy_step.eta.shape == (3,)
    assert stacked.policy_step.alpha == 0.01
    assert float(take_member(stacked, 2).policy_step.eta) == np.float32(0.4)

    @eqx.filter_jit
    @eqx.filter_vmap
    def step(settings: Settings) -> jax.Array:
        return settings.policy_step.eta * settings.model.steps + settings.policy_step.alpha

    with compilations() as compiled:
        values = step(stacked)
        step(stack_settings([one.with_changes({"policy_step.eta": 0.5 + i}) for i, one in enumerate(members)]))
    assert compiled.count <= 2  # the second one only for what makes the array
    np.testing.assert_allclose(values, [30.01, 60.01, 120.01], rtol=1e-6)


def test_arrays_are_checked_entry_by_entry_and_traced_ones_are_taken() -> None:
    with pytest.raises(UserError, match=r"policy_step.eta is .* but must be a positive number"):
        Settings().with_changes({"policy_step.eta": jnp.asarray([0.1, -1.0])})

    @jax.jit
    def double(eta):
        return 2.0 * Settings().with_changes({"policy_step.eta": eta}).policy_step.eta

    assert float(double(0.25)) == 0.5


def test_settings_import_neither_jax_nor_numpy() -> None:
    code = (
        "import sys, firsthand.agent.settings, firsthand.cli; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
