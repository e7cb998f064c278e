"""A Gymnasium environment as a robot: it reports what happened, also when it ends early, fails or goes blind."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from firsthand.agent import Buffer, append
from firsthand.errors import UserError
from firsthand.evaluation import can_go_back, evaluate, tracking_metrics
from firsthand.inspection import InspectionSettings, excite
from firsthand.models import Controller, Dynamics, Observer, Policy
from firsthand.plants.sensors import Sensors
from firsthand.robots import EpisodeRecord
from firsthand.robots.base import EpisodeAbandoned
from firsthand.robots.delay import DelayedCommands
from firsthand.robots.environment import GymnasiumRobot, Outcome, RobotFailed
from firsthand.robots.gymnasium import GymnasiumTask
from firsthand.tasks.box import check_goals
from firsthand.training import Trainer, TrainingConfig, preset
from firsthand.training.learning import as_rollout
from firsthand_onboard import PlanarChain, PlanarJoint, SelectedOutput
from firsthand_onboard.features import initial_state, next_state
from firsthand_onboard.kinematics import output_of_positions
from firsthand_onboard.observer import ObserverSettings
from firsthand_onboard.policy import expected_shapes

PERIOD = 0.1


def following(state: np.ndarray, command: np.ndarray) -> np.ndarray:
    """The cart's equation: a velocity that lags behind the command."""
    velocity = state[1] + 0.4 * (command[0] - state[1])
    return np.asarray([state[0] + PERIOD * velocity, velocity])


class Cart(gymnasium.Env):
    """A cart on a rail from -1 to 1; `trouble(step, state)` may raise, or say that it is over or blind."""

    action_space = spaces.Box(-2.0, 2.0, (1,))
    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    dt = PERIOD

    def __init__(self, trouble: Callable[[int, np.ndarray], str | None] = lambda step, state: None) -> None:
        self.trouble = trouble
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.state = np.asarray([self.np_random.uniform(-0.1, 0.1), 0.0])
        return self.state.copy(), {}

    def step(self, action: np.ndarray):
        self.steps += 1
        what = self.trouble(self.steps, self.state)
        if what == "raise":
            raise RuntimeError("the cable is off")
        self.state = following(self.state, action)
        seen = np.asarray([self.state[0], np.nan]) if what == "blind" else self.state.copy()
        return seen, 0.0, what == "over", what == "too long", {}


def cart_task(env: Callable[[], Any] = Cart, **changes: Any) -> GymnasiumTask:
    settings: dict[str, Any] = {
        "positions": (0,),
        "velocities": (1,),
        "position_low": -1.0,
        "position_high": 1.0,
        "rate": 0.8,
        "steps": 12,
        "trajectories": 4,
        "command_memory": 2,
        "preview": (1, 3),
        "hidden": (16,),
        "stop_at_limits": False,
    }
    if changes.get("hardware"):
        settings |= {"stopping": {"lag_s": 0.3}, "directions": ((0, 1),)}
    return GymnasiumTask(env=env, **{**settings, **changes})


def robot_of(source: GymnasiumTask, seed: int = 3) -> GymnasiumRobot:
    return source.make_robot(source.make_task(), payload_kg=0.0, seed=seed)


def policy_of(robot: GymnasiumRobot) -> Policy:
    """Random weights, made without compiling anything."""
    rng = np.random.default_rng(1)
    shapes = expected_shapes(robot.task.spec)
    layers = [(rng.normal(0.0, out[1] ** -0.5, out), np.zeros(bias)) for out, bias in shapes]
    return Policy(tuple((jax.numpy.asarray(w), jax.numpy.asarray(b)) for w, b in layers), robot.task.spec)


def episode(robot: GymnasiumRobot, excited: bool = False) -> EpisodeRecord:
    rng = np.random.default_rng(5)
    task = robot.task
    goals = task.sample_goals(rng, robot.measured(), task.trajectories)
    bold = rng.uniform(-4.0, 4.0, (task.trajectories, task.steps // 4, 1)).repeat(4, axis=1).astype(np.float32)
    return robot.run_episode(policy_of(robot), goals, bold if excited else None)


def assert_true_transitions(robot: GymnasiumRobot, record: EpisodeRecord) -> int:
    """Every transition that the learner would get obeys the cart's own equation; returns how many there are."""
    spec = robot.task.spec
    rollout = as_rollout(spec, record)
    buffer = append(Buffer.empty(64, spec.layout.size, 1, 2), rollout)
    size = int(buffer.size)
    rows = (np.asarray(a)[:size] for a in (buffer.states, buffer.commands, buffer.following))
    for x, u, y in zip(*rows, strict=True):
        np.testing.assert_allclose(y, following(x, u), atol=1e-5)
    return size


def test_an_episode_is_what_the_environment_did() -> None:
    robot = robot_of(cart_task())
    record = episode(robot, excited=True)
    assert record.valid.all()
    assert assert_true_transitions(robot, record) == 48
    assert np.abs(record.commands).max() == 2.0  # the excitation goes beyond the range, commands do not
    np.testing.assert_array_equal(record.measured[1:, 0], record.measured[:-1, -1])
    layout = robot.task.spec.layout
    state = initial_state(layout, record.measured[0, 0], np.zeros(1, np.float32))
    for i in range(4):
        np.testing.assert_array_equal(record.starts[i], state)
        for k in range(12):
            state = next_state(layout, state, record.commands[i, k], record.measured[i, k + 1])


def test_simulated_sensors_stand_between_the_environment_and_the_learner() -> None:
    sensors = Sensors(noise=(0.0, 0.05), lag=(0.0, 0.5), delay=1)
    robot = robot_of(cart_task(sensors=sensors))
    record = episode(robot, excited=True)
    assert record.truth is not None
    state = record.truth[0, 0].astype(float)
    for i in range(4):
        for k in range(12):
            state = following(state, record.commands[i, k])
            np.testing.assert_allclose(record.truth[i, k + 1], state, atol=1e-4)
    late = record.measured[:, 2:, 0] - record.truth[:, 1:-1, 0]  # the position: one period of delay, no noise
    np.testing.assert_allclose(late, 0.0, atol=1e-6)
    assert 0.02 < (record.measured[..., 1] - record.truth[..., 1]).std() < 2.0
    again = episode(robot_of(cart_task(sensors=sensors)), excited=True)
    np.testing.assert_array_equal(again.measured, record.measured)  # a seeded stream
    metrics = tracking_metrics(robot.task.spec, (record,))
    assert metrics.mean_error != metrics.measured_mean_error


def test_sensors_that_do_not_fit_the_robot_are_refused() -> None:
    with pytest.raises(UserError, match=r"sensors: noise has the shape \(3,\), but the robot measures 2 values"):
        robot_of(cart_task(sensors=Sensors(noise=(0.1, 0.1, 0.1))))


@pytest.mark.parametrize("field", ["noise", "resolution"])
def test_sensors_that_would_hide_everything_are_refused(field) -> None:
    with pytest.raises(
        UserError, match=rf"sensors: {field} of .* is 1000, but the whole range of .*: nothing could be"
    ):
        robot_of(cart_task(sensors=Sensors(**{field: 1000.0})))


def test_commands_are_those_of_the_policy_that_is_trained() -> None:
    robot = robot_of(cart_task())
    record = episode(robot)
    rollout = as_rollout(robot.task.spec, record)
    ours = jax.jit(jax.vmap(jax.vmap(policy_of(robot))))(rollout.states[:, :-1], rollout.previews)
    np.testing.assert_allclose(record.commands, np.asarray(ours), atol=1e-5)


@pytest.mark.parametrize("what", ["over", "too long", "blind"])
def test_a_trajectory_is_cut_where_the_environment_ends(what: str) -> None:
    robot = robot_of(cart_task(lambda: Cart(lambda step, state: what if step in (5, 30) else None)))
    record = episode(robot, excited=True)
    seen = 4 if what == "blind" else 5  # the step that led to the end happened; a blind one counts for nothing
    # The second trajectory begins after the reset, with step 6; the fourth begins with step 30.
    np.testing.assert_array_equal(record.valid.sum(axis=1), [seen, 12, 12, seen - 4])
    assert assert_true_transitions(robot, record) == record.valid.sum()
    assert (record.measured[0, seen:] == record.measured[0, seen]).all()
    assert abs(record.measured[1, 0, 0]) <= 0.1  # where a reset puts the cart
    assert record.measured[1, 0, 1] == 0.0
    np.testing.assert_array_equal(record.starts[1, 2:], 0.0)  # no command is remembered across a reset
    assert robot.cuts == {Outcome.NOT_FINITE if what == "blind" else Outcome.ENDED: 2}
    assert "2 trajectories were cut short" in robot.notes()[0]


def test_what_was_seen_before_the_environment_raised_is_kept() -> None:
    robot = robot_of(cart_task(lambda: Cart(lambda step, state: "raise" if step == 20 else None)))
    record = episode(robot, excited=True)
    np.testing.assert_array_equal(record.valid.sum(axis=1), [12, 7, 0, 0])
    assert assert_true_transitions(robot, record) == 19
    with pytest.raises(RobotFailed, match=r"Cart raised RuntimeError in step\(\): the cable is off \(in trajectory 2"):
        robot.measured()
    old = Cart()
    old.step = lambda action: (np.zeros(2), 0.0, False, {})  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RobotFailed, match=r"Cart returned 4 values from step\(\), but must return five"):
        episode(robot_of(cart_task(lambda: old)))
    with pytest.raises(RobotFailed, match="the cable is off"):
        episode(robot_of(cart_task(lambda: Cart(lambda step, state: "raise"))))


def test_an_environment_that_ends_the_program_fails_like_any_other() -> None:
    """Otherwise the run would end with its exit code, 0, and without a word."""

    def leave(*_: Any) -> Any:
        raise SystemExit(0)

    robot = robot_of(cart_task(lambda: Cart(lambda step, state: leave() if step == 20 else None)))
    assert episode(robot).valid.sum() == 19
    with pytest.raises(RobotFailed, match=r"Cart raised SystemExit in step\(\): 0 \(in trajectory 2"):
        robot.measured()
    for changes in ({"env": leave}, {"observe": leave}, {"evaluation": leave}):
        with pytest.raises(UserError, match="SystemExit"):
            cart_task(**changes).make_task()
    with pytest.raises(UserError, match="goals fails with SystemExit"):
        check_goals(cart_task(goals=leave, evaluation=lambda speed: {"still": np.zeros((5, 1))}).make_task())
    with pytest.raises(UserError, match="cost fails with SystemExit"):
        cart_task(cost=leave).make_task()


def test_gymnasiums_time_limit_is_no_end() -> None:
    source = cart_task(lambda: gymnasium.wrappers.TimeLimit(DelayedCommands(Cart(), 2), 10))
    robot = robot_of(source)
    assert episode(robot).valid.all()
    inside = cart_task(lambda: DelayedCommands(gymnasium.wrappers.TimeLimit(Cart(), 10), 2))
    assert episode(robot_of(inside)).valid.all()


def test_delayed_commands_arrive_late() -> None:
    robot = robot_of(cart_task(lambda: DelayedCommands(Cart(), 2)))
    commands = np.asarray([[1.0], [-1.0], [2.0], [0.5]], np.float32)
    measured = robot.play(commands)
    state = measured[0].astype(float)
    for k, command in enumerate([0.0, 0.0, 1.0, -1.0]):
        state = following(state, np.asarray([command]))
        np.testing.assert_allclose(measured[k + 1], state, atol=1e-6)


def test_open_loop_motion_stops_at_an_early_end() -> None:
    robot = robot_of(cart_task(lambda: Cart(lambda step, state: "over" if step == 3 else None)))
    measured = robot.play(np.ones((6, 1), np.float32))
    assert np.isfinite(measured[:4]).all()
    assert np.isnan(measured[4:]).all()
    assert abs(robot.measured()[0]) <= 0.1


def test_angles_are_followed_across_the_jump() -> None:
    def angle(observation):
        return np.arctan2(observation[1], observation[0]), observation[2]

    source = GymnasiumTask(
        env=lambda: gymnasium.make("Pendulum-v1"),
        observe=angle,
        positions=(0,),
        velocities=(1,),
        angles=(0,),
        position_low=np.pi - 1.0,
        position_high=np.pi + 1.0,
        rate=1.0,
    )
    robot = robot_of(source)
    env = robot.driver.env.unwrapped
    env.state = np.asarray([np.pi + 0.2, 7.5])  # fast enough to go round
    robot.driver._stand(env._get_obs())
    assert robot.measured()[0] == pytest.approx(np.pi + 0.2, abs=1e-5)  # -π + 0.2 for arctan2
    measured = robot.play(np.full((60, 1), 2.0, np.float32))
    assert measured[-1, 0] == pytest.approx(env.state[0], abs=1e-4)
    assert measured[-1, 0] > 3 * np.pi
    robot.driver.turn_back()
    assert abs(robot.measured()[0] - np.pi) <= np.pi


def test_evaluation_starts_where_the_reference_does() -> None:
    def place(env: Any, position: np.ndarray) -> np.ndarray:
        env.unwrapped.state = np.asarray([position[0], 0.0])
        return env.unwrapped.state

    robot = robot_of(cart_task(place=place))
    before = robot.measured()
    references = robot.task.evaluation(robot.task.evaluation_speed)
    records = robot.follow(policy_of(robot), references)
    for record, reference in zip(records, references, strict=True):
        assert record.measured[0, 0] == pytest.approx([reference.points[0, 0], 0.0], abs=1e-6)
        assert record.commands.shape[1] == len(reference.points)
        assert record.valid.all()
    np.testing.assert_array_equal(robot.measured(), before)


def test_an_evaluation_that_ends_early_is_counted() -> None:
    robot = robot_of(cart_task(lambda: Cart(lambda step, state: "over" if step % 100 == 0 else None)))
    result = evaluate(robot, policy_of(robot))
    assert robot.cuts[Outcome.ENDED] > 0
    assert result.overall.valid_share < 1.0
    assert "steps were followed" in result.notes()[0]


class Perfect(Cart):
    """Goes where the action says, at once."""

    def step(self, action: np.ndarray):
        self.state = np.asarray([float(action[0]), 0.0])
        return self.state.copy(), 0.0, False, False, {}


def perfect_policy(robot: GymnasiumRobot) -> Policy:
    """It commands the reference now: half range 2 · tanh(…), nearly linear for small weights."""
    spec = robot.task.spec
    assert isinstance(spec.kinematics, SelectedOutput)
    error, (entry,) = spec.layout.size, spec.kinematics.indices
    layers = [(np.zeros((2, spec.observation_size), np.float32), np.zeros(2, np.float32))]
    layers[0][0][0, entry], layers[0][0][0, error] = (
        1e-3 * spec.scales.measured_scale[entry],
        1e-3 * float(np.max(spec.scales.error)),
    )
    layers.append((np.asarray([[500.0, 0.0]], np.float32), np.zeros(1, np.float32)))
    return Policy(jax.tree.map(jax.numpy.asarray, tuple(layers)), spec)


def test_evaluation_leads_a_robot_that_cannot_be_placed() -> None:
    robot = robot_of(cart_task(Perfect, hidden=(2,)))
    reference = robot.task.evaluation(0.2)[0]
    (record,) = robot.follow(perfect_policy(robot), (reference,))
    assert record.measured[0, 0, 0] == pytest.approx(2 * np.tanh(reference.points[0, 0] / 2), abs=1e-3)


def test_evaluation_leads_a_placed_robot_whose_tracked_entry_is_not_a_position() -> None:
    def place(env: Any, position: np.ndarray) -> np.ndarray:
        env.unwrapped.state = np.asarray([position[0], 0.0])
        return env.unwrapped.state

    load = cart_task(
        Perfect,
        hidden=(2,),
        observe=lambda seen: np.asarray([*seen, seen[0]]),
        tracked=(2,),
        goal_low=-0.8,
        goal_high=0.8,
        place=place,
    )
    robot = robot_of(load)
    reference = robot.task.evaluation(0.2)[0]
    assert reference.start == pytest.approx([0.0])  # its position is not known, so home stands for it
    assert reference.points[0] == pytest.approx([-0.4])
    (record,) = robot.follow(perfect_policy(robot), (reference,))
    assert record.measured[0, 0, 2] == pytest.approx(2 * np.tanh(reference.points[0, 0] / 2), abs=1e-3)


def test_default_goals_and_references_stay_inside_the_limits() -> None:
    chain = PlanarChain((0.0, 0.0), (PlanarJoint("revolute", 0.5), PlanarJoint("revolute", 0.4)))
    task = cart_task(
        positions=(0, 1),
        velocities=(),
        position_low=(-1.0, 0.2),
        position_high=(0.5, 1.4),
        tracked=chain,
        rate=(0.5, 2.0),
    ).make_task()
    goals = task.sample_goals(np.random.default_rng(0), np.zeros(2), 200)
    assert (goals > [-1.0, 0.2]).all()
    assert (goals < [0.5, 1.4]).all()
    reach = np.asarray([0.5, 2.0]) * 12 * PERIOD / 1.875
    assert (np.abs(np.diff(goals, axis=0)) <= reach + 1e-12).all()
    for reference in task.evaluation(task.evaluation_speed):
        np.testing.assert_allclose(output_of_positions(chain, reference.start), reference.points[0], atol=1e-9)
        speed = np.linalg.norm(np.diff(reference.points, axis=0), axis=1) / PERIOD
        assert speed.max() == pytest.approx(task.evaluation_speed, rel=0.05)


def test_the_default_references_of_one_coordinate_turn_round_smoothly() -> None:
    task = cart_task().make_task()
    references = {reference.name: reference.points[:, 0] for reference in task.evaluation(0.4)}
    for points in references.values():
        speed = np.diff(points) / PERIOD
        assert np.abs(speed).max() == pytest.approx(0.4, rel=0.03)
        assert np.abs(np.diff(speed)).max() < 0.25 * 0.4  # in one control period, of the highest speed
        assert max(abs(speed[0]), abs(speed[-1])) < 0.02
    loop = references["loop"]
    assert (loop.min(), loop.max()) == pytest.approx((-0.5, 0.5), abs=0.01)
    assert loop[[0, -1]] == pytest.approx([0.0, 0.0], abs=1e-9)


class Pictures(Cart):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Named(Cart):
    observation_space = spaces.Dict({"p": spaces.Box(-1, 1, (1,))})


class Unbounded(Cart):
    action_space = spaces.Box(-np.inf, np.inf, (1,))


class Timeless(Cart):
    dt = None


def far_away(speed: float) -> dict[str, np.ndarray]:
    return {"far": np.linspace(0.0, 1.5, 9)[:, None]}


CHAIN = PlanarChain((0.0, 0.0), (PlanarJoint("revolute", 0.5),))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"env": lambda: gymnasium.make("CartPole-v1")},
            "CartPole-v1 has the action space Discrete.*be continuous",
        ),
        ({"env": Pictures}, "Pictures observes an array of shape .8, 8, 3., but a vector of numbers is needed"),
        ({"env": Named}, "Named observes a Dict, but a vector"),
        ({"env": Unbounded}, "Unbounded allows actions from -inf to inf in channel 0, .* give command_low and"),
        ({"env": Unbounded, "command_low": -1.0}, "the range must be finite; give command_low and command_high"),
        ({"env": Timeless}, "Timeless does not tell its control period; give period_s"),
        ({"env": lambda: gymnasium.make("Nothing-v0")}, r"env\(\) cannot make the environment"),
        ({"angles": (5,)}, "angles names entry 5, but the measurement has entries 0 to 1"),
        ({"positions": (2,)}, "positions names entry 2, but the measurement has entries 0 to 1"),
        ({"velocities": (-1,)}, "velocities names entry -1, but the measurement has entries 0 to 1"),
        ({"tracked": (7,)}, "tracked names entry 7, but"),
        ({"tracked": (1,)}, "tracked names entry 1, which is not a position; give goal_low and goal_high"),
        ({"rate": (1.0, 2.0)}, r"rate is \(1.0, 2.0\), but must be a number, or 1 of them"),
        ({"evaluation_speed": -1.0}, "evaluation_speed is -1.0, but must be a number above 0"),
        ({"rate": -1.0}, r"rate\[0\] is -1.0, but must be a positive number"),
        ({"position_low": 2.0}, r"position_low\[0\] is 2.0, but must be below"),
        ({"goal_high": 1.5}, "goals of coordinate 0 lie between -1.0 and 1.5, but its limits are -1.0 to 1.0"),
        ({"command_high": 3.0}, r"command_high\[0\] is 3.0, but its action space allows -2.0 to 2.0"),
        ({"evaluation": far_away}, r"the evaluation path 'far' leads to \(1.125\), but must stay between \(-1\) and"),
        ({"evaluation": lambda speed: {"up": np.zeros((5, 3))}}, "the evaluation path 'up' has shape"),
        (
            {"tracked": CHAIN, "evaluation": lambda speed: {"off": np.ones((5, 2))}},
            "the evaluation path 'off' leaves the limits: the point .* is out of reach",
        ),
        ({"evaluation": lambda speed: 1 / 0}, "evaluation fails with ZeroDivisionError: division by zero"),
        ({"evaluation": lambda speed: {"odd": [[0.0], [0.0, 1.0]]}}, "the evaluation path 'odd' is not an array of n"),
        ({"evaluation": lambda speed: {}}, "evaluation returned an empty dict, but must give at least one path"),
        ({"velocities": (0,)}, "positions and velocities share entry 0, but an entry is one or the other"),
        ({"velocities": (0, 1)}, r"velocities has 2 entries, but must have none or one per position \(1\)"),
        ({"observe": lambda seen: seen[None]}, "observe returned an array of shape"),
        ({"observe": lambda seen: seen["p"]}, "observe fails on an observation with IndexError"),
        ({"preview": (3, 1)}, "preview is .* rising order"),
        ({"command_memory": 10**6}, "command_memory is 1000000, but must be at most 1000"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        cart_task(**changes).make_task()
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


WRONG_KINDS = [
    ("env", lambda: 3, r"env\(\) returned 3, but must return a Gymnasium environment"),
    ("position_low", "-0.25", "position_low is '-0.25', but must be a number, or 1 of them, .* not text"),
    ("angles", 0, "angles is 0, but must list entries of the measurement"),
    ("stop_at_limits", "no", "stop_at_limits is 'no', but must be True or False"),
    ("hardware", "no", "hardware is 'no', but must be True or False"),
    ("safe", 3, "safe is 3, but must be a function"),
    ("place", 3, "place is 3, but must be a function"),
    ("name", 3, "name is 3, but must be a text"),
    ("unit", "", "unit is '', but must be a text"),
    ("sensors", "real", r"sensors is 'real', but must be made with Sensors\(…\)"),
    ("scales", 3, r"scales is 3, but must be made with Scales\(…\)"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG_KINDS)
def test_a_value_of_the_wrong_kind_is_said_in_one_sentence(field: str, value: Any, message: str) -> None:
    wrong = cart_task()
    object.__setattr__(wrong, field, value)  # the type checker of the tests would be first
    with pytest.raises(UserError, match=message):
        wrong.make_task()


def test_goals_outside_the_limits_are_refused() -> None:
    source = cart_task(goals=lambda rng, measured, count: np.full((count, 1), 1.2))
    with pytest.raises(UserError, match=r"goals function leads to \(1.2\), but must stay between \(-1\) and \(1\)"):
        source.make_task()  # before anything moves


def test_goals_that_leave_the_limits_from_some_places_only_are_found_before_anything_moves() -> None:
    def further(rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        return np.full((count, 1), measured[0] + 0.4)

    path = {"line": np.linspace(0.0, 0.5, 20)[:, None]}
    task = cart_task(goals=further, evaluation=lambda speed: path).make_task()
    with pytest.raises(UserError, match=r"goals function leads to \(1.2\)"):
        check_goals(task)
    check_goals(cart_task().make_task())


def test_goals_that_raise_are_said_in_one_sentence() -> None:
    source = cart_task(goals=lambda rng, measured, count: measured[7])
    with pytest.raises(UserError, match=r"goals fails with IndexError: index 7 is out of bounds[^\n]*\.$"):
        source.make_task()


def test_actions_without_bounds_need_a_command_range() -> None:
    robot = robot_of(cart_task(Unbounded, command_low=-2.0, command_high=2.0))
    record = episode(robot, excited=True)
    assert np.abs(record.commands).max() == 2.0
    assert assert_true_transitions(robot, record) == 48


def test_whole_numbers_may_be_numpys() -> None:
    task = cart_task()
    numbers = {"steps": np.int64(12), "trajectories": np.int32(4), "command_memory": np.int64(2)}
    numbers |= {"measurement_memory": np.int8(0), "preview": np.arange(1, 5, 2), "hidden": np.asarray([16])}
    for name, value in numbers.items():
        object.__setattr__(task, name, value)  # as in a user's file, where nothing checks types
    assert task.make_task().spec.to_json() == cart_task().make_task().spec.to_json()
    assert json.dumps(task.make_task().trajectories) == "4"


def test_a_payload_is_refused() -> None:
    source = cart_task()
    with pytest.raises(UserError, match=r"payload is 5.0 kg, but Cart cannot carry one"):
        source.make_robot(source.make_task(), payload_kg=5.0, seed=0)


def test_an_environment_that_measures_nothing_at_the_start_is_refused() -> None:
    with pytest.raises(RobotFailed, match="Cart measures nan in entry 1 right after a reset"):
        robot_of(cart_task(observe=lambda seen: seen * [1.0, np.nan])).measured()


def test_a_measurement_that_changes_its_size_is_refused() -> None:
    sizes = iter([2, 2, 2, 1])
    robot = robot_of(cart_task(observe=lambda seen: seen[: next(sizes)]))
    robot.play(np.ones((1, 1), np.float32))
    with pytest.raises(RobotFailed, match="Cart measures 1 quantities now, but measured 2 at first"):
        robot.play(np.ones((1, 1), np.float32))


def test_training_learns_from_trajectories_that_were_cut() -> None:
    def trouble(step: int, state: np.ndarray) -> str | None:
        return "over" if abs(state[0]) > 1.0 else "blind" if step % 97 == 0 else None

    source = cart_task(lambda: DelayedCommands(Cart(trouble), 1), steps=20, trajectories=6)
    task = source.make_task()
    settings = preset("fast").with_changes(
        {
            "policy_step.steps": 8,
            "imagination.trajectories": 0,
            "refinement.steps": 0,
            "observer.use": 0,
            "model.steps": 400,
            "model.hidden": (32,),
        }
    )
    config = TrainingConfig("cart", "fast", settings, episodes=5)
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    trainer = Trainer(robot, config)
    errors = [trainer.run_episode().metrics["tracking_error"] for _ in range(5)]
    assert robot.cuts[Outcome.NOT_FINITE] > 0
    assert int(trainer.state.refused) == 0
    assert errors[-1] < 0.05
    assert errors[-1] < 0.3 * errors[0]


def test_an_episode_in_which_nothing_was_observed_is_refused_by_name() -> None:
    source = cart_task(lambda: Cart(lambda step, state: "blind"), names=("place", "speed"))
    task = source.make_task()
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    sentence = "Every observation of speed was NaN or infinite after step 1 of "
    with pytest.raises(UserError, match=f"{sentence}all trajectories of episode 1"):
        Trainer(robot, TrainingConfig("cart", "fast", preset("fast"), episodes=1)).run_episode()
    with pytest.raises(UserError, match=f"{sentence}every motion"):
        excite(robot, InspectionSettings(1.0))


def test_a_setting_of_the_wrong_kind_is_named() -> None:
    task = cart_task()
    object.__setattr__(task, "command_memory", "x")  # as in a user's file, where nothing checks types
    with pytest.raises(UserError, match="command_memory is 'x', but must be a whole number"):
        task.make_task()


class Logged(Cart):
    """Remembers what it was told, over all environments."""

    def __init__(self, log: list[Any], trouble: Callable[[int, np.ndarray], str | None] = lambda *_: None) -> None:
        super().__init__(trouble)
        self.log = log

    def step(self, action: np.ndarray):
        self.log.append(float(action[0]))
        return super().step(action)

    def close(self) -> None:
        self.log.append("closed")


def logged(hardware: bool, **changes: Any) -> tuple[GymnasiumRobot, list[Any]]:
    log: list[Any] = []
    source = cart_task(lambda: Logged(log, **changes), hardware=hardware)
    robot = robot_of(source)
    log.clear()
    return robot, log


def test_hardware_is_neutral_after_each_episode_and_when_it_is_given_back():
    robot, log = logged(hardware=True)
    policy, goals = policy_of(robot), np.full((2, 1), 0.5)
    robot.run_episode(policy, goals)
    assert len(log) == 2 * 12 + 1
    assert log[-1] == 0.0 != log[-2]
    before = robot.measured()
    record = robot.run_episode(policy, goals)
    np.testing.assert_array_equal(record.measured[0, 0], before)
    robot.close()
    robot.close()
    assert log[-2:] == [0.0, "closed"]


def test_hardware_is_neutral_also_when_the_episode_is_given_up_or_fails():
    robot, log = logged(hardware=True)
    policy, goals = policy_of(robot), np.full((2, 1), 0.5)
    calls = iter([None, EpisodeAbandoned()])

    def before_trajectory() -> bool:
        if (what := next(calls)) is not None:
            raise what
        return False

    robot.before_trajectory = before_trajectory
    with pytest.raises(EpisodeAbandoned):
        robot.run_episode(policy, goals)
    assert log[-1] == 0.0 != log[-2]

    robot, log = logged(hardware=True, trouble=lambda step, state: "raise" if step == 6 else None)
    robot.run_episode(policy, goals)
    assert log[-1] == 0.0
    with pytest.raises(RobotFailed, match="cable is off"):
        robot.measured()


def test_an_observation_that_cannot_be_read_loses_nothing_and_leaves_nothing_open():
    log: list[Any] = []
    seen: list[Any] = []

    def observe(observation: np.ndarray) -> np.ndarray:
        seen.append(observation)
        if len(seen) > 22:  # the task's look, the reset, and twenty steps
            raise KeyError("angle")
        return observation

    robot = robot_of(cart_task(lambda: Logged(log), observe=observe, hardware=True))
    record = robot.run_episode(policy_of(robot), np.full((4, 1), 0.5))
    np.testing.assert_array_equal(record.valid.sum(axis=1), [12, 8, 0, 0])
    with pytest.raises(RobotFailed, match=r"observe fails .* KeyError: 'angle' \(in trajectory 2, step 9"):
        robot.measured()
    robot.close()
    assert log[-2:] == [0.0, "closed"]
    log.clear()
    source = cart_task(lambda: Logged(log), hardware=True)
    robot = robot_of(source)
    object.__setattr__(source, "observe", observe)
    with pytest.raises(RobotFailed, match="observe fails"):
        robot.measured()
    assert log == ["closed", "closed"]  # the task's look, and the robot that cannot be used


def test_hardware_is_given_back_however_its_rest_ends():
    robot, log = logged(hardware=True)
    robot.run_episode(policy_of(robot), np.full((1, 1), 0.5))

    def interrupted() -> None:
        raise KeyboardInterrupt

    robot.driver.rest = interrupted  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyboardInterrupt):
        robot.close()
    assert log[-1] == "closed"


def test_hardware_is_not_moved_unless_that_is_asked_for():
    robot, log = logged(hardware=True)
    assert not can_go_back(robot)
    policy = policy_of(robot)
    robot.run_episode(policy, np.full((1, 1), 0.5))
    robot.follow(policy, robot.task.evaluation(robot.task.evaluation_speed)[:1])
    assert log[12:15] == [0.0, 0.0, "closed"]  # there is only one of it
    assert log[-2:] == [0.0, "closed"]


def test_hardware_that_does_not_say_how_it_stops_is_refused_before_it_moves():
    log: list[Any] = []
    for stopping, why in (
        (None, "it is not declared how the robot stops"),
        ({"speed": 1.0}, "it is not declared how position 0 stops"),
        ({"lag_s": None}, "neutral does not stop position 0. Say how it stops"),
        ({"lags": 1.0}, "must be a mapping with fields out of"),
    ):
        with pytest.raises(UserError, match=f"^hardware=True, and .*{why}"):
            cart_task(lambda: Logged(log), hardware=True, stopping=stopping).make_task()
    assert set(log) == {"closed"}


def test_every_command_of_hardware_goes_through_the_gate():
    """Full command to one side: it slows down before its limit, and what is recorded is what was applied."""
    log: list[Any] = []
    robot = robot_of(cart_task(lambda: Logged(log), hardware=True, steps=40))
    log.clear()
    policy = policy_of(robot)
    record = robot.run_episode(policy, np.full((1, 1), 0.5), np.full((1, 40, 1), 5.0))
    assert 0.9 < record.measured[..., 0].max() <= 1.02
    np.testing.assert_allclose(record.commands[0, :, 0], log[:40], rtol=1e-6)
    assert not record.free[0, -1, 0]

    class Runaway(Cart):
        def step(self, action: np.ndarray):
            self.state[0] += 0.08  # whatever is commanded
            return super().step(0.0 * action)

    robot = robot_of(cart_task(Runaway, hardware=True, steps=40))
    record = robot.run_episode(policy, np.full((1, 1), 0.5))
    assert record.valid.sum() < 40
    with pytest.raises(RobotFailed, match="was stopped: "):
        robot.measured()


def test_a_mass_is_braked_at_the_end_of_each_episode():
    class Mass(Cart):
        def step(self, action: np.ndarray):
            velocity = self.state[1] + PERIOD * action[0]
            self.state = np.asarray([self.state[0] + PERIOD * velocity, velocity])
            return self.state.copy(), 0.0, False, False, {}

    stopping = {"lag_s": None, "deceleration": 1.0, "brake": 0.5}
    robot = robot_of(cart_task(Mass, hardware=True, stopping=stopping, position_low=-4.0, position_high=4.0))
    robot.run_episode(policy_of(robot), np.full((1, 1), 0.5), np.full((1, 12, 1), 1.0))
    assert abs(robot.measured()[1]) < 0.05


def test_a_simulation_is_closed_too_and_gets_no_command_more():
    robot, log = logged(hardware=False)
    assert can_go_back(robot)
    robot.run_episode(policy_of(robot), np.full((2, 1), 0.5))
    robot.close()
    assert (len(log), log[-1]) == (2 * 12 + 1, "closed")


def test_a_policy_with_an_observer_sees_its_estimate_and_begins_anew_after_a_reset():
    """With the register as its observer everything is as without; a lazy one sees something else."""
    plain, observed, lazy = (robot_of(cart_task()) for _ in range(3))
    policy = policy_of(plain)
    register = Observer.register(Dynamics.random(policy.spec, (4,), key=jax.random.key(0)))
    slow = dataclasses.replace(register, parameters=register.parameters._replace(gain=0.5 * register.parameters.gain))
    goals = np.asarray([[0.4], [-0.3], [0.2]], np.float32)
    without = plain.run_episode(policy, goals)
    record = observed.run_episode(Controller(policy, register), goals)
    for name in ("starts", "measured", "commands", "references"):
        np.testing.assert_allclose(getattr(record, name)[:1], getattr(without, name)[:1], atol=1e-4)
    assert without.restarts is None
    np.testing.assert_array_equal(record.restarts, np.zeros((3, 2)))
    other = lazy.run_episode(Controller(policy, slow), goals)
    assert np.abs(other.starts[1, :2] - other.measured[1, 0]).max() > 1e-3  # the estimate goes on
    np.testing.assert_allclose(other.references[:, 0, 0], other.measured[:, 0, 0], atol=1e-6)
    assert len(lazy.follow(Controller(policy, slow), lazy.task.evaluation(0.3))) > 0


@pytest.mark.parametrize("gap", [3, 4])
def test_an_observer_predicts_what_is_missing_up_to_its_limit(gap: int) -> None:
    """Without an observer the trajectory is cut at once; with one it goes on, and is cut after three steps."""

    def trouble(step: int, state: np.ndarray) -> str | None:
        return "blind" if 5 <= step < 5 + gap else None

    robot, plain = (robot_of(cart_task(lambda: Cart(trouble))) for _ in range(2))
    policy = policy_of(robot)
    settings = ObserverSettings.of(policy.spec, max_missing=3)
    register = Observer.register(Dynamics.random(policy.spec, (4,), key=jax.random.key(0)), settings)
    goals = np.full((2, 1), 0.4, np.float32)
    plain.run_episode(policy, goals)
    assert plain.cuts == {Outcome.NOT_FINITE: 2}
    record = robot.run_episode(Controller(policy, register), goals)
    np.testing.assert_array_equal(record.valid.sum(axis=1), [12 if gap == 3 else 8, 12])
    assert np.isfinite(record.measured[0, :5]).all()
    assert np.isnan(record.measured[0, 5 : 5 + gap, 1]).all()
    assert np.isfinite(record.measured[0, 5 : 5 + gap, 0]).all()  # the other sensor is there
    assert np.isfinite(record.commands).all()
    assert np.isfinite(record.starts).all()
    assert np.isfinite(record.references).all()
    if gap == 3:
        assert np.isfinite(record.measured[0, 8:]).all()
        assert robot.notes() == []
        return
    assert robot.cuts == {Outcome.LOST: 1}
    (name,) = (policy.spec.layout.measured[i] for i in policy.spec.layout.velocity)
    assert robot.notes() == [
        f"1 trajectory was cut short: no measurement of {name} for more than 3 steps, as long as the observer may "
        "predict; what was seen before is used."
    ]
    assert np.isfinite(record.measured[1]).all()
    robot.play(np.ones((2, 1), np.float32))  # open loop there is no observer


def test_a_motion_ends_before_a_position_leaves_its_limits() -> None:
    limited = robot_of(cart_task(stop_at_limits=None))
    assert limited.task.stop_at_limits  # a reset is inside
    record = episode(limited, excited=True)
    assert limited.cuts[Outcome.LIMIT] > 0
    assert np.abs(record.measured[..., 0]).max() <= 1.0 + 0.02 * 2.0
    assert not record.valid.all()
    assert assert_true_transitions(limited, record) == record.valid.sum()
    assert "about to leave its limits" in limited.notes()[0]
    free = robot_of(cart_task())
    assert np.abs(episode(free, excited=True).measured[..., 0]).max() > 1.1


def test_limits_that_a_reset_is_outside_of_end_no_motion() -> None:
    assert not robot_of(cart_task(stop_at_limits=None, position_low=0.5)).task.stop_at_limits


def test_a_safe_policy_brings_hardware_back_instead_of_a_reset() -> None:
    asked: list[float] = []

    class Counted(Cart):
        resets = 0

        def reset(self, **more: Any):
            Counted.resets += 1
            return super().reset(**more)

    def safe(measured: np.ndarray) -> list[float]:
        asked.append(float(measured[0]))
        return [-2.0 * np.sign(measured[0])]

    robot = robot_of(cart_task(Counted, stop_at_limits=True, hardware=True, safe=safe, stopping={"lag_s": 0.0}))
    robot.measured()
    before = Counted.resets
    record = episode(robot, excited=True)
    assert asked
    assert Counted.resets == before
    assert np.abs(record.measured[..., 0]).max() <= 1.04


def test_a_safe_policy_that_fails_is_reported() -> None:
    wrong = {"lag_s": 0.0}  # it needs longer: the gate lets it come to its limit
    robot = robot_of(
        cart_task(stop_at_limits=True, hardware=True, safe=lambda measured: measured["angle"], stopping=wrong)
    )
    episode(robot, excited=True)
    with pytest.raises(UserError, match="safe fails on a measurement with IndexError"):
        robot.measured()


def test_a_trajectory_ends_at_the_horizon_and_the_next_goes_on_from_there() -> None:
    robot = robot_of(cart_task())
    robot.horizon = 5
    record = episode(robot)
    assert (record.valid.sum(axis=1) == 5).all()
    np.testing.assert_array_equal(record.measured[1:, 0], record.measured[:-1, -1])


def test_open_loop_motion_stops_at_limits() -> None:
    robot = robot_of(cart_task(stop_at_limits=True))
    measured = robot.play(np.full((40, 1), 2.0, np.float32))
    seen = measured[np.isfinite(measured[:, 0]), 0]
    assert len(seen) < 41
    assert seen.max() <= 1.04
    assert abs(robot.measured()[0]) < 0.2  # reset


def test_evaluation_follows_tours_through_goals_of_the_users_own_at_the_speed_of_training() -> None:
    def corners(rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        return rng.choice([-0.5, 0.5], (count, 1))

    task = cart_task(goals=corners).make_task()
    references = task.evaluation(task.evaluation_speed)
    assert [reference.name for reference in references] == ["tour 1", "tour 2"]
    for reference in references:
        assert np.abs(reference.points).max() <= 0.5 + 1e-6
        assert len(reference.points) == pytest.approx(3 * task.steps, abs=4)
        assert np.abs(np.diff(reference.points, axis=0)).max() / PERIOD <= 0.8 * 1.1  # the rate
    slower = task.evaluation(task.evaluation_speed / 2)
    assert len(slower[0].points) == pytest.approx(2 * len(references[0].points), abs=4)
