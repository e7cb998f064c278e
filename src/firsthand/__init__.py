"""Train a robot's controller on the robot itself, in hours, from random weights, with no simulator.

`import firsthand as fh` gives the public interface; names are loaded when they are first used. Modules that are not
named here are private.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firsthand_onboard import ArmModel as ArmModel

    from ._api import RunResult as RunResult
    from ._api import evaluate as evaluate
    from ._api import export_policy as export_policy
    from ._api import load_run as load_run
    from ._api import make_robot as make_robot
    from ._api import train as train
    from .agent.settings import Settings as Settings
    from .errors import UserError as UserError
    from .models import Controller as Controller
    from .models import Dynamics as Dynamics
    from .models import Policy as Policy
    from .optim import Rollout as Rollout
    from .optim import closed_loop_gradient as closed_loop_gradient
    from .optim import damped_gradient as damped_gradient
    from .optim import gauss_newton_step as gauss_newton_step
    from .optim import linearise as linearise
    from .optim import mean_cost as mean_cost
    from .optim import precondition as precondition
    from .optim import preconditioned_step as preconditioned_step
    from .optim import roll_out as roll_out
    from .plants import check_plant as check_plant
    from .plants.sensors import Sensors as Sensors
    from .robots import AbstractRobot as Robot
    from .robots import EpisodeRecord as EpisodeRecord
    from .robots.gymnasium import GymnasiumTask as GymnasiumTask
    from .tasks import Task as Task
    from .tasks import goals as goals
    from .training.parts import Callback as Callback
    from .training.presets import PRESETS as PRESETS
    from .training.presets import preset as preset
    from .training.run import Run as Run
    from .training.work.session import WorkSession as WorkSession

__version__ = "0.1.0"

_PLACES = {
    "train": "._api",
    "evaluate": "._api",
    "load_run": "._api",
    "export_policy": "._api",
    "RunResult": "._api",
    "Run": ".training.run",
    "WorkSession": ".training.work.session",
    "Callback": ".training.parts",
    "Settings": ".agent.settings",
    "PRESETS": ".training.presets",
    "preset": ".training.presets",
    "make_robot": "._api",
    "Robot": ".robots:AbstractRobot",
    "EpisodeRecord": ".robots",
    "GymnasiumTask": ".robots.gymnasium",
    "ArmModel": "firsthand_onboard",
    "Task": ".tasks",
    "goals": ".tasks",
    "check_plant": ".plants",
    "Sensors": ".plants.sensors",
    "Controller": ".models",
    "Policy": ".models",
    "Dynamics": ".models",
    "Rollout": ".optim",
    "roll_out": ".optim",
    "mean_cost": ".optim",
    "closed_loop_gradient": ".optim",
    "damped_gradient": ".optim",
    "preconditioned_step": ".optim",
    "precondition": ".optim",
    "linearise": ".optim",
    "gauss_newton_step": ".optim",
    "UserError": ".errors",
}
"""Where each public name is: a module, and after a colon its name there if that is another one."""

__all__ = [
    "PRESETS",
    "ArmModel",
    "Callback",
    "Controller",
    "Dynamics",
    "EpisodeRecord",
    "GymnasiumTask",
    "Policy",
    "Robot",
    "Rollout",
    "Run",
    "RunResult",
    "Sensors",
    "Settings",
    "Task",
    "UserError",
    "WorkSession",
    "__version__",
    "check_plant",
    "closed_loop_gradient",
    "damped_gradient",
    "evaluate",
    "export_policy",
    "gauss_newton_step",
    "goals",
    "linearise",
    "load_run",
    "make_robot",
    "mean_cost",
    "precondition",
    "preconditioned_step",
    "preset",
    "roll_out",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, other = _PLACES[name].partition(":")
    value = getattr(import_module(module, __name__), other or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
