"""The bridge into ROS 2: a node that is a `Machine`. JointState in, Float64MultiArray out.

    firsthand-onboard serve --machine firsthand_onboard.ros2:Ros2Machine --machine-option spec=robot.json \
        --machine-option states=/joint_states --machine-option commands=/forward_command_controller/commands

A measured quantity `boom.position` is the position of the joint `boom` in the JointState message; `.velocity` and
`.effort` likewise. Joint states should come twice per period: a reading without a new one is missing.
The commands go out in the order of `layout.commands`, as ros2_control's forward_command_controller takes them. Needs
rclpy, sensor_msgs and std_msgs, which a ROS 2 installation brings.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import numpy as np

from .gate_limits import assumed_neutral
from .machine import MachineError
from .ordinary_files import read_ordinary
from .spec import ControlSpec, SpecError

FIELDS = ("position", "velocity", "effort")
MAX_WAITING = 64
"""How many messages are taken in one reading, at most."""
FRESH = 1.5
"""A joint state may be this old, in periods. A message came at some time since the last look, a period ago."""


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


def _read_spec(path: str) -> ControlSpec:
    try:
        return ControlSpec.from_json(read_ordinary(path, 1 << 24).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the specification file {path} cannot be read: {error}") from None


class Ros2Machine:
    """A robot that is reached through ROS 2 topics."""

    @staticmethod
    def resource(commands: str = "/commands", **_: str) -> str:
        """Every node that publishes commands there moves the robot."""
        return f"ros2 {os.environ.get('ROS_DOMAIN_ID', '0')} {commands}"

    def __init__(
        self,
        spec: str,
        states: str = "/joint_states",
        commands: str = "/commands",
        patience_s: float | str = 0.2,
        startup_s: float | str = 10.0,
        neutral: str = "",
        fresh_s: float | str = "",
    ) -> None:
        try:
            import rclpy  # pyright: ignore[reportMissingImports]
            from rclpy.qos import qos_profile_sensor_data  # pyright: ignore[reportMissingImports]
            from sensor_msgs.msg import JointState  # pyright: ignore[reportMissingImports]
            from std_msgs.msg import Float64MultiArray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise SpecError(f"the ROS 2 bridge needs rclpy, sensor_msgs and std_msgs of a ROS 2: {error}") from None
        self.spec = _read_spec(spec)
        self._sources = sources(self.spec)
        self.neutral_command = neutral_of(self.spec, neutral)
        self._patience, self._startup = float(patience_s), float(startup_s)
        self._fresh = float(fresh_s) if fresh_s else FRESH * self.spec.period_s
        # A process that is killed while it holds Fast DDS's shared memory blocks other publishers for a second.
        os.environ.setdefault("FASTDDS_BUILTIN_TRANSPORTS", "UDPv4")
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._message = Float64MultiArray
        self._node = rclpy.create_node(f"firsthand_onboard_{os.getpid()}", context=self._context)
        self._publisher = self._node.create_publisher(Float64MultiArray, commands, 1)
        self._subscribe = lambda: self._node.create_subscription(
            JointState, states, self._on_message, qos_profile_sensor_data
        )
        self._subscription: Any = None
        self._states, self._commands = states, commands
        self._missing = self._measured = np.full(len(self._sources), math.nan)
        self._looked_at = self._newer_than = self._arrived_at = -math.inf

    @classmethod
    def standby(cls, **options: str) -> Ros2Machine:
        """A second node. Others need a while to find a publisher: it must be known before it is needed."""
        machine = cls(**options)
        deadline = time.monotonic() + machine._startup
        while machine._publisher.get_subscription_count() == 0:
            if time.monotonic() > deadline:
                machine.close()
                raise MachineError(f"no node takes commands on {machine._commands} within {machine._startup:g} s")
            time.sleep(0.01)
        return machine

    def _wait(self) -> None:
        """For the first joint state, in neutral."""
        if self._subscription is None:
            self._subscription, self._looked_at = self._subscribe(), time.monotonic()
        deadline = time.monotonic() + self._startup
        while self._measured is self._missing:
            if time.monotonic() > deadline:
                raise MachineError(f"no JointState arrived on {self._states} within {self._startup:g} s")
            self.neutral()
            time.sleep(0.01)

    def _on_message(self, message: Any) -> None:
        index = {name: i for i, name in enumerate(message.name)}
        measured = np.full(len(self._sources), math.nan)
        for k, (joint, field) in enumerate(self._sources):
            values = getattr(message, field)
            if joint in index and index[joint] < len(values):
                measured[k] = values[index[joint]]
        self._measured, self._newer_than, self._arrived_at = measured, self._looked_at, time.monotonic()

    def read(self) -> np.ndarray:
        """The newest joint state; what it lacks is not a number, and the gate knows what to do with that.

        The first time it waits for one. One that may be older than `fresh_s` counts as missing.
        """
        if self._measured is self._missing:
            self._wait()
        self._drain()
        now = time.monotonic()
        if now - self._arrived_at > self._patience:
            raise MachineError(f"no JointState arrived for {self._patience:g} s")
        return self._measured if now - self._newer_than <= self._fresh else self._missing

    def _drain(self) -> None:
        """Take everything that waits, so that the newest is what counts; at most `MAX_WAITING` messages.

        Not with an executor: its `spin_once` may do nothing although messages wait.
        """
        subscription, newest, now = self._subscription, None, time.monotonic()
        if subscription is None:
            return
        with subscription.handle:
            for _ in range(MAX_WAITING):
                taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
                if taken is None:
                    break
                newest = taken[0]
        if newest is not None:
            self._on_message(newest)
        self._looked_at = now

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
