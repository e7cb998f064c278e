"""A base controller from a file of the user's: `--base my_robot.py:controller`."""

import time
from pathlib import Path

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError, suggest
from ..models.function_base import FunctionBase, function_base
from .user_file import load_module, split

TIMED_CALLS = 20


def load_function_base(name: str, spec: ControlSpec) -> FunctionBase:
    """The function that `my_robot.py:controller` names, for a robot; the file is run only if the user allows it."""
    path, attribute = split(name)
    module = load_module(path)
    known = tuple(n for n, value in vars(module).items() if not n.startswith("_") and callable(value))
    if not attribute:
        raise UserError(f"--base is {name!r}, but must also name the function in the file: {name}:controller.")
    if not hasattr(module, attribute):
        raise UserError(f"{path} has no {attribute!r}{suggest(attribute, known)}.")
    base = function_base(getattr(module, attribute), f"{Path(path).name}:{attribute}", spec)
    check_period(base, spec)
    return base


def check_period(base: FunctionBase, spec: ControlSpec) -> None:
    """Raise `UserError` for a base that takes longer than a control period, as the median of some calls."""
    measured = np.asarray(spec.scales.measured_center, np.float32)
    preview, memory = (
        np.zeros((1 + len(spec.preview), spec.num_outputs), np.float32),
        np.asarray(base.initial, np.float32),
    )
    taken = []
    for _ in range(TIMED_CALLS):
        began = time.perf_counter()
        np.asarray(base.compiled(measured, preview, memory)[0])
        taken.append(time.perf_counter() - began)
    if (usual := float(np.median(taken))) > spec.period_s:
        raise UserError(
            f"{base.name} takes {1e3 * usual:.0f} ms for a command, but the control period of {spec.robot} is "
            f"{1e3 * spec.period_s:.0f} ms."
        )
