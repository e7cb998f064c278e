"""The ROS 2 bridge against real rclpy, in real processes; skipped where there is no ROS 2."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from firsthand_onboard import SpecError
from firsthand_onboard.ros2 import sources
from firsthand_onboard.toy import toy_spec

PYTHON = os.environ.get("FIRSTHAND_ROS_PYTHON", sys.executable)
"""A Python with rclpy and firsthand-onboard; ROS 2 distributions bring their own."""

ROBOT = """
import sys, time, rclpy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
rclpy.init()
node = rclpy.create_node("toy_robot")
position, velocity = [-0.5, 1.0], [0.0, 0.0]
def command(message):
    velocity[:] = list(message.data)
node.create_subscription(Float64MultiArray, "/toy/commands", command, 1)
out = node.create_publisher(JointState, "/toy/states", 1)
def tick():
    for i in range(2):
        position[i] += 0.01 * velocity[i]
    out.publish(JointState(name=["elbow", "shoulder"], position=position[::-1], velocity=velocity[::-1]))
node.create_timer(0.01, tick)
rclpy.spin(node)
"""

DRIVER = """
import json, sys, time
import numpy as np
from firsthand_onboard.ros2 import Ros2Machine
machine = Ros2Machine(sys.argv[1], "/toy/states", "/toy/commands", patience_s=5, startup_s=50)
first = machine.read().tolist()
deadline = time.monotonic() + 50
while machine.read()[0] < first[0] + 0.2 and time.monotonic() < deadline:
    machine.write(np.asarray([0.5, -0.5]))
    time.sleep(0.02)
moved = machine.read().tolist()
while abs(machine.read()[2:]).max() > 0 and time.monotonic() < deadline:
    machine.neutral()
    time.sleep(0.02)
print(json.dumps([first, moved, machine.read().tolist()]))
machine.close()
"""


def missing() -> str:
    """What this Python lacks."""
    code = "import rclpy, sensor_msgs.msg, std_msgs.msg, firsthand_onboard"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def test_names_of_measured_quantities_name_joints():
    assert sources(toy_spec())[0] == ("shoulder", "position")
    spec = toy_spec()
    layout = dataclasses.replace(spec.layout, measured=("a", "b.position", "c.velocity", "d.velocity"))
    with pytest.raises(SpecError, match=r"joint\.position"):
        sources(dataclasses.replace(spec, layout=layout))


def test_joint_states_and_commands_cross_the_bridge(tmp_path):
    why = missing()
    if why:
        pytest.skip(f"no ROS 2 in {PYTHON} ({why}); set FIRSTHAND_ROS_PYTHON to one that has it")
    spec = tmp_path / "spec.json"
    spec.write_text(toy_spec().to_json())
    environment = {**os.environ, "ROS_DOMAIN_ID": str(20 + os.getpid() % 80)}
    with subprocess.Popen([PYTHON, "-c", ROBOT], env=environment, stderr=subprocess.DEVNULL) as robot:
        try:
            done = subprocess.run(
                [PYTHON, "-c", DRIVER, str(spec)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            robot.kill()
    assert done.returncode == 0, done.stderr
    first, moved, stopped = (np.asarray(v) for v in json.loads(done.stdout.strip().splitlines()[-1]))
    np.testing.assert_allclose(first, [-0.5, 1.0, 0.0, 0.0])  # the order of the specification, not of the message
    assert moved[0] >= first[0] + 0.2
    assert moved[1] < first[1]
    np.testing.assert_allclose(moved[2:], [0.5, -0.5])
    np.testing.assert_allclose(stopped[2:], 0.0)
