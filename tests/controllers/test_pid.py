"""The PID for any robot: unknown signs, coupled outputs, one-sided commands, slow processes, robots that fall."""

import gymnasium
import numpy as np
import pytest

from firsthand.controllers import GainSearch, PIDController, identify_outputs, run_by_hand
from firsthand.controllers.pid import FACTORS
from firsthand.errors import UserError
from firsthand.evaluation import tracking_metrics
from firsthand.robots.gymnasium import GymnasiumTask


class Linear(gymnasium.Env):
    """ÿ = −damping ẏ − stiffness y + gain (u − load), measured as y."""

    def __init__(self, gain, *, damping=0.0, stiffness=0.0, load=0.0, low=-1.0, high=1.0, dt=0.05, noise=0.0):
        self.gain, self.damping, self.stiffness, self.load = np.atleast_2d(gain), damping, stiffness, load
        self.dt, self.noise = dt, noise
        outputs, commands = self.gain.shape
        self.action_space = gymnasium.spaces.Box(low, high, (commands,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (outputs,))
        self.place = self.speed = np.zeros(outputs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = np.zeros(len(self.gain)), np.zeros(len(self.gain))
        return self.observed(), {}

    def step(self, action):
        for _ in range(3):
            push = self.gain @ (np.asarray(action, float) - self.load)
            force = push - self.damping * self.speed - self.stiffness * self.place
            self.speed = self.speed + self.dt / 3 * force
            self.place = self.place + self.dt / 3 * self.speed
        return self.observed(), 0.0, False, False, {}

    def observed(self):
        return (self.place + self.noise * self.np_random.standard_normal(len(self.place))).astype(np.float32)


def tune(task: GymnasiumTask, episodes: int = 4) -> tuple[float, float]:
    """The error of standing still, and of the PID after its search."""
    spec = task.make_task()
    robot = task.make_robot(spec, payload_kg=0.0, seed=0)
    model, search, rng = identify_outputs(robot, spec), GainSearch(FACTORS), np.random.default_rng(0)

    def error(controller) -> float:
        goals = spec.sample_goals(rng, robot.measured(), spec.trajectories)
        return tracking_metrics(spec.spec, (run_by_hand(robot, controller, goals),)).mean_error

    still = error(lambda seen, first: np.zeros((1, spec.spec.layout.num_commands)))
    for _ in range(episodes):
        factor = search.next_factor()
        search.record(factor, error(PIDController(spec.spec, model, factor)))
    return still, min(search.errors.values())


def axis(env, outputs: int = 1, **more) -> GymnasiumTask:
    given = {"position_low": -1.0, "position_high": 1.0, "rate": 0.4, "steps": 50, "trajectories": 2, **more}
    return GymnasiumTask(env=env, positions=range(outputs), name="axis", **given)


@pytest.mark.parametrize(
    "task",
    [
        axis(lambda: Linear(-3.0, damping=20.0)),  # a speed, with the sign the wrong way round
        axis(lambda: Linear(2.0, damping=0.5)),  # an acceleration
        axis(lambda: Linear(40.0, damping=20.0, stiffness=30.0)),  # settles
        axis(lambda: Linear([[3.0, 2.0], [-2.0, 3.0]], damping=10.0), outputs=2),  # coupled
        axis(lambda: Linear(20.0, damping=10.0, load=0.4, low=0.0), command_low=0.0),  # pushes one way only
        axis(lambda: Linear(3e-4, damping=0.2, dt=5.0), rate=0.004),  # minutes
        axis(lambda: Linear(6.0, damping=10.0, noise=0.002)),
    ],
    ids=["wrong sign", "acceleration", "settles", "coupled", "one-sided", "slow", "noisy"],
)
def test_it_follows_whatever_the_robot_does_with_its_commands(task: GymnasiumTask):
    still, tuned = tune(task)
    assert tuned < 0.2 * still


def test_an_output_that_nothing_moves_is_reported():
    task = axis(lambda: Linear([[3.0], [0.0]], damping=10.0), outputs=2)
    spec = task.make_task()
    with pytest.raises(
        UserError, match=r"no command of axis moved position 1 above the noise at pushes of up to 0\.5 of"
    ):
        identify_outputs(task.make_robot(spec, payload_kg=0.0, seed=0), spec)
