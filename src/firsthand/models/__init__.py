"""The policy, the dynamics model and the observer."""

from firsthand_onboard.observer import predicted_entries as predicted_entries

from .networks import Controller as Controller
from .networks import Dynamics as Dynamics
from .networks import Observer as Observer
from .networks import Policy as Policy
from .networks import as_controller as as_controller
