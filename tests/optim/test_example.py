"""The documented example against the exact answer."""

import runpy
from pathlib import Path

import jax
import numpy as np

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_dynamics.py"


def test_a_system_of_its_own_comes_to_the_riccati_gain() -> None:
    with jax.enable_x64(False):
        example = runpy.run_path(str(EXAMPLE))
        np.testing.assert_allclose(example["learn"](), example["riccati"](), rtol=1e-4)


def test_it_is_short_and_needs_nothing_but_the_door() -> None:
    lines = EXAMPLE.read_text().split('"""', 2)[2].splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(("#", '"""', "import", "@"))]
    assert len(code) <= 30
    assert {line for line in lines if line.startswith(("import", "from"))} == {
        "import jax",
        "import jax.numpy as jnp",
        "import firsthand as fh",
    }
