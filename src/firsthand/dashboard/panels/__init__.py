"""The parts of the page, one job each. Making one builds its elements; `refresh` shows what is new.

Text from runs, robots and people is only ever set as text; nothing here makes HTML of it.
"""

from .banners import Banners
from .header import Figures, Header
from .history import History
from .learning import ErrorPanel, HealthPanel, LossPanel
from .operator import OperatorPanel
from .trajectory import CommandPanel, TrajectoryPanel
from .work import WorkPanel

__all__ = [
    "Banners",
    "CommandPanel",
    "ErrorPanel",
    "Figures",
    "Header",
    "HealthPanel",
    "History",
    "LossPanel",
    "OperatorPanel",
    "TrajectoryPanel",
    "WorkPanel",
]
