"""The controller that training starts from, by name: `firsthand train ROBOT --base pi`."""

import contextlib
import hashlib
from pathlib import Path

import numpy as np

from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.base_control import PolicyBase, ReferenceBase, check_base
from firsthand_onboard.policy_file import load_controller

from ..errors import UserError, suggest
from ..robots.base_file import load_function_base
from ..robots.description import spec_difference
from ..robots.registry import NamedRobot
from ..robots.user_file import absolute_name, approve_robot, is_robot_file, robot_file
from ..training.bases import Base
from ..training.origin import BaseMode, BaseOrigin
from ..training.run import Run
from .pi import identify_axes, pi_base

NAMES = ("pi", "reference")
"""Our own."""
POLICY_SUFFIX = ".safetensors"


def find_base(name: str, mode: BaseMode, found: NamedRobot, *, payload_kg: float = 0.0, seed: int = 0) -> Base:
    """The base that a name on the command line means, for a robot; `UserError` in one sentence where it does not fit.

    `pi` is identified: a simulated robot is made for that, a machine moves with up to 90 % of its command range.
    """
    spec = found.task.spec
    origin = BaseOrigin(name, mode)
    if mode == "target" and name == "reference":
        raise UserError("base is reference, which is a target already: leave out --base-mode target.")
    if name == "pi":
        with contextlib.closing(found.make(payload_kg=payload_kg, seed=seed)) as robot:
            if robot.hardware:
                raise UserError(
                    "base is pi, which is identified with up to 90 % of the command range and has not been tried on a "
                    "machine; give an exported policy, or --base reference where the machine follows targets by itself."
                )
            try:
                identified = identify_axes(robot, found.task, seed=seed)
            except UserError as error:
                raise UserError(
                    f"base is pi, but {error} Give a controller of yours instead: --base FILE.py:FUNCTION."
                ) from None
        made = BaseOrigin(name, mode, robot_time_s=identified.robot_time_s)
        return Base(made, pi_base(spec, identified.axes), identified.recorded)
    if name == "reference":
        base = ReferenceBase()
        try:
            check_base(spec, base)
        except SpecError as error:
            raise UserError(f"base is reference, but {error}.") from None
        return Base(origin, base)
    if is_robot_file(name):
        approve_robot(name)  # the user has typed it
        file, full = robot_file(name), absolute_name(name)
        assert file is not None
        return Base(BaseOrigin(full, mode, file.sha256), load_function_base(full, spec))
    path = Path(name)
    if path.is_dir() or path.suffix == POLICY_SUFFIX:
        if mode == "target":
            raise UserError(f"base is {name}, a learned policy, which follows no target: leave out --base-mode target.")
        return _load_learned(path, spec)
    raise UserError(
        f"base is {name!r}{suggest(name, NAMES)}, but must be one of {', '.join(NAMES)}, FILE.py:FUNCTION, a run's "
        f"folder or an exported policy (*{POLICY_SUFFIX})."
    )


def _load_learned(path: Path, spec: ControlSpec) -> Base:
    """The policy of a run or of an exported file."""
    if path.is_dir():
        run = Run.open(path)
        theirs, controller = run.description.spec, run.kept_policy()
        layers, has_observer = controller.layers, controller.observer is not None
        has_base, digest = controller.policy.control is not None, ""
    else:
        try:
            exported = load_controller(path)
        except SpecError as error:
            raise UserError(f"{error}.") from None
        theirs, layers, has_observer = (
            exported.policy.spec,
            tuple(exported.policy.layers),
            exported.observer is not None,
        )
        has_base, digest = exported.policy.base is not None, hashlib.sha256(path.read_bytes()).hexdigest()
    if difference := spec_difference(theirs, spec):
        raise UserError(f"{path} is a base for another robot: {difference}.")
    for what, there in (("an observer", has_observer), ("a base of its own", has_base)):
        if there:
            raise UserError(f"the policy of {path} has {what} and cannot be a base; go on from it with --init-from.")
    weights = tuple((np.asarray(w, np.float32), np.asarray(b, np.float32)) for w, b in layers)
    return Base(BaseOrigin(str(path.resolve()), "add", digest), PolicyBase(weights))
