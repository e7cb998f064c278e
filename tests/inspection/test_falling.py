"""Inspecting a robot that falls: pushes stay short, limits hold, and what could not be measured is reported."""

import gymnasium
import numpy as np

from firsthand.inspection import InspectionSettings, conclude, excite
from firsthand.robots.gymnasium import GymnasiumTask


class Falling(gymnasium.Env):
    """Two upright rods, each with a torque of its own; they fall within half a second."""

    dt = 0.02
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.angle, self.speed = self.np_random.uniform(0.02, 0.04, 2), np.zeros(2)
        return self.observed(), {}

    def step(self, action):
        self.speed = self.speed + self.dt * (30.0 * np.sin(self.angle) + np.asarray([4.0, -3.0]) * action)
        self.angle = self.angle + self.dt * self.speed
        return self.observed(), 0.0, False, False, {}

    def observed(self):
        return np.concatenate([self.angle, self.speed]).astype(np.float32)


def test_a_robot_that_runs_away_and_is_not_stopped_ends_the_inspection():
    source = GymnasiumTask(
        env=Falling,
        name="rods",
        positions=(0, 1),
        velocities=(2, 3),
        position_low=-0.6,
        position_high=0.6,
        rate=0.3,
        stop_at_limits=False,
    )
    task = source.make_task()
    recording = excite(source.make_robot(task, payload_kg=0.0, seed=0), InspectionSettings(1.5, 0.5, 0))
    assert "far outside its limits" in recording.stopped
    assert "moves by itself" in recording.stopped
    assert len(recording) * Falling.dt < 2.0


def test_a_robot_that_falls_is_pushed_within_its_limits_and_says_what_is_not_known():
    source = GymnasiumTask(
        env=Falling, name="rods", positions=(0, 1), velocities=(2, 3), position_low=-0.6, position_high=0.6, rate=0.3
    )
    task = source.make_task()
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    settings = InspectionSettings(1.5, 0.5, 0)
    recording = excite(robot, settings)
    outside = np.abs(recording.after[:, :2]) > 0.6
    assert outside.any(axis=1).mean() < 0.05
    found = conclude("rods", task.spec, settings, recording).findings
    assert [channel.moves for channel in found.channels] == ["position 0", "position 1"]
    assert [channel.kind for channel in found.channels] == ["acceleration"] * 2
    assert any("falls or runs away within about" in note and "dead bands" in note for note in found.notes)
