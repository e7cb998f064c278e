"""Controllers that are designed, not learned: what an engineer would set up by hand."""

from .by_hand import run_by_hand as run_by_hand
from .design import Design as Design
from .design import design_controller as design_controller
from .pi import GainSearch as GainSearch
from .pi import PIController as PIController
from .pi import identify_axes as identify_axes
from .pid import PIDController as PIDController
from .pid import identify_outputs as identify_outputs
