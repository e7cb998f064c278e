"""The cost of one step, worked by hand, and what a task refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.tasks.box import MARGIN
from firsthand.tasks.cost import LAST_SHARE, StepCost, tracking_cost
from firsthand.tasks.goals import Hold
from firsthand_onboard.spec import SelectedOutput


def test_the_cost_worked_by_hand(toy_spec):
    """Output (0.5, −0.3) against (0.2, 0.1) over L = 0.5: 4·(0.09 + 0.16) = 1. Command ranges 2 and 3.

    u = (0.4, −0.5), u₋₁ = (0.1, 1.0): changes 0.3/1 and −1.5/1.5, so |Δ|² = 0.09 + 1. Joints are well inside.
    """
    cost = tracking_cost(toy_spec, length_scale=0.5, change_weight=0.01, limit_weight=0.1)
    state = jnp.asarray([0.5, -0.3, 9.0, 9.0, 0.1, 1.0, 9.0, 9.0])
    found = cost(state, jnp.asarray([0.4, -0.5]), jnp.asarray([0.2, 0.1]))
    assert float(found) == pytest.approx(1.0 + 0.01 * 1.09, rel=1e-6)


@pytest.mark.parametrize(
    ("position", "inside"),
    [
        (2.4, 0.0),  # the range is 6, the margin 0.6: it begins at 2.4
        (2.7, 0.5),
        (3.0, 1.0),
        (3.3, 1.5),
        (-2.4, 0.0),
        (-2.7, 0.5),
        (-3.0, 1.0),
    ],
)
def test_the_limit_term_rises_from_the_margin_to_its_weight_at_the_limit(toy_spec, position, inside):
    cost = tracking_cost(toy_spec, length_scale=1.0, change_weight=0.0, limit_weight=0.2, limit_margin=0.1)
    state = jnp.asarray([position, 0.0, 0, 0, 0, 0, 0, 0])
    found = cost(state, jnp.asarray([0.0, 0.0]), jnp.asarray([0.0, 0.0]))
    assert float(found) - position**2 == pytest.approx(0.2 * inside**4, rel=1e-4, abs=1e-5)


def with_limits(toy_spec, **changes):
    """A cost of tracking and limits alone. The range is 6 and the margin 0.6: it begins at ±2.4, its last part at 2.85.

    Joint limits weigh heavily, so that what they do to the best position shows.
    """
    return tracking_cost(toy_spec, length_scale=1.0, change_weight=0.0, limit_weight=5.0, limit_margin=0.1, **changes)


def best_position(cost, wanted):
    """Where a reference that stands still is followed at the lowest cost, found by trying."""
    tried = jnp.linspace(-3.5, 3.5, 7001)
    states = jnp.zeros((len(tried), 8)).at[:, 0].set(tried)
    costs = jax.vmap(lambda x: cost(x, jnp.zeros(2), jnp.asarray([wanted, 0.0])))(states)
    return float(tried[jnp.argmin(costs)])


@pytest.mark.parametrize("power", [4, 16])
@pytest.mark.parametrize("wanted", [0.0, 2.3, 2.5, 2.7, 2.85, -2.5, -2.85])
def test_a_tracked_position_is_best_where_its_reference_is(toy_spec, wanted, power):
    """Also inside the margin: the joint-limit term is for what the goal leaves open."""
    cost = with_limits(toy_spec, limit_power=power)
    assert best_position(cost, wanted) == pytest.approx(wanted, abs=2e-3)


def test_the_last_part_of_the_margin_holds_back_whatever_is_asked_for(toy_spec):
    """With the fourth power: at 3 − e the slope of the error, 2 e, is that of the limits, 20 ((0.15 − e)/0.6)³/0.6."""
    cost = with_limits(toy_spec)
    best = best_position(cost, 3.0)
    error = 3.0 - best
    assert 0.05 < error < 0.15
    assert 2 * error == pytest.approx(20 * ((0.15 - error) / 0.6) ** 3 / 0.6, rel=0.1)
    assert 3.0 - best_position(cost, 3.2) < error + 0.2  # nor is what lies beyond the limit any better


def test_goals_that_are_drawn_by_default_are_not_held_back():
    """They keep away from the limits by at least the part of the margin in which the limits act in any case."""
    assert LAST_SHARE * StepCost.limit_margin <= MARGIN + 1e-12


def test_limits_act_from_the_margin_on_what_the_goal_leaves_open(toy_spec):
    """Joint 1 is not tracked here; joint 0 is, as output 0. Both stand half way into the margin."""
    one = dataclasses.replace(toy_spec.reference, rate_low=(-1.0,), rate_high=(1.0,))
    spec = dataclasses.replace(toy_spec, kinematics=SelectedOutput((0,)), reference=one)
    cost = with_limits(spec, limit_power=2)
    for positions, expected in (((2.7, 0.0), 0.0), ((0.0, 2.7), 1.25), ((0.0, -2.7), 1.25)):
        state = jnp.asarray([*positions, 0, 0, 0, 0, 0, 0])
        found = cost(state, jnp.zeros(2), jnp.asarray([positions[0]]))
        assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_a_reference_that_nothing_follows_does_not_move_the_margin(toy_spec):
    cost = StepCost(toy_spec, Hold("p1", at=0.0, scale=1.0), change_weight=0.0, limit_weight=5.0, limit_margin=0.1)
    there = jnp.asarray([2.7, 0.0, 0, 0, 0, 0, 0, 0])
    assert float(cost(there, jnp.zeros(2), jnp.asarray([2.7, 0.0]))) == pytest.approx(5 * 0.5**4, rel=1e-4)


def test_limits_hold_against_a_joint_that_errs(toy_spec):
    """The reference stays at the middle: nothing of the margin is given up, and none on the other side of it."""
    cost = with_limits(toy_spec, limit_power=2)
    there = jnp.asarray([2.7, 0.0, 0, 0, 0, 0, 0, 0])
    for wanted, expected in ((0.0, 2.7**2 + 1.25), (-2.8, 5.5**2 + 1.25), (2.55, 0.15**2 + 5 * 0.25**2)):
        found = cost(there, jnp.zeros(2), jnp.asarray([wanted, 0.0]))
        assert float(found) == pytest.approx(expected, rel=1e-4)


def test_following_exactly_without_moving_the_command_costs_nothing(toy_spec):
    cost = tracking_cost(toy_spec, length_scale=1.0)
    state = jnp.asarray([0.5, -0.3, 9.0, 9.0, 0.1, 1.0, 9.0, 9.0])
    arguments = (state, jnp.asarray([0.1, 1.0]), jnp.asarray([0.5, -0.3]))
    value, slopes = jax.value_and_grad(cost, argnums=(0, 1))(*arguments)
    assert float(value) == 0.0
    for slope in slopes:
        np.testing.assert_array_equal(slope, 0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length_scale", 0.0),
        ("length_scale", float("nan")),
        ("change_weight", -0.1),
        ("change_weight", float("inf")),
        ("limit_weight", -1.0),
        ("limit_power", 1),
        ("limit_margin", 0.0),
        ("limit_margin", 0.5),
    ],
)
def test_a_wrong_weight_is_named(toy_spec, name, value):
    with pytest.raises(UserError, match=f"^{name} is "):
        tracking_cost(toy_spec, **{"length_scale": 1.0, name: value})


def test_a_task_checks_its_home_and_its_trajectories(make_probe_task):
    task = make_probe_task(
        measured=1,
        command_memory=1,
        steps=10,
        preview=(1,),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
    )
    with pytest.raises(UserError, match=r"^home has 2 entries, but must have 1"):
        dataclasses.replace(task, home=(0.0, 0.0))
    with pytest.raises(UserError, match=r"^trajectories is 0"):
        dataclasses.replace(task, trajectories=0)
    assert (task.name, task.steps, task.episode_s) == ("probe", 10, pytest.approx(6 * 10 * 0.1))


@pytest.mark.parametrize("power", [2, 3, 4])
def test_the_residuals_squares_add_up_to_the_cost(toy_spec, power):
    """Also in the margins and beyond the limits; and their derivative is finite where a margin begins."""
    cost = tracking_cost(toy_spec, length_scale=0.7, change_weight=0.03, limit_weight=0.2, limit_power=power)
    rng = np.random.default_rng(power)
    for _ in range(20):
        state, command, reference = (jnp.asarray(2.5 * rng.normal(size=n)) for n in (toy_spec.layout.size, 2, 2))
        found = jnp.sum(cost.residuals(state, command, reference) ** 2)
        assert float(found) == pytest.approx(float(cost(state, command, reference)), rel=1e-5)
    slopes = jax.jit(jax.jacfwd(cost.residuals))(jnp.zeros(toy_spec.layout.size), jnp.zeros(2), jnp.zeros(2))
    assert np.isfinite(slopes).all()


def test_steep_limits_are_felt_later_and_the_same_at_the_limit(toy_spec):
    cost = tracking_cost(toy_spec, length_scale=1.0, change_weight=0.1, limit_weight=0.2, limit_margin=0.1)
    steep = cost.with_steeper_limits(16)
    for position, inside in ((2.7, 0.5), (3.0, 1.0)):  # the margin is the last 0.6 of 6
        state = jnp.asarray([position, 0.0, 0, 0, 0, 0, 0, 0])
        arguments = (state, jnp.asarray([0.5, 0.0]), jnp.asarray([2.0, 0.0]))  # outside the margin
        rest = float(dataclasses.replace(cost, limit_weight=0.0)(*arguments))
        assert float(cost(*arguments)) - rest == pytest.approx(0.2 * inside**4, rel=1e-3)
        assert float(steep(*arguments)) - rest == pytest.approx(0.2 * inside**16, rel=1e-3, abs=1e-6)
    assert steep.with_steeper_limits(8) == steep
