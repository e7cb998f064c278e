"""The learned observer: an estimate of the state from the learned model and from measurements, in innovation form.

    x̂⁻ = f_θ(x̂, u)                                       predict_state
    e  = y − h(x̂⁻)                                       expected_measurement
    x̂  = x̂⁻ + L ψ(e),   ψ(e) = clip(e, ± clip · scale)   correct

The estimate has the layout of the state vector (`StateLayout`), so a policy reads it like the plain register of
measurements and commands. That register is an observer too: the identity as the gain of the newest block, zero
elsewhere, and taps (1, 0, …). Pure functions for one robot and one step, against the array API: numpy on the robot,
traced JAX in training. `docs/learned_state.md` has the equations with their tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .arrays import add_at, constant, namespace, set_at
from .features import command_feature, initial_state, measured_part, next_state, robot_features
from .policy import Layer, network_output
from .spec import ControlSpec, SpecError

MISSING_S = 0.5
"""Seconds that the observer predicts through missing measurements, unless its settings ask for something else."""
MIN_MISSING = 3
"""Steps that it predicts through at least."""


@dataclass(frozen=True)
class ObserverSettings:
    """When the observer does not trust an innovation, and when it does not trust itself."""

    clip: float = 4.0
    """Innovations count up to this many times their usual size."""
    restart_after: int = 5
    """An entry whose innovation was clipped this many times in a row to the same side restarts from its measurement."""
    max_missing: int = 12
    """Steps that a missing measurement is predicted through; after that its absence is a fault."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise SpecError(f"observer.clip is {self.clip}, but must be a positive number")
        for name in ("restart_after", "max_missing"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
                raise SpecError(f"observer.{name} is {value}, but must be a whole number of 1 to 1000000")

    @staticmethod
    def of(spec: ControlSpec, **changes: Any) -> ObserverSettings:
        """The default settings of a robot: half a second without a measurement, and at least three steps."""
        periods = max(MIN_MISSING, math.floor(MISSING_S / spec.period_s + 1e-9))
        return ObserverSettings(**{"max_missing": min(periods, 1_000_000), **changes})


class ObserverParameters(NamedTuple):
    """What is learned. Blocks are the remembered measurements in the state vector, the newest first."""

    layers: Sequence[Layer]
    """θ, the dynamics network."""
    change_scale: Any
    """`(predicted,)`: what the network's output is multiplied by."""
    gain: Any
    """L, `(blocks, measured, measured)`: from innovations to corrections, both divided by the spec's change scales."""
    taps: Any
    """`(blocks, velocities)`: the velocity sensor shows this weighted sum of the remembered velocities."""
    scale: Any
    """`(measured,)`: the usual size of the innovations, in units of the measurement."""


class ObserverState(NamedTuple):
    """What the observer carries from step to step."""

    state: Any
    """x̂, the estimate, laid out as the state vector."""
    clipped: Any
    """`(measured,)`: how many innovations in a row were clipped to the same side, negative where it is the lower one.

    A missing one does not interrupt the row.
    """
    missing: Any
    """`(measured,)`: for how many steps the measurement has been missing."""
    restarts: Any
    """`(measured,)`: how often the entry restarted from the measurement, since the estimate began."""


class Correction(NamedTuple):
    """What a measurement changes."""

    state: Any
    """The corrected estimate."""
    innovation: Any
    """e, `(measured,)`; zero where the measurement is missing."""
    clipped: Any
    """`(measured,)`: whether the innovation was larger than allowed."""
    missing: Any
    """`(measured,)`: whether there was no measurement."""


def predicted_entries(spec: ControlSpec) -> tuple[int, ...]:
    """Which entries of the measurement the network predicts: all but the positions whose velocity is measured."""
    known = spec.layout.position if spec.layout.velocity else ()
    return tuple(i for i in range(spec.layout.num_measured) if i not in known)


def num_blocks(spec: ControlSpec) -> int:
    """How many measurements the state vector remembers, the newest included."""
    return 1 + spec.layout.measurement_memory


def register_gain(spec: ControlSpec) -> list[list[list[float]]]:
    """The gain with which the observer is the plain register: identity on the newest block, zero elsewhere."""
    size = spec.layout.num_measured
    return [[[float(b == 0 and i == j) for j in range(size)] for i in range(size)] for b in range(num_blocks(spec))]


def register_taps(spec: ControlSpec) -> list[list[float]]:
    """The taps of a velocity sensor without delay."""
    return [[float(b == 0)] * len(spec.layout.velocity) for b in range(num_blocks(spec))]


def predict_change(spec: ControlSpec, layers: Sequence[Layer], change_scale: Any, state: Any, command: Any) -> Any:
    """The predicted change of the predicted entries over one control period, in their own units."""
    xp = namespace(state)
    features = xp.concat([robot_features(spec, state), command_feature(spec, command)])
    return change_scale * network_output(layers, features)


def predict_state(spec: ControlSpec, layers: Sequence[Layer], change_scale: Any, state: Any, command: Any) -> Any:
    """f_θ(x, u): the learned model's next state. Positions follow velocities by the trapezoidal rule."""
    layout = spec.layout
    measured = measured_part(layout, state)
    new = add_at(measured, predicted_entries(spec), predict_change(spec, layers, change_scale, state, command))
    if layout.velocity:
        xp = namespace(state)
        velocity = xp.asarray(layout.velocity)
        new = add_at(new, layout.position, 0.5 * spec.period_s * (measured[velocity] + new[velocity]))
    return next_state(layout, state, command, new)


def split_blocks(spec: ControlSpec, state: Any) -> tuple[Any, Any]:
    """The remembered measurements `(blocks, measured)` and the command memory."""
    layout = spec.layout
    blocks = namespace(state).reshape(state[: layout.command_start], (num_blocks(spec), layout.num_measured))
    return blocks, state[layout.command_start :]


def _join_blocks(blocks: Any, commands: Any) -> Any:
    xp = namespace(blocks)
    return xp.concat([xp.reshape(blocks, (-1,)), commands])


def expected_measurement(spec: ControlSpec, parameters: ObserverParameters, state: Any) -> Any:
    """h(x): what the sensors show in this state.

    The newest block, and of velocities the weighted sum over the blocks: a late or low-passed velocity sensor shows
    what the velocity was.
    """
    blocks, _ = split_blocks(spec, state)
    if not spec.layout.velocity:
        return blocks[0]
    xp = namespace(state)
    shown = xp.sum(parameters.taps * blocks[:, xp.asarray(spec.layout.velocity)], axis=0)
    return set_at(blocks[0], spec.layout.velocity, shown)


def correct(
    spec: ControlSpec, parameters: ObserverParameters, settings: ObserverSettings, predicted: Any, measured: Any
) -> Correction:
    """x̂ = x̂⁻ + L ψ(y − h(x̂⁻)). A measurement that is not finite is missing and corrects nothing."""
    xp = namespace(predicted)
    expected = expected_measurement(spec, parameters, predicted)
    missing = ~xp.isfinite(measured)
    innovation = xp.where(missing, expected, measured) - expected  # in this order a gradient never meets a NaN
    limit = settings.clip * parameters.scale
    trusted = xp.minimum(xp.maximum(innovation, -limit), limit)
    unit = constant(spec.scales.change_scale, predicted)
    blocks, commands = split_blocks(spec, predicted)
    state = _join_blocks(blocks + unit * xp.matmul(parameters.gain, trusted / unit), commands)
    return Correction(state, innovation, xp.abs(innovation) > limit, missing)


def begin(spec: ControlSpec, state: Any) -> ObserverState:
    """The observer with this state vector as its estimate, and nothing counted yet."""
    xp = namespace(state)
    none = xp.zeros(spec.layout.num_measured, dtype=xp.int32)
    return ObserverState(state, none, none, none)


def start(spec: ControlSpec, measured: Any, command: Any) -> ObserverState:
    """The observer of a robot that has been standing like this, with this command, for a long time."""
    return begin(spec, initial_state(spec.layout, measured, command))


def start_motion(spec: ControlSpec, register: Any) -> ObserverState:
    """The observer at the beginning of a motion and after a pause: every block is the median of what was measured last.

    `register` is the plain state vector. Its commands were really sent and are kept. Differences between its
    measurements are noise where a robot stands; of an odd number of them the median is used, entry by entry, so that
    no single outlier decides where a motion begins. A register with one or two measurements has only its newest.
    """
    blocks, commands = split_blocks(spec, register)
    xp = namespace(register)
    count = blocks.shape[0] - (blocks.shape[0] + 1) % 2
    middle = xp.sort(blocks[:count], axis=0)[count // 2]
    return begin(spec, xp.concat([middle] * blocks.shape[0] + [commands]))


def trusted_measurement(
    spec: ControlSpec, parameters: ObserverParameters, settings: ObserverSettings, state: Any, measured: Any
) -> Any:
    """The newest measurement, with what the estimate shows in place of outliers and of missing entries.

    References begin here: at what was measured, but not at an outlier. An estimate that is wrong by more than an
    innovation may be moves the start of a reference, until it restarts.
    """
    xp = namespace(state)
    expected = expected_measurement(spec, parameters, state)
    near = xp.abs(measured - expected) <= settings.clip * parameters.scale  # false where the measurement is missing
    return xp.where(near, measured, expected)


def observe(
    spec: ControlSpec,
    parameters: ObserverParameters,
    settings: ObserverSettings,
    carry: ObserverState,
    command: Any,
    measured: Any,
) -> ObserverState:
    """One control period: `command` was applied, then `measured` was read.

    Every remembered block of an entry restarts from the measurement when its innovation was clipped `restart_after`
    times in a row to the same side, when the measurement comes back after more than `max_missing` steps, and when the
    estimate is not finite. Outliers on both sides are no reason to believe the last of them.
    """
    xp = namespace(carry.state)
    predicted = predict_state(spec, parameters.layers, parameters.change_scale, carry.state, command)
    corrected = correct(spec, parameters, settings, predicted, measured)
    here = ~corrected.missing
    up = corrected.innovation > 0
    row = xp.where(up, xp.maximum(carry.clipped, 0) + 1, xp.minimum(carry.clipped, 0) - 1)
    clipped = xp.where(here, xp.where(corrected.clipped, row, 0), carry.clipped)
    blocks, commands = split_blocks(spec, corrected.state)
    diverged = (xp.abs(clipped) >= settings.restart_after) | ~xp.all(xp.isfinite(blocks), axis=0)
    restart = here & (diverged | (carry.missing > settings.max_missing))
    return ObserverState(
        state=_join_blocks(xp.where(restart, measured, blocks), commands),
        clipped=xp.where(restart, 0, clipped),
        missing=xp.where(here, 0, carry.missing + 1),
        restarts=carry.restarts + restart,
    )


def find_fault(spec: ControlSpec, settings: ObserverSettings, missing: Any) -> str:
    """Why the estimate cannot be used any more, from the counts of missing measurements; empty where it can."""
    names = spec.layout.measured
    lost = [names[i] for i in range(len(names)) if missing[i] > settings.max_missing]
    if not lost:
        return ""
    return (
        f"no measurement of {', '.join(lost)} for more than {settings.max_missing} steps, "
        "as long as the observer may predict"
    )
