"""A lifecycle node around firsthand-onboard: configure checks, activate starts it, deactivate brings it to neutral.

The program runs as a process of its own, with its gate and watchdog: nothing of ROS 2 can hold up its loop. Needs a ROS
2 installation and firsthand-onboard for the same Python.
"""

import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

BRIDGE = "firsthand_onboard.ros2:Ros2Machine"
OPTIONS = ("spec", "states", "commands", "neutral")
"""Parameters that the bridge takes."""
PARAMETERS = {
    "spec": "robot.json",
    "states": "/joint_states",
    "commands": "/forward_command_controller/commands",
    "limits": "",
    "stop_lag": "",
    "listen": "tcp/127.0.0.1:7447",
    "neutral": "",
    "frame": "base_link",
    "plane": "xz",
}
STOP_S = 10.0
"""The program brings the machine to neutral within this time, or is killed; its watchdog then does."""
LENGTH = 500
"""Points of a line in the markers."""


def serve_command(parameters: Mapping[str, str]) -> list[str]:
    """How firsthand-onboard is started with these parameters; empty ones are left out."""
    command = [sys.executable, "-m", "firsthand_onboard.cli", "serve", "--machine", BRIDGE]
    for name in OPTIONS:
        if parameters[name]:
            command += ["--machine-option", f"{name}={parameters[name]}"]
    for name in ("limits", "stop_lag", "listen"):
        if parameters[name]:
            command += [f"--{name.replace('_', '-')}", parameters[name]]
    return command


def stop_process(process: "subprocess.Popen[bytes]", patience_s: float = STOP_S) -> bool:
    """End the program; whether it ended by itself, with the machine in neutral."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def point_in_space(output: Sequence[float], plane: str) -> tuple[float, float, float]:
    """A tracked output as a point: three coordinates are themselves, two lie in `plane`."""
    axes = "xyz" if len(output) > 2 else plane
    found = dict(zip(axes, output, strict=False))
    return found.get("x", 0.0), found.get("y", 0.0), found.get("z", 0.0)


def make_node() -> Any:
    """The node; ROS 2 is imported here, so that the rest can be read without it."""
    from geometry_msgs.msg import Point  # pyright: ignore[reportMissingImports]
    from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn  # pyright: ignore[reportMissingImports]
    from rclpy.qos import QoSProfile, ReliabilityPolicy  # pyright: ignore[reportMissingImports]
    from std_msgs.msg import Float64MultiArray  # pyright: ignore[reportMissingImports]
    from visualization_msgs.msg import Marker, MarkerArray  # pyright: ignore[reportMissingImports]

    class FirsthandNode(LifecycleNode):
        """Starts and ends firsthand-onboard, and draws reference and path."""

        def __init__(self) -> None:
            super().__init__("firsthand")
            for name, default in PARAMETERS.items():
                self.declare_parameter(name, default)
            self.process: subprocess.Popen[bytes] | None = None
            self.lines: dict[str, deque[Sequence[float]]] = {}
            # QoS: references must arrive, all of them; of markers the newest is enough.
            reliable = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
            self.markers = self.create_publisher(MarkerArray, "~/markers", QoSProfile(depth=1))
            for name in ("reference", "tracked"):
                self.lines[name] = deque(maxlen=LENGTH)
                take = lambda message, line=self.lines[name]: line.append(tuple(message.data))  # noqa: E731
                self.create_subscription(Float64MultiArray, f"~/{name}", take, reliable)
            self.create_timer(0.1, self.draw)

        def values(self) -> dict[str, str]:
            """The parameters as they are now."""
            return {name: str(self.get_parameter(name).value) for name in PARAMETERS}

        def on_configure(self, state: Any) -> Any:
            """Nothing moves yet: the specification must be there."""
            from pathlib import Path

            spec = Path(self.values()["spec"])
            if not spec.is_file():
                self.get_logger().error(f"spec is {spec}, but there is no such file")
                return TransitionCallbackReturn.FAILURE
            return TransitionCallbackReturn.SUCCESS

        def on_activate(self, state: Any) -> Any:
            """Start the program; it holds neutral until a trainer comes."""
            self.process = subprocess.Popen(serve_command(self.values()))
            return super().on_activate(state)

        def on_deactivate(self, state: Any) -> Any:
            """End the program, with the machine in neutral."""
            self.end()
            return super().on_deactivate(state)

        def on_shutdown(self, state: Any) -> Any:
            """As when it is deactivated."""
            self.end()
            return TransitionCallbackReturn.SUCCESS

        def end(self) -> None:
            """End the program if it runs."""
            if self.process is not None and not stop_process(self.process):
                self.get_logger().error("firsthand-onboard did not end by itself and was killed")
            self.process = None

        def draw(self) -> None:
            """The lines as markers; tells when the program has ended by itself."""
            if self.process is not None and self.process.poll() is not None:
                self.get_logger().error(f"firsthand-onboard ended with code {self.process.returncode}")
                self.process = None
            values, found = self.values(), MarkerArray()
            for number, (name, line) in enumerate(self.lines.items()):
                marker = Marker(ns="firsthand", id=number, type=Marker.LINE_STRIP, action=Marker.ADD)
                marker.header.frame_id = values["frame"]
                marker.scale.x, marker.color.a = 0.02, 1.0
                marker.color.r, marker.color.g = (1.0, 0.6) if name == "reference" else (0.1, 0.5)
                for output in line:
                    x, y, z = point_in_space(output, values["plane"])
                    marker.points.append(Point(x=x, y=y, z=z))
                found.markers.append(marker)
            self.markers.publish(found)

    return FirsthandNode()


def main() -> None:
    """Until it is interrupted."""
    import rclpy  # pyright: ignore[reportMissingImports]

    rclpy.init()
    node = make_node()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.end()
        node.destroy_node()


if __name__ == "__main__":
    main()
