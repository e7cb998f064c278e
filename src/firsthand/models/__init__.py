"""The policy, the dynamics model and the observer."""

from firsthand_onboard.observer import predicted_entries as predicted_entries

from .controller import Controller as Controller
from .controller import Observer as Observer
from .controller import as_controller as as_controller
from .networks import Dynamics as Dynamics
from .networks import Policy as Policy
