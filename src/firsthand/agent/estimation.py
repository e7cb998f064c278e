"""Learning the observer: states estimated from stored measurements, the loss over them, and whether the observer helps.

An observer (`firsthand_onboard.observer`) has a model f_θ of its own, because its state has another meaning: behind a
late velocity sensor the register holds what the sensor shows, and the estimate what the robot does. Both models are
trained on the same data. A window of the observer's loss begins at an estimate and has two parts,

    closed, k ≤ C:       x̂_{k+1} = f_θ(x̂_k, u_k) + L ψ(y_{k+1} − h(f_θ(x̂_k, u_k))),
    free,   k ≤ C + T:   x̂_{k+1} = f_θ(x̂_k, u_k),

and in both ρ((y_{k+1} − h(f_θ(x̂_k, u_k)))/s) counts, with ρ and s as in `agent.windows`. The closed part trains the
gain L on what follows from a correction, the free part makes the model fit for roll-outs. With the register's gain and
taps the closed part is the one-step loss, so the observer departs from the register only where the data support it.
"""

import dataclasses
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from firsthand_onboard import ControlSpec
from firsthand_onboard.observer import (
    ObserverSettings,
    ObserverState,
    correct,
    expected_measurement,
    num_blocks,
    observe,
    predict_state,
    predicted_entries,
    start_motion,
)

from ..models import Dynamics, Observer
from ..optim.rollout import Rollout
from .buffer import Buffer, rollout_rows
from .model_learning import ModelReport, adam, learn_model, rate_share, rescale, split_rounds
from .settings import Settings
from .trees import all_finite, select_tree
from .windows import (
    NORMAL_OVER_MEDIAN,
    Windows,
    cut_windows,
    error_scales,
    find_continuations,
    newest_windows,
    noise_share,
    one_step_errors,
    pseudo_huber,
    slip_share,
)

SEGMENT = 128
"""Rows of the buffer that are estimated one after the other."""
BURN_IN = 32
"""Rows before a segment from which its estimate begins."""
SEGMENTS_AT_ONCE = 32
MOST_SEGMENTS = 640
"""Segments that are estimated anew, at most, so that an update takes no longer in a long run: all data of some 65
episodes of 1250 steps, then the newest and a sample of the others."""


class Estimation(eqx.Module):
    """Register and observer as two candidates, and how they compare."""

    register_model: Dynamics
    """The model of the plain register."""
    observer: Observer
    """The observer with its own model."""
    optimizer: PyTree
    """Adam's moments for the observer."""
    active: Bool[Array, ""]
    """Whether the policy sees the observer's estimate, or the register."""
    advantage: Float[Array, ""]
    """Mean logarithm of the observer's errors over the register's on new episodes; negative where it pays."""
    missed: Float[Array, ""]
    """Share of the changes' variance that the register's one-step predictions miss on all data so far."""
    slipped: Float[Array, ""]
    """Share of the positions' changes that the integral of measured velocities misses: they may be late."""
    trials: Int[Array, ""]
    """Updates in which both were trained."""

    @staticmethod
    def initial(dynamics: Dynamics, settings: Settings) -> "Estimation":
        """Before the first episode: the observer is the register."""
        observer = initial_observer(dynamics, settings)
        moments = adam(settings).init(split_observer(observer)[0])  # pyright: ignore[reportArgumentType] (a pytree)
        return Estimation(
            register_model=dynamics,
            observer=observer,
            optimizer=moments,
            active=jnp.asarray(settings.observer.use == 2),
            advantage=jnp.zeros(()),
            missed=jnp.ones(()),
            slipped=jnp.zeros(()),
            trials=jnp.zeros((), jnp.int32),
        )

    @property
    def dynamics(self) -> Dynamics:
        """The model in use."""
        return select_tree(self.active, observer_dynamics(self.observer), self.register_model)

    def with_dynamics(self, dynamics: Dynamics) -> "Estimation":
        """Both candidates with this model, which was learned elsewhere."""
        return dataclasses.replace(self, register_model=dynamics, observer=with_dynamics(self.observer, dynamics))

    def see(self, rollout: Rollout, sound: Bool[Array, "trajectories steps"]) -> Rollout:
        """The trajectories as the policy in use sees them: estimates, or the register where it is sound."""

        def estimates() -> Rollout:
            return estimate_rollout(self.observer, rollout)

        def registers() -> Rollout:
            return eqx.tree_at(lambda r: r.valid, rollout, rollout.valid & sound)

        return jax.lax.cond(self.active, estimates, registers)


def in_use(estimation: Estimation) -> Observer:
    """The observer in use, or the observer that equals the register: for code that is traced for both."""
    register = Observer.register(estimation.register_model, estimation.observer.settings)
    return select_tree(estimation.active, estimation.observer, register)


def learn_candidates(
    estimation: Estimation,
    optimizer: PyTree,
    buffer: Buffer,
    rollout: Rollout,
    settings: Settings,
    *,
    key: PRNGKeyArray,
) -> tuple[Estimation, PyTree, ModelReport]:
    """Compare register and observer on a new episode, choose, and train both; the episode is in the buffer already.

    The observer is considered where one-step predictions of the register miss at least `model.noise_share`, or the
    integral of measured velocities misses `observer.slip_share` of the positions' changes: with exact sensors nothing
    is left to estimate. `optimizer` is the register's. Returns it, and the report of the one in use.
    """
    chosen = settings.observer
    register_key, observer_key, noise_key = jax.random.split(key, 3)
    slip_key = jax.random.fold_in(noise_key, 1)
    observer = with_dynamics(estimation.observer, rescale(observer_dynamics(estimation.observer), buffer, settings))
    register = rescale(estimation.register_model, buffer, settings)
    enough = jnp.where(estimation.active, 0.5, 1.0)  # what is in use stays in use a little longer
    noisy = estimation.missed >= enough * settings.model.noise_share
    late = estimation.slipped >= enough * chosen.slip_share
    considered = noisy | late | (chosen.use == 2)
    advantage = compare(estimation, rollout, settings)
    limit = jnp.where(estimation.active, -1.0, 1.0) * jnp.log(chosen.advantage)
    active = considered & ((advantage < limit) | (chosen.use == 2))

    # Without noise the register is trained on what it sees in a few steps; the observer's state must be found first.
    trying = (estimation.trials < chosen.trials) | (late & ~noisy)
    other = jnp.where(considered, jnp.where(trying, chosen.trial_share, chosen.rival_share), 0.0)
    shares = jnp.where(active, jnp.stack([other, jnp.ones(())]), jnp.stack([jnp.ones(()), other]))
    all_steps = settings.model.steps
    least = jnp.where(shares > 0, min(1, all_steps), 0)  # a share of few steps is one of them, not none
    steps = jnp.maximum((all_steps * shares).astype(jnp.int32), least)

    register, optimizer, report = learn_model(
        register, optimizer, buffer, settings, steps[0], rollout, key=register_key
    )
    errors = one_step_errors(register, buffer, settings.model.scale_samples, key=noise_key)
    missed = noise_share(error_scales(errors, register, settings), register)
    before = observer, estimation.optimizer
    continuations = find_continuations(buffer)
    observer, moments, loss, held_out = learn_observer(
        *before, buffer, continuations, steps[1], settings, rollout, key=observer_key
    )
    sound = all_finite((observer, moments))
    observer, moments = select_tree(sound, (observer, moments), before)
    active = active & sound  # an observer that is not finite costs only itself
    report = ModelReport(
        loss=jnp.where(active, loss, report.loss),
        accepted=active | report.accepted,  # and so does a register that nobody sees: it came back as it was
        held_out=jnp.where(active, held_out, report.held_out),
    )
    new = Estimation(
        register_model=register,
        observer=observer,
        optimizer=moments,
        active=active,
        advantage=advantage,
        missed=missed,
        slipped=slip_share(register, buffer, settings, key=slip_key),
        trials=estimation.trials + considered,
    )
    return new, optimizer, report


def compare(estimation: Estimation, rollout: Rollout, settings: Settings) -> Float[Array, ""]:
    """The observer's advantage with a new episode counted in; nothing is compared before both were trained."""
    plain, estimated = forecast_errors(estimation.register_model, estimation.observer, rollout, settings)
    found = jnp.log(estimated / plain)
    memory = jnp.where(estimation.trials > 1, settings.observer.memory, 0.0)
    usable = jnp.isfinite(found) & (estimation.trials > 0)
    return jnp.where(usable, memory * estimation.advantage + (1.0 - memory) * found, estimation.advantage)


def initial_observer(dynamics: Dynamics, settings: Settings) -> Observer:
    """The plain register as an observer, with this model."""
    chosen = settings.observer
    limits = ObserverSettings.of(dynamics.spec, clip=float(chosen.clip), restart_after=chosen.restart_after)
    return Observer.register(dynamics, limits)


def observer_dynamics(observer: Observer) -> Dynamics:
    """The observer's model f_θ."""
    layers = cast(tuple, observer.parameters.layers)
    return Dynamics(layers, observer.parameters.change_scale, observer.spec)


def with_dynamics(observer: Observer, dynamics: Dynamics) -> Observer:
    """The same gain, taps and scale with another model."""
    parameters = observer.parameters._replace(layers=dynamics.layers, change_scale=dynamics.change_scale)
    return Observer(parameters, observer.settings, observer.spec)


def gain_mask(spec: ControlSpec) -> np.ndarray:
    """Which entries of L may differ from zero: an innovation corrects its own entry and that entry's velocity."""
    layout = spec.layout
    mask = np.eye(layout.num_measured, dtype=np.float32)
    for position, velocity in zip(layout.position, layout.velocity, strict=False):
        mask[position, velocity] = mask[velocity, position] = 1.0
    return np.broadcast_to(mask, (num_blocks(spec), *mask.shape))


def segment_length(buffer: Buffer) -> int:
    """Rows of a segment."""
    return min(SEGMENT, buffer.capacity)


def choose_segments(buffer: Buffer, newest: int, *, key: PRNGKeyArray) -> Int[Array, " segments"]:
    """The numbers of the buffer's segments that are estimated anew, in order: all of them while they are few.

    Otherwise those of the `newest` rows, and of the others `MOST_SEGMENTS` in all, evenly spread from a random first
    one.
    """
    length = segment_length(buffer)
    fresh = newest // length + 2  # wherever they begin in a segment
    most = max(MOST_SEGMENTS, -(-2 * fresh // SEGMENTS_AT_ONCE) * SEGMENTS_AT_ONCE)
    place = jnp.arange(min(most, buffer.capacity // length))
    if most >= buffer.capacity // length:
        return place
    total = -(-buffer.size // length)
    first = jax.random.randint(key, (), 0, jnp.maximum(total - fresh, 1))
    spread = (place * (total - fresh) + first) // (most - fresh)
    chosen = jnp.where(place < most - fresh, spread, total - most + place)
    return jnp.where(total <= most, place, chosen)


def count_chosen(buffer: Buffer, segments: Int[Array, " segments"]) -> Int[Array, ""]:
    """How many rows in use the chosen segments have; only the last one may be partly in use."""
    length = segment_length(buffer)
    left_out = jnp.maximum(-(-buffer.size // length) - len(segments), 0)
    return buffer.size - length * left_out


def chosen_rows(buffer: Buffer, segments: Int[Array, " segments"], at: Int[Array, " rows"]) -> Int[Array, " rows"]:
    """The rows of the buffer that stand at these places among those of the chosen segments."""
    length = segment_length(buffer)
    return segments[at // length] * length + at % length


def estimate_states(
    observer: Observer,
    buffer: Buffer,
    continuations: Bool[Array, " capacity"],
    segments: Int[Array, " segments"] | None = None,
) -> Float[Array, "capacity state"]:
    """x̂ at the rows of the chosen segments, estimated anew; None for all of them. Zero elsewhere.

    After a gap the estimate starts as at the beginning of a motion. Segments are estimated side by side, each from
    `BURN_IN` rows before it.
    """
    length = segment_length(buffer)
    whole = buffer.capacity // length
    at_once = min(SEGMENTS_AT_ONCE, whole)
    segments = jnp.arange(whole) if segments is None else segments
    begins = jnp.concat([jnp.ones(1, bool), ~continuations[:-1]])

    def segment(first: Int[Array, ""]) -> Float[Array, "length state"]:
        def step(carry: ObserverState, offset: Int[Array, ""]):
            row = jnp.maximum(first + offset, 0)
            fresh = start_motion(observer.spec, buffer.states[row])
            anew = begins[row] | (offset == -BURN_IN)
            carry = jax.tree.map(lambda a, b: jnp.where(anew, a, b), fresh, carry)
            return _observe(observer, carry, buffer.commands[row], buffer.following[row]), carry.state

        first_state = start_motion(observer.spec, buffer.states[0])
        return jax.lax.scan(step, first_state, jnp.arange(-BURN_IN, length))[1][BURN_IN:]

    def chunk(index: Int[Array, ""], found: Float[Array, "whole length state"]) -> Float[Array, "whole length state"]:
        numbers = jax.lax.dynamic_slice_in_dim(segments, index * at_once, at_once)
        return found.at[numbers].set(jax.vmap(segment)(length * numbers))

    chunks = -(-count_chosen(buffer, segments) // (at_once * length))
    nothing = jnp.zeros_like(buffer.states).reshape(whole, length, -1)
    return jax.lax.fori_loop(0, chunks, chunk, nothing).reshape(buffer.states.shape)


def estimate_rollout(observer: Observer, rollout: Rollout) -> Rollout:
    """The same trajectories with estimates as states; x̂ goes on from a trajectory to the next where no gap lies."""
    measured = observer.spec.layout.num_measured
    (states, commands, following), valid = rollout_rows(rollout, measured)
    same = jnp.all(states[1:, :measured] == following[:-1], axis=1)
    begins = jnp.concat([jnp.ones(1, bool), ~(same & valid[1:] & valid[:-1])])

    def step(carry: ObserverState, row):
        state, command, target, anew = row
        fresh = start_motion(observer.spec, state)
        carry = jax.tree.map(lambda a, b: jnp.where(anew, a, b), fresh, carry)
        after = _observe(observer, carry, command, target)
        return after, (carry.state, after.state)

    first = start_motion(observer.spec, states[0])
    _, (before, after) = jax.lax.scan(step, first, (states, commands, following, begins))
    shape = rollout.commands.shape[:2]
    before, after = (a.reshape(*shape, -1) for a in (before, after))
    # The outcome of a valid step is the estimate after it, also where the next row begins anew.
    later = jnp.where(rollout.valid[..., None], after, jnp.concat([before[:, 1:], after[:, -1:]], axis=1))
    return eqx.tree_at(lambda r: r.states, rollout, jnp.concat([before[:, :1], later], axis=1))


def _observe(observer: Observer, carry: ObserverState, command, measured) -> ObserverState:
    new = observe(observer.spec, observer.parameters, observer.settings, carry, command, measured)
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, carry)


def innovations(
    observer: Observer, states: Float[Array, "rows state"], commands: Float[Array, "rows commands"], measured: Array
) -> Float[Array, "rows measured"]:
    """e = y⁺ − h(f_θ(x̂, u)) of each row."""
    spec, parameters = observer.spec, observer.parameters

    def one(state, command, target):
        predicted = predict_state(spec, parameters.layers, parameters.change_scale, state, command)
        return target - expected_measurement(spec, parameters, predicted)

    return jax.vmap(one)(states, commands, measured)


def innovation_error(observer: Observer, rollout: Rollout) -> Float[Array, ""]:
    """Mean square of the clipped innovations of an episode, in units of the changes; NaN without a valid step.

    What `model_learning.prediction_error` is to the register: how well the observer's model predicts measurements.
    """
    spec, parameters = observer.spec, observer.parameters
    states = estimate_rollout(observer, rollout).states[:, :-1]
    following = rollout.states[:, 1:, : spec.layout.num_measured]
    found = jax.vmap(lambda *rows: innovations(observer, *rows))(states, rollout.commands, following)
    limit = observer.settings.clip * parameters.scale
    entries = jnp.asarray(predicted_entries(spec))
    error = jnp.clip(found, -limit, limit)[..., entries] / parameters.change_scale
    count = rollout.valid.sum() * entries.shape[0]
    total = jnp.where(rollout.valid[..., None], error**2, 0.0).sum()
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)


def innovation_scale(
    observer: Observer, errors: Float[Array, "rows measured"], settings: Settings
) -> Float[Array, " measured"]:
    """The robust standard deviation of innovations, and at least a small share of the declared change."""
    floor = settings.model.min_change_scale * jnp.asarray(observer.spec.scales.change_scale)
    return jnp.maximum(NORMAL_OVER_MEDIAN * jnp.median(jnp.abs(errors), axis=0), floor)


def observed_loss(
    observer: Observer, windows: Windows, closed: int, delta: Float[Array, ""] | float
) -> Float[Array, ""]:
    """The observer's loss over windows of `closed` corrected steps and then free ones."""
    spec, parameters, limits = observer.spec, observer.parameters, observer.settings

    def step(state, inputs, corrected: bool):
        command, target, counted = inputs
        state = predict_state(spec, parameters.layers, parameters.change_scale, state, command)
        error = target - expected_measurement(spec, parameters, state)
        if corrected:
            state = correct(spec, parameters, limits, state, target).state
        return state, jnp.where(counted, jnp.mean(pseudo_huber(error / parameters.scale, delta)), 0.0)

    def one(start, *rows):
        first, then = ([row[part] for row in rows] for part in (slice(None, closed), slice(closed, None)))
        state, corrected = jax.lax.scan(lambda s, i: step(s, i, True), start, tuple(first))
        _, free = jax.lax.scan(lambda s, i: step(s, i, False), state, tuple(then))
        return corrected.sum() + free.sum()

    return jax.vmap(one)(*windows).sum() / jnp.maximum(windows.counts.sum(), 1)


def split_observer(observer: Observer) -> tuple[Observer, Observer]:
    """Split into the part that gradients train (θ, L, taps), and the rest."""
    trained = jax.tree.map(eqx.is_inexact_array, observer)
    trained = eqx.tree_at(lambda o: (o.parameters.change_scale, o.parameters.scale), trained, (False, False))
    return eqx.partition(observer, trained)


def learn_observer(
    observer: Observer,
    optimizer: PyTree,
    buffer: Buffer,
    continuations: Bool[Array, " capacity"],
    steps: Int[Array, ""],
    settings: Settings,
    newest: Rollout | None = None,
    *,
    key: PRNGKeyArray,
) -> tuple[Observer, PyTree, Float[Array, ""], Float[Array, ""]]:
    """`steps` Adam steps on the observer's loss; returns the mean loss of the last round, and the first on `newest`.

    The stored measurements (`choose_segments`) are estimated anew `settings.model.rescalings` times, and the sizes of
    innovations with them; windows begin where an estimate is. The number of steps is not part of the compiled program.
    """
    model, chosen = settings.model, settings.observer
    mask = jnp.asarray(gain_mask(observer.spec))
    length = chosen.closed + model.horizon
    everywhere, fresh = jnp.ones(buffer.capacity, bool), 0 if newest is None else newest.valid.size
    rounds, per_round = split_rounds(steps, settings)

    def one_round(number, carry):
        weights, optimizer, scale, _, held_out = carry
        round_key, draw_key = jax.random.split(jax.random.fold_in(key, number))
        current = _with_scale(eqx.combine(weights, fixed), scale)
        segments = choose_segments(buffer, fresh, key=jax.random.fold_in(draw_key, 1))
        states, known = estimate_states(current, buffer, continuations, segments), count_chosen(buffer, segments)
        drawn = jax.random.randint(draw_key, (model.scale_samples,), 0, jnp.maximum(known, 1))
        rows = chosen_rows(buffer, segments, drawn)
        errors = innovations(current, states[rows], buffer.commands[rows], buffer.following[rows])
        scale = innovation_scale(current, errors, settings)

        def loss(weights, key):
            now = _with_scale(eqx.combine(weights, fixed), scale)
            drawn = jax.random.randint(key, (chosen.windows,), 0, jnp.maximum(known - length + 1, 1))
            first = chosen_rows(buffer, segments, drawn)
            windows = cut_windows(buffer, states, continuations, first, length)
            return observed_loss(now, windows, chosen.closed, model.huber)

        def adam_step(i, carry):
            weights, optimizer, total = carry
            done = (number * per_round + i) / jnp.maximum(steps - 1, 1)
            share = rate_share(done, settings)
            value, gradient = jax.value_and_grad(loss)(weights, jax.random.fold_in(round_key, i))
            gradient = eqx.tree_at(lambda g: g.parameters.gain, gradient, mask * gradient.parameters.gain)
            updates, optimizer = adam(settings).update(gradient, optimizer, weights)
            updates = jax.tree.map(lambda update: share * update, updates)
            return optax.apply_updates(weights, updates), optimizer, total + value

        def judge() -> Float[Array, ""]:
            assert newest is not None
            windows = newest_windows(buffer, states, continuations, everywhere, newest, length)
            value = observed_loss(_with_scale(current, scale), windows, chosen.closed, model.huber)
            return jnp.where(jnp.any(windows.counts), value, jnp.nan)

        if newest is not None:
            held_out = jax.lax.cond(number == 0, judge, lambda: held_out)
        start = (weights, optimizer, jnp.zeros(()))
        weights, optimizer, total = jax.lax.fori_loop(0, per_round, adam_step, start)
        return weights, optimizer, scale, total / jnp.maximum(per_round, 1), held_out

    weights, fixed = split_observer(observer)
    unknown = jnp.asarray(jnp.nan)
    first = (weights, optimizer, observer.parameters.scale, unknown, unknown)
    weights, optimizer, scale, loss, held_out = jax.lax.fori_loop(0, rounds, one_round, first)
    return _with_scale(eqx.combine(weights, fixed), scale), optimizer, loss, held_out


def _with_scale(observer: Observer, scale: Float[Array, " measured"]) -> Observer:
    return Observer(observer.parameters._replace(scale=scale), observer.settings, observer.spec)


def forecast_errors(
    dynamics: Dynamics, observer: Observer, rollout: Rollout, settings: Settings
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """How well both predict what was measured over a horizon of a new episode: register, then observer.

    Roll-outs of `model.horizon` steps begin at every eighth step, from the register with `dynamics` and from the
    estimate with the observer's model. Robust errors, in the same units for both. NaN where the episode has no window.
    """
    measured, steps = dynamics.spec.layout.num_measured, rollout.commands.shape[1]
    horizon = min(settings.model.horizon, max(steps // 2, 1))
    begin = min(settings.observer.closed, steps - horizon)
    times = jnp.arange(begin, steps - horizon + 1, 8)
    targets = rollout.states[:, 1:, :measured]
    changes = jnp.where(rollout.valid[..., None], jnp.abs(targets - rollout.states[:, :-1, :measured]), jnp.nan)
    unit = jnp.maximum(
        jnp.nanmean(changes, axis=(0, 1)),
        settings.model.min_change_scale * jnp.asarray(dynamics.spec.scales.change_scale),
    )
    register = Observer.register(dynamics, observer.settings)

    def error(model: Observer, states: Float[Array, "n steps_and_last state"]) -> Float[Array, ""]:
        def window(trajectory, time):
            def cut(a):
                return jax.lax.dynamic_slice_in_dim(a[trajectory], time, horizon)

            return Windows(states[trajectory, time], cut(rollout.commands), cut(targets), cut(rollout.valid))

        trajectories = jnp.arange(rollout.commands.shape[0])
        windows = jax.vmap(lambda i: jax.vmap(lambda t: window(i, t))(times))(trajectories)
        windows = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), windows)
        windows = windows._replace(counts=jnp.cumprod(windows.counts, axis=1).astype(bool))
        value = observed_loss(_with_scale(model, unit), windows, 0, settings.model.huber)
        return jnp.where(jnp.any(windows.counts), value, jnp.nan)

    return error(register, rollout.states), error(observer, estimate_rollout(observer, rollout).states)
