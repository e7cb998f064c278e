"""A six-joint arm from its URDF file: the tip follows paths in space; `pose` also holds its orientation.

`firsthand new my_robot.py --urdf arms/six_joint.urdf --tip tool0` writes such a file. The joints are simulated as
velocity servos with a lag and two periods of dead time.

firsthand check examples/urdf_arm.py:task
firsthand train examples/urdf_arm.py:task --episodes 15
"""

import dataclasses
from pathlib import Path

import numpy as np

import firsthand as fh
from firsthand.robots.delay import DelayedCommands
from firsthand.robots.servo_axes import ServoAxes, place_axes

URDF = Path(__file__).parent / "arms" / "six_joint.urdf"
PERIOD_S = 0.05
HOME = (0.0, -1.2, 1.2, -0.5, 0.5, 0.3)  # elbow up, the tool in front
REACH = 0.5  # rad around HOME
SHARE = 0.3  # of each joint's highest speed, for references; commands may use twice that

arm = fh.ArmModel.from_urdf(URDF, tip="tool0")
low = np.maximum(arm.position_low, np.subtract(HOME, REACH))
high = np.minimum(arm.position_high, np.add(HOME, REACH))


def connect():
    """The arm as a Gymnasium environment: speeds in, positions and velocities out."""
    axes = ServoAxes(
        low=arm.position_low, high=arm.position_high, speed=arm.rate(1.0), period_s=PERIOD_S, lag_s=0.1, home=HOME
    )
    return DelayedCommands(axes, steps=2)


task = fh.GymnasiumTask(
    name="six_joint",
    env=connect,
    place=place_axes,
    tracked=arm.chain,
    positions=range(6),
    velocities=range(6, 12),
    names=arm.names,
    units=arm.units,
    position_low=low,
    position_high=high,
    rate=arm.rate(SHARE),
    command_names=arm.joints,
    command_units=arm.units[6:],
    neutral=0.0,
    command_low=np.negative(arm.rate(2 * SHARE)),
    command_high=arm.rate(2 * SHARE),
    command_memory=5,  # dead time of 2, lag of 2, one to spare
)

pose = dataclasses.replace(task, tracked=fh.ArmModel.from_urdf(URDF, tip="tool0", lever=0.1).chain)
