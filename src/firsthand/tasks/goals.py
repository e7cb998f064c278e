"""What a robot shall do, as the cost of one step: ready-made goals, and goals of the user's own.

    goals.Track(scale=(0.1, 0.1, 5.0))                 # follow the reference; several units at once
    goals.Upright("pole angle") + goals.Effort(0.01)   # goals add up
    goals.Residuals(lambda x, u, r: ...)               # the step costs the sum of their squares
    goals.Cost(lambda x, u, r: ...)                    # any cost of at least zero; nothing is refined with it

A goal is a function of x, the robot's state as a `StepState`; u, the command, in the robot's own units; and r, the
reference at this step, one entry per tracked output. `StepCost` adds the change of command and the soft limits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import last_command, measured_part
from firsthand_onboard.kinematics import output_error, tracked_output

from ..errors import UserError

Weights = float | tuple[float, ...]
"""One number for every entry, or one per entry."""


class StepState:
    """x of one step, as a goal sees it: `x["level"]` or `x[0]`, `x.output`, `x.position`, `x.last_command`, …"""

    def __init__(self, spec: ControlSpec, vector: Float[Array, " state"]) -> None:
        self.spec = spec
        self.vector = vector
        """The whole state vector, memories included."""
        self.measured = measured_part(spec.layout, vector)
        """The current measurement."""

    def __getitem__(self, entry: Any) -> Array:
        """An entry of the measurement, by name or number."""
        return self.measured[find_entry(self.spec, entry) if isinstance(entry, str) else entry]

    def __jax_array__(self) -> Array:
        return self.measured

    @property
    def output(self) -> Float[Array, " outputs"]:
        """The tracked output."""
        return tracked_output(self.spec, self.measured)

    @property
    def position(self) -> Float[Array, " positions"]:
        """The entries that are positions."""
        return self.measured[jnp.asarray(self.spec.layout.position)]

    @property
    def velocity(self) -> Float[Array, " velocities"]:
        """The entries that are velocities; empty where none are measured."""
        return self.measured[jnp.asarray(self.spec.layout.velocity, int)]

    @property
    def last_command(self) -> Float[Array, " commands"]:
        """The command of the step before."""
        return last_command(self.spec.layout, self.vector)

    @property
    def earlier(self) -> Float[Array, "memory measured"]:
        """Earlier measurements, newest first; as many rows as `measurement_memory`."""
        layout = self.spec.layout
        rows = self.vector[layout.num_measured : layout.command_start]
        return rows.reshape(layout.measurement_memory, layout.num_measured)


def find_entry(spec: ControlSpec, entry: str | int) -> int:
    """The number of a measured entry that is given by name or number; `UserError` where there is none."""
    names = spec.layout.measured
    if isinstance(entry, str):
        if entry not in names:
            raise UserError(f"{spec.robot} measures no {entry!r}; it measures {', '.join(map(repr, names))}.")
        return names.index(entry)
    if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry < len(names):
        raise UserError(f"the goal names entry {entry!r}, but the measurement has entries 0 to {len(names) - 1}.")
    return entry


class AbstractGoal(ABC):
    """The cost of one step, apart from the change of command and the soft limits."""

    is_ready_made: ClassVar[bool] = True
    """Whether it comes with firsthand, so that it needs no trial."""

    tracks: bool = False
    """Whether the tracked output follows the reference: then policies are judged by tracking errors. Otherwise they are
    judged by the cost per step."""

    @property
    def is_least_squares(self) -> bool:
        """Whether the cost is a sum of squares, as refinement needs it."""
        return True

    def check(self, spec: ControlSpec) -> None:  # noqa: B027 (most have nothing to check)
        """Raise `UserError` where the goal does not fit the robot."""

    @abstractmethod
    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """The residuals; the cost is the sum of their squares."""

    def cost(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, ""]:
        """The cost of one step."""
        return jnp.sum(self.residuals(x, u, r) ** 2)

    def __add__(self, other: "AbstractGoal") -> "Sum":
        return Sum((self, other))


@dataclass(frozen=True)
class Track(AbstractGoal):
    """(p(x) − r)/L: the tracked output follows its reference: a position, a pose, a speed, a level, a force."""

    scale: Weights
    """L, in the unit of the tracked output: an error of this size costs 1. One per output where units differ."""
    weight: Weights = 1.0
    """Multiplies the squares; one per output where some matter more."""

    tracks = True

    def check(self, spec: ControlSpec) -> None:
        """Scales and weights are as many as outputs."""
        check_weights("Track.scale", self.scale, spec.num_outputs, "tracked output", positive=True)
        check_weights("Track.weight", self.weight, spec.num_outputs, "tracked output")

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """The tracking error in scales."""
        error = output_error(x.spec, x.output, r) / _array(self.scale)
        return error if self.weight == 1.0 else _array(_roots(self.weight)) * error


@dataclass(frozen=True)
class Hold(AbstractGoal):
    """(y − target)/scale: a measured entry stays at a value of its own: a level, a temperature, a force, a speed."""

    entry: str | int
    """Which, by name or number."""
    at: float
    """The value, in the entry's unit."""
    scale: float
    """A deviation of this size costs 1."""

    def check(self, spec: ControlSpec) -> None:
        """The entry exists, and the numbers are sound."""
        self.check_as("Hold", spec)

    def check_as(self, name: str, spec: ControlSpec) -> None:
        """The same, for a goal of another name with these fields."""
        find_entry(spec, self.entry)
        check_weights(f"{name}.scale", self.scale, 1, "entry", positive=True)
        if isinstance(self.at, bool) or not isinstance(self.at, int | float) or not math.isfinite(self.at):
            raise UserError(f"{name}.at is {self.at!r}, but must be a finite number.")

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """The deviation in scales."""
        return (x[find_entry(x.spec, self.entry)] - self.at)[None] / self.scale


@dataclass(frozen=True)
class Upright(AbstractGoal):
    """2 sin((θ − up)/2)/scale: an angle stays upright, counted the short way round; a full turn costs nothing."""

    entry: str | int
    """The angle in radians, by name or number."""
    at: float = 0.0
    """Its value when upright."""
    scale: float = 0.1
    """A deviation of this many radians costs 1."""

    def check(self, spec: ControlSpec) -> None:
        """The entry exists, and the numbers are sound."""
        Hold(self.entry, self.at, self.scale).check_as("Upright", spec)

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """About the deviation in scales, while it is small."""
        return 2.0 * jnp.sin((x[find_entry(x.spec, self.entry)] - self.at)[None] / 2.0) / self.scale


@dataclass(frozen=True)
class Effort(AbstractGoal):
    """√w (u − neutral)/half range: commands cost what they are away from neutral. What most actuators turn to heat."""

    weight: Weights
    """w: what a command of half the range away from neutral costs; one per command where some are dearer."""

    def check(self, spec: ControlSpec) -> None:
        """Weights are as many as commands."""
        check_weights("Effort.weight", self.weight, spec.layout.num_commands, "command")

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """The weighted commands."""
        limits = x.spec.limits
        half = (jnp.asarray(limits.command_high) - jnp.asarray(limits.command_low)) / 2
        return _array(_roots(self.weight)) * (u - jnp.asarray(x.spec.neutral)) / half


@dataclass(frozen=True)
class Power(AbstractGoal):
    """u·v/scale, joint by joint: mechanical power, where commands are torques or forces on the measured velocities."""

    scale: Weights
    """The power, in the product of both units, that costs 1; one per joint where they differ."""

    def check(self, spec: ControlSpec) -> None:
        """There is a velocity per command."""
        commands, velocities = spec.layout.num_commands, len(spec.layout.velocity)
        if commands != velocities:
            raise UserError(f"Power needs one velocity per command, but there are {commands} and {velocities}.")
        check_weights("Power.scale", self.scale, commands, "command", positive=True)

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """The power in scales."""
        return u * x.velocity / _array(self.scale)


@dataclass(frozen=True)
class Residuals(AbstractGoal):
    """A goal of the user's own whose cost is a sum of squares."""

    function: Callable[[StepState, Array, Array], Any]
    """(x, u, r) to a vector of residuals, in JAX."""
    follows: bool = False
    """Whether it makes the tracked output follow the reference."""

    is_ready_made: ClassVar[bool] = False

    @property
    def tracks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As declared by the user."""
        return self.follows

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """Call the user's function."""
        found = as_float(_call("residuals", self.function, x, u, r), "residuals")
        if found.ndim > 1:
            raise UserError(f"residuals returned an array of shape {found.shape}, but must return a vector.")
        return jnp.atleast_1d(found)


@dataclass(frozen=True)
class Cost(AbstractGoal):
    """A user's goal that is not a sum of squares. The policy is not refined with it."""

    function: Callable[[StepState, Array, Array], Any]
    """(x, u, r) to a number of at least zero, in JAX."""

    is_ready_made: ClassVar[bool] = False

    @property
    def is_least_squares(self) -> bool:
        """Always false."""
        return False

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """Not available: the cost is not a sum of squares."""
        raise TypeError("a plain cost has no residuals")

    def cost(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, ""]:
        """Call the user's function."""
        found = as_float(_call("cost", self.function, x, u, r), "cost")
        if found.shape != ():
            raise UserError(f"cost returned an array of shape {found.shape}, but must return a single number.")
        return found


@dataclass(frozen=True)
class Sum(AbstractGoal):
    """Several goals at once; their costs add up."""

    parts: tuple[AbstractGoal, ...]
    """The goals."""

    @property
    def is_ready_made(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all of them are."""
        return all(part.is_ready_made for part in self.parts)

    @property
    def tracks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether one of the goals tracks."""
        return any(part.tracks for part in self.parts)

    @property
    def is_least_squares(self) -> bool:
        """Whether all of them are."""
        return all(part.is_least_squares for part in self.parts)

    def check(self, spec: ControlSpec) -> None:
        """Each fits the robot."""
        for part in self.parts:
            part.check(spec)

    def residuals(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, " n"]:
        """The residuals of all goals, one after the other."""
        return jnp.concat([part.residuals(x, u, r) for part in self.parts])

    def cost(self, x: StepState, u: Float[Array, " commands"], r: Float[Array, " outputs"]) -> Float[Array, ""]:
        """The sum."""
        return sum((part.cost(x, u, r) for part in self.parts), start=jnp.zeros(()))

    def __add__(self, other: AbstractGoal) -> "Sum":
        return Sum((*self.parts, other))


# Numbers.


def check_weights(name: str, weights: Weights, size: int, of: str, *, positive: bool = False) -> None:
    """Raise `UserError` unless these are sound weights, one or `size` of them."""
    if not isinstance(weights, int | float | tuple):
        raise UserError(f"{name} is {weights!r}, but must be a number, or a tuple of {size}, one per {of}.")
    values = weights if isinstance(weights, tuple) else (weights,)
    if isinstance(weights, tuple) and len(weights) != size:
        raise UserError(f"{name} has {len(weights)} entries, but must be one number or {size}, one per {of}.")
    for value in values:
        sound = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        if not sound or value < 0 or (positive and value == 0):
            wanted = "a positive number" if positive else "zero or a positive number"
            raise UserError(f"{name} is {value}, but must be {wanted}.")


def _array(values: Weights) -> Any:
    """A plain number as it is, so that it enters the compiled code as a constant."""
    return jnp.asarray(values) if isinstance(values, tuple) else values


def _roots(weights: Weights) -> Weights:
    return tuple(math.sqrt(w) for w in weights) if isinstance(weights, tuple) else math.sqrt(weights)


def as_float(found: Any, name: str) -> Array:
    """What a user's function returned as an array of floating-point numbers; `UserError` for anything else."""
    try:
        array = jnp.asarray(found)
    except (TypeError, ValueError):
        raise UserError(f"{name} returned {type(found).__name__}, but must return an array of numbers.") from None
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise UserError(
            f"{name} returned numbers of the type {array.dtype}, which have no derivative; return floating-point "
            "numbers that depend on x or u."
        )
    return array


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The user's function; whatever it raises becomes one sentence."""
    try:
        return function(*arguments)
    except UserError:
        raise
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        raise UserError(
            f"{name} cannot be differentiated: it uses numpy, float() or a Python if on values of x, u or r. Write it "
            "with jax.numpy, and jnp.where in place of if."
        ) from None
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split()) or "without a message"
        raise UserError(f"{name} fails with {type(error).__name__}: {text[:300]}.") from error
