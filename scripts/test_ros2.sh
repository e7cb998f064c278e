#!/bin/sh
# The ROS 2 bridge with real rclpy. Where a ROS 2 is sourced, with that one; else rclpy's wheels are tried. Says so, and
# ends well, where neither can be had.
cd "$(dirname "$0")/.." || exit 2
bin=.venv/bin
has_ros2() { "$1" -c "import rclpy, sensor_msgs.msg, std_msgs.msg" 2>/dev/null; }
if ! has_ros2 $bin/python; then
    $bin/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
        rclpy ros-sensor-msgs ros-std-msgs ${ROS2_INDEX:+--extra-index-url "$ROS2_INDEX"} >/dev/null 2>&1
fi
if ! has_ros2 $bin/python; then
    echo "make test-ros2: there is no rclpy here, and the package index has no wheels of it."
    echo "Source a ROS 2 installation for Python $($bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')," \
        "or give an index that has them: make test-ros2 ROS2_INDEX=https://…"
    echo "The bridge was NOT tested with real messages; make test skips these tests without rclpy."
    exit 0
fi
echo "With $($bin/python -c 'import rclpy; print(rclpy.__file__)')"
FIRSTHAND_REAL_RCLPY=1 exec $bin/python -m pytest -n 0 tests/onboard_runtime/test_ros2.py
