"""Whether model, closed loop and sensors are sound: a few numbers per episode, computed after the update.

Nothing here feeds back into learning or draws random numbers. `docs/metrics.md` has a row for each number,
`firsthand.advice` the sentences that follow from them.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from firsthand_onboard import ControlSpec
from firsthand_onboard.observer import expected_measurement, predict_state

from ..agent import LearnerState, Rollout
from ..agent.agent import see_rollout
from ..agent.buffer import Buffer
from ..agent.estimation import in_use, innovations
from ..agent.memory import loop_dynamics
from ..agent.track_record import change_length
from ..agent.windows import NORMAL_OVER_MEDIAN, find_sound
from ..models import Observer
from ..optim.rollout import DynamicsFunction, PolicyFunction

HORIZON = 16
"""Steps of a forecast, whatever the model is trained on."""
STRIDE = 8
"""A forecast begins at every eighth step."""
SETTLING = 8
"""Steps at the beginning of a trajectory, while an estimate settles, that do not count."""
MIN_CHANGE = 0.02
"""Errors below this share of a channel's declared change per step are too small to matter."""
MAX_NORMALISED = 4.0
"""An innovation counts up to this many times its size in the autocorrelation: outliers do not decide."""
MIN_SAMPLES = 30
"""Correlations of fewer samples say nothing."""
DELAYS = range(-2, 5)
"""Delays of a velocity sensor that are tried, in control periods."""
MIN_LIKENESS = 0.5
"""Correlation of measured velocity and difference quotient from which on a delay between them means anything."""
SWAPPED_LIKENESS = 0.7
"""Correlation with the difference quotient of another position from which on a velocity may be that one's."""


class Health(NamedTuple):
    """The health of an episode. NaN where too little is known."""

    closed_loop_growth: Float[Array, ""]
    innovation_size: Float[Array, " measured"]
    """Size of the innovations over their size on the data that was learned from."""
    innovation_correlation: Float[Array, " measured"]
    """Lag-one autocorrelation of the innovations; NaN where they are too small to matter."""
    one_step_error_ratio: Float[Array, ""]
    forecast_error: Float[Array, ""]
    forecast_error_ratio: Float[Array, ""]
    velocity_delay: Float[Array, " velocities"]
    """By how many control periods a measured velocity is late."""
    follows: Int[Array, " velocities"]
    """Which position a velocity follows that hardly follows its own; −1 for none."""
    observer_delay: Float[Array, ""]
    """The same as the learner's observer has it, as a mean; NaN without an observer."""
    policy_change: Float[Array, ""]
    """‖Δφ‖ of the update; 0 where no bit has changed."""


class Errors(NamedTuple):
    """Prediction errors of a model with its observer along trajectories."""

    one_step: Float[Array, "trajectories steps measured"]
    """Innovations; NaN where nothing can be compared."""
    forecast: Float[Array, "windows horizon measured"]
    """y_{t+k} minus what was forecast at t for k ≤ `HORIZON`; NaN where nothing can be compared."""
    changes: Float[Array, "windows horizon measured"]
    """y_{t+k} − y_t, the error of a forecast without change."""


@eqx.filter_jit
def diagnose(
    before: LearnerState,
    after: LearnerState,
    buffer: Buffer,
    rollout: Rollout,
    sound: Bool[Array, "trajectories steps"],
    seen: Rollout,
) -> Health:
    """The health after an episode.

    `before` and `after` are the learner's states around the update, `buffer` has the episode as its last rows, and
    `rollout` is the episode as it was measured, `seen` as the new policy's learner sees it. Predictions are those of
    `before`, which had not learned from the episode; they are compared with its predictions on as many earlier rows.
    """
    spec = before.dynamics.spec
    observer = Observer.register(before.dynamics) if before.estimation is None else in_use(before.estimation)

    def find_errors(trajectories: Rollout, trusted: Bool[Array, "trajectories steps"]) -> Errors:
        measured = trajectories.states[..., : spec.layout.num_measured]
        states = see_rollout(before.estimation, trajectories, trusted).states
        return prediction_errors(observer, states, trajectories.commands, measured, trusted)

    new = find_errors(rollout, rollout.valid & sound)
    learned = find_errors(*cut_stretches(buffer, buffer.size - rollout.valid.sum(), *rollout.valid.shape))
    least = MIN_CHANGE * jnp.asarray(spec.scales.change_scale)
    size, usual = robust_size(new.one_step), robust_size(learned.one_step)
    near, far = (mean_size(e) for e in (change_of(rollout, sound, spec), new.changes))

    def share(errors: Array, changes: Array) -> Float[Array, ""]:
        return jnp.mean(mean_size(errors) / jnp.maximum(changes, least))

    forecast_error = share(new.forecast, far)
    return Health(
        closed_loop_growth=closed_loop_growth(before.policy, loop_dynamics(before.policy, after.dynamics), seen),
        innovation_size=size / jnp.maximum(usual, least),
        innovation_correlation=jnp.where(size > least, lag_one_correlation(new.one_step), jnp.nan),
        one_step_error_ratio=share(new.one_step, near) / share(learned.one_step, near),
        forecast_error=forecast_error,
        forecast_error_ratio=forecast_error / share(learned.forecast, far),
        velocity_delay=velocity_delays(spec, rollout, sound),
        follows=followed_positions(spec, rollout, sound),
        observer_delay=jnp.asarray(jnp.nan) if after.estimation is None else mean_delay(after.estimation.observer),
        policy_change=change_length(before.policy, after.policy),
    )


# Predictions.


def cut_stretches(
    buffer: Buffer, rows: Int[Array, ""], trajectories: int, steps: int
) -> tuple[Rollout, Bool[Array, "trajectories steps"]]:
    """Stretches of the buffer's first `rows` rows, spread evenly, as trajectories; and which steps are sound.

    A step before a gap in the data, or beyond the last row, is not valid.
    """
    first = jnp.linspace(0.0, 1.0, trajectories) * jnp.maximum(rows - steps - 1, 0)
    wanted = first.astype(jnp.int32)[:, None] + jnp.arange(steps + 1)
    here = jnp.minimum(wanted, jnp.maximum(rows - 1, 0))
    states, measured = buffer.states[here], buffer.following.shape[1]
    follows = jnp.all(states[:, 1:, :measured] == buffer.following[here[:, :-1]], axis=-1)
    valid = follows & (wanted[:, 1:] < rows)
    cut = Rollout.from_arrays(states, buffer.commands[here[:, :-1]], valid=valid)
    return cut, valid & find_sound(buffer)[here[:, :-1]]


def prediction_errors(
    observer: Observer,
    states: Float[Array, "trajectories steps_and_last state"],
    commands: Float[Array, "trajectories steps commands"],
    measured: Float[Array, "trajectories steps_and_last measured"],
    valid: Bool[Array, "trajectories steps"],
) -> Errors:
    """The errors of predictions of one step, and over a horizon from every eighth step, along trajectories.

    `states` is what the observer estimates, or the register, for which `observer` is the one that equals it. The first
    steps of a trajectory do not count where it is long enough.
    """
    steps = commands.shape[1]
    horizon = max(min(HORIZON, steps // 2), 1)
    begin = min(SETTLING, steps - horizon)
    counted = valid & (jnp.arange(steps) >= begin)
    flat = (a.reshape(-1, a.shape[-1]) for a in (states[:, :-1], commands, measured[:, 1:]))
    one_step = innovations(observer, *flat).reshape(measured[:, 1:].shape)
    times = jnp.arange(begin, steps - horizon + 1, STRIDE)

    def window(trajectory: Int[Array, ""], time: Int[Array, ""]) -> tuple[Array, Array]:
        def cut(a: Array, start: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(a[trajectory], start, horizon)

        def step(state, command):
            state = predict_state(
                observer.spec, observer.parameters.layers, observer.parameters.change_scale, state, command
            )
            return state, expected_measurement(observer.spec, observer.parameters, state)

        _, predicted = jax.lax.scan(step, states[trajectory, time], cut(commands, time))
        actual = cut(measured, time + 1)
        counts = jnp.cumprod(cut(valid, time)).astype(bool)[:, None]
        changes = actual - measured[trajectory, time]
        return jnp.where(counts, actual - predicted, jnp.nan), jnp.where(counts, changes, jnp.nan)

    trajectories = jnp.arange(commands.shape[0])
    forecast, changes = jax.vmap(lambda i: jax.vmap(lambda t: window(i, t))(times))(trajectories)
    forecast, changes = (a.reshape(-1, *a.shape[2:]) for a in (forecast, changes))
    return Errors(jnp.where(counted[..., None], one_step, jnp.nan), forecast, changes)


def change_of(
    rollout: Rollout, sound: Bool[Array, "trajectories steps"], spec: ControlSpec
) -> Float[Array, "trajectories steps measured"]:
    """y_{k+1} − y_k along an episode; NaN where a step cannot be believed."""
    measured = rollout.states[..., : spec.layout.num_measured]
    return jnp.where((rollout.valid & sound)[..., None], measured[:, 1:] - measured[:, :-1], jnp.nan)


def robust_size(errors: Float[Array, "*rows measured"]) -> Float[Array, " measured"]:
    """The robust standard deviation of each channel's errors."""
    return NORMAL_OVER_MEDIAN * jnp.nanmedian(jnp.abs(errors).reshape(-1, errors.shape[-1]), axis=0)


def mean_size(errors: Float[Array, "*rows measured"]) -> Float[Array, " measured"]:
    """The mean absolute value of each channel's errors."""
    return jnp.nanmean(jnp.abs(errors).reshape(-1, errors.shape[-1]), axis=0)


def lag_one_correlation(errors: Float[Array, "trajectories steps measured"]) -> Float[Array, " measured"]:
    """Σ e_k e_{k+1} / Σ e_k² over neighbours that both count: zero where errors are white.

    The mean is not subtracted: a constant error is not white. Each error counts up to
    `MAX_NORMALISED` times the robust size of its channel.
    """
    limit = MAX_NORMALISED * robust_size(errors)
    clipped = jnp.clip(errors, -limit, limit)
    now, then = clipped[:, :-1], clipped[:, 1:]
    both = jnp.isfinite(now) & jnp.isfinite(then)
    now, then = jnp.where(both, now, 0.0), jnp.where(both, then, 0.0)
    power = 0.5 * jnp.sum(now**2 + then**2, axis=(0, 1))
    enough = (both.sum((0, 1)) >= MIN_SAMPLES) & (power > 0)
    return jnp.where(enough, jnp.sum(now * then, axis=(0, 1)) / jnp.where(enough, power, 1.0), jnp.nan)


# The closed loop.


@eqx.filter_jit
def closed_loop_growth(policy: PolicyFunction, dynamics: DynamicsFunction, rollout: Rollout) -> Float[Array, ""]:
    """By which factor a small deviation grows per step in the long run, as the model sees it.

    A deviation v is carried along the trajectories by A + BK, v ← (A + BK) v, and scaled back to length one after each
    step; the result is the geometric mean of what it was scaled by in the second half of each trajectory. The first
    half is a transient: it depends on which deviation one begins with, and on the units of the state. Above one the
    model believes that the closed loop is unstable.
    """
    first = jax.random.normal(jax.random.key(0), rollout.states.shape[-1:], rollout.states.dtype)
    tiny = jnp.finfo(rollout.states.dtype).tiny

    def one(states, previews, valid):
        def step(deviation, inputs):
            state, preview, counts = inputs
            _, moved = jax.jvp(lambda x: dynamics(x, policy(x, preview)), (state,), (deviation,))
            size = jnp.linalg.norm(moved)
            # Where nothing is left of a deviation, any other one says more.
            following = jnp.where(size > tiny, moved / jnp.maximum(size, tiny), first / jnp.linalg.norm(first))
            return jnp.where(counts, following, deviation), jnp.log(jnp.maximum(size, tiny))

        logarithms = jax.lax.scan(step, first / jnp.linalg.norm(first), (states[:-1], previews, valid))[1]
        late = valid & (jnp.cumsum(valid) > valid.sum() // 2)
        return jnp.sum(jnp.where(late, logarithms, 0.0)), late.sum()

    logarithms, counts = jax.vmap(one)(rollout.states, rollout.previews, rollout.valid)
    return jnp.exp(logarithms.sum() / jnp.maximum(counts.sum(), 1))


# Late velocities.


def velocity_delays(
    spec: ControlSpec, rollout: Rollout, sound: Bool[Array, "trajectories steps"]
) -> Float[Array, " velocities"]:
    """By how many control periods each measured velocity is late against the difference quotient of its position.

    The delay with the highest correlation between both, refined by a parabola. Noise in either lowers all correlations
    alike and moves nothing. NaN where they are hardly alike, as in an episode without motion.
    """
    alike, count = velocity_likeness(spec, rollout, sound)
    found = jnp.diagonal(alike, axis1=1, axis2=2)
    best = jnp.clip(jnp.argmax(found, axis=0), 1, len(DELAYS) - 2)
    left, peak, right = (jnp.take_along_axis(found, best[None] + i, axis=0)[0] for i in (-1, 0, 1))
    bend = left - 2.0 * peak + right
    delay = min(DELAYS) + best + jnp.where(bend < 0, 0.5 * (left - right) / jnp.where(bend < 0, bend, 1.0), 0.0)
    return jnp.where((peak >= MIN_LIKENESS) & (count >= MIN_SAMPLES), delay, jnp.nan)


def followed_positions(
    spec: ControlSpec, rollout: Rollout, sound: Bool[Array, "trajectories steps"]
) -> Int[Array, " velocities"]:
    """Which position each measured velocity follows in the place of its own, as where two are swapped; −1 for none."""
    alike, count = velocity_likeness(spec, rollout, sound)
    if not len(spec.layout.velocity):
        return jnp.zeros(0, jnp.int32)
    alike = alike.max(axis=0)
    other = jnp.argmax(alike, axis=1)
    swapped = (alike.max(axis=1) >= SWAPPED_LIKENESS) & (jnp.diagonal(alike) < MIN_LIKENESS) & (count >= MIN_SAMPLES)
    return jnp.where(swapped, other, -1)


def velocity_likeness(
    spec: ControlSpec, rollout: Rollout, sound: Bool[Array, "trajectories steps"]
) -> tuple[Float[Array, "delays velocities positions"], Int[Array, ""]]:
    """Correlations of measured velocities, late by each of `DELAYS`, with the difference quotients of all positions.

    And of how many samples; of none where there are no velocities or trajectories are too short.
    """
    layout, steps = spec.layout, rollout.commands.shape[1]
    back, ahead = max(DELAYS) + 1, 1 - min(DELAYS)
    size = len(layout.velocity)
    if not size or steps < back + ahead + 1:
        return jnp.zeros((len(DELAYS), size, size)), jnp.zeros((), int)
    position, velocity = (rollout.states[..., jnp.asarray(part)] for part in (layout.position, layout.velocity))
    quotient = (position[:, 2:] - position[:, :-2]) / (2.0 * spec.period_s)  # entry k is at time k + 1
    times = jnp.arange(back, steps + 1 - ahead)
    trusted = rollout.valid & sound
    used = jnp.stack([trusted[:, times + shift] for shift in range(-back, ahead)]).all(axis=0)[..., None]
    count = used.sum()

    def centre(values: Float[Array, "trajectories times velocities"]) -> Float[Array, "trajectories times velocities"]:
        values = jnp.where(used, values, 0.0)
        return jnp.where(used, values - values.sum((0, 1)) / jnp.maximum(count, 1), 0.0)

    shown = centre(velocity[:, times])

    def likeness(delay: int) -> Float[Array, "velocities positions"]:
        moved = centre(quotient[:, times - delay - 1])
        power = jnp.sqrt(jnp.outer(jnp.sum(shown**2, axis=(0, 1)), jnp.sum(moved**2, axis=(0, 1))))
        return jnp.einsum("ntv,ntp->vp", shown, moved) / jnp.where(power > 0, power, jnp.inf)

    return jnp.stack([likeness(delay) for delay in DELAYS]), count


def mean_delay(observer: Observer) -> Float[Array, ""]:
    """By how many periods the observer takes velocities to be late: the centre of its taps, as the mean over them.

    NaN without velocities, and where the taps of one add up to zero.
    """
    taps = jnp.asarray(observer.parameters.taps)
    total = taps.sum(axis=0)
    centre = jnp.arange(len(taps), dtype=taps.dtype) @ taps / jnp.where(total == 0, jnp.nan, total)
    return jnp.mean(centre)
