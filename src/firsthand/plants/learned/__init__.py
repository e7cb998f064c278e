"""A plant learned from a robot's log."""

from .plant import LearnedPlant as LearnedPlant
from .plant import LearnedState as LearnedState
from .plant import Networks as Networks
from .plant import Observation as Observation
