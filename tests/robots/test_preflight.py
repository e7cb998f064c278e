"""`firsthand check` on robots of one's own: what it finds before anything is trained."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from firsthand.errors import UserError
from firsthand.robots.gymnasium import GymnasiumTask
from firsthand.robots.preflight import Finding, Verdict, check_robot
from firsthand.robots.registry import NamedRobot


class Slide(gymnasium.Env):
    """A slide that goes where it is told, and a load that hangs on it."""

    action_space = spaces.Box(-1.0, 1.0, (1,))
    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    dt = 0.05

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self.at(0.0), {}

    def step(self, action: np.ndarray):
        return self.at(self.place + self.dt * float(action[0])), 0.0, False, False, {}

    def at(self, place: float) -> np.ndarray:
        self.place = place
        return np.asarray([place, place], np.float32)


def slide(**changes: Any) -> GymnasiumTask:
    given: dict[str, Any] = {"names": ("slide", "load"), "units": ("m", "m"), "positions": ("slide",)}
    limits = {"position_low": -1.0, "position_high": 1.0, "rate": 0.5, "steps": 40, "hidden": (8,)}
    return GymnasiumTask(env=Slide, name="slide", **{**given, **limits, **changes})


def rows(task: GymnasiumTask) -> dict[str, Finding]:
    """What `check` says, doubts and errors before the rest of the same name."""
    found = sorted(
        check_robot(NamedRobot("slide", task, task.make_task())),
        key=lambda row: row.verdict in (Verdict.DOUBTFUL, Verdict.WRONG),
    )
    return {row.what: row for row in found}


def to(env: Any, position: np.ndarray) -> np.ndarray:
    return env.unwrapped.at(float(position[0]))


@pytest.fixture(autouse=True)
def without_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its derivative is compiled, and looked at elsewhere."""
    monkeypatch.setattr("firsthand.robots.preflight._cost", lambda task: [])


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (lambda env, position: None, "place returned None, but must return the observation"),
        (lambda env, position: env.unwrapped.go_to(position), r"raised AttributeError in place\(\)"),
        (lambda env, position: env.unwrapped.at(0.0), "asked to put slide at -0.5, it leaves it at 0"),
    ],
    ids=["nothing", "raises", "elsewhere"],
)
def test_place_is_tried_before_the_training(place: Any, text: str) -> None:
    found = rows(slide(place=place))["place"]
    assert found.verdict is Verdict.WRONG
    assert re.search(text, found.text)


def test_a_place_that_works_is_said_and_none_is_no_row() -> None:
    assert rows(slide(place=to))["place"].verdict is Verdict.OK
    assert "place" not in rows(slide())


def test_place_of_real_hardware_is_not_tried() -> None:
    def must_not_move(env: Any, position: np.ndarray) -> None:
        raise AssertionError("it moved")

    real = slide(place=must_not_move, hardware=True, stopping={"lag_s": 0.1}, directions=((0, 1),))
    assert "place" not in rows(real)


def test_a_period_that_is_not_the_environments_is_doubted_and_one_in_another_unit_is_refused() -> None:
    assert rows(slide(period_s=0.05))["period"].verdict is Verdict.OK
    assert rows(slide(period_s=0.1))["period"].verdict is Verdict.DOUBTFUL  # a wrapper may repeat actions
    with pytest.raises(UserError, match=r"period_s is 50, but the environment's dt is 0\.05; are both in seconds"):
        slide(period_s=50.0).make_task()


def test_limits_in_millimetres_that_are_declared_in_metres_are_doubted() -> None:
    found = rows(slide(position_low=-250.0, position_high=250.0, rate=200.0))["limits"]
    assert found.verdict is Verdict.DOUBTFUL
    assert "slide spans 500 m" in found.text


def test_a_rate_that_limits_nothing_and_a_preview_beyond_the_trajectory_are_doubted() -> None:
    found = rows(slide(rate=1e6, preview=(2, 500)))
    assert "rate is 1e+06, but no reference needs more than" in found["rate"].text
    assert found["preview"].text == "looks 500 steps ahead, but a trajectory has 40"
    assert {"rate", "preview"}.isdisjoint(rows(slide()))


def test_references_are_as_fast_as_in_training_where_a_measured_entry_is_tracked() -> None:
    """From home to goals alone they would be half as fast: training goes from goal to goal."""
    task = slide(tracked=("load",), goal_low=-0.9, goal_high=0.9, rate=10.0, steps=40).make_task()
    rng, here, fastest = np.random.default_rng(0), 0.0, 0.0
    for goal in task.sample_goals(rng, np.zeros(2, np.float32), 200)[:, 0]:
        fastest, here = max(fastest, abs(goal - here) * 1.875 / (40 * 0.05)), goal
    text = rows(slide(tracked=("load",), goal_low=-0.9, goal_high=0.9, rate=10.0, steps=40))["goals"].text
    assert float(text.split("references up to ")[1].split()[0]) == pytest.approx(100 * fastest, rel=0.02)
