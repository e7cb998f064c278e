"""Windows of consecutive transitions, and the model's loss over them.

One-step least squares on noisy measurements underestimates the Jacobians, because the noise is in the model's inputs,
too (errors in variables). A roll-out feeds the model its own predictions, so that only the first step of a window sees
the noise of a measurement. From the state x_t of a window's first row,

    x̂_t = x_t,   x̂_{k+1} = f_θ(x̂_k, u_k),   ℓ_T(θ) = mean over windows, k ≤ T and entries of ρ((x̂_{k+1} − y_{k+1})/s),

with the measured commands u, ρ(e) = δ² (√(1 + (e/δ)²) − 1) (pseudo-Huber: quadratic below δ, linear beyond, so that
outliers do not decide), and s the robust size of the model's one-step errors, entry by entry.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..models import Dynamics, predicted_entries
from ..optim.rollout import DynamicsFunction, Rollout
from .buffer import Buffer, draw_rows, sample
from .settings import Settings

NORMAL_OVER_MEDIAN = 1.4826
"""Standard deviation over the median of the absolute value, of a normal distribution."""
NEWEST_STRIDE = 8
"""The newest episode is judged on roll-outs from every eighth of its steps."""


class Windows(NamedTuple):
    """Stretches of the buffer, `horizon` rows each."""

    starts: Float[Array, "windows state"]
    """x of the first row."""
    commands: Float[Array, "windows horizon commands"]
    following: Float[Array, "windows horizon measured"]
    """y⁺ of each row."""
    counts: Bool[Array, "windows horizon"]
    """Rows up to the first gap in the data whose outcome may be compared."""


def find_continuations(buffer: Buffer) -> Bool[Array, " capacity"]:
    """Whether the next row begins with the measurement with which a row ended: whether no gap lies between them."""
    measured = buffer.following.shape[1]
    follows = jnp.all(buffer.states[1:, :measured] == buffer.following[:-1], axis=1)
    return jnp.concat([follows, jnp.zeros(1, bool)]) & (jnp.arange(buffer.capacity) + 1 < buffer.size)


def find_sound(buffer: Buffer) -> Bool[Array, " capacity"]:
    """Whether a row is free of spikes and of stuck sensors."""
    used = jnp.arange(buffer.capacity) < buffer.num_sound
    rows = jnp.where(used, buffer.sound_rows, buffer.capacity)  # what is out of bounds is dropped
    return jnp.zeros(buffer.capacity, bool).at[rows].set(True, mode="drop")


def cut_windows(
    buffer: Buffer,
    states: Float[Array, "capacity state"],
    continuations: Bool[Array, " capacity"],
    first: Int[Array, " windows"],
    horizon: int,
) -> Windows:
    """The windows that begin at these rows, with their starts from `states`."""
    rows = first[:, None] + jnp.arange(horizon)
    unbroken = jnp.cumprod(continuations[rows[:, :-1]], axis=1).astype(bool)
    counts = jnp.concat([jnp.ones((len(first), 1), bool), unbroken], axis=1)
    return Windows(states[first], buffer.commands[rows], buffer.following[rows], counts)


def draw_windows(
    buffer: Buffer,
    continuations: Bool[Array, " capacity"],
    sound: Bool[Array, " capacity"],
    count: int,
    horizon: int,
    *,
    key: PRNGKeyArray,
) -> Windows:
    """`count` windows that begin at sound rows. Rows that are not sound are rolled through, but count for nothing."""
    first = draw_rows(buffer, count, key=key)
    windows = cut_windows(buffer, buffer.states, continuations, first, horizon)
    return windows._replace(counts=windows.counts & sound[first[:, None] + jnp.arange(horizon)])


def newest_windows(
    buffer: Buffer,
    states: Float[Array, "capacity state"],
    continuations: Bool[Array, " capacity"],
    counted: Bool[Array, " capacity"],
    rollout: Rollout,
    horizon: int,
) -> Windows:
    """Windows from every eighth row of the newest episode, `rollout`, whose valid steps are the buffer's last rows.

    Rows that are not `counted` are rolled through, but count for nothing.
    """
    first = buffer.size - rollout.valid.sum() + jnp.arange(0, rollout.valid.size, NEWEST_STRIDE)
    rows = first[:, None] + jnp.arange(horizon)
    windows = cut_windows(buffer, states, continuations, jnp.minimum(first, buffer.capacity - 1), horizon)
    return windows._replace(
        counts=windows.counts & (rows < buffer.size) & counted[jnp.minimum(rows, buffer.capacity - 1)]
    )


def pseudo_huber(error: Float[Array, "*shape"], delta: Float[Array, ""] | float) -> Float[Array, "*shape"]:
    """ρ(e), about e²/2 below δ and δ |e| beyond."""
    return delta**2 * (jnp.sqrt(1.0 + (error / delta) ** 2) - 1.0)


def one_step_errors(dynamics: Dynamics, buffer: Buffer, count: int, *, key: PRNGKeyArray) -> Float[Array, "count m"]:
    """f_θ(x, u) − y⁺ of `count` sound rows drawn evenly from the buffer, for every measured entry."""
    states, commands, following = sample(buffer, count, key=key)
    return jax.vmap(dynamics)(states, commands)[:, : following.shape[1]] - following


def error_scales(errors: Float[Array, "count m"], dynamics: Dynamics, settings: Settings) -> Float[Array, " m"]:
    """s: the robust standard deviation of each entry's errors, and at least a small share of its declared change."""
    floor = settings.model.min_change_scale * jnp.asarray(dynamics.spec.scales.change_scale)
    return jnp.maximum(NORMAL_OVER_MEDIAN * jnp.median(jnp.abs(errors), axis=0), floor)


def noise_share(scales: Float[Array, " m"], dynamics: Dynamics) -> Float[Array, ""]:
    """The share of a change per step that the model cannot predict, in variance, as the mean over predicted entries.

    It bounds what noise can be in the measurements: an exact machine's falls to a hundredth as the model learns.
    """
    entries = jnp.asarray(predicted_entries(dynamics.spec))
    return jnp.mean(jnp.minimum((scales[entries] / dynamics.change_scale) ** 2, 1.0))


def slip_share(dynamics: Dynamics, buffer: Buffer, settings: Settings, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """The share of the positions' changes that the integral of measured velocities misses, in variance: the largest.

    Late velocities show here, and hardly in one-step predictions: they can be foretold well, but say where the robot
    was going a moment ago. Both sizes are medians. Zero without velocities.
    """
    spec = dynamics.spec
    if not spec.layout.velocity:
        return jnp.zeros(())
    positions = jnp.asarray(spec.layout.position)
    states, commands, following = sample(buffer, settings.model.scale_samples, key=key)
    missed = (jax.vmap(dynamics)(states, commands)[:, : following.shape[1]] - following)[:, positions]
    moved = (following - states[:, : following.shape[1]])[:, positions]
    least = settings.model.min_change_scale * jnp.asarray(spec.scales.change_scale)[positions]
    usual = jnp.maximum(jnp.median(jnp.abs(moved), axis=0), least)
    return jnp.max((jnp.median(jnp.abs(missed), axis=0) / usual) ** 2)


def noise_blend(missed: Float[Array, ""], settings: Settings) -> Float[Array, ""]:
    """β: how far what one-step predictions miss is taken for noise, not for errors of the model.

    It rises from 0 to 1 as the share goes from a third of `settings.model.noise_share` to all of it.
    """
    return jnp.clip((3.0 * missed / settings.model.noise_share - 1.0) / 2.0, 0.0, 1.0)


def multi_step_loss(
    dynamics: DynamicsFunction, windows: Windows, scales: Float[Array, " m"], delta: Float[Array, ""] | float
) -> Float[Array, ""]:
    """ℓ_T(θ), over the rows before the first gap of each window."""

    def one(start, commands, following, counts):
        def step(state, inputs):
            command, target, counted = inputs
            state = dynamics(state, command)
            error = (state[: target.shape[0]] - target) / scales
            return state, jnp.where(counted, jnp.mean(pseudo_huber(error, delta)), 0.0)

        return jax.lax.scan(step, start, (commands, following, counts))[1].sum()

    return jax.vmap(one)(*windows).sum() / jnp.maximum(windows.counts.sum(), 1)
