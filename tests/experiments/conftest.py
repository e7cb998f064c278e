"""What the tests of experiments share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module")
def compile_quickly() -> Iterator[None]:
    """What is computed here is small; how fast does not matter."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
