"""Robots as training sees them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import AbstractRobot as AbstractRobot
    from .base import EpisodeRecord as EpisodeRecord
    from .description import RobotDescription as RobotDescription
    from .simulated import SimulatedRobot as SimulatedRobot

_HOME = {
    "AbstractRobot": "base",
    "EpisodeRecord": "base",
    "RobotDescription": "description",
    "SimulatedRobot": "simulated",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is first used: a description can be read without JAX."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
