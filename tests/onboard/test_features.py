"""State, observation, kinematics and references: worked by hand, and the same on numpy and JAX."""

import itertools
import math

import jax
import numpy as np
import pytest
import scipy.optimize

from firsthand.models import Policy
from firsthand.tasks.excavator import BOX_HIGH, BOX_LOW, CHAIN, JOINT_HIGH, JOINT_LOW, excavator_task
from firsthand_onboard import (
    ControlSpec,
    Limits,
    NumpyPolicy,
    PlanarChain,
    PlanarJoint,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    SpecError,
    StateLayout,
)
from firsthand_onboard.features import (
    PEAK_OF_QUINTIC,
    build_reference,
    initial_state,
    last_command,
    measured_part,
    next_state,
    observation,
    preview_points,
    quintic_blend,
    reachable_fraction,
    robot_features,
)
from firsthand_onboard.kinematics import (
    chain_jacobian,
    chain_points,
    nearest_configuration,
    output_of_positions,
    tracked_output,
)
from firsthand_onboard.policy import expected_shapes

COUNT = 1000
LOW, HIGH = np.asarray(JOINT_LOW), np.asarray(JOINT_HIGH)


@pytest.fixture(scope="module")
def small_spec():
    """One position with its velocity, two commands, memories of one and three."""
    return ControlSpec(
        robot="small",
        period_s=0.1,
        layout=StateLayout(
            measured=("p", "v"),
            position=(0,),
            velocity=(1,),
            commands=("a", "b"),
            command_memory=3,
            measurement_memory=1,
        ),
        kinematics=SelectedOutput((0,)),
        preview=(1, 3),
        scales=Scales((1.0, 0.0), (2.0, 4.0), (0.5, 0.25), error=0.1, preview=0.2),
        limits=Limits((-1.0, 0.0), (1.0, 4.0), (-5.0,), (5.0,)),
        reference=ReferenceSpec(space="output", steps=10, rate_low=(-0.5,), rate_high=(1.0,)),
        policy=PolicyShape((3,)),
    )


STATE = np.array([3.0, 8.0, 2.5, 7.0, 0.1, 1.0, 0.2, 2.0, 0.3, 3.0])
"""y_k, y_{k-1}, u_{k-1}, u_{k-2}, u_{k-3} of the small robot."""


def test_the_state_of_a_robot_that_has_been_standing(small_spec):
    state = initial_state(small_spec.layout, np.array([3.0, 8.0]), np.array([0.1, 1.0]))
    np.testing.assert_array_equal(state, [3, 8, 3, 8, 0.1, 1, 0.1, 1, 0.1, 1])
    assert small_spec.layout.size == 10
    assert small_spec.layout.command_start == 4


def test_both_registers_move_on_by_one(small_spec):
    after = next_state(small_spec.layout, STATE, np.array([0.4, 4.0]), np.array([3.5, 9.0]))
    np.testing.assert_array_equal(after, [3.5, 9.0, 3.0, 8.0, 0.4, 4.0, 0.1, 1.0, 0.2, 2.0])
    np.testing.assert_array_equal(measured_part(small_spec.layout, after), [3.5, 9.0])
    np.testing.assert_array_equal(last_command(small_spec.layout, after), [0.4, 4.0])


def test_a_batch_of_states_moves_on_like_each_of_them(small_spec):
    states = np.stack([STATE, 2 * STATE])
    commands, measured = np.array([[0.4, 4.0], [0.5, 5.0]]), np.array([[3.5, 9.0], [4.5, 9.5]])
    together = next_state(small_spec.layout, states, commands, measured)
    for i in range(2):
        np.testing.assert_array_equal(together[i], next_state(small_spec.layout, states[i], commands[i], measured[i]))


def test_without_memories_the_state_is_the_measurement_and_one_command():
    layout = StateLayout(("p",), (0,), (), ("u",), command_memory=1)
    np.testing.assert_array_equal(next_state(layout, np.array([1.0, 2.0]), np.array([4.0]), np.array([3.0])), [3, 4])


def test_the_preview_is_now_and_the_offsets(small_spec):
    reference = np.arange(13.0)[:, None] * 10
    assert small_spec.reference_length == 13
    np.testing.assert_array_equal(preview_points(small_spec, reference, 0)[:, 0], [0, 10, 30])
    np.testing.assert_array_equal(preview_points(small_spec, reference, 9)[:, 0], [90, 100, 120])


def test_the_observation_worked_by_hand(small_spec):
    """(y − center)/scale, (y_k − y_{k-1})/change scale, commands over their range, error/0.1, motion/0.2."""
    robot = [1.0, 2.0, 1.0, 4.0, 0.1, -0.5, 0.2, 0.0, 0.3, 0.5]
    np.testing.assert_allclose(robot_features(small_spec, STATE), robot, rtol=1e-12)
    preview = np.array([[3.2], [3.3], [2.9]])
    np.testing.assert_allclose(observation(small_spec, STATE, preview), [*robot, 2.0, 0.5, -1.5], rtol=1e-12)
    assert small_spec.observation_size == 13


def test_the_reference_enters_relative_to_the_robot(small_spec):
    """Moving the reference's future and the robot's error apart changes different entries."""
    preview = np.array([[3.2], [3.3], [2.9]])
    base = observation(small_spec, STATE, preview)
    later = observation(small_spec, STATE, preview + np.array([[0.0], [0.0], [0.1]]))
    np.testing.assert_array_equal(np.flatnonzero(base != later), [12])


# Kinematics


def test_the_tip_at_the_check_point():
    np.testing.assert_allclose(output_of_positions(CHAIN, np.array([-0.85, 1.2, 0.6, 0.8])), [5.799, 0.856], atol=5e-4)


def test_a_positive_angle_turns_a_link_down_and_a_prismatic_joint_moves_along_it():
    chain = PlanarChain((1.0, 2.0), (PlanarJoint("revolute", 3.0, 0.5), PlanarJoint("prismatic", 1.0)))
    np.testing.assert_allclose(chain_points(chain, np.array([0.0, 0.25])), [[1, 2], [4, 2.5], [5.25, 2.5]])
    np.testing.assert_allclose(
        chain_points(chain, np.array([math.pi / 2, 0.25])), [[1, 2], [1.5, -1], [1.5, -2.25]], atol=1e-12
    )


def test_the_chain_against_complex_numbers():
    """With i upward, a link at angle a is exp(−i a), and its offset is exp(−i a)(along + i·perpendicular)."""
    rng = np.random.default_rng(0)
    for q in rng.uniform(LOW, HIGH, (20, 4)):
        tip, angle = complex(*CHAIN.base), 0.0
        for joint, value in zip(CHAIN.joints, q, strict=True):
            turn, reach = (value, joint.along) if joint.kind == "revolute" else (0.0, joint.along + value)
            angle += turn
            tip += np.exp(-1j * angle) * (reach + 1j * joint.perpendicular)
        np.testing.assert_allclose(output_of_positions(CHAIN, q), [tip.real, tip.imag], rtol=1e-12)


def test_the_jacobian_is_the_derivative():
    q = np.array([-0.85, 1.2, 0.6, 0.8])
    with jax.enable_x64(True):
        expected = jax.jit(jax.jacfwd(lambda position: output_of_positions(CHAIN, position)))(jax.numpy.asarray(q))
    np.testing.assert_allclose(chain_jacobian(CHAIN, q), expected, atol=1e-8)


def test_a_chain_reads_its_positions_where_the_layout_says():
    spec = excavator_task(hidden=(4,)).spec
    measured = np.arange(8.0) / 10
    np.testing.assert_allclose(tracked_output(spec, measured), output_of_positions(CHAIN, measured[:4]))


def test_a_measured_output_has_no_forward_kinematics(small_spec):
    with pytest.raises(SpecError, match=r"reference\.space"):
        output_of_positions(small_spec.kinematics, np.zeros(1))


def nearest_by_slsqp(point, guess):
    """The least Σ((q − middle)/(half range))² at this point, from several starts, by scipy."""
    middle, half = (LOW + HIGH) / 2, (HIGH - LOW) / 2

    def miss(z):
        return output_of_positions(CHAIN, middle + half * z) - point

    runs = [
        scipy.optimize.minimize(
            lambda z: z @ z,
            start,
            jac=lambda z: 2 * z,
            bounds=[(-1, 1)] * 4,
            constraints={"type": "eq", "fun": miss},
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 200},
        )
        for start in (np.zeros(4), (guess - middle) / half)
    ]
    best = min((run for run in runs if np.linalg.norm(miss(run.x)) < 1e-7), key=lambda run: run.fun)
    return middle + half * best.x, best.fun


def test_the_nearest_configuration_against_slsqp():
    rng = np.random.default_rng(0)
    middle, half = (LOW + HIGH) / 2, (HIGH - LOW) / 2
    for q in middle + half * rng.uniform(-0.8, 0.8, (15, 4)):
        point = output_of_positions(CHAIN, q)
        found = nearest_configuration(CHAIN, point, low=LOW, high=HIGH)
        np.testing.assert_allclose(output_of_positions(CHAIN, found), point, atol=1e-5)
        assert np.all((found >= LOW) & (found <= HIGH))
        expected, least = nearest_by_slsqp(point, q)
        assert np.sum(((found - middle) / half) ** 2) <= least + 1e-6
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_points_that_need_a_joint_at_its_limit_are_reached():
    rng = np.random.default_rng(0)
    poses = rng.uniform(LOW, HIGH, (200, 4))
    tips = output_of_positions(CHAIN, poses)
    inside = np.all((tips >= BOX_LOW) & (tips <= BOX_HIGH), axis=1)
    for point in tips[inside]:
        found = nearest_configuration(CHAIN, point, low=LOW, high=HIGH)
        np.testing.assert_allclose(output_of_positions(CHAIN, found), point, atol=1e-5)


def test_a_point_out_of_reach_is_refused_with_the_distance():
    with pytest.raises(SpecError, match=r"out of reach.*misses it by \d"):
        nearest_configuration(CHAIN, (12.0, 1.0), low=LOW, high=HIGH)


# References


def test_the_quintic_starts_and_ends_at_rest():
    h = 1e-4
    for end, value in ((0.0, 0.0), (1.0, 1.0)):
        inward = 1.0 if end == 0.0 else -1.0
        f0, f1, f2, f3 = (float(quintic_blend(end + inward * k * h)) for k in range(4))
        assert f0 == value
        assert abs(-1.5 * f0 + 2 * f1 - 0.5 * f2) / h < 1e-6  # speed
        assert abs(2 * f0 - 5 * f1 + 4 * f2 - f3) / h**2 < 1e-2  # acceleration; the third derivative is 60
    np.testing.assert_array_equal(quintic_blend(np.array([-1.0, 1.5])), [0.0, 1.0])
    assert float(quintic_blend(0.5)) == 0.5


def test_the_peak_of_the_quintic():
    s = np.linspace(0, 1, 100_001)
    slope = np.gradient(quintic_blend(s), s)
    assert PEAK_OF_QUINTIC == 1.875
    assert np.max(slope) == pytest.approx(1.875, rel=1e-6)
    assert np.min(slope) >= 0
    assert s[np.argmax(slope)] == pytest.approx(0.5, abs=1e-2)


@pytest.mark.parametrize(
    ("goal", "share"),
    [
        (0.0, 1.0),
        (0.5, 1.0),  # 1 s at a peak of 1.0 reaches 1/1.875 = 0.5333 upward
        (1.0, 1 / 1.875),
        (2.0, 0.5 / 1.875),
        (-0.25, 1.0),  # and 0.5/1.875 = 0.2667 downward
        (-1.0, 0.5 / 1.875),
    ],
)
def test_how_far_a_reference_may_go_depends_on_the_direction(small_spec, goal, share):
    start = np.array([0.7])
    assert float(reachable_fraction(small_spec, start, start + goal)) == pytest.approx(share, rel=1e-12)
    reference = build_reference(small_spec, np.array([0.7, 0.0]), start + goal)
    np.testing.assert_allclose(reference[-1], start + share * goal, rtol=1e-12)
    speed = np.diff(reference[:, 0]) / small_spec.period_s
    assert speed.min() >= -0.5 - 1e-9
    assert speed.max() <= 1.0 + 1e-9


def test_the_slowest_coordinate_decides_for_all(toy_spec):
    start, goal = np.zeros(2), np.array([0.1, 1.0])  # 0.25 s at 1/s reaches 0.25/1.875
    assert float(reachable_fraction(toy_spec, start, goal)) == pytest.approx(0.25 / 1.875)
    reference = build_reference(toy_spec, start, goal)
    np.testing.assert_allclose(reference[-1], goal * 0.25 / 1.875)


def test_a_reference_row_by_row(small_spec):
    """From where the robot is, one row per step, held for the preview beyond the last."""
    reference = build_reference(small_spec, np.array([0.7, 9.0]), np.array([0.9]))
    assert reference.shape == (13, 1)
    s = np.minimum(np.arange(13) / 10, 1.0)
    np.testing.assert_allclose(reference[:, 0], 0.7 + 0.2 * (10 * s**3 - 15 * s**4 + 6 * s**5), rtol=1e-12)
    assert reference[0, 0] == 0.7
    np.testing.assert_allclose(reference[10:, 0], 0.9, rtol=1e-12)


def test_a_reference_in_joint_space_is_the_tip_of_a_straight_joint_path():
    spec = excavator_task(hidden=(4,)).spec
    home, goal = np.array([-0.85, 1.2, 0.6, 0.8]), np.array([-0.6, 1.4, 0.7, 0.5])
    reference = build_reference(spec, np.concatenate([home, np.ones(4)]), goal)
    assert reference.shape == (125 + 18, 2)
    s = quintic_blend(np.arange(143) / 125)[:, None]
    np.testing.assert_allclose(reference, output_of_positions(CHAIN, home + s * (goal - home)), rtol=1e-12)
    np.testing.assert_allclose(reference[125:], np.tile(output_of_positions(CHAIN, goal), (18, 1)), rtol=1e-12)


# Parity


@pytest.fixture(scope="module", params=["chain", "selected"])
def parity(request, toy_spec):
    """A robot, 1000 random states, references and goals in float32, and a policy."""
    spec = excavator_task(hidden=(32, 32)).spec if request.param == "chain" else toy_spec
    rng = np.random.default_rng(0)
    layout, scales = spec.layout, spec.scales
    center, scale = (
        np.tile(np.asarray(part), 1 + layout.measurement_memory)
        for part in (scales.measured_center, scales.measured_scale)
    )
    commands = rng.uniform(-1, 1, (COUNT, layout.num_commands * layout.command_memory))
    states = np.concatenate([center + scale * rng.uniform(-1, 1, (COUNT, center.size)), commands], axis=1)
    output = tracked_output(spec, measured_part(layout, states))
    previews = output[:, None] + rng.normal(scale=0.3, size=(COUNT, 1 + len(spec.preview), spec.num_outputs))
    goal_center, goal_scale = (LOW + HIGH) / 2, (HIGH - LOW) / 2
    if spec.reference.space == "output":
        goal_center, goal_scale = np.zeros(2), np.ones(2)
    goals = goal_center + goal_scale * rng.uniform(-1, 1, (COUNT, spec.goal_size))
    layers = tuple(
        (
            (rng.normal(size=weight) / weight[1] ** 0.5).astype(np.float32),
            rng.normal(scale=0.1, size=bias).astype(np.float32),
        )
        for weight, bias in expected_shapes(spec)
    )
    return spec, states.astype(np.float32), previews.astype(np.float32), goals.astype(np.float32), layers


def assert_same(on_numpy, on_jax):
    """To 1e-6 of the largest value: metres of the arm's reach, commands of their range."""
    on_numpy = np.stack(on_numpy)
    assert on_numpy.dtype == np.float32
    assert on_jax.dtype == np.float32
    assert on_numpy.shape == on_jax.shape
    np.testing.assert_allclose(on_numpy, on_jax, rtol=0.0, atol=1e-6 * max(np.max(np.abs(on_numpy)), 1.0))


def test_numpy_and_jax_see_the_same_output(parity):
    spec, states, *_ = parity
    measured = measured_part(spec.layout, states)
    on_jax = jax.jit(lambda y: tracked_output(spec, y))(measured)
    assert_same([tracked_output(spec, y) for y in measured], on_jax)


def test_numpy_and_jax_observe_the_same(parity):
    spec, states, previews, *_ = parity
    on_jax = jax.jit(jax.vmap(lambda x, r: observation(spec, x, r)))(states, previews)
    assert on_jax.shape == (COUNT, spec.observation_size)
    assert_same([observation(spec, x, r) for x, r in zip(states, previews, strict=True)], on_jax)


def test_numpy_and_jax_command_the_same(parity):
    """The robot's `NumpyPolicy` is the learner's `Policy`."""
    spec, states, previews, _, layers = parity
    policy = Policy(tuple((jax.numpy.asarray(w), jax.numpy.asarray(b)) for w, b in layers), spec)
    on_robot = NumpyPolicy(spec, layers)
    commands = jax.jit(jax.vmap(policy))(states, previews)
    assert_same([on_robot(x, r) for x, r in zip(states, previews, strict=True)], commands)
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    assert np.all((commands >= low) & (commands <= high))
    assert np.all(np.ptp(np.asarray(commands), axis=0) > 0.5 * (high - low))  # the inputs make a difference


def test_numpy_and_jax_build_the_same_reference(parity):
    spec, states, _, goals, _ = parity
    measured = measured_part(spec.layout, states)
    on_jax = jax.jit(jax.vmap(lambda y, goal: build_reference(spec, y, goal)))(measured, goals)
    assert on_jax.shape == (COUNT, spec.reference_length, spec.num_outputs)
    assert_same([build_reference(spec, y, goal) for y, goal in zip(measured, goals, strict=True)], on_jax)


def test_numpy_and_jax_move_the_registers_the_same(parity):
    spec, states, *_ = parity
    layout = spec.layout
    measured, commands = measured_part(layout, states[::-1]), states[::-1, -layout.num_commands :]
    on_jax = jax.jit(jax.vmap(lambda x, u, y: next_state(layout, x, u, y)))(states, commands, measured)
    np.testing.assert_array_equal(next_state(layout, states, commands, measured), on_jax)
    at_rest = jax.jit(jax.vmap(lambda y, u: initial_state(layout, y, u)))(measured, commands)
    np.testing.assert_array_equal(initial_state(layout, measured, commands), at_rest)


def test_the_policy_worked_by_hand(small_spec):
    """tanh hidden units, a linear layer, and a tanh over the command range: middle + half range · tanh."""
    rng = np.random.default_rng(0)
    sizes = (small_spec.observation_size, 3, 2)
    layers = [(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in itertools.pairwise(sizes)]
    preview = np.array([[3.2], [3.3], [2.9]])
    hidden = np.tanh(layers[0][0] @ observation(small_spec, STATE, preview) + layers[0][1])
    raw = np.tanh(layers[1][0] @ hidden + layers[1][1])
    expected = [raw[0], 2.0 + 2.0 * raw[1]]
    np.testing.assert_allclose(NumpyPolicy(small_spec, layers)(STATE, preview), expected, rtol=1e-5)
