"""A simulated plant as a robot: a whole episode runs inside one compiled call."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import build_reference, initial_state, measured_part, next_state
from firsthand_onboard.observer import observe, start_motion, trusted_measurement

from ..models import Controller, Policy
from ..plants.base import AbstractPlant
from ..tasks.base import EvaluationReference, Task
from .base import AbstractRobot, EpisodeRecord, neutral, preview_indices


def track(plant: AbstractPlant, policy, spec: ControlSpec, start, points, excitation=None, *, key: PRNGKeyArray):
    """Follow one reference. `start` is (plant state, state vector); returns the end, and y, u, truth at every step.

    Start and end have what the controller carries as a third part (`start_controller`); without that it begins a motion
    here.
    """
    policy, observer = _split(policy)
    if len(start) == 2:
        start = (*start, start_controller(policy, observer, spec, start[1]))
    low, high = jnp.asarray(spec.limits.command_low), jnp.asarray(spec.limits.command_high)
    steps = points.shape[0] - spec.preview[-1]
    previews = points[preview_indices(spec, steps)]

    def step(carry, inputs):
        plant_state, state, (estimate, memory) = carry
        preview, step_key, extra = inputs
        command, memory = _command(policy, state if estimate is None else estimate.state, preview, memory)
        if extra is not None:
            command = jnp.clip(command + extra, low, high)
        dynamics_key, sensor_key = jax.random.split(step_key)
        plant_state = plant.step(plant_state, command, key=dynamics_key)
        measured = plant.measure(plant_state, key=sensor_key)
        state = next_state(spec.layout, state, command, measured)
        if observer is not None and estimate is not None:
            estimate = observe(spec, observer.parameters, observer.settings, estimate, command, measured)
        return (plant_state, state, (estimate, memory)), (measured, command, plant.truth(plant_state))

    inputs = (previews, jax.random.split(key, steps), excitation)
    end, (measured, commands, truth) = jax.lax.scan(step, start, inputs)
    first, true = measured_part(spec.layout, start[1]), plant.truth(start[0])
    return end, jnp.concat([first[None], measured]), commands, jnp.concat([true[None], truth])


def at_rest(plant: AbstractPlant, spec: ControlSpec, position, *, key: PRNGKeyArray):
    """The plant standing at `position`, and the state vector that goes with it."""
    plant_state = plant.reset(position)
    # A robot that stands there has been measured before.
    keys = [*(jax.random.fold_in(key, i) for i in range(spec.layout.measurement_memory)), key]
    first, *later = (plant.measure(plant_state, key=each) for each in keys)
    command = jnp.asarray(neutral(spec), first.dtype)
    state = initial_state(spec.layout, first, command)
    for measured in later:
        state = next_state(spec.layout, state, command, measured)
    return plant_state, state


def run_trajectories(
    plant: AbstractPlant, policy, spec: ControlSpec, start, goals, excitation, key: PRNGKeyArray, carried=None
):
    """One trajectory after the other, each from where the last ended.

    `carried` is what the controller carries on from trajectories before; by default a motion begins.

    Returns the end, what the controller carries then, and starts, y, u, references and truth of every trajectory; with
    an observer also how often it restarted each entry, and with a base what it remembered at the start, None otherwise.
    Both begin with the first trajectory; with an observer the starts are its estimates.
    """
    runs, observer = _split(policy)

    def trajectory(carry, inputs):
        goal, extra, trajectory_key = inputs
        plant_state, state, (estimate, memory) = carry
        measured, seen = measured_part(spec.layout, state), state
        if observer is not None:
            measured = trusted_measurement(spec, observer.parameters, observer.settings, estimate.state, measured)
            seen = estimate.state
        if memory is not None:
            memory = runs.begin(seen, memory)
        points = build_reference(spec, measured, goal)
        carry = (plant_state, state, (estimate, memory))
        carry, measured, commands, truth = track(plant, policy, spec, carry, points, extra, key=trajectory_key)
        restarts = None if estimate is None else carry[2][0].restarts - estimate.restarts
        return carry, (seen, measured, commands, points, truth, restarts, memory)

    fresh = start_controller(runs, observer, spec, start[1])
    start = (*start, fresh if carried is None else go_on(fresh, carried))
    end, played = jax.lax.scan(trajectory, start, (goals, excitation, jax.random.split(key, goals.shape[0])))
    return end[:2], end[2], played


def start_controller(policy, observer, spec: ControlSpec, state) -> tuple[Any, Any]:
    """What a controller carries from step to step when a motion begins: its estimate and its base's memory.

    Each is None where there is no such thing.
    """
    estimate = None if observer is None else start_motion(spec, state)
    if not _has_base(policy):
        return estimate, None
    return estimate, policy.begin(state if estimate is None else estimate.state)


def go_on(fresh: tuple[Any, Any], carried: tuple[Any, Any]) -> tuple[Any, Any]:
    """What a controller carries when it goes on after another one: of its own kind what that one carried.

    A controller without an observer needs no estimate: nobody would move it on. One that needs what the other did not
    have begins with a fresh one.
    """
    pairs = zip(fresh, carried, strict=True)
    estimate, memory = (own if own is None or other is None else other for own, other in pairs)
    return estimate, memory


def _has_base(policy) -> bool:
    return isinstance(policy, Policy) and policy.control is not None


def _command(policy, seen, preview, memory):
    """The command, and what the base remembers then."""
    return (policy(seen, preview), None) if memory is None else policy.step(seen, preview, memory)


def _split(policy):
    """Policy, and observer or None."""
    return (policy.policy, policy.observer) if isinstance(policy, Controller) else (policy, None)


_episode = eqx.filter_jit(run_trajectories)


@eqx.filter_jit
def _follow(plant, policy, spec, positions, points, key):
    def one(position, points, key):
        rest_key, track_key = jax.random.split(key)
        start = at_rest(plant, spec, position, key=rest_key)
        _, measured, commands, truth = track(plant, policy, spec, start, points, key=track_key)
        return start[1], measured, commands, truth

    return jax.vmap(one)(positions, points, jax.random.split(key, positions.shape[0]))


@eqx.filter_jit
def _play(plant, spec, start, commands, key):
    def step(carry, inputs):
        plant_state, state = carry
        command, step_key = inputs
        dynamics_key, sensor_key = jax.random.split(step_key)
        plant_state = plant.step(plant_state, command, key=dynamics_key)
        measured = plant.measure(plant_state, key=sensor_key)
        return (plant_state, next_state(spec.layout, state, command, measured)), measured

    return jax.lax.scan(step, start, (commands, jax.random.split(key, commands.shape[0])))


_rest = eqx.filter_jit(at_rest)


@eqx.filter_jit
def _truth(plant, plant_state):
    return plant.truth(plant_state)


class SimulatedRobot(AbstractRobot):
    """A plant and its task, behind the same interface as hardware."""

    can_reset = True
    plant: AbstractPlant  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        plant: AbstractPlant,
        task: Task,
        *,
        seed: int = 0,
        loaded: Callable[[float], AbstractPlant] | None = None,
        fitted: Callable[[float], Task] | None = None,
    ) -> None:
        """`loaded` makes the plant that carries a payload in kg, for a robot that can carry one.

        `fitted` makes the task that goes with it, where goals depend on what can be lifted.
        """
        self.plant = plant
        self.task = task
        self.carries_payload = loaded is not None
        self._loaded, self._fitted = loaded, fitted
        self._key = jax.random.key(np.uint32(seed) ^ np.uint32(0x5EED))
        self.carried: Any = None
        """What the controller carries on while a motion goes on; a snapshot is between motions, and has none of it."""
        position = jnp.asarray(task.home, jnp.float32)
        self._now = _rest(plant, task.spec, position, key=self._next_key())

    def _next_key(self) -> PRNGKeyArray:
        self._key, key = jax.random.split(self._key)
        return key

    def measured(self) -> Float[np.ndarray, " measured"]:
        """The last measurement."""
        return measured_part(self.task.spec.layout, np.asarray(self._now[1]))

    def true_measurement(self) -> Float[np.ndarray, " measured"] | None:
        """The measurement of exact sensors now."""
        return np.asarray(_truth(self.plant, self._now[0]), np.float32)

    def run_episode(
        self,
        policy: Policy | Controller,
        goals: Float[np.ndarray, "trajectories goal"],
        excitation: Float[np.ndarray, "trajectories steps commands"] | None = None,
    ) -> EpisodeRecord:
        """One compiled call; nothing recompiles between episodes."""
        targets = jnp.asarray(goals, jnp.float32)
        shape = (targets.shape[0], self.task.steps, self.task.spec.layout.num_commands)
        extra = jnp.asarray(np.zeros(shape, np.float32) if excitation is None else excitation, jnp.float32)
        carried = self.carried if self.goes_on else None
        self._now, self.carried, played = _episode(
            self.plant, policy, self.task.spec, self._now, targets, extra, self._next_key(), carried
        )
        return EpisodeRecord.complete(*played)

    def play(self, commands: Float[np.ndarray, "steps commands"]) -> Float[np.ndarray, "steps_and_last measured"]:
        """One compiled call per length."""
        before = self.measured()
        self._now, measured = _play(
            self.plant, self.task.spec, self._now, jnp.asarray(commands, jnp.float32), self._next_key()
        )
        return np.concatenate([before[None], np.asarray(measured, np.float32)])

    def follow(
        self, policy: Policy | Controller, references: tuple[EvaluationReference, ...]
    ) -> tuple[EpisodeRecord, ...]:
        """All references at once, padded to the longest; the padding is cut off again."""
        spec = self.task.spec
        longest = max(len(r.points) for r in references) + spec.preview[-1]
        longest = -(-longest // 128) * 128  # speeds and seeds of one kind share a compiled length
        padded = np.stack([_extend(r.points, longest) for r in references])
        positions = jnp.asarray(np.stack([r.start for r in references]), jnp.float32)
        key = jax.random.key(0)  # evaluation is the same every time
        starts, measured, commands, truth = _follow(
            self.plant, policy, spec, positions, jnp.asarray(padded, jnp.float32), key
        )
        records = []
        for i, reference in enumerate(references):
            steps = len(reference.points)
            points = padded[i : i + 1, : steps + spec.preview[-1]]
            one, samples = slice(i, i + 1), slice(0, steps + 1)
            records.append(
                EpisodeRecord.complete(
                    starts[one], measured[one, samples], commands[one, :steps], points, truth[one, samples]
                )
            )
        return tuple(records)

    def set_payload(self, kg: float) -> None:
        """Another plant of the same structure: nothing recompiles. Goals go where the load can be lifted."""
        if self._loaded is None:
            super().set_payload(kg)
            return
        if self._fitted is not None:
            self.task = self._fitted(kg)  # first: it may refuse
        self.plant = self._loaded(kg)

    def snapshot(self) -> Any:
        """Plant state, state vector and random key."""
        return self._now, self._key

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, bit for bit."""
        self._now, self._key = snapshot


def _extend(points: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([points, np.repeat(points[-1:], length - len(points), axis=0)])
