"""A learned simulator of a plant that is known exactly: a mass pushed by a delayed command."""

import dataclasses
import itertools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.logs import Series
from firsthand.plants import DelayedDoubleIntegrator, check_plant
from firsthand.plants.learned import LearnedPlant
from firsthand.plants.learned.plant import input_size
from firsthand.robots import SimulatedRobot
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.robots.registry import find_robot, make_task
from firsthand.robots.stored_simulator import SimulatorSource, StoredSimulator
from firsthand.simulators import FitSettings, fit, open_loop, record
from firsthand.simulators.data import Windows, split
from firsthand.simulators.fit import make_untrained_plant
from firsthand.simulators.folder import save
from firsthand.tasks import Task

KEY = jax.random.key(0)
DELAY = 2
SETTINGS = FitSettings(
    hidden=(16,), history_s=0.3, measurement_history=1, steps=400, batch=64, rollout_steps=100, rollout_batch=16
)


@pytest.fixture(scope="module")
def task(make_probe_task) -> Task:
    return make_probe_task(
        measured=2, command_memory=1, steps=20, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    )


def exact(task: Task, limit: float = 1e3) -> LearnedPlant:
    """A network without hidden layers that is the plant itself: Δv = T · u_{k-delay}."""
    history, gain = 3, 0.1
    weight = np.zeros((1, input_size(task.spec, history, 1)), np.float32)
    weight[0, 2 + 1 + DELAY] = gain / 0.5  # after y and the one past velocity come u_k, u_{k-1}, …
    return LearnedPlant(
        layers=((jnp.asarray(weight), jnp.zeros(1)),),
        center=jnp.asarray([0.3, -0.1]),
        scale=jnp.asarray([2.0, 3.0]),
        change_scale=jnp.asarray([0.5]),
        low=jnp.asarray([-limit, -limit]),
        high=jnp.asarray([limit, limit]),
        spec=task.spec,
        command_history=history,
        measurement_history=1,
    )


def test_it_steps_like_the_plant_it_is(task: Task) -> None:
    plant, truth = exact(task), DelayedDoubleIntegrator(delay=DELAY)
    commands = np.random.default_rng(0).uniform(-1, 1, (40, 1)).astype(np.float32)
    robots = [SimulatedRobot(one, dataclasses.replace(task, home=(0.7,))) for one in (plant, truth)]
    ours, theirs = (robot.play(commands) for robot in robots)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.ptp(ours[:, 0]) > 0.1


def test_beyond_what_was_seen_it_stops(task: Task) -> None:
    plant = exact(task, limit=0.5)
    state = plant.reset(jnp.asarray([0.45]))
    step = eqx.filter_jit(plant.step)
    for _ in range(20):
        state = step(state, jnp.asarray([5.0]), key=KEY)
    np.testing.assert_allclose(plant.measure(state, key=KEY), [0.5, 0.0], atol=1e-6)
    assert float(jnp.abs(state.commands).max()) == 1.0, "a command beyond its range counts as its limit"


def test_it_is_a_plant_like_any_other(task: Task) -> None:
    settings = dataclasses.replace(SETTINGS, hidden=(8,))
    walk = np.cumsum(np.random.default_rng(0).normal(size=(200, 2)), axis=0).astype(np.float32)
    plant = make_untrained_plant(task.spec, [Series(walk, np.zeros((199, 1), np.float32))], settings)
    *rest, (weight, bias) = plant.layers
    # Untrained it drifts nowhere in particular; at rest it must not move, so nothing is added to the last layer.
    plant = eqx.tree_at(lambda p: (p.layers, p.center), plant, ((*rest, (weight, bias)), jnp.zeros(2)))
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
    assert told[0] == ("one step", 100, 400)
    assert told[-1] == ("roll-outs", 100, 100)
    one, second, five = open_loop(plant, held)
    assert (one.steps, second.steps, five.steps) == (1, 10, 50)
    for accuracy in (second, five):
        assert accuracy.names == ("p", "v", "tracked output")
        assert accuracy.simulator[0] < 0.1 * accuracy.constant_velocity[0]
        assert accuracy.simulator[2] == pytest.approx(accuracy.simulator[0])
    # What one command does, once its dead time is over: T · u.
    state, step = plant.reset(jnp.zeros(1)), eqx.filter_jit(plant.step)
    changes = []
    for command in (1.0, 0.0, 0.0, 0.0):
        before = state.measured[1]
        state = step(state, jnp.asarray([command]), key=KEY)
        changes.append(float(state.measured[1] - before))
    np.testing.assert_allclose(changes, [0.0, 0.0, 0.1, 0.0], atol=0.02)


def test_the_errors_are_the_plants_own(task: Task, recording: list[Series]) -> None:
    """The exact plant has none; the baselines' are worked out here."""
    series = recording[3]
    one, second, five = open_loop(exact(task), [series])
    assert max(one.simulator) < 1e-5
    assert max(five.simulator) < 1e-3
    rows = np.arange(3, len(series.commands) + 1 - 10)
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
        accuracy=[],
    )
    return tmp_path / "sim"


def test_a_simulator_comes_back_bit_for_bit(stored: Path) -> None:
    source = find_robot(str(stored)).source
    assert isinstance(source, SimulatorSource)
    task = source.make_task()
    assert task.spec == make_task("excavator").spec
    plant = source.stored.plant()
    assert (plant.command_history, plant.measurement_history, plant.num_commands) == (10, 4, 4)
    rng = np.random.default_rng(0)
    series = Series(rng.normal(size=(50, 8)).astype(np.float32), rng.uniform(-1, 1, (49, 4)).astype(np.float32))
    before = make_untrained_plant(task.spec, [series], FitSettings(hidden=(4,)))
    for ours, theirs in zip(jax.tree.leaves(plant), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    np.testing.assert_allclose(robot.measured()[:4], np.clip(task.home, plant.low[:4], plant.high[:4]))
    with pytest.raises(UserError, match="cannot carry any"):
        source.make_robot(task, payload_kg=100.0, seed=0)
    with pytest.raises(UserError, match="already holds a simulator"):
        save(stored, plant, robot="excavator", description=described(), data=[], settings=SETTINGS, accuracy=[])


def described() -> RobotDescription:
    return RobotDescription.of(make_task("excavator"), kind="simulation")


def use(stored: Path) -> None:
    find_robot(str(stored)).make()


def edit(stored: Path, **changes: object) -> None:
    file = stored / "simulator.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


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
        ({"format": 2}, "has a format that this version"),
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
