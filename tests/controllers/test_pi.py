"""The PI controller with feed-forward: its inverse map, its gains, its kinematics and its tuning."""

import numpy as np
import pytest

from firsthand.controllers.pi import GAIN_FACTORS, Axis, GainSearch, PIController, episodes_for_tuning
from firsthand.errors import UserError
from firsthand.tasks import excavator_task, soft_arm_task
from firsthand_onboard.kinematics import chain_jacobian, chain_points


def axis(sign: float = 1.0) -> Axis:
    edge = 0.05
    size = np.asarray([edge, 0.2, 1.0])
    return Axis(sign, (size, np.asarray([0.0, 0.1, 0.9])), (size, np.asarray([0.0, 0.2, 1.2])), 0.1, 0.2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_inverse_map_undoes_the_map(sign):
    joint = axis(sign)
    for rate in (-1.1, -0.3, -0.05, 0.05, 0.1, 0.8):
        size, speed = joint.up if rate > 0 else joint.down
        command = joint.inverse(rate)
        assert np.sign(command) == sign * np.sign(rate)
        assert np.interp(abs(command), size, speed) == pytest.approx(abs(rate), rel=1e-6)
    assert joint.inverse(0.0) == 0.0
    assert abs(joint.inverse(3.0)) > 1.0  # saturated, and the integral can tell


def test_gains_follow_the_rule():
    task = excavator_task()
    controller = PIController(task.spec, (axis(),) * 4, 1.0)
    theta = 0.1 + 0.2 / 2
    np.testing.assert_allclose(controller.gain, 1 / (2 * theta))
    np.testing.assert_allclose(controller.integral_s, 8 * theta)


def test_joint_speeds_move_the_tip_as_the_reference_moves():
    task = excavator_task()
    controller = PIController(task.spec, (axis(),) * 4, 1.0)
    position = np.asarray(task.home)
    here = chain_points(controller.chain, position)[-1]
    velocity = np.asarray([0.3, -0.2])
    points = here + controller.ahead[:, None] * velocity
    rates = controller._rate_ahead(position, points, 0.0)
    np.testing.assert_allclose(chain_jacobian(controller.chain, position) @ rates, velocity, rtol=0.05)
    still = controller._pull(position)
    assert np.abs(chain_jacobian(controller.chain, position) @ still).max() < 1e-5
    assert still @ (controller.middle - position) > 0


def test_a_robot_without_a_chain_is_refused():
    task = soft_arm_task()
    with pytest.raises(UserError, match=f"kinematics are known as a chain; {task.spec.robot} has none"):
        PIController(task.spec, (axis(),) * 3, 1.0)


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
