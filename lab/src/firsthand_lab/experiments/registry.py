"""The experiments by name. Modules are imported when they are asked for."""

from importlib import import_module

from firsthand.errors import UserError, suggest

from .base import Experiment

EXPERIMENTS: dict[str, str] = {
    "convergence": "convergence:Convergence",
    "evaluation": "evaluation:ShapeEvaluation",
    "network": "network:Network",
    "tracking-table": "tracking_table:TrackingTable",
    "payload": "payload:Payload",
    "soft-arm": "soft_arm:SoftArm",
    "freeze-model": "ablations:FreezeModel",
    "sparse-model-updates": "ablations:SparseModelUpdates",
    "sensitivity": "sensitivity:Sensitivity",
    "regret": "regret:Regret",
    "step-bound": "step_bound:StepBound",
    "deployment": "deployment:Deployment",
    "noise": "noise:Noise",
    "self-correction": "self_correction:SelfCorrection",
    "fidelity": "fidelity:Fidelity",
    "fast": "fast:Fast",
    "ingredients": "ingredients:Ingredients",
    "deviations": "deviations:Deviations",
    "suite": "suite:Suite",
    "shift": "shift:Shift",
}
"""Name to `module:class` in this package, in the order of the paper."""


def find(name: str) -> Experiment:
    """The experiment of this name; an unknown one is answered with the near one."""
    if name not in EXPERIMENTS:
        known = (*EXPERIMENTS, "all")
        raise UserError(f"There is no experiment {name!r}{suggest(name, known)}; known are {', '.join(known)}.")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    return getattr(import_module(f".{module}", __package__), attribute)()


def every() -> list[Experiment]:
    """All of them."""
    return [find(name) for name in EXPERIMENTS]
