"""Train a robot's controller on the robot itself, in hours, from random weights, with no simulator."""

__version__ = "0.1.0"
