"""The bridge into ROS 2: a node that is a `Machine`. JointState in, Float64MultiArray out.

    firsthand-onboard serve --machine firsthand_onboard.ros2:Ros2Machine --machine-option spec=robot.json \
        --machine-option states=/joint_states --machine-option commands=/forward_command_controller/commands

A measured quantity `boom.position` is the position of the joint `boom` in the JointState message; `.velocity` and
`.effort` likewise. The commands go out in the order of `layout.commands`, as ros2_control's forward_command_controller
takes them. Needs rclpy, sensor_msgs and std_msgs, which a ROS 2 installation brings.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from .gate import assumed_neutral
from .machine import MachineError
from .spec import ControlSpec, SpecError

FIELDS = ("position", "velocity", "effort")
MOST_WAITING = 64
"""So many messages are taken in one reading."""


def sources(spec: ControlSpec) -> list[tuple[str, str]]:
    """(joint, field of JointState) per measured quantity."""
    pairs = []
    for name in spec.layout.measured:
        joint, _, field = name.rpartition(".")
        if not joint or field not in FIELDS:
            raise SpecError(f"layout.measured has {name!r}, but ROS 2 needs names like joint.position")
        pairs.append((joint, field))
    return pairs


def neutral_of(spec: ControlSpec, text: str) -> np.ndarray:
    """The neutral command: numbers with commas between them, or what may be assumed."""
    if not text:
        try:
            return assumed_neutral(spec).astype(np.float32)
        except SpecError as error:
            raise SpecError(f"{str(error).partition(':')[0]}: give --machine-option neutral=0,0,…") from None
    try:
        values = np.asarray([float(value) for value in text.split(",")], np.float32)
    except ValueError:
        values = np.zeros(0, np.float32)
    if values.shape != (spec.layout.num_commands,) or not np.isfinite(values).all():
        raise SpecError(f"neutral is {text!r}, but must be {spec.layout.num_commands} numbers with commas between them")
    return values


class Ros2Machine:
    """A robot that is reached through ROS 2 topics."""

    def __init__(
        self,
        spec: str,
        states: str = "/joint_states",
        commands: str = "/commands",
        patience_s: float | str = 0.2,
        startup_s: float | str = 10.0,
        neutral: str = "",
    ) -> None:
        try:
            import rclpy  # pyright: ignore[reportMissingImports]
            from rclpy.qos import qos_profile_sensor_data  # pyright: ignore[reportMissingImports]
            from sensor_msgs.msg import JointState  # pyright: ignore[reportMissingImports]
            from std_msgs.msg import Float64MultiArray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise SpecError(f"the ROS 2 bridge needs rclpy, sensor_msgs and std_msgs of a ROS 2: {error}") from None
        self.spec = ControlSpec.from_json(Path(spec).read_text())
        self._sources = sources(self.spec)
        self.neutral_command = neutral_of(self.spec, neutral)
        self._patience = float(patience_s)
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._message = Float64MultiArray
        self._node = rclpy.create_node("firsthand_onboard", context=self._context)
        self._publisher = self._node.create_publisher(Float64MultiArray, commands, 1)
        self._subscription = self._node.create_subscription(JointState, states, self._arrived, qos_profile_sensor_data)
        self._measured, self._arrived_at = np.full(len(self._sources), math.nan), -math.inf
        self._wait(float(startup_s), states)

    def _wait(self, seconds: float, states: str) -> None:
        deadline = time.monotonic() + seconds
        while self._arrived_at < 0:
            if time.monotonic() > deadline:
                raise MachineError(f"no JointState arrived on {states} within {seconds:g} s")
            self._drain()
            time.sleep(0.01)

    def _arrived(self, message: Any) -> None:
        index = {name: i for i, name in enumerate(message.name)}
        measured = np.full(len(self._sources), math.nan)
        for k, (joint, field) in enumerate(self._sources):
            values = getattr(message, field)
            if joint in index and index[joint] < len(values):
                measured[k] = values[index[joint]]
        self._measured, self._arrived_at = measured, time.monotonic()

    def read(self) -> np.ndarray:
        """The newest joint state; what it lacks is not a number, and the gate knows what to do with that."""
        self._drain()
        if time.monotonic() - self._arrived_at > self._patience:
            raise MachineError(f"no JointState arrived for {self._patience:g} s")
        return self._measured

    def _drain(self) -> None:
        """Take everything that waits, so that the newest is what counts; at most `MOST_WAITING` messages.

        Not with an executor: its `spin_once` may do nothing although messages wait.
        """
        subscription, newest = self._subscription, None
        with subscription.handle:
            for _ in range(MOST_WAITING):
                taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
                if taken is None:
                    break
                newest = taken[0]
        if newest is not None:
            self._arrived(newest)

    def write(self, command: np.ndarray) -> None:
        """Publish a command."""
        self._publisher.publish(self._message(data=[float(c) for c in command]))

    def neutral(self) -> None:
        """Publish the neutral command, and keep listening while nothing is read."""
        self.write(self.neutral_command)
        self._drain()

    def close(self) -> None:
        """Leave ROS."""
        import rclpy  # pyright: ignore[reportMissingImports]

        self._node.destroy_node()
        rclpy.shutdown(context=self._context)
