"""Pushes are gentle, come back, stay inside the limits, and end neutral whatever happens."""

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.inspection import InspectionSettings, Recording, excite

from .probe import ProbeRobot, Truth


def pushed(robot: ProbeRobot, **options) -> Recording:
    return excite(robot, InspectionSettings(**{"minutes": 2.0, "amplitude": 0.5, **options}))


def test_pushes_grow_and_stay_below_the_amplitude() -> None:
    recording = pushed(ProbeRobot(Truth(gain=0.5)), amplitude=0.4)
    climbing = [p.amplitude for p in recording.pushes if not p.randomized]
    assert climbing[0] == pytest.approx(0.04 * 0.4)
    assert climbing == sorted(climbing)
    assert max(np.abs(recording.commands).max(axis=0)) == pytest.approx(0.4)
    signs = [p.sign for p in recording.pushes]
    assert abs(sum(signs)) <= 4


@pytest.mark.parametrize(
    ("kind", "start"),
    [("position", 0.0), ("position", 2.2), ("rate", 0.0), ("rate", 2.2), ("acceleration", 0.0)],
)
def test_positions_stay_inside_their_limits(kind: str, start: float) -> None:
    robot = ProbeRobot(Truth(kind=kind, gain=3.0, start=start, velocities=True), seed=1)
    pushed(robot, amplitude=1.0)
    assert np.abs(np.stack(robot.positions)).max() < robot.truth.limit


@pytest.mark.parametrize("velocities", [True, False])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_mass_without_friction_is_braked_before_the_next_push(velocities: bool, noise: float) -> None:
    truth = Truth(kind="acceleration", delay=2, lag_steps=0.2, velocities=velocities, noise=noise)
    for seed in range(3):
        robot = ProbeRobot(truth, seed=seed)
        recording = pushed(robot, seed=seed)
        assert recording.stopped == ""
        assert np.abs(np.stack(robot.positions)).max() < truth.limit / 2


def test_a_joint_that_rests_near_its_limit_cuts_no_push() -> None:
    robot = ProbeRobot(Truth(gain=0.5, mixing=((1.0, 0.0), (0.0, 0.0)), noise=1e-4))
    robot.position[1] = -2.9
    robot.last = robot._measure()
    recording = pushed(robot, minutes=3.0)
    assert not any(push.cut for push in recording.pushes)
    assert max(push.amplitude for push in recording.alone(0)) == pytest.approx(0.5)


def test_a_position_outside_its_limits_ends_it() -> None:
    def shove(plays: int) -> None:
        if plays >= 120:
            robot.position = robot.position + 0.2

    robot = ProbeRobot(Truth(), before_play=shove)
    recording = pushed(robot)
    assert recording.stopped.startswith("p0 is 3.")
    assert "outside its limits -3 and 3" in recording.stopped
    assert len(recording.pushes) > 0
    assert (robot.sent[-1] == 0.0).all()
    assert np.abs(recording.after).max() < 3.6


def test_a_robot_with_uneven_directions_is_brought_back() -> None:
    robot = ProbeRobot(Truth(gain=1.0, drift=0.05))
    pushed(robot, minutes=3.0)
    assert abs(robot.positions[-1][0]) < 0.25 * robot.truth.limit


def test_the_recording_is_what_was_sent_and_measured() -> None:
    robot = ProbeRobot(Truth(noise=0.01))
    recording = pushed(robot)
    assert recording.commands == pytest.approx(np.stack(robot.sent)[: len(recording)], abs=1e-6)
    assert recording.before[1:] == pytest.approx(recording.after[:-1])
    for push in recording.pushes:
        rows = recording.commands[push.start : push.start + push.steps, 0]
        assert rows == pytest.approx(np.full(push.steps, push.fractions[0]), abs=1e-6)
    assert (robot.sent[-1] == 0.0).all()


def test_stopping_keeps_what_was_seen_and_leaves_the_robot_neutral() -> None:
    robot = ProbeRobot(Truth())
    recording = excite(robot, InspectionSettings(2.0), stop=lambda: robot.plays >= 60)
    assert recording.stopped == "interrupted"
    assert len(recording) == 61 * 5
    assert (robot.sent[-1] == 0.0).all()


def test_an_exception_leaves_the_robot_neutral() -> None:
    def interrupt(plays: int) -> None:
        if plays == 40:
            raise KeyboardInterrupt

    robot = ProbeRobot(Truth(), before_play=interrupt)
    with pytest.raises(KeyboardInterrupt):
        pushed(robot)
    assert (robot.sent[-1] == 0.0).all()
    assert robot.plays == 41 - 1


def test_a_measurement_that_is_no_number_ends_it_with_a_sentence() -> None:
    robot = ProbeRobot(Truth())
    robot.last = np.asarray([np.nan], np.float32)
    with pytest.raises(UserError, match=r"^The robot measures nan for 'p0' at the start, but must .* finite number\.$"):
        pushed(robot)

    def break_sensor(plays: int) -> None:
        if plays == 80:
            robot.position = np.full(1, np.nan)

    robot = ProbeRobot(Truth(), before_play=break_sensor)
    recording = pushed(robot)
    assert recording.stopped.startswith("The robot measures nan for 'p0' after ")
    assert len(recording.pushes) > 0


def test_settings_that_make_no_sense() -> None:
    for amplitude in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(UserError, match=r"amplitude is .*, but must be above 0 and at most 1"):
            InspectionSettings(amplitude=amplitude)
    with pytest.raises(UserError, match="minutes is 0, but must be a positive number"):
        InspectionSettings(minutes=0.0)
    with pytest.raises(UserError, match=r"minutes is 0\.1, but 1 command channels of this robot need at least"):
        pushed(ProbeRobot(Truth()), minutes=0.1)
