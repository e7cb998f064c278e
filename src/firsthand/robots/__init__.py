"""Robots as training sees them."""

from .base import AbstractRobot as AbstractRobot
from .base import EpisodeRecord as EpisodeRecord
from .simulated import SimulatedRobot as SimulatedRobot
