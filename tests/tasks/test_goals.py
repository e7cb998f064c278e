"""Goals: each worked by hand, the user's own against the answer of LQR, and what is refused with one sentence."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from documented import documented_files
from firsthand import goals
from firsthand.agent import Settings
from firsthand.agent.improvement import improve_policy
from firsthand.errors import UserError
from firsthand.models import Dynamics, Policy, as_controller
from firsthand.optim import roll_out
from firsthand.robots.base import neutral, operating_point
from firsthand.robots.gymnasium import GymnasiumTask
from firsthand.tasks import StepCost
from firsthand.tasks.box import GoalBox
from firsthand.tasks.goals import StepState
from firsthand.tasks.set_points import SetPointReferences
from firsthand.training.learning import fit_settings
from firsthand.training.presets import preset
from firsthand_onboard import PlanarChain, PlanarJoint
from firsthand_onboard.features import observation
from firsthand_onboard.gate_limits import GateLimits, assumed_neutral
from firsthand_onboard.spec import SpecError

STATE = [0.5, -0.3, 9.0, 9.0, 0.1, 1.0, 9.0, 9.0]
"""Of `toy_spec`: two positions, what they were before, and two commands of one and two steps ago."""


def worth(spec, goal, state=STATE, command=(0.4, -0.5), reference=(0.2, 0.1)) -> float:
    return float(
        goal.cost(StepState(spec, jnp.asarray(state)), jnp.asarray(command, float), jnp.asarray(reference, float))
    )


def test_what_a_goal_sees(toy_spec):
    x = StepState(toy_spec, jnp.asarray(STATE))
    first, second = toy_spec.layout.measured
    assert (float(x[first]), float(x[second]), float(x[1])) == pytest.approx((0.5, -0.3, -0.3))
    for found, wanted in (
        (x.measured, STATE[:2]),
        (x.position, STATE[:2]),
        (x.output, STATE[:2]),
        (x.last_command, STATE[4:6]),
        (x.earlier, [STATE[2:4]]),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(UserError, match="measures no 'level'; it measures"):
        x["level"]


def test_goals_worked_by_hand(toy_spec):
    spec = dataclasses.replace(toy_spec, limits=dataclasses.replace(toy_spec.limits, command_neutral=(0.0, 1.0)))
    half = np.asarray([1.0, 1.5])  # of the commands' ranges
    for goal, wanted in (
        (goals.Track(0.5), (0.3**2 + 0.4**2) / 0.25),
        (goals.Track((0.5, 0.1)), 0.3**2 / 0.25 + 0.4**2 / 0.01),
        (goals.Track((0.5, 0.1), weight=(2.0, 0.0)), 2 * 0.3**2 / 0.25),
        (goals.Hold(spec.layout.measured[0], at=0.1, scale=0.2), 4.0),
        (goals.Upright(1, at=0.0, scale=1.0), 2 - 2 * np.cos(0.3)),
        (goals.Upright(1, at=2 * np.pi - 0.3, scale=1.0), 0.0),
        (goals.Effort(0.1), 0.1 * np.sum(((0.4, -1.5) / half) ** 2)),
        (goals.Effort((0.0, 0.1)), 0.1),
        (goals.Residuals(lambda x, u, r: x[0] - r), 0.3**2 + 0.4**2),
        (goals.Cost(lambda x, u, r: jnp.abs(x.output - r).sum()), 0.7),
        (goals.Track(0.5) + goals.Effort((0.0, 0.1)) + goals.Cost(lambda x, u, r: u[0]), 1.0 + 0.1 + 0.4),
    ):
        goal.check(spec)
        assert worth(spec, goal) == pytest.approx(wanted, rel=1e-5, abs=1e-6), goal
    both = goals.Upright(0) + goals.Track(1.0)
    assert both.tracks
    assert both.is_least_squares
    assert not goals.Upright(0).tracks
    assert not (both + goals.Cost(lambda x, u, r: u[0])).is_least_squares


def test_weights_per_command_and_position(toy_spec):
    nothing = goals.Track(1.0, weight=0.0)
    cost = StepCost(toy_spec, nothing, change_weight=(0.0, 0.01), limit_weight=(0.0, 0.0))
    given = tuple(jnp.asarray(part, float) for part in (STATE, (0.4, -0.5), (0.0, 0.0)))
    assert float(cost(*given)) == pytest.approx(0.01)  # the change is −1.5, half of the range
    assert float(jnp.sum(cost.residuals(*given) ** 2)) == pytest.approx(0.01)


class Linear(Dynamics):
    """x⁺ = A x + B u, as a model that is the plant."""

    A: jax.Array
    B: jax.Array

    def __call__(self, state, command):
        return self.A @ state + self.B @ command


def test_a_cost_of_the_users_own_reaches_what_lqr_reaches(make_probe_task):
    """Position, speed and command are charged, none of which follows anything; Riccati's recursion has the answer."""
    steps, limit = 30, 6.0
    task = make_probe_task(
        measured=2,
        command_memory=1,
        steps=steps,
        preview=(1,),
        command_limit=limit,
        length_scale=1.0,
        change_weight=0.0,
    )
    A, B = np.array([[1.0, 0.1, 0.0], [0.0, 0.9, 0.0], [0.0, 0.0, 0.0]]), np.array([[0.0], [0.1], [1.0]])
    Q, R = np.diag([1.0, 0.1, 0.0]), np.array([[0.05]])
    own = goals.Cost(lambda x, u, r: x["p"] ** 2 + 0.1 * x["v"] ** 2 + 0.05 * u[0] ** 2)
    cost = StepCost(task.spec, own, change_weight=0.0, limit_weight=0.0)
    model = Linear((), jnp.asarray([1.0]), task.spec, jnp.asarray(A, jnp.float32), jnp.asarray(B, jnp.float32))
    starts = np.random.default_rng(0).uniform(-1.0, 1.0, (8, 3)) * (1.0, 1.0, 0.0)
    P = np.zeros((3, 3))
    for _ in range(steps):
        P = Q + A.T @ P @ A - A.T @ P @ B @ np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
    best = float(np.mean([x @ P @ x for x in starts])) / steps
    policy = Policy.random(task.spec, key=jax.random.key(0))
    previews = jnp.zeros((8, steps, 2, 1), jnp.float32)
    settings = Settings().with_changes(
        {"policy_step.discount": 1.0, "policy_step.steps": 40, "policy_step.alpha": 0.36, "policy_step.eta": 0.5}
    )
    for _ in range(4):
        rollout = roll_out(policy, model, jnp.asarray(starts, jnp.float32), previews=previews)
        policy, report = improve_policy(policy, model, cost, rollout, None, 10.0, settings)
        assert report.step.accepted
    assert best * (1 - 1e-4) <= float(report.predicted_cost) <= 1.05 * best


def test_a_plain_cost_is_not_refined(make_probe_task):
    task = make_probe_task(
        measured=1, command_memory=1, steps=5, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.0
    )
    fast = preset("fast")
    assert fit_settings(fast, task) is fast
    assert fast.refines
    plain = dataclasses.replace(task, cost=StepCost(task.spec, goals.Cost(lambda x, u, r: jnp.sum(x.output**2))))
    assert not fit_settings(fast, plain).refines


# Bad input: one sentence each.


class Still(gymnasium.Env):
    """Measures a level and a speed."""

    action_space = gymnasium.spaces.Box(0.0, 4.0, (1,))
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    dt = 0.1

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


GIVEN = GymnasiumTask(
    env=Still,
    names=("level", "speed"),
    positions=("level",),
    velocities=("speed",),
    position_low=-1.0,
    position_high=1.0,
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"residuals": lambda x, u, r: jnp.log(x[:1] - 5.0)}, "residuals gives nan at x = .level .*must be finite"),
        ({"cost": lambda x, u, r: jnp.linalg.norm(x.output - r)}, "cost has no finite derivative at .*norm at zero"),
        ({"cost": lambda x, u, r: x.measured}, r"cost returned an array of shape \(2,\), but must return a single"),
        ({"cost": lambda x, u, r: -(x["level"] ** 2)}, "cost gives -.*must be zero or more.*Add a constant"),
        ({"residuals": lambda x, u, r: x.measured[None]}, r"residuals returned an array of shape \(1, 2\)"),
        ({"residuals": lambda x, u, r: jnp.round(x.measured).astype(int)}, "type int32, which have no derivative"),
        ({"residuals": lambda x, u, r: jnp.round(x.measured)}, "derivatives of zero at 32 random states"),
        ({"residuals": lambda x, u, r: np.sin(np.asarray(x.measured))}, "cannot be differentiated: it uses numpy"),
        ({"cost": lambda x, u, r: 1.0 if x["level"] > 0 else 0.0}, "cannot be differentiated.*Python if"),
        ({"cost": lambda x, u, r: x["depth"]}, "measures no 'depth'; it measures 'level', 'speed'"),
        ({"cost": lambda x, u: u[0]}, "cost fails with TypeError"),
        ({"cost": lambda x, u, r: "much"}, "cost returned str, but must return an array of numbers"),
        ({"cost": 3.0}, "cost is 3.0, but must be a function of x, u and r"),
        ({"cost": lambda x, u, r: u[0], "residuals": lambda x, u, r: u}, "residuals and cost are both given"),
        ({"goal": 1.0}, "goal is 1.0, but must be one of firsthand.goals"),
        ({"goal": goals.Hold("depth", at=0.0, scale=1.0)}, "measures no 'depth'"),
        ({"goal": goals.Upright("level", scale=0.0)}, "Upright.scale is 0.0, but must be a positive number"),
        (
            {"goal": goals.Effort((1.0, 2.0))},
            "Effort.weight has 2 entries, but must be one number or 1, one per command",
        ),
        ({"goal": goals.Power((1.0, 2.0))}, "Power.scale has 2 entries"),
        ({"rate": 1.0, "goal": goals.Track((1.0, 2.0))}, "Track.scale has 2 entries, .* one per tracked output"),
        ({"goal": goals.Upright("level"), "length_scale": 1.0}, "length_scale and weight belong to the default goal"),
        ({"rate": 1.0, "length_scale": (1.0, 2.0)}, "length_scale has 2 entries, .* one per tracked output"),
        ({"rate": 1.0, "change_weight": (0.1, 0.2)}, "change_weight has 2 entries, .* one per command"),
        ({}, "rate is missing"),
        ({"rate": 1.0, "neutral": 5.0}, r"neutral\[0\] is 5.0, but the command's range is 0.0 to 4.0"),
        ({"rate": 1.0, "names": ("level",)}, "names is .*must list 2 texts, one per entry"),
        ({"rate": 1.0, "names": ("level", "level")}, "names has 'level' twice"),
        ({"rate": 1.0, "units": ("m", "m/s", "N")}, "units is .*must list 2 texts"),
        ({"rate": 1.0, "units": ("m", "x" * 30)}, "a unit is a text of at most 20 characters"),
        ({"rate": 1.0, "positions": ("lever",)}, "positions names entry 'lever', but names has 'level', 'speed'"),
        ({"rate": 1.0, "reference": "jump"}, "reference is 'jump', but must be 'move' or 'hold'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_moves(changes, sentence):
    given = dataclasses.replace(GIVEN)
    for field, value in changes.items():
        object.__setattr__(given, field, value)  # also of another type: users run without the tests' type checks
    with pytest.raises(UserError, match=sentence) as caught:
        given.make_task()
    assert "\n" not in str(caught.value)


def test_names_units_and_neutral_are_in_the_specification():
    given = dataclasses.replace(
        GIVEN, units=("m", "m/s"), command_names=("pump",), command_units=("V",), neutral=0.0, reference="hold"
    )
    task = given.make_task()
    spec = type(task.spec).from_json(task.spec.to_json())
    assert spec == task.spec
    assert (spec.layout.measured, spec.layout.measured_units) == (("level", "speed"), ("m", "m/s"))
    assert (spec.layout.commands, spec.layout.command_units) == (("pump",), ("V",))
    assert (spec.neutral, spec.output_names, spec.output_units, task.unit) == ((0.0,), ("level",), ("m",), "m")
    assert (spec.reference.profile, task.cost.goal.tracks) == ("hold", True)
    both = dataclasses.replace(
        given, tracked=("level", "speed"), goal_low=(-1.0, -4.0), goal_high=(1.0, 4.0)
    ).make_task()
    assert both.unit == "scales"  # metres and metres per second do not add up
    assert isinstance(both.spec.scales.error, tuple)
    assert isinstance(both.cost.goal, goals.Track)
    assert isinstance(both.cost.goal.scale, tuple)
    assert both.cost.goal.scale[1] == pytest.approx(4 * both.cost.goal.scale[0], rel=0.05)


def test_without_anything_to_follow_the_reference_holds_the_middle():
    task = dataclasses.replace(GIVEN, cost=lambda x, u, r: x["level"] ** 2 + 0.1 * u[0] ** 2).make_task()
    assert task.spec.reference.profile == "hold"
    assert not task.cost.goal.tracks
    goal = task.sample_goals(np.random.default_rng(0), np.zeros(2), 3)
    np.testing.assert_array_equal(goal, np.zeros((3, 1)))
    above, below = task.evaluation(1.0)
    assert float(above.start[0]) == -float(below.start[0]) == pytest.approx(0.1)


def test_set_points_of_a_tip_are_places_of_the_tip(toy_spec):
    """Goals are poses of the joints; what is held is where they put the tip, also where both have two numbers."""
    chain = PlanarChain((0.0, 0.0), (PlanarJoint("revolute", 1.0), PlanarJoint("revolute", 0.5)))
    reference = dataclasses.replace(toy_spec.reference, space="position", profile="hold")
    spec = dataclasses.replace(toy_spec, kinematics=chain, reference=reference)
    (path,) = SetPointReferences(spec, GoalBox((-1.0, 0.0), (1.0, 1.0)), (0.0, 0.5))(1.0)
    np.testing.assert_allclose(path.start, [0.0, 0.5])
    first, second = 0.5, 0.5 + 0.75  # three quarters of both ranges; a positive angle turns down
    tip = [np.cos(first) + 0.5 * np.cos(second), -np.sin(first) - 0.5 * np.sin(second)]
    np.testing.assert_allclose(path.points[0], tip)
    above, _ = SetPointReferences(spec, GoalBox((0.0, 0.0), (0.0, 0.0)), (0.0, 0.0))(1.0)
    np.testing.assert_allclose(above.points[-1], [1.5, 0.0])


def test_the_documented_file():
    space: dict[str, object] = {}
    exec(documented_files("docs/goals.md")["cooler.py"], space)
    follows = {}
    for name in ("task", "thrifty", "own"):
        given = space[name]
        assert isinstance(given, GymnasiumTask)
        follows[name] = given.make_task().score.key
    assert follows == {"task": "tracking_error", "thrifty": "cost", "own": "cost"}


def test_without_a_declaration_the_specification_is_as_before(toy_spec):
    for word in ("units", "neutral", "profile"):
        assert word not in toy_spec.to_json()
    declared = dataclasses.replace(toy_spec, limits=dataclasses.replace(toy_spec.limits, command_neutral=(0.0, 0.0)))
    assert declared.digest() != toy_spec.digest()


def test_neutral_where_it_is_used(toy_spec):
    """The gate takes it from the specification; `inspect` pushes around it where there is room on both sides."""
    limits = dataclasses.replace(toy_spec.limits, command_low=(0.0, -1.0), command_high=(4.0, 3.0))
    spec = dataclasses.replace(toy_spec, limits=limits)
    np.testing.assert_array_equal(neutral(spec), (2.0, 1.0))
    with pytest.raises(SpecError, match="give neutral in the task"):
        assumed_neutral(spec)
    spec = dataclasses.replace(spec, limits=dataclasses.replace(limits, command_neutral=(0.0, 0.0)))
    for found in (neutral(spec), assumed_neutral(spec), GateLimits.wide(spec).neutral):
        np.testing.assert_array_equal(found, (0.0, 0.0))
    np.testing.assert_array_equal(operating_point(spec), (2.0, 0.0))


def test_scales_per_output_are_the_same_in_numpy_and_jax(toy_spec):
    scales = dataclasses.replace(toy_spec.scales, error=(0.1, 2.0), preview=(0.5, 3.0))
    spec = dataclasses.replace(toy_spec, scales=scales)
    state, points = np.asarray(STATE, np.float32), np.ones((1 + len(spec.preview), 2), np.float32)
    points[1:] = 2.0
    seen = observation(spec, state, points)
    ahead = seen[spec.layout.size :].reshape(-1, 2)
    np.testing.assert_allclose(ahead[0], [0.5 / 0.1, 1.3 / 2.0], rtol=1e-6)
    np.testing.assert_allclose(ahead[1], [1.0 / 0.5, 1.0 / 3.0], rtol=1e-6)
    np.testing.assert_allclose(observation(spec, jnp.asarray(state), jnp.asarray(points)), seen, rtol=1e-6)
    policy = Policy.random(spec, key=jax.random.key(0))
    onboard = as_controller(policy).for_robot().policy
    np.testing.assert_allclose(onboard(state, points), policy(jnp.asarray(state), jnp.asarray(points)), atol=1e-5)
    with pytest.raises(SpecError, match=r"scales\.error has 3 entries, but must have 2, one per tracked output"):
        dataclasses.replace(spec, scales=dataclasses.replace(scales, error=(1.0, 1.0, 1.0)))
