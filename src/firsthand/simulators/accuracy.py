"""How far a learned simulator is from the log: one control period ahead, and left to itself for seconds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output

from ..logs import Series
from ..plants.learned import LearnedPlant
from .arx import LinearModel
from .data import Windows
from .fit import cut

HORIZONS_S = (0.0, 0.25, 1.0, 5.0)
"""Horizons that are reported; 0 stands for one control period."""
MAX_WINDOWS = 2000
"""Windows per horizon, spread over what was held out."""
MODELS = ("simulator", "linear", "constant_velocity", "standing_still")
"""What is compared, as it is named in files."""


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
    """What is measured, then `positions` (over all of them together) and the tracked output (length of its error)."""
    simulator: tuple[float, ...]
    """The simulator's errors, in the order of `names`."""
    constant_velocity: tuple[float, ...]
    """If the robot went on as it moved at first."""
    standing_still: tuple[float, ...]
    """If the robot stopped where it was at first."""
    linear: tuple[float, ...] | None = None
    """A linear ARX model fitted to the same data."""
    doubt: float = 0.0
    """The ensemble's disagreement over what is usual in the log, on average along the way."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, errors by name."""
        data = asdict(self)
        for name in MODELS:
            if data[name] is not None:
                data[name] = dict(zip(self.names, data[name], strict=True))
        del data["names"]
        return data

    def overall(self, model: str) -> float:
        """The error of one of `MODELS` over all positions together; NaN where it is not known."""
        errors = getattr(self, model)
        return float("nan") if errors is None else errors[self.names.index("positions")]


@eqx.filter_jit
def _last(plant: LearnedPlant, measured, commands, starts, steps: int):
    def one(k):
        state = plant.start(*cut(measured, commands, k, plant.history))

        def step(state, command):
            state = plant.step(state, command, key=jax.random.key(0))
            return state, state.doubt

        state, doubts = jax.lax.scan(step, state, jax.lax.dynamic_slice_in_dim(commands, k, steps))
        return plant.measure(state, key=jax.random.key(0)), doubts.mean()

    return jax.vmap(one)(starts)


def open_loop(
    plant: LearnedPlant, held_out: Sequence[Series], linear: LinearModel | None = None, *, every: int = 1
) -> list[Accuracy]:
    """The errors at each horizon for which the held-out stretches are long enough; with evenly spaced windows."""
    spec = plant.spec
    found: list[Accuracy] = []
    if not held_out:
        return found
    windows = Windows.of(held_out)
    measured, commands = jnp.asarray(windows.measured), jnp.asarray(windows.commands)
    history = max(plant.history, 0 if linear is None else linear.history)
    for seconds in HORIZONS_S:
        steps = max(round(seconds / spec.period_s), 1)
        if found and steps <= found[-1].steps:
            continue
        starts = windows.starts(history, steps, every)
        if starts.size == 0:
            continue
        starts = starts[:: max(starts.size // MAX_WINDOWS, 1)]
        truth, first = windows.measured[starts + steps], windows.measured[starts]
        predicted, doubts = (np.asarray(a) for a in _last(plant, measured, commands, jnp.asarray(starts), steps))
        still, moving = _baselines(spec, first, windows.measured[starts - 1], steps)
        ours, constant, resting = (_errors(spec, guess, truth) for guess in (predicted, moving, still))
        straight = None
        if linear is not None:
            at, rates = linear.predict(windows.measured, windows.commands, starts, steps)
            guess = first.astype(float)
            guess[:, linear.entries] = at
            if spec.layout.velocity:
                order = [linear.entries.index(entry) for entry in spec.layout.position]
                guess[:, list(spec.layout.velocity)] = rates[:, order]
            straight = _errors(spec, guess, truth)
        names = (*spec.layout.measured, "positions", "tracked output")
        found.append(
            Accuracy(
                seconds=steps * spec.period_s,
                steps=steps,
                windows=int(starts.size),
                names=names,
                simulator=ours,
                constant_velocity=constant,
                standing_still=resting,
                linear=straight,
                doubt=float(doubts.mean()),
            )
        )
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
    squares = np.mean((guess - truth).astype(float) ** 2, axis=0)
    together = np.sqrt(np.mean(squares[list(spec.layout.position)]))
    found, wanted = (np.asarray(tracked_output(spec, a.astype(float))) for a in (guess, truth))
    output = np.sqrt(np.mean(np.sum((found - wanted) ** 2, axis=-1)))
    return (*np.sqrt(squares).tolist(), float(together), float(output))
