"""A learned simulator of a plant that is known exactly: a mass pushed by a delayed command."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.logs import Series
from firsthand.plants import DelayedDoubleIntegrator, check_plant
from firsthand.plants.learned import LearnedPlant, Networks, Observation
from firsthand.plants.learned.plant import Beyond, input_size
from firsthand.robots import SimulatedRobot
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.robots.registry import find_robot, make_task
from firsthand.robots.stored_simulator import SimulatorSource, StoredSimulator
from firsthand.runs import packed
from firsthand.simulators import FitSettings, fit, fit_linear, open_loop, record
from firsthand.simulators.data import Windows, split
from firsthand.simulators.fit import make_untrained_plant
from firsthand.simulators.folder import save
from firsthand.tasks import Task

KEY = jax.random.key(0)
DELAY = 2
SETTINGS = FitSettings(
    members=2, hidden=(8,), history_s=0.5, rate_history=3, observed_steps=4, steps=400, batch=64, rate=1e-2,
    rollout_steps=200, rollout_batch=32, rollout_rate=5e-3, model_error=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def task(make_probe_task) -> Task:
    return make_probe_task(
        measured=2, command_memory=1, steps=20, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    )


def exact(task: Task, beyond: Beyond = "ignore", disagreement: float = 0.0) -> LearnedPlant:
    """Networks whose linear part is the plant itself: Δv = T · u_{k-delay}, so Δw = T · (u_{k-d} + u_{k-d-1}) / 2."""
    history, rates, gain = 3, 3, 0.1
    inputs = input_size(task.spec, history, rates)
    linear = np.zeros((2, 1, inputs), np.float32)
    linear[:, 0, rates + DELAY] = linear[:, 0, rates + DELAY + 1] = gain / 2 / 0.5
    place = inputs - 1 - 1 - 2  # the position comes before the rate and two mean commands
    linear[:, 0, place] = np.asarray([disagreement, -disagreement]) / 2
    zeros = jnp.zeros((rates, 1))
    return LearnedPlant(
        networks=Networks(((jnp.zeros((2, 1, 1, inputs)), jnp.zeros((2, 1, 1))),), jnp.asarray(linear)),
        observation=Observation(
            zeros.at[0].set(1.0), zeros, jnp.zeros((2, 1)), jnp.zeros(1), zeros.at[0].set(1.5).at[1].set(-0.5)
        ),
        center=jnp.zeros(1),
        scale=jnp.ones(1),
        rate_scale=jnp.asarray([3.0]),
        change_scale=jnp.asarray([0.5]),
        usual_doubt=jnp.asarray(0.1),
        spec=task.spec,
        command_history=history,
        observed_steps=3,
        beyond=beyond,
    )


def test_it_steps_like_the_plant_it_is(task: Task) -> None:
    plant, truth = exact(task), DelayedDoubleIntegrator(delay=DELAY)
    commands = np.random.default_rng(0).uniform(-1, 1, (40, 1)).astype(np.float32)
    robots = [SimulatedRobot(one, dataclasses.replace(task, home=(0.7,))) for one in (plant, truth)]
    ours, theirs = (robot.play(commands) for robot in robots)
    np.testing.assert_allclose(ours[:, 0], theirs[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours[:, 1], theirs[:, 1], atol=0.06)  # a velocity is read off two mean rates
    assert np.ptp(ours[:, 0]) > 0.1


def test_a_command_beyond_its_range_counts_as_its_limit(task: Task) -> None:
    plant = exact(task)
    state = plant.step(plant.reset(jnp.zeros(1)), jnp.asarray([5.0]), key=KEY)
    assert float(state.commands[0, 0]) == 1.0


def test_nothing_stops_it_at_the_edge_of_the_log(task: Task) -> None:
    plant, commands = exact(task), np.full((60, 1), 1.0, np.float32)
    seen = SimulatedRobot(plant, dataclasses.replace(task, home=(0.0,))).play(commands)
    assert seen[-1, 0] > 5.0


@pytest.mark.parametrize(("beyond", "share"), [("ignore", 1.0), ("slow", 0.6), ("stop", 0.4)])
def test_where_the_networks_disagree_it_can_slow_down_or_stop(task: Task, beyond: Beyond, share: float) -> None:
    """The members disagree in proportion to the position: at 0.6 by three times what is usual."""
    commands = np.full((40, 1), 1.0, np.float32)
    free, held = (
        SimulatedRobot(exact(task, b, 0.5 * 2), dataclasses.replace(task, home=(0.0,))).play(commands)[-1, 0]
        for b in ("ignore", beyond)
    )
    assert held <= share * free + 1e-6
    assert held >= 0.1


def test_it_is_a_plant_like_any_other(task: Task) -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=(200, 2)), axis=0).astype(np.float32)
    plant = make_untrained_plant(task.spec, [Series(walk, np.zeros((199, 1), np.float32))], SETTINGS)
    # Untrained it drifts nowhere in particular; at rest in the middle all inputs are zero, and it must not move.
    plant = eqx.tree_at(lambda p: p.center, plant, jnp.zeros(1))
    report = check_plant(
        plant,
        positions=np.asarray([[0.0]]),
        key=KEY,
        steps=60,
        rest_tolerance=1e-2,
        num_points=4,
        num_directions=2,
        several_steps=4,
    )
    assert report.derivative_dtype == "float64"


@pytest.fixture(scope="module")
def recording(task: Task) -> list[Series]:
    """Two minutes of the mass being pushed about."""
    robot = SimulatedRobot(DelayedDoubleIntegrator(delay=DELAY), task)
    rng = np.random.default_rng(0)
    series = []
    for _ in range(10):
        half = rng.uniform(-1, 1, (60, 1)).astype(np.float32)
        commands = np.concatenate([half, -half])
        series.append(Series(robot.play(commands), commands))
    return series


def test_fitting_finds_the_plant(task: Task, recording: list[Series]) -> None:
    learned, held = split(recording, 0.1)
    told: list[tuple[str, int, int]] = []
    plant = fit(task.spec, learned, SETTINGS, progress=lambda phase, done, total, _: told.append((phase, done, total)))
    assert told[0] == ("short, network 1 of 2", 100, 400)
    assert told[-1] == ("roll-outs, network 2 of 2", 200, 200)
    linear = fit_linear(task.spec, learned)
    one, quarter, second, five = open_loop(plant, held, linear)
    assert (one.steps, quarter.steps, second.steps, five.steps) == (1, 2, 10, 50)
    for accuracy in (second, five):
        assert accuracy.names == ("p", "v", "positions", "tracked output")
        assert accuracy.simulator[0] < 0.15 * accuracy.constant_velocity[0]
        assert accuracy.simulator[3] == pytest.approx(accuracy.simulator[0])
        assert accuracy.linear is not None
        assert accuracy.linear[0] < 0.02 * accuracy.constant_velocity[0], "the plant is linear"
        assert accuracy.overall("linear") == pytest.approx(accuracy.linear[0])
    # What one command does, once its dead time is over: T · u.
    state, step = plant.reset(jnp.zeros(1)), eqx.filter_jit(plant.step)
    changes = []
    for command in (1.0, 0.0, 0.0, 0.0):
        before = state.rates[0, 0]
        state = step(state, jnp.asarray([command]), key=KEY)
        changes.append(float(state.rates[0, 0] - before))
    np.testing.assert_allclose(changes, [0.0, 0.0, 0.05, 0.05], atol=0.03)
    # The networks disagree where nothing was recorded.
    far, usual = (plant.step(plant.reset(jnp.asarray([p])), jnp.ones(1), key=KEY).doubt for p in (40.0, 0.0))
    assert float(far) > 2 * float(usual)


def test_a_fit_that_goes_on_after_its_first_network_ends_as_if_it_had_not_stopped(
    task: Task, recording: list[Series]
) -> None:
    settings = dataclasses.replace(SETTINGS, steps=3, rollout_steps=0)
    members: list[LearnedPlant] = []
    whole = fit(task.spec, recording, settings, keep=members.append)
    assert len(members) == 2
    again = fit(task.spec, recording, settings, finished=members[:1], keep=members.append)
    assert len(members) == 3
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_errors_are_the_plants_own(task: Task, recording: list[Series]) -> None:
    """The exact plant has none; the baselines' are worked out here."""
    series = recording[3]
    one, _, second, five = open_loop(exact(task), [series])
    assert one.simulator[0] < 0.02, "the last rate is known to half a command"
    assert five.simulator[0] < 0.1 * five.constant_velocity[0]
    rows = np.arange(6, len(series.commands) + 1 - 10)
    assert second.windows == len(rows)
    away = series.measured[rows + 10, 0] - series.measured[rows, 0]
    assert second.standing_still[0] == pytest.approx(np.sqrt(np.mean(away.astype(float) ** 2)), rel=1e-5)
    moving = away - 1.0 * series.measured[rows, 1]
    assert second.constant_velocity[0] == pytest.approx(np.sqrt(np.mean(moving.astype(float) ** 2)), rel=1e-4)


def test_what_is_held_out_is_never_learned_from() -> None:
    numbers = np.arange(5001, dtype=np.float32)
    learned, held = split([Series(numbers[:, None], numbers[:-1, None])], 0.1)
    commands = [np.concatenate([s.commands[:, 0] for s in part]) for part in (learned, held)]
    assert sorted(np.concatenate(commands)) == numbers[:-1].tolist()
    assert 0.1 < len(commands[1]) / 5000 < 0.15
    for series in (*learned, *held):
        np.testing.assert_array_equal(series.measured[:-1], series.commands)
    windows = Windows.of(held)
    for k in windows.starts(4, 10):
        np.testing.assert_array_equal(np.diff(windows.measured[k - 4 : k + 11, 0]), 1.0)


def test_too_little_data(task: Task) -> None:
    tiny = Series(np.zeros((50, 2), np.float32), np.zeros((49, 1), np.float32))
    with pytest.raises(UserError, match="needs at least 100"):
        fit(task.spec, [tiny], SETTINGS)
    with pytest.raises(UserError, match="no usable rows"):
        fit(task.spec, [], SETTINGS)


def test_recording_moves_everywhere_within_the_limits(task: Task) -> None:
    episodes = list(record(SimulatedRobot(DelayedDoubleIntegrator(delay=DELAY), task), 5.0, seed=3))
    assert len(episodes) == 300 // 12
    commands = np.concatenate([e.commands.reshape(-1) for e in episodes])
    assert np.abs(commands).max() <= 1.0
    assert commands.std() > 0.1
    for before, after in itertools.pairwise(episodes):
        np.testing.assert_array_equal(before.measured[-1, -1], after.measured[0, 0])
    again = next(iter(record(SimulatedRobot(DelayedDoubleIntegrator(delay=DELAY), task), 5.0, seed=3)))
    np.testing.assert_array_equal(again.commands, episodes[0].commands)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """An untrained simulator of the excavator."""
    spec = make_task("excavator").spec
    rng = np.random.default_rng(0)
    series = Series(rng.normal(size=(50, 8)).astype(np.float32), rng.uniform(-1, 1, (49, 4)).astype(np.float32))
    plant = make_untrained_plant(spec, [series], FitSettings(hidden=(4,)))
    save(
        tmp_path / "sim",
        plant,
        robot="excavator",
        description=described(),
        data=[],
        settings=FitSettings(hidden=(4,)),
        accuracy={},
    )
    return tmp_path / "sim"


def test_a_simulator_comes_back_bit_for_bit(stored: Path) -> None:
    source = find_robot(str(stored)).source
    assert isinstance(source, SimulatorSource)
    task = source.make_task()
    assert task.spec == make_task("excavator").spec
    plant = source.stored.plant()
    assert (plant.command_history, plant.rate_history, plant.num_commands) == (17, 4, 4)
    rng = np.random.default_rng(0)
    series = Series(rng.normal(size=(50, 8)).astype(np.float32), rng.uniform(-1, 1, (49, 4)).astype(np.float32))
    before = make_untrained_plant(task.spec, [series], FitSettings(hidden=(4,)))
    for ours, theirs in zip(jax.tree.leaves(plant), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    np.testing.assert_allclose(robot.measured()[:4], task.home, rtol=1e-6)
    with pytest.raises(UserError, match="cannot carry any"):
        source.make_robot(task, payload_kg=100.0, seed=0)
    with pytest.raises(UserError, match="already holds a simulator"):
        save(stored, plant, robot="excavator", description=described(), data=[], settings=SETTINGS, accuracy={})


def described() -> RobotDescription:
    return RobotDescription.of(make_task("excavator"), kind="simulation")


def use(stored: Path) -> None:
    find_robot(str(stored)).make()


def edit(stored: Path, **changes: object) -> None:
    file = stored / "simulator.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("network.0.bias", lambda array: array[..., None], "does not fit its simulator.json"),
        ("center", lambda array: np.tile(array, (2, 1)), "does not fit its simulator.json"),
        ("observation.taps", lambda array: array[:, :1], "does not fit its simulator.json"),
        ("network.linear", lambda array: np.full_like(array, np.nan), "does not hold finite numbers only"),
        ("rate_scale", lambda array: array.astype(np.int64), "does not hold finite numbers only"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_moves(
    stored: Path, name: str, change: Callable[[np.ndarray], np.ndarray], words: str
) -> None:
    """The checksum is right: somebody has made the file so."""
    weights = stored / "simulator.safetensors"
    arrays, info = packed.unpack(weights.read_bytes())
    weights.write_bytes(packed.pack({**arrays, name: change(arrays[name])}, info))
    edit(stored, weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest())
    with pytest.raises(UserError, match=words):
        use(stored)


def test_a_simulator_that_cannot_be_used_says_why(stored: Path) -> None:
    description = (stored / "simulator.json").read_bytes()
    described = json.loads(description)["robot_description"]
    spec = described["control_spec"]
    for changes, words in [
        ({"robot": "digger"}, "imitates 'digger', whose task is needed and cannot be had: There is no robot"),
        (
            {ROBOT_DESCRIPTION: {**described, "control_spec": {**spec, "period_s": 0.05}}},
            "has changed since: period_s is 0.05 there and 0.04 here",
        ),
        (
            {ROBOT_DESCRIPTION: {**described, "control_spec": {**spec, "period_s": "x"}}},
            "period_s is 'x', but must be a number",
        ),
        ({"command_history": "three"}, "command_history is 'three'"),
        ({"format": 1}, "was fitted by firsthand 0.1.0 and has format 1, but this version of firsthand reads format 2"),
        ({"format": None}, "does not describe a simulator"),
        ({"beyond": "fly"}, "beyond is 'fly'"),
        ({"weights_sha256": "0"}, "its SHA-256 is another"),
    ]:
        (stored / "simulator.json").write_bytes(description)
        edit(stored, **changes)
        with pytest.raises(UserError) as caught:
            use(stored)
        assert words in str(caught.value)
    (stored / "simulator.json").write_bytes(description)
    weights = stored / "simulator.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(UserError, match=r"simulator\.safetensors is damaged"):
        StoredSimulator.open(stored).plant()
    weights.unlink()
    with pytest.raises(UserError, match="cannot read"):
        StoredSimulator.open(stored).plant()
    (stored / "simulator.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        find_robot(str(stored))


class Runaway(SimulatedRobot):
    """A mass that is put back to the middle when it has left it, and measures its place on a ring."""

    def play(self, commands):
        seen = super().play(commands)
        if (far := np.abs(seen[:, 0]) > 0.5).any():
            seen[int(np.argmax(far)) + 1 :] = np.nan
            self._now = SimulatedRobot(self.plant, self.task)._now
        return np.stack([(seen[:, 0] + 0.3) % 8.0, seen[:, 1]], axis=1).astype(np.float32)


def test_no_transition_of_a_recording_leads_across_a_reset_or_a_jump(task: Task) -> None:
    limits = dataclasses.replace(task.spec.limits, position_low=(-4.0,), position_high=(4.0,))
    layout = dataclasses.replace(task.spec.layout, velocity=(1,))
    ring = dataclasses.replace(task, spec=dataclasses.replace(task.spec, limits=limits, layout=layout))
    episodes = list(record(Runaway(DelayedDoubleIntegrator(delay=DELAY), ring), 3.0, seed=1))
    valid = np.concatenate([e.valid.reshape(-1) for e in episodes])
    before, after = (
        np.concatenate([e.measured[:, s].reshape(-1, 2) for e in episodes]) for s in (slice(-1), slice(1, None))
    )
    expected = before[:, 0] + 0.1 * before[:, 1]  # a place moves by no more than a period at its speed, and a push
    wrong = ~(np.abs(after[:, 0] - expected) < 0.1)
    assert 0 < wrong.sum() < 0.5 * wrong.size
    assert not (wrong & valid).any()
    assert (~valid).sum() < 2 * wrong.sum() + 5
