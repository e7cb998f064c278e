"""The policy and the dynamics model."""

from firsthand_onboard.observer import predicted_entries as predicted_entries

from .networks import Dynamics as Dynamics
from .networks import Policy as Policy
