"""Logs of robots, read from files: our run folders, CSV, MCAP, rosbag2, LeRobot datasets."""

from .base import Log as Log
from .base import Series as Series
from .base import Transitions as Transitions
from .read import check_columns as check_columns
from .read import read_log as read_log
from .vectors import read_cycles as read_cycles
