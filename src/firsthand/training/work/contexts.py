"""Which conditions a machine works under, such as a load: those whose model predicts it best.

A context is the learner's state under some conditions, with the work that it was learned from. All contexts predict
each new block of work, and the best prediction selects the context. If no context predicts as well as the selected one
used to, the conditions are new, and a new context starts from the nearest one.
"""

import enum
import math
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...agent import LearnerState
from ...agent.agent import see_rollout
from ...models import Dynamics
from ...optim.rollout import Rollout
from .chunks import ChunkStore
from .standing import Standing

FORECAST_STEPS = 12
"""How far ahead models are compared: far enough that a load shows, which in one step is smaller than the noise."""

STILL = 1.0
"""A robot stands where no entry moves more over `FORECAST_STEPS`, on average, than it usually does in one step."""


@dataclass
class Context:
    """A learner's state under some conditions."""

    state: LearnerState
    store: ChunkStore
    born: int
    """The block in which it began."""
    used: int
    """The block in which it was last in use."""
    usual: float = math.nan
    """Usual share of the motion that its model misses, while it is in use."""
    error: float = math.nan
    """Usual tracking error under it."""
    updates: int = 0
    """How often it has learned."""
    good: LearnerState | None = None
    """The last state whose policy was no worse than usual."""
    history: list[float] = field(default_factory=list)
    """Newest tracking errors."""
    standing: Standing | None = None
    """How far the learned part may go over its base; None without one."""


def forecast_error(state: LearnerState, rollout: Rollout, sound: Bool[Array, "trajectories steps"]) -> float:
    """Share of the motion over `FORECAST_STEPS` that a model misses on measured trajectories, as the policy sees them.

    0 for a perfect model, 1 for one that says that nothing moves; NaN where nothing is sound, or the robot stands: then
    there is nothing to predict but noise.
    """
    return float(_forecast_error(state.dynamics, see_rollout(state.estimation, rollout, sound), rollout, sound))


@eqx.filter_jit
def _forecast_error(
    dynamics: Dynamics, seen: Rollout, rollout: Rollout, sound: Bool[Array, "trajectories steps"]
) -> Float[Array, ""]:
    size = dynamics.spec.layout.num_measured
    scale = jnp.asarray(dynamics.spec.scales.change_scale)
    starts = np.arange(0, rollout.commands.shape[1] - FORECAST_STEPS + 1, FORECAST_STEPS)
    inside = starts[:, None] + np.arange(FORECAST_STEPS)

    def window(first, commands):
        return jax.lax.scan(lambda x, u: (dynamics(x, u), None), first, commands)[0][:size]

    def trajectory(states, commands, measured, good):
        predicted = jax.vmap(window)(states[starts], commands[inside])
        before, after = measured[starts, :size], measured[starts + FORECAST_STEPS, :size]
        counts = good[inside].all(axis=1)[:, None]
        missed = jnp.where(counts, jnp.abs(predicted - after) / scale, 0.0)
        moved = jnp.where(counts, jnp.abs(after - before) / scale, 0.0)
        return missed.sum(0), moved.sum(0), counts.sum()

    parts = jax.vmap(trajectory)(seen.states, rollout.commands, rollout.states, sound)
    missed, moved, windows = (part.sum(0) for part in parts)
    return jnp.where(moved.max() > STILL * windows, missed.sum() / moved.sum(), jnp.nan)


class Choice(enum.StrEnum):
    """The verdict of the newest block of work on the conditions. A text besides: reports and files have it as it is."""

    SAME = "same"
    KNOWN = "known"
    NEW = "new"


def choose_context(
    contexts: list[Context], current: int, missed: list[float], *, better: float, surprise: float
) -> tuple[Choice, int]:
    """Whether a machine works under the same conditions, known other ones, or new ones; and the context to go on from.

    `missed` has each context's `forecast_error`. Another context is taken where it misses less than `better` times what
    the current one does; a new one is begun where the best misses more than `surprise` times what is usual for it.
    """
    known = [value if math.isfinite(value) else math.inf for value in missed]
    best = int(np.argmin(known))
    if not math.isfinite(known[best]):
        return Choice.SAME, current
    if best != current and known[best] < better * known[current]:
        usual = contexts[best].usual
        is_known = not math.isfinite(usual) or known[best] < surprise * usual
        return (Choice.KNOWN if is_known else Choice.NEW), best
    usual = contexts[current].usual
    if math.isfinite(usual) and known[current] > surprise * usual:
        return Choice.NEW, best if known[best] < known[current] else current
    return Choice.SAME, current
