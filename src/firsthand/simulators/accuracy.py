"""How far a learned simulator is from the log: one control period ahead, and left to itself for seconds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output

from ..logs import Series
from ..plants.learned import LearnedPlant, LearnedState
from .data import Windows

HORIZONS_S = (0.0, 1.0, 5.0)
"""Horizons that are reported; 0 stands for one control period."""
MAX_WINDOWS = 2000
"""Windows per horizon, spread over what was held out."""


@dataclass(frozen=True)
class Accuracy:
    """Root mean square errors at the end of one horizon, in the units of what is measured."""

    seconds: float
    """The horizon."""
    steps: int
    """The same in control periods."""
    windows: int
    """How many windows the errors are taken over."""
    names: tuple[str, ...]
    """What is measured, and the tracked output (the length of its error)."""
    simulator: tuple[float, ...]
    """The simulator's errors, in the order of `names`."""
    constant_velocity: tuple[float, ...]
    """If the robot went on as it moved at first."""
    standing_still: tuple[float, ...]
    """If the robot stopped where it was at first."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, errors by name."""
        data = asdict(self)
        for name in ("simulator", "constant_velocity", "standing_still"):
            data[name] = dict(zip(self.names, data[name], strict=True))
        del data["names"]
        return data


def initial(plant: LearnedPlant, measured: Float[Array, "rows measured"], commands: Float[Array, "rows commands"]):
    """The plant's state at the last row of `measured`; `commands` are those before it. Both the oldest first."""
    predicted = plant.predicted
    past, memory = plant.measurement_history, plant.command_history
    earlier = measured[::-1][1 : 1 + past][:, predicted]
    return LearnedState(measured[-1], earlier, commands[::-1][:memory])


def history(plant: LearnedPlant) -> int:
    """Rows before the present one that the plant's state needs."""
    return max(plant.measurement_history, plant.command_history)


def roll_out(
    plant: LearnedPlant, state: LearnedState, commands: Float[Array, "steps commands"]
) -> Float[Array, "steps measured"]:
    """What is measured after each of these commands, the simulator left to itself."""
    key = jax.random.key(0)

    def step(state, command):
        state = plant.step(state, command, key=key)
        return state, plant.measure(state, key=key)

    return jax.lax.scan(step, state, commands)[1]


@eqx.filter_jit
def _last(plant: LearnedPlant, measured, commands, starts, steps: int):
    before = history(plant)

    def one(k):
        past_y = jax.lax.dynamic_slice_in_dim(measured, k - before, before + 1)
        past_u = jax.lax.dynamic_slice_in_dim(commands, k - before, before)
        ahead = jax.lax.dynamic_slice_in_dim(commands, k, steps)
        return roll_out(plant, initial(plant, past_y, past_u), ahead)[-1]

    return jax.vmap(one)(starts)


def open_loop(plant: LearnedPlant, held_out: Sequence[Series]) -> list[Accuracy]:
    """The errors at each horizon for which the held-out stretches are long enough."""
    spec = plant.spec
    found: list[Accuracy] = []
    if not held_out:
        return found
    windows = Windows.of(held_out)
    measured, commands = jnp.asarray(windows.measured), jnp.asarray(windows.commands)
    for seconds in HORIZONS_S:
        steps = max(round(seconds / spec.period_s), 1)
        starts = windows.starts(history(plant), steps)
        if starts.size == 0:
            continue
        starts = starts[:: max(starts.size // MAX_WINDOWS, 1)]
        truth, first = windows.measured[starts + steps], windows.measured[starts]
        predicted = np.asarray(_last(plant, measured, commands, jnp.asarray(starts), steps))
        still, moving = _baselines(spec, first, windows.measured[starts - 1], steps)
        errors = [_errors(spec, guess, truth) for guess in (predicted, moving, still)]
        names = (*spec.layout.measured, "tracked output")
        found.append(Accuracy(steps * spec.period_s, steps, int(starts.size), names, *errors))
    return found


def _baselines(spec: ControlSpec, first: np.ndarray, before: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(standing still, constant velocity) after a number of steps; positions stay inside their limits."""
    position, velocity = list(spec.layout.position), list(spec.layout.velocity)
    still, moving = first.copy(), first.copy()
    if velocity:
        still[:, velocity] = 0.0
        moving[:, position] += steps * spec.period_s * first[:, velocity]
    else:
        moving = first + steps * (first - before)
    low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
    moving[:, position] = np.clip(moving[:, position], low, high)
    return still, moving


def _errors(spec: ControlSpec, guess: np.ndarray, truth: np.ndarray) -> tuple[float, ...]:
    each = np.sqrt(np.mean((guess - truth).astype(float) ** 2, axis=0))
    ours, theirs = (np.asarray(tracked_output(spec, a.astype(float))) for a in (guess, truth))
    output = np.sqrt(np.mean(np.sum((ours - theirs) ** 2, axis=-1)))
    return (*each.tolist(), float(output))
