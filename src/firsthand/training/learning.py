"""Between the robot and the agent, in the order of an episode.

What the robot shall do (`plan_episode`), what it did as the agent's experience (`as_rollout`, `prepare_experience`),
the agent's update from it (`Learner`), and the line of metrics.jsonl (`episode_metrics`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import (
    build_reference,
    initial_state,
    measured_part,
    next_state,
    path_outputs,
    reference_path,
    reference_start,
)
from firsthand_onboard.signals import find_spikes, find_stuck_sensors, is_plausible, mark_memory

from ..agent import Agent, AgentState, Experience, ImaginedStarts, LearnerState, Rollout, Settings, Update, append
from ..agent.buffer import Buffer, make_room
from ..agent.estimation import Estimation, estimate_rollout
from ..agent.memory import add_memory
from ..agent.settings import ExcitationSettings
from ..evaluation import tracking_metrics
from ..evaluation.metrics import command_effect, noise_floor, saturation
from ..models import Controller
from ..robots import AbstractRobot
from ..robots.base import EpisodeRecord, neutral, preview_indices
from ..tasks import Task
from .bases import on_base_of
from .health import Health, diagnose

LATE = 0.5
"""Velocities count as late from half a period on."""


def plan_episode(
    task: Task,
    settings: Settings,
    episode: int,
    shares: Sequence[tuple[int, np.ndarray]],
    rng: np.random.Generator,
    *,
    has_seen_motion: bool = False,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Goals of an episode (counted from 0), and random commands to add to the policy's, or None.

    Goals start from what the robot measures, or, where that is not finite, from home; `shares` has an entry per body of
    the robot (`AbstractRobot.shares`). Random commands are for the first episodes of a model that has seen no motion
    yet; one that has gets `excitation.log_share` of them.
    """
    home = measurement_at_rest(task.spec, np.asarray(task.home))
    starts = [(count, measured if np.isfinite(measured).all() else home) for count, measured in shares]
    goals = np.concatenate([task.sample_goals(rng, here, count) for count, here in starts])
    chosen = settings.excitation
    if has_seen_motion:
        chosen = dataclasses.replace(chosen, amplitude=chosen.log_share * chosen.amplitude)
    if not chosen.amplitude > 0 or episode >= chosen.episodes:
        return goals, None
    return goals, smooth_excitation(task, chosen, rng)


def smooth_excitation(task: Task, excitation: ExcitationSettings, rng: np.random.Generator) -> np.ndarray:
    """Smooth random commands `(trajectories, steps, commands)`: each channel a slow random walk that returns to zero.

    First-order filtered noise with the given time constant, of standard deviation `amplitude`/2 of the half range and
    clipped at `amplitude`. The second half of each trajectory repeats the first with the opposite sign, so
    that the robot comes back to about where it was.
    """
    spec = task.spec
    half_range = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
    keep = np.exp(-spec.period_s / excitation.time_constant_s)
    half = (task.steps + 1) // 2
    noise = rng.standard_normal((task.trajectories, half, len(half_range)))
    walk = np.zeros_like(noise)
    for k in range(1, half):
        walk[:, k] = keep * walk[:, k - 1] + np.sqrt(1 - keep**2) * noise[:, k]
    walk = np.concatenate([walk, -walk], axis=1)[:, : task.steps]
    return (np.clip(0.5 * walk, -1.0, 1.0) * excitation.amplitude * half_range).astype(np.float32)


def measurement_at_rest(spec: ControlSpec, position: np.ndarray) -> np.ndarray:
    """The measurement of a robot that stands still in this configuration."""
    measured = np.asarray(spec.scales.measured_center, np.float32)
    measured[list(spec.layout.position)] = position
    measured[list(spec.layout.velocity)] = 0.0
    return measured


def as_rollout(spec: ControlSpec, record: EpisodeRecord) -> Rollout:
    """The record as a learner without an observer sees it: only sound steps are valid. See `read_record`."""
    rollout, sound = read_record(spec, record)
    return eqx.tree_at(lambda r: r.valid, rollout, sound)


def as_seen(controller: Controller, record: EpisodeRecord) -> Rollout:
    """The record as this policy would have seen it: through its observer, or as the plain register.

    With a base its memory is part of the states; see `agent.memory`.
    """
    if controller.observer is None:
        seen = as_rollout(controller.spec, record)
    else:
        seen = _estimate(controller.observer, read_record(controller.spec, record)[0])
    memory = None if record.memory is None else jnp.asarray(record.memory)
    return seen if controller.policy.control is None else _add_memory(controller.policy, seen, memory)


_estimate, _add_memory = eqx.filter_jit(estimate_rollout), eqx.filter_jit(add_memory)


def read_record(spec: ControlSpec, record: EpisodeRecord) -> tuple[Rollout, Bool[Array, "trajectories steps"]]:
    """The record as the learner sees it, with state vectors rebuilt by the robot's own rule; and which steps are sound.

    A step whose state or outcome holds a value that is not finite or far outside its scale (a sensor that dropped out)
    does not count as valid, and its values are set to zero: it can neither enter the buffer nor spoil a gradient. A
    start that is not sound makes its first step invalid: the later ones are measured all the same, but the model cannot
    be rolled out from there. A step that saw a spike or a stuck sensor is valid but not sound: only an observer, which
    clips what it does not believe, learns from it.
    """
    steps = record.commands.shape[1]
    first = record.starts.copy()
    first[:, : spec.layout.num_measured] = record.measured[:, 0]  # the robot's own start may be an estimate
    states = [first]
    for k in range(steps):
        states.append(next_state(spec.layout, states[-1], record.commands[:, k], record.measured[:, k + 1]))
    states = np.stack(states, axis=1)
    finite = is_plausible(spec, states)
    strange = find_spikes(spec, record.measured, record.valid) | find_stuck_sensors(spec, record.measured)
    sound = finite & ~mark_memory(strange, spec.layout.measurement_memory)
    commanded = record.valid & np.isfinite(record.commands).all(axis=-1)
    rollout = Rollout(
        states=jnp.asarray(np.where(finite[..., None], states, np.float32(0))),
        commands=jnp.asarray(np.nan_to_num(record.commands)),
        previews=jnp.asarray(record.references[:, preview_indices(spec, steps)]),
        free=jnp.asarray(record.free),
        valid=jnp.asarray(commanded & finite[:, :-1] & finite[:, 1:]),
    )
    return rollout, jnp.asarray(commanded & sound[:, :-1] & sound[:, 1:])


def measured_error(spec: ControlSpec, record: EpisodeRecord) -> float:
    """Mean measured tracking error over the sound steps; NaN without sound steps or without a reference."""
    sound = np.asarray(read_record(spec, record)[1])
    return tracking_metrics(spec, (dataclasses.replace(record, truth=None, valid=sound),)).mean_error


def draw_imagined_starts(
    task: Task,
    record: EpisodeRecord,
    count: int,
    rng: np.random.Generator,
    visited: np.ndarray | None = None,
    horizon: int | None = None,
    corners: float = 0.0,
) -> ImaginedStarts | None:
    """Fresh references for imagined trajectories, and where they start. In turn:

    - where a trajectory of this episode started;
    - at rest in a configuration drawn like a goal (where goals are configurations): a redundant robot would otherwise
      only ever learn about the postures it happens to be in;
    - in one of the `visited` states, in mid-motion, with a new reference from there: a policy that follows well rarely
      errs, and would otherwise never learn to catch a swing.

    A share of the references, `corners`, turns once (`turning_reference`): those that a robot is given at work are not
    all smooth. Where the task's horizon is adaptive, steps after `horizon` do not count.
    """
    spec = task.spec
    usable = np.flatnonzero(is_plausible(spec, record.starts))
    if count == 0 or usable.size == 0:
        return None
    ways = ["start", "rest"] if spec.reference.space == "position" else ["start"]
    seen = np.empty((0, spec.layout.size)) if visited is None else visited[is_plausible(spec, visited)]
    ways += ["visited"] if len(seen) else []
    starts, previews = record.starts[rng.choice(usable, count)], []
    for i in range(count):
        way = ways[i % len(ways)]
        if way == "visited":
            starts[i] = seen[rng.integers(len(seen))]
        measured = measured_part(spec.layout, starts[i])
        if way == "rest":
            measured = measurement_at_rest(spec, task.sample_goals(rng, measured, 1)[0])
            starts[i] = initial_state(spec.layout, measured, neutral(spec))
        turns = corners > 0 and spec.reference.profile == "move" and rng.random() < corners
        reference = turning_reference(task, measured, rng) if turns else straight_reference(task, measured, rng)
        previews.append(reference[preview_indices(spec, task.steps)])
    counted = np.full(count, task.steps if horizon is None else horizon, np.int32)
    steps = jnp.asarray(counted) if task.adaptive_horizon else None
    return ImaginedStarts(jnp.asarray(starts), jnp.asarray(np.stack(previews)), steps=steps)


def straight_reference(task: Task, measured: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A reference to a fresh goal, as the robot builds it."""
    return build_reference(task.spec, measured, task.sample_goals(rng, measured, 1)[0].astype(np.float32))


def turning_reference(task: Task, measured: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A reference that leaves its way in mid-motion, at a corner, for another goal.

    It goes on from the corner at up to the full speed of a reference, or nearly at rest: a sudden turn or a sudden
    stop. Its speeds are within what references are allowed.
    """
    spec = task.spec
    start = reference_start(spec, measured)
    path = reference_path(spec, start, task.sample_goals(rng, measured, 1)[0].astype(np.float32))
    corner = rng.integers(spec.reference.steps // 5, 4 * spec.reference.steps // 5 + 1)
    there = measurement_at_rest(spec, path[corner]) if spec.reference.space == "position" else measured
    goal = task.sample_goals(rng, there, 1)[0].astype(np.float32)
    onward = reference_path(spec, path[corner], goal, entry=rng.uniform(0.0, 0.5))
    return path_outputs(spec, np.concatenate([path[:corner], onward])[: spec.reference_length].astype(np.float32))


def prepare_experience(
    task: Task,
    settings: Settings,
    buffer: Buffer,
    record: EpisodeRecord,
    rng: np.random.Generator,
    *,
    noise_share: float = 1.0,
    practice: int = 0,
    horizon: int | None = None,
) -> Experience:
    """What a robot did as the agent's next experience, with as many imagined starts as the settings ask for.

    `buffer` is the agent's, before it observes this episode. With `practice` the policy learns along this many
    trajectories of the model instead of the measured ones. The trajectories of the preconditioned steps are drawn
    first, then what refinement needs in addition, so that a run is the same with and without it until it begins.

    References have corners as far as what the model misses is not noise (`LearnerState.noise_share`): on an exact
    machine they teach it corners, behind noise the model is not to be trusted there.
    """
    rollout, sound = read_record(task.spec, record)
    few, corners = settings.imagination.trajectories, settings.imagination.corners * (1.0 - noise_share)

    def draw(count: int) -> ImaginedStarts | None:
        visited = visited_states(buffer, rollout, sound, count, rng)
        return draw_imagined_starts(task, record, count, rng, visited, horizon, corners)

    own = draw(practice) if practice else None
    first, more = draw(few), draw(settings.imagined_trajectories - few)
    imagined = first
    if first is not None and more is not None:
        imagined = jax.tree.map(lambda *parts: jnp.concat(parts), first, more)
    memory = None if record.memory is None else jnp.asarray(record.memory)
    return Experience(rollout, imagined, own, sound, memory)


def visited_states(
    buffer: Buffer, rollout: Rollout, sound: Bool[Array, "trajectories steps"], count: int, rng: np.random.Generator
) -> np.ndarray:
    """`count` states `(count, state)` of all that were visited and measured soundly, in the buffer and this episode."""
    usable, size = np.asarray(sound).reshape(-1), int(buffer.num_sound)
    rows = rng.integers(0, max(size + int(usable.sum()), 1), count)
    newest = np.asarray(rollout.states)[:, :-1].reshape(usable.size, -1)[np.argsort(~usable, kind="stable")]
    earlier = np.asarray(buffer.states[buffer.sound_rows[np.minimum(rows, max(size - 1, 0))]])
    return np.where((rows < size)[:, None], earlier, newest[np.maximum(rows - size, 0)])


def fit_settings(settings: Settings, task: Task) -> Settings:
    """The settings as they can be used for this task: a cost that is not a sum of squares cannot be refined."""
    if task.cost.is_least_squares or not settings.refines:
        return settings
    return settings.with_changes({"refinement.steps": 0})


class EpisodeUpdate(NamedTuple):
    """The report of one episode's update, and the health that it found."""

    agent: Update
    """The agent's report."""
    health: Health
    """Whether model, closed loop and sensors look sound."""
    valid: Bool[Array, "trajectories steps"]
    """Steps that were measured soundly."""


class Learner:
    """The agent on the host: keeps the transitions, and turns an episode into an update."""

    def __init__(self, task: Task, settings: Settings, buffer: Buffer) -> None:
        self.task, self.settings, self.buffer = task, fit_settings(settings, task), buffer
        self.agent = Agent(task.spec, task.cost, self.settings)
        self.horizon: int | None = None
        """Steps of an imagined trajectory that count; None for all."""

    def remember(self, record: EpisodeRecord) -> None:
        """Append an episode to the buffer without learning from it, as when a run is resumed."""
        self.buffer = append(self.buffer, *read_record(self.task.spec, record))

    def observe(
        self, state: LearnerState, record: EpisodeRecord, rng: np.random.Generator
    ) -> tuple[LearnerState, EpisodeUpdate]:
        """Append, learn the model, improve the policy."""
        experience = self.prepare(state, record, rng)
        assert experience.rollout is not None
        assert experience.sound is not None
        self.buffer = make_room(self.buffer, record.valid.size)
        after, update = self.agent.observe(AgentState(state, self.buffer), experience)
        self.buffer = after.buffer
        health = diagnose(state, after.learner, after.buffer, experience.rollout, experience.sound, update.rollout)
        return jax.block_until_ready(after.learner), EpisodeUpdate(update, health, experience.sound)

    def prepare(self, state: LearnerState, record: EpisodeRecord, rng: np.random.Generator) -> Experience:
        """The agent's experience: the robot's trajectories, and starts of imagined ones."""
        noise = float(state.noise_share(self.settings))
        task, horizon = self.task, self.horizon
        return prepare_experience(task, self.settings, self.buffer, record, rng, noise_share=noise, horizon=horizon)


def with_policy(state: LearnerState, policy: Controller) -> LearnerState:
    """The same learner with another policy, for which the model has predicted nothing.

    The observer that it ran with is not taken over: the learner goes on with its own.
    """
    policy = on_base_of(policy, state.policy)
    return dataclasses.replace(state, policy=policy.policy, expected_cost=jnp.full_like(state.expected_cost, jnp.nan))


# A line of metrics.jsonl.


def observer_metrics(estimation: Estimation, health: Health, record: EpisodeRecord) -> dict[str, Any]:
    """Whether the observer is in use from the next episode on, and why.

    Besides, how often the one that ran in this episode restarted an entry.
    """
    return {
        "observer": bool(estimation.active),
        "noise_share": float(estimation.missed),
        "slip_share": float(estimation.slipped),
        "observer_error_ratio": math.exp(float(estimation.advantage)),
        "observer_delay": float(health.observer_delay),
        "observer_restarts": 0 if record.restarts is None else int(record.restarts.sum()),
    }


def episode_metrics(
    episode: int, robot: AbstractRobot, record: EpisodeRecord, state: LearnerState, update: EpisodeUpdate
) -> dict[str, Any]:
    """A line of metrics.jsonl; docs/metrics.md explains each entry.

    What the robot did, as far as its sensors can be believed, and what both updates made of it.

    `state` is the learner's after the update.
    """
    # What a spike or a stuck sensor reports is not an error of the robot's. The truth has neither.
    sound = dataclasses.replace(record, valid=np.asarray(update.valid))
    tracking = tracking_metrics(robot.task.spec, (sound if record.truth is None else record,))
    measured = tracking_metrics(robot.task.spec, (sound,)).measured_mean_error
    policy, model = update.agent.policy, update.agent.model
    return {
        "episode": episode,
        "robot_time_s": episode * robot.task.episode_s,
        "tracking_error": tracking.mean_error,
        "measured_tracking_error": measured,
        "noise_floor": noise_floor(robot.task.spec, sound),
        "rms_error": tracking.rms_error,
        "max_error": tracking.max_error,
        "controller_loss": tracking.rms_error**2,
        "cost": float(policy.cost),
        **({} if robot.task.cost.goal.tracks else {"score": float(policy.cost)}),
        "model_loss": float(model.loss),
        "held_out_loss": float(model.held_out),
        "prediction_error": float(update.agent.prediction_error),
        "gradient_norm": float(policy.step.gradient_norm),
        "discount": float(policy.step.discount),
        "step_norm": float(policy.step.step_norm),
        "command_step": float(policy.step.command_step_norm),
        "steps_taken": int(policy.steps_taken),
        "policy_change": float(update.health.policy_change),
        "predicted_cost": float(policy.predicted_cost),
        "surprise": float(policy.surprise),
        "deviation": float(policy.deviation),
        "radius": float(state.radius),
        "dead_band": float(policy.dead_band),
        "rolled_back": bool(policy.rolled_back),
        "refined": bool(state.refinement.active),
        "cg_iterations": int(policy.step.iterations),
        "cg_residual": float(policy.step.relative_residual),
        "update_accepted": bool(policy.step.accepted),
        "refused_updates": int(state.refused),
        "command_change": tracking.command_change,
        "chatter": tracking.chatter,
        "limit_hits": tracking.limit_hits,
        "limit_share": tracking.limit_hits / max(int(record.valid.sum()), 1),
        "saturation": saturation(robot.task.spec, record),
        "command_effect": command_effect(robot.task.spec, sound),
        "valid_share": float(sound.valid.mean()),
        "lost_share": 1.0 - float(sound.valid.sum()) / max(int(record.valid.sum()), 1),
        **health_metrics(robot.task.spec, update.health),
        **({} if state.estimation is None else observer_metrics(state.estimation, update.health, record)),
    }


def health_metrics(spec: ControlSpec, health: Health) -> dict[str, Any]:
    """The entries of metrics.jsonl, with the worst channel by name."""
    names, delays = spec.layout.measured, np.asarray(health.velocity_delay, np.float64)
    late = [channel_name(names[i]) for i, delay in zip(spec.layout.velocity, delays, strict=True) if delay >= LATE]
    # Without measured velocities there are positions all the same.
    swapped = [
        f"{names[i]} follows {channel_name(names[spec.layout.position[other]])}, not {channel_name(names[own])}"
        for i, own, other in zip(spec.layout.velocity, spec.layout.position, np.asarray(health.follows), strict=False)
        if other >= 0
    ]
    size, size_channel = find_worst(np.asarray(health.innovation_size), names)
    correlation, correlation_channel = find_worst(np.asarray(health.innovation_correlation), names)
    return {
        "closed_loop_growth": float(health.closed_loop_growth),
        "innovation_size": size,
        "innovation_size_channel": size_channel,
        "innovation_correlation": correlation,
        "innovation_correlation_channel": correlation_channel,
        "one_step_error_ratio": float(health.one_step_error_ratio),
        "forecast_error": float(health.forecast_error),
        "forecast_error_ratio": float(health.forecast_error_ratio),
        "velocity_delay": float(np.nanmax(delays)) if np.isfinite(delays).any() else math.nan,
        "late_velocities": ", ".join(late),
        "swapped_velocities": "; ".join(swapped),
    }


def find_worst(values: np.ndarray, names: tuple[str, ...]) -> tuple[float, str]:
    """The value that is farthest from zero, and whose it is; NaN and no name where none is finite."""
    if not np.isfinite(values).any():
        return math.nan, ""
    worst = int(np.nanargmax(np.abs(np.where(np.isfinite(values), values, np.nan))))
    return float(values[worst]), names[worst]


def channel_name(measured: str) -> str:
    """boom, of boom.velocity or boom.position."""
    return measured.removesuffix(".velocity").removesuffix(".position")
