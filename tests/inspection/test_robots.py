"""Dead times of robots that were not made for this test, within one control period of the truth."""

import gymnasium
import numpy as np
import pytest

from firsthand.inspection import InspectionSettings, conclude, excite
from firsthand.plants.excavator.parameters import PERIOD_S, ExcavatorParameters
from firsthand.robots.delay import DelayedCommands
from firsthand.robots.gymnasium import GymnasiumTask
from firsthand.robots.registry import make_robot, make_task


@pytest.mark.parametrize("delay", [0, 3])
def test_a_pendulum_whose_actions_come_late(delay: int) -> None:
    source = GymnasiumTask(
        env=lambda: DelayedCommands(gymnasium.make("Pendulum-v1"), steps=delay),
        observe=lambda o: np.asarray([np.arctan2(o[1], o[0]), o[2]]),
        positions=(0,),
        velocities=(1,),
        angles=(0,),
        position_low=-3.5,
        position_high=3.5,
        rate=2.0,
    )
    task, settings = source.make_task(), InspectionSettings(2.0)
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    result = conclude("pendulum", task.spec, settings, excite(robot, settings))
    found = result.findings.channels[0]
    assert not result.findings.stands_still
    assert found.dead_time_steps is not None
    assert abs(found.dead_time_steps - delay) <= 1
    assert found.kind == "acceleration"
    assert found.gain_plus == pytest.approx(3.0, rel=0.25)  # 3 / (m l²)


def test_the_excavator() -> None:
    task, settings = make_task("excavator"), InspectionSettings(4.0)
    recording = excite(make_robot("excavator", task), settings)
    found = conclude("excavator", task.spec, settings, recording).findings
    truth = ExcavatorParameters()
    for channel, dead_s, band in zip(found.channels, truth.dead_time_s, truth.dead_band, strict=True):
        assert channel.dead_time_steps is not None
        assert abs(channel.dead_time_steps - dead_s / PERIOD_S) <= 1
        assert channel.kind == "rate"
        assert channel.dead_band_plus is not None
        assert channel.dead_band_plus.silent <= band <= channel.dead_band_plus.responding + 0.005
    low, high = np.asarray(task.spec.limits.position_low), np.asarray(task.spec.limits.position_high)
    assert (recording.after[:, :4] > low).all()
    assert (recording.after[:, :4] < high).all()
