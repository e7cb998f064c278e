"""Controllers that are designed, not learned: what an engineer would set up by hand."""

from .pi import GainSearch as GainSearch
from .pi import PIController as PIController
from .pi import identify_axes as identify_axes
