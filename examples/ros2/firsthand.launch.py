"""The lifecycle node with its parameters: ros2 launch examples/ros2/firsthand.launch.py spec:=robot.json."""

import sys
from pathlib import Path

from launch import LaunchDescription  # pyright: ignore[reportMissingImports]
from launch.actions import DeclareLaunchArgument, ExecuteProcess  # pyright: ignore[reportMissingImports]
from launch.substitutions import LaunchConfiguration  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).resolve().parent


def generate_launch_description() -> LaunchDescription:
    """One process: the node, which starts firsthand-onboard when it is activated."""
    arguments = [
        DeclareLaunchArgument("spec", default_value="robot.json", description="the control specification"),
        DeclareLaunchArgument("parameters", default_value=str(HERE / "firsthand.yaml"), description="YAML file"),
    ]
    node = ExecuteProcess(
        cmd=[
            sys.executable,
            str(HERE / "firsthand_node.py"),
            "--ros-args",
            "--params-file",
            LaunchConfiguration("parameters"),
            "-p",
            ["spec:=", LaunchConfiguration("spec")],
        ],
        output="screen",
        sigterm_timeout="10",
    )
    return LaunchDescription([*arguments, node])
