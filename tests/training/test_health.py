"""The growth of the closed loop against the spectral radius of a linear one."""

import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import Rollout
from firsthand.training.health import closed_loop_growth

STEPS = 300


@pytest.mark.parametrize("largest", [0.9, 1.02])
def test_a_linear_loop_grows_with_its_spectral_radius(largest):
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((3, 3))
    loop = basis @ np.diag([largest, 0.5, -0.3]) @ np.linalg.inv(basis)
    into, gain = rng.standard_normal((3, 1)), rng.standard_normal((1, 3))
    free = loop - into @ gain  # A, such that A + BK is the loop

    valid = np.ones((2, STEPS), bool)
    valid[1, 5:] = False  # cut short: the rest counts for nothing
    rollout = Rollout(
        states=jnp.asarray(rng.standard_normal((2, STEPS + 1, 3)), jnp.float32),
        commands=jnp.zeros((2, STEPS, 1)),
        previews=jnp.zeros((2, STEPS, 2, 1)),
        free=jnp.ones((2, STEPS, 1), bool),
        valid=jnp.asarray(valid),
    )
    growth = closed_loop_growth(
        lambda x, r: jnp.asarray(gain, jnp.float32) @ x,
        lambda x, u: jnp.asarray(free, jnp.float32) @ x + jnp.asarray(into, jnp.float32) @ u,
        rollout,
    )
    assert float(growth) == pytest.approx(largest, rel=0.02)
