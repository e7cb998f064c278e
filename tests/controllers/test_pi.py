"""The PI controller with feed-forward: its inverse map, its gains, its kinematics and its tuning."""

import numpy as np
import pytest

from firsthand.controllers.pi import GAIN_FACTORS, Axis, GainSearch, episodes_for_tuning, pi_base
from firsthand.errors import UserError
from firsthand.tasks import excavator_task, soft_arm_task
from firsthand_onboard import PlanarChain
from firsthand_onboard.kinematics import chain_jacobian, chain_points


def axis(sign: float = 1.0) -> Axis:
    edge = 0.05
    size = np.asarray([edge, 0.2, 1.0])
    return Axis(sign, (size, np.asarray([0.0, 0.1, 0.9])), (size, np.asarray([0.0, 0.2, 1.2])), 0.1, 0.2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_inverse_map_undoes_the_map(sign):
    base, joint = pi_base(excavator_task().spec, (axis(sign),) * 4), axis(sign)
    rates = np.asarray([-1.1, -0.3, -0.05, 0.05])
    for four in (rates, np.asarray([0.1, 0.8, 0.3, 0.5])):
        for rate, command in zip(four, base._invert(np, four), strict=True):
            size, speed = joint.up if rate > 0 else joint.down
            assert np.sign(command) == sign * np.sign(rate)
            assert np.interp(abs(command), size, speed) == pytest.approx(abs(rate), rel=1e-6)
    assert not base._invert(np, np.zeros(4)).any()
    assert np.abs(base._invert(np, np.full(4, 3.0))).min() > 1.0  # saturated, and the integral can tell


def test_gains_follow_the_rule():
    base = pi_base(excavator_task().spec, (axis(),) * 4)
    theta = 0.1 + 0.2 / 2
    np.testing.assert_allclose(base.gain, 1 / (2 * theta))
    np.testing.assert_allclose(base.integral_s, 8 * theta)


def test_joint_speeds_move_the_tip_as_the_reference_moves():
    task = excavator_task()
    spec, chain, position = task.spec, task.spec.kinematics, np.asarray(task.home)
    assert isinstance(chain, PlanarChain)
    base = pi_base(spec, (axis(),) * 4)._replace(ahead_s=np.zeros(4))
    velocity = np.asarray([0.3, -0.2])
    times = np.asarray([0, *spec.preview])[:, None] * spec.period_s
    points = chain_points(chain, position)[-1] + times * velocity
    _, rates = base._plan(spec, position, points, position)
    np.testing.assert_allclose(chain_jacobian(chain, position) @ rates, velocity, rtol=0.05)
    still = base._pull(spec, position)
    assert np.abs(chain_jacobian(chain, position) @ still).max() < 1e-5
    middle = (np.asarray(spec.limits.position_low) + np.asarray(spec.limits.position_high)) / 2
    assert still @ (middle - position) > 0


def test_a_robot_that_it_does_not_fit_is_refused():
    task = soft_arm_task()
    with pytest.raises(UserError, match=f"one command per joint; {task.spec.robot} has"):
        pi_base(task.spec, (axis(),) * 3)


def test_tuning_takes_an_episode_for_each_factor_beside_the_inspection():
    task = excavator_task()
    inspection = (episodes_for_tuning(task) - len(GAIN_FACTORS)) * task.episode_s
    assert 60 < inspection < 1200


def search(error_of) -> list[float]:
    """The factors of eight episodes."""
    tuning, used = GainSearch(), []
    for _ in range(8):
        used.append(tuning.next_factor())
        tuning.record(used[-1], error_of(used[-1]))
    return used


def test_gains_rise_until_the_error_does():
    assert search(lambda factor: abs(factor - 1.6)) == [1.0, 1.5, 2.2, 1.5, 1.5, 1.5, 1.5, 1.5]


def test_the_rule_stays_where_more_is_worse():
    assert search(lambda factor: factor) == [1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_every_factor_is_tried_where_more_is_better():
    assert search(lambda factor: -factor) == [*GAIN_FACTORS, 5.0, 5.0, 5.0]


def test_the_first_episode_of_a_factor_counts():
    tuning = GainSearch()
    tuning.record(1.0, 0.2)
    tuning.record(1.0, 0.1)
    assert (tuning.errors, tuning.best) == ({1.0: 0.2}, 1.0)
