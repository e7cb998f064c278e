"""TD-MPC2 (Hansen, Su, Wang, 2024) for one task with state observations, written from its published description."""

from .agent import Agent as Agent
from .config import Config as Config
from .config import default as default
from .config import official_smallest as official_smallest
from .config import reduced as reduced
