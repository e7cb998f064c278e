"""The suite's own robots do what their files say."""

import numpy as np

from firsthand_lab.suite_robots.arm import SPEED, Arm


def test_the_servos_reach_the_commanded_speed_without_overshoot():
    """A speed loop may be late; it does not swing beyond what was asked."""
    arm, rng = Arm("servos"), np.random.default_rng(0)
    arm.reset(seed=0)
    wanted = np.zeros(6)
    for _ in range(60):
        before = arm.data.qvel.copy()
        wanted = np.clip(0.9 * wanted + 0.2 * rng.standard_normal(6), -0.5 * SPEED, 0.5 * SPEED)
        arm.step(wanted)
        now = arm.data.qvel
        assert (now <= np.maximum(before, wanted) + 0.05).all()
        assert (now >= np.minimum(before, wanted) - 0.05).all()
