"""The policy and the dynamics model."""

from .networks import Dynamics as Dynamics
from .networks import Policy as Policy
from .networks import predicted_entries as predicted_entries
