"""The ROS 2 bridge against real rclpy, in real processes; skipped where there is no ROS 2."""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firsthand_onboard import SpecError, ros2
from firsthand_onboard.machine import MachineError
from firsthand_onboard.ros2 import Ros2Machine, neutral_of, sources
from firsthand_onboard.toy import toy_spec

from .processes import connect, free_port, random_policy, send_policy, wait_for

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
machine = Ros2Machine(sys.argv[1], "/toy/states", "/toy/commands", patience_s=5, startup_s=50, fresh_s=5)
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


NEWEST = """
import json, sys, threading, time, rclpy
from sensor_msgs.msg import JointState
from rclpy.qos import qos_profile_sensor_data
from firsthand_onboard.ros2 import Ros2Machine
context = rclpy.Context()
rclpy.init(context=context)
node = rclpy.create_node("sensor", context=context)
out = node.create_publisher(JointState, "/toy/states", qos_profile_sensor_data)
def publish(value):
    out.publish(JointState(name=["shoulder", "elbow"], position=[value, value], velocity=[0.0, 0.0]))
ready = threading.Event()
def first():
    while not ready.wait(0.05):
        publish(-1.0)
thread = threading.Thread(target=first)
thread.start()
machine = Ros2Machine(sys.argv[1], "/toy/states", "/toy/commands", patience_s=60, startup_s=50, fresh_s=60)
machine.read()
ready.set()
thread.join()
seen = []
for burst in (4, 40):  # fewer and more than the queue holds
    for value in range(burst):
        publish(float(burst + value))
    time.sleep(1.0)
    seen.append(machine.read()[0])
print(json.dumps(seen))
machine.close()
"""


@dataclasses.dataclass(frozen=True)
class Ros:
    """Runs programs that have ROS 2."""

    spec: Path
    environment: dict[str, str]

    def run(self, code: str) -> list:
        """What a program prints last."""
        command = [PYTHON, "-c", code, str(self.spec)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    @contextlib.contextmanager
    def robot(self) -> Iterator[None]:
        """A robot that is a ROS node."""
        with subprocess.Popen([PYTHON, "-c", ROBOT], env=self.environment, stderr=subprocess.DEVNULL) as robot:
            try:
                yield
            finally:
                robot.kill()

    @contextlib.contextmanager
    def serve(self, address: str) -> Iterator[None]:
        """The onboard program, with the bridge as its machine."""
        options = {
            "spec": self.spec,
            "states": "/toy/states",
            "commands": "/toy/commands",
            "patience_s": 5,
            "fresh_s": 5,
        }
        words = [word for name, value in options.items() for word in ("--machine-option", f"{name}={value}")]
        command = [
            PYTHON,
            "-m",
            "firsthand_onboard",
            "serve",
            "--machine",
            "firsthand_onboard.ros2:Ros2Machine",
            *words,
        ]
        command += ["--listen", address, "--priority", "0", "--watchdog", "5", "--limits", str(self.limits())]
        command += ["--stop-lag", "0.3"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as program:
            try:
                assert program.stdout is not None
                assert "serving toy" in program.stdout.readline()
                yield
            finally:
                program.terminate()

    def limits(self) -> Path:
        """No fault because this computer is busy."""
        file = self.spec.with_name("limits.json")
        file.write_text(json.dumps({"command_age_s": None}))
        return file


@functools.cache
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


def test_neutral_is_what_is_given_or_zero_where_that_is_sure():
    spec = toy_spec()
    assert neutral_of(spec, "").tolist() == [0.0, 0.0]
    assert neutral_of(spec, "0.5,-0.5").tolist() == [0.5, -0.5]
    for text in ("0.5", "a,b", "nan,0"):
        with pytest.raises(SpecError, match="2 numbers"):
            neutral_of(spec, text)
    pump = dataclasses.replace(spec, limits=dataclasses.replace(spec.limits, command_low=(0.0, -1.0)))
    with pytest.raises(SpecError, match="neutral="):
        neutral_of(pump, "")


class Graph:
    """As much of rclpy as the bridge uses, and a clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.time, self.waiting, self.published = 100.0, [], []
        self.handle, self.msg_type, self.raw = self, None, False

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def create_node(self, name: str, context: object) -> "Graph":
        return self

    def create_publisher(self, *_: object) -> Any:
        publish, listeners = (lambda message: self.published.append(message["data"])), lambda: int(self.time > 103)
        return SimpleNamespace(publish=publish, get_subscription_count=listeners)

    def destroy_node(self) -> None:
        pass

    def create_subscription(self, *_: object) -> "Graph":
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def take_message(self, *_: object) -> tuple[Any, None] | None:
        return (self.waiting.pop(0), None) if self.waiting else None

    def says(self, value: float) -> None:
        """A joint state arrives."""
        state = {"name": ["shoulder", "elbow"], "position": [value] * 2, "velocity": [0.0] * 2, "effort": []}
        self.waiting.append(SimpleNamespace(**state))


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """In place of ROS 2."""
    made = Graph()
    rclpy = SimpleNamespace(
        Context=lambda: None, init=lambda context: None, create_node=made.create_node, shutdown=lambda context: None
    )
    for name, module in {
        "rclpy": rclpy,
        "rclpy.qos": SimpleNamespace(qos_profile_sensor_data=None),
        "sensor_msgs": SimpleNamespace(),
        "sensor_msgs.msg": SimpleNamespace(JointState=None),
        "std_msgs": SimpleNamespace(),
        "std_msgs.msg": SimpleNamespace(Float64MultiArray=dict),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(ros2, "time", made)
    return made


def bridge(folder: Path) -> Ros2Machine:
    file = folder / "spec.json"
    file.write_text(toy_spec().to_json())
    return Ros2Machine(str(file))


def test_neutral_goes_out_before_anything_is_waited_for(graph, tmp_path):
    machine = bridge(tmp_path)
    assert graph.time == 100.0
    machine.neutral()
    assert graph.published == [[0.0, 0.0]]
    with pytest.raises(MachineError, match="within 10 s"):
        machine.read()
    assert len(graph.published) > 100  # and all the time while it waits
    graph.says(0.5)
    assert machine.read()[0] == 0.5


def test_the_second_node_is_waited_for_until_somebody_listens(graph, tmp_path):
    bridge(tmp_path)
    Ros2Machine.standby(spec=str(tmp_path / "spec.json"))
    assert graph.time > 103
    graph.time = 0.0
    with pytest.raises(MachineError, match="no node takes commands on /commands within 2 s"):
        Ros2Machine.standby(spec=str(tmp_path / "spec.json"), startup_s="2")


def test_a_joint_state_that_came_before_the_last_reading_is_missing(graph, tmp_path):
    machine, period = bridge(tmp_path), toy_spec().period_s
    graph.says(1.0)
    assert machine.read()[0] == 1.0
    for value in (2.0, 3.0):
        graph.sleep(period)
        graph.says(value)
        assert machine.read()[0] == value
    graph.sleep(0.4 * period)
    assert machine.read()[0] == 3.0
    for _ in range(3):
        graph.sleep(period)
        assert np.isnan(machine.read()).all()
    graph.says(4.0)
    graph.sleep(period)
    assert machine.read()[0] == 4.0
    graph.sleep(0.3)
    with pytest.raises(MachineError, match=r"for 0\.2 s"):
        machine.read()


@pytest.fixture
def ros(tmp_path: Path) -> Ros:
    """A specification and the surroundings of ROS processes; their domain is their own."""
    why = missing()
    if why:
        pytest.skip(f"no ROS 2 in {PYTHON} ({why}); set FIRSTHAND_ROS_PYTHON to one that has it")
    spec = tmp_path / "spec.json"
    spec.write_text(toy_spec().to_json())
    return Ros(spec, {**os.environ, "ROS_DOMAIN_ID": str(20 + os.getpid() % 80)})


def test_joint_states_and_commands_cross_the_bridge(ros):
    with ros.robot():
        first, moved, stopped = (np.asarray(v) for v in ros.run(DRIVER))
    np.testing.assert_allclose(first, [-0.5, 1.0, 0.0, 0.0])  # the order of the specification, not of the message
    assert moved[0] >= first[0] + 0.2
    assert moved[1] < first[1]
    np.testing.assert_allclose(moved[2:], [0.5, -0.5])
    np.testing.assert_allclose(stopped[2:], 0.0)


def test_of_several_waiting_states_the_newest_counts(ros):
    assert ros.run(NEWEST) == [7.0, 79.0]


def test_an_episode_runs_over_the_bridge(ros):
    spec, address = toy_spec(), f"tcp/127.0.0.1:{free_port()}"
    with ros.robot(), ros.serve(address):
        client = connect(address)
        assert client.ask("arm").kind == "reply"
        client.keep_lease(0.2)
        body = {"name": "first", "kind": "visit", "policy": send_policy(client, spec, random_policy(spec))}
        assert client.ask("job", body, {"goals": np.asarray([[0.2, 0.3]], np.float32)}).kind == "reply"
        wait_for(lambda: client.ask("status").body["job"]["ended"] == "done", "the end")
        wait_for(lambda: client.next(0.1) is None and client.others, "the trajectory")
        arrays = client.others[0].arrays
        client.close()
    assert arrays["valid"].all()
    assert np.ptp(arrays["measured"][:, :2], axis=0).max() > 0.1  # it moved, as its policy wanted
