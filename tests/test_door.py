"""`import firsthand as fh`: quick, complete, and enough for the README's example."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firsthand as fh

ROOT = Path(__file__).parents[1]
HEAVY = ("jax", "equinox", "matplotlib", "rich", "tyro", "numpy", "scipy")
TINY: dict[str, Any] = {"preset": "paper-exact", "settings": {"policy_step.cg_iterations": 2, "model.steps": 10}}


def test_importing_it_loads_nothing_heavy() -> None:
    code = f"import sys, firsthand as fh; dir(fh); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_documented() -> None:
    assert set(fh._PLACES) | {"__version__"} == set(fh.__all__) <= set(dir(fh))
    assert 25 <= len(fh.__all__) <= 34
    for name in fh._PLACES:
        value = getattr(fh, name)
        assert value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fh.trian  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    text = (ROOT / "src" / "firsthand" / "__init__.py").read_text()
    shown = text[text.index("if TYPE_CHECKING") : text.index("__version__ =")]
    for name in fh._PLACES:
        assert f" as {name}\n" in shown, name


def readme_example() -> str:
    text = (ROOT / "README.md").read_text()
    return next(block for block in text.split("```python\n")[1:] if "fh.train(" in block).split("```")[0]


def test_the_readme_example_needs_nothing_else() -> None:
    """tests/test_documentation.py runs it."""
    example = readme_example()
    assert [line for line in example.splitlines() if "import" in line] == ["import firsthand as fh"]
    assert "kept" in example


def test_a_run_in_memory_has_a_kept_policy() -> None:
    seen: list[int] = []

    class Watch(fh.Callback):
        def after_episode(self, summary: Any) -> None:
            seen.append(summary.episode)

    run = fh.train(fh.make_robot("excavator"), episodes=2, callbacks=[Watch()], **TINY)
    assert [row["episode"] for row in run.metrics] == seen == [1, 2]
    assert run.path is None
    assert isinstance(run.kept_policy, fh.Controller)
    assert run.kept_episode == min(run.metrics, key=lambda row: row["tracking_error"])["episode"]
    assert np.isfinite(run.evaluate().overall.mean_error)


def test_a_run_on_disk_is_the_run_in_memory(tmp_path: Path) -> None:
    made = fh.train("excavator", episodes=2, out=tmp_path / "run", **TINY)
    read = fh.load_run(tmp_path / "run")
    assert [row["episode"] for row in read.metrics()] == [1, 2]
    assert made.kept_policy is not None
    assert made.kept_episode == read.kept_episode()
    for a, b in zip(made.kept_policy.layers, read.kept_policy().layers, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
    robot = fh.make_robot("excavator")
    assert fh.evaluate(robot, made.kept_policy).overall.mean_error == fh.evaluate(read).overall.mean_error
    with pytest.raises(fh.UserError, match="give the policy"):
        fh.evaluate(robot)


def test_a_preset_that_is_not_there_is_said_in_one_sentence() -> None:
    with pytest.raises(fh.UserError, match="no preset 'fats'"):
        fh.train("excavator", preset="fats")
