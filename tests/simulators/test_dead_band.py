"""Dead bands of a machine that is known exactly: two valves with a delay and a lag behind them."""

import numpy as np
import pytest

from firsthand.logs import Series
from firsthand.plants.learned import LearnedPlant
from firsthand.plants.learned.plant import input_size, valve_opening
from firsthand.robots.description import RobotDescription
from firsthand.robots.logged_robot import LoggedRobot
from firsthand.robots.stored_simulator import StoredSimulator
from firsthand.simulators import FitSettings
from firsthand.simulators.dead_band import find_dead_bands
from firsthand.simulators.fit import make_untrained_plant
from firsthand.simulators.folder import save

LOW, HIGH = np.asarray([0.3, 0.0]), np.asarray([0.45, 0.0])
"""The first valve has a dead band, the second none."""
SETTINGS = FitSettings(hidden=(4,))


@pytest.fixture(scope="module")
def robot() -> LoggedRobot:
    return LoggedRobot(
        name="valves",
        period_s=0.05,
        joints=("a", "b"),
        position_low=(-9.0, -9.0),
        position_high=(9.0, 9.0),
        speed=(1.0, 1.0),
    )


@pytest.fixture(scope="module")
def spec(robot: LoggedRobot):
    return robot.make_task().spec


def log(low, high, steps=3000, noise=0.002):
    """Rates follow the openings of three steps ago through a lag, with noisy sensors."""
    rng = np.random.default_rng(0)
    commands = np.clip(0.6 * rng.standard_normal((steps // 8, 2)), -1, 1).repeat(8, axis=0)
    rate, position = np.zeros((steps + 1, 2)), np.zeros((steps + 1, 2))
    for k in range(steps):
        late = commands[max(k - 3, 0)]
        rate[k + 1] = 0.7 * rate[k] + 0.3 * valve_opening(late, low, high)
        position[k + 1] = position[k] + 0.05 * rate[k + 1]
    shown = np.concatenate([position, rate], axis=1)
    return [Series((shown + noise * rng.standard_normal(shown.shape)).astype(np.float32), commands.astype(np.float32))]


def test_openings_are_those_of_the_valve():
    command = np.asarray([-1.0, -0.3, -0.1, 0.0, 0.2, 0.6, 1.0])
    np.testing.assert_allclose(valve_opening(command, 0.3, 0.2), [-1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0], atol=1e-12)
    np.testing.assert_allclose(valve_opening(command, 0.0, 0.0), command)


def test_dead_bands_are_found_on_either_side_and_none_where_there_is_none(spec):
    found = find_dead_bands(spec, log(LOW, HIGH), 13)
    np.testing.assert_allclose(found, [LOW, HIGH], atol=0.026)


@pytest.fixture(scope="module")
def plants(spec) -> tuple[LearnedPlant, LearnedPlant]:
    """Of a machine with a dead band, and of one without; neither is trained."""
    valve, plain = (make_untrained_plant(spec, log(*b), SETTINGS) for b in ((LOW, HIGH), (0 * LOW, 0 * LOW)))
    return valve, plain


def test_networks_see_openings_where_there_are_dead_bands_only(spec, plants):
    with_bands, without = plants
    assert without.dead_band is None
    assert with_bands.dead_band is not None
    for plant, openings in ((with_bands, True), (without, False)):
        size = input_size(spec, plant.command_history, plant.rate_history, openings=openings)
        assert plant.networks.linear.shape == (1, 2, size)


def test_a_simulator_comes_back_with_its_dead_bands_or_without(robot, plants, tmp_path):
    description = RobotDescription.of(robot.make_task(), kind="machine")
    for number, plant in enumerate(plants):
        path = tmp_path / str(number)
        save(path, plant, robot="valves", description=description, data=(), settings=SETTINGS, accuracy={})
        back = StoredSimulator.open(path).plant()
        if plant.dead_band is None:
            assert back.dead_band is None
        else:
            assert back.dead_band is not None
            np.testing.assert_array_equal(back.dead_band, plant.dead_band)
