"""The base controller that a run learns on top of: stored in its folder, put under the policy or inside the robot."""

import dataclasses
import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import (
    NO_LIMIT,
    BaseControl,
    ForeignBase,
    ReferenceBase,
    base_arrays,
    base_from_arrays,
)

from ..agent import LearnerState
from ..errors import UserError
from ..logs.base import Log, stretches
from ..models import Controller, Policy
from ..robots.base_file import load_function_base
from ..robots.registry import NamedRobot
from ..robots.target import TargetSource
from ..runs import RunFolder, atomic, packed
from .origin import IDENTIFICATION, BaseMode, BaseOrigin

FILE = "base.safetensors"
BASE_EXCITATION: dict[BaseMode, float] = {"add": 0.01, "target": 0.01}
"""Amplitude of the random commands of the first episodes on top of a base, of half the range: what it rejects. Half the
range of a target is half of where the robot can go."""
FIRST_AUTHORITY: dict[BaseMode, float] = {"add": 0.05, "target": 0.2}
"""Share of half the command range that the learned part may use at first. An error of some percent of a command is what
an integrating joint's controller still rejects."""
MIN_LEARNING_AUTHORITY = 0.02
"""The learner assumes at least this share: with an authority of zero there is no gradient."""


@dataclass(frozen=True)
class Recorded:
    """Measurements and commands of a base's identification, one row per control period."""

    measured: Float[np.ndarray, "rows measured"]
    commands: Float[np.ndarray, "rows commands"]
    """Applied from this row to the next."""
    joined: Bool[np.ndarray, " rows-1"]
    """Whether a row follows the one before it without a gap."""

    def as_log(self, spec: ControlSpec) -> Log:
        """As a log that the model can learn from."""
        measured, commands = (np.asarray(part, np.float32) for part in (self.measured, self.commands))
        parts = (measured, commands, self.joined)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
        refused: Counter[str] = Counter()
        series = stretches(spec, measured, commands, self.joined, refused)
        return Log(IDENTIFICATION, digest.hexdigest(), series, len(self.commands), refused)


@dataclass(frozen=True)
class Base:
    """A base, and where it comes from."""

    origin: BaseOrigin
    controller: Any
    """The base itself, as `firsthand_onboard.base_control` has them."""
    recorded: Recorded | None = None
    """What the robot did while it was identified: no motion is thrown away. None where it was not, and in a run."""

    @property
    def control(self) -> BaseControl:
        """The base under the policy: this one, or the reference if this one is inside the robot."""
        outer = ReferenceBase() if self.origin.mode == "target" else self.controller
        return as_jax(BaseControl(outer, FIRST_AUTHORITY[self.origin.mode], NO_LIMIT))

    def put_inside(self, found: NamedRobot) -> NamedRobot:
        """The robot that the policy drives: in target mode with the base inside, otherwise as it is."""
        if self.origin.mode != "target":
            return found
        source = TargetSource(found.source, found.task, as_jax(self.controller))
        return dataclasses.replace(found, source=source, task=source.make_task())

    def to_bytes(self) -> bytes:
        """For the run's folder."""
        return packed.pack(base_arrays(BaseControl(self.controller, 1.0, NO_LIMIT)), asdict(self.origin))

    @staticmethod
    def of_run(run: RunFolder, origin: BaseOrigin, spec: ControlSpec) -> "Base":
        """The base of a run as it was kept; `spec` is that of the robot without it.

        A function in the user's file is loaded, if he has allowed that file to run.
        """
        arrays, info = run.load_data(FILE)
        if info != asdict(origin):
            raise UserError(f"{run.path / 'data' / FILE} is not what {run.path / 'config.json'} says.")
        with atomic.using(f"{FILE} of {run.path}"):
            controller = base_from_arrays(spec, arrays).base
        if isinstance(controller, ForeignBase):
            controller = load_function_base(origin.name, spec)
        return Base(origin, controller)


def as_jax(tree: Any) -> Any:
    """The same with arrays of JAX, in single precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def on_base_of(controller: Controller, other: Policy) -> Controller:
    """The same controller on the base of another policy: one that was read from a file may lack the user's function."""
    if controller.policy.control is None or other.control is None:
        return controller
    return dataclasses.replace(controller, policy=dataclasses.replace(controller.policy, control=other.control))


def with_authority_of(state: LearnerState, policy: Controller) -> LearnerState:
    """The same learner, whose policy has the authority over its base that `policy` runs with.

    It is at least `MIN_LEARNING_AUTHORITY`.
    """
    control = policy.policy.control
    if control is None or state.policy.control is None:
        return state
    values = jnp.maximum(control.authority, MIN_LEARNING_AUTHORITY), control.error_limit
    return eqx.tree_at(lambda s: (s.policy.control.authority, s.policy.control.error_limit), state, values)
