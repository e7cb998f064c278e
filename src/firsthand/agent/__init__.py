"""Algorithm 1 as pure functions on pytrees. Knows no plant, no file, no network.

Names are loaded when they are used: the command line reads `agent.settings` without importing JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..optim.rollout import Rollout as Rollout
    from .agent import Agent as Agent
    from .agent import AgentState as AgentState
    from .agent import Experience as Experience
    from .agent import Update as Update
    from .buffer import Buffer as Buffer
    from .buffer import ImaginedStarts as ImaginedStarts
    from .buffer import append as append
    from .buffer import append_rows as append_rows
    from .improvement import PolicyReport as PolicyReport
    from .settings import Settings as Settings
    from .state import LearnerState as LearnerState
    from .update import update_model as update_model
    from .update import update_policy as update_policy

_MODULES = {
    "Agent": ".agent",
    "AgentState": ".agent",
    "Experience": ".agent",
    "Update": ".agent",
    "Buffer": ".buffer",
    "append": ".buffer",
    "append_rows": ".buffer",
    "ImaginedStarts": ".buffer",
    "PolicyReport": ".improvement",
    "Rollout": "..optim.rollout",
    "Settings": ".settings",
    "LearnerState": ".state",
    "update_model": ".update",
    "update_policy": ".update",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
