"""The informed oracle: the same policy class given the plant's whole state, improved on the plant itself.

A policy's first layer gets an input for every number of the plant's state (pressures, valves, drift), each over its
standard deviation. Its parameters then take Gauss–Newton steps on the true plant: the cost of a batch of trajectories
is ‖r(φ)‖², and R = ∂r/∂φ along the closed loop comes from exact derivatives of every step,

    δx_{k+1} = A_k δx_k + B_k δu_k,   δu_k = K_k δ(s_k, x_k) + (∂π/∂φ) δφ,   δr_k = S_k δs_k + U_k δu_k,

with x the plant's state and s the register of measurements and commands that every policy sees. A, B, K, S and U are
found for all steps at once, which is cheap; a product with R is then one pass along the trajectories.

Nothing here is available on a real robot: it tells what error is possible for this class of policies.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import build_reference, measured_part, next_state, observation
from firsthand_onboard.policy import command_of

from ..models import Policy
from ..models.networks import Layers
from ..optim.gauss_newton import LeastSquares, gauss_newton_step, step_residuals, trajectory_weights
from ..optim.parameters import split_parameters
from ..optim.rollout import Rollout
from ..plants.base import AbstractPlant
from ..robots.base import EpisodeRecord, preview_indices
from ..robots.simulated import at_rest
from ..tasks.base import Task
from .evaluate import Evaluation
from .metrics import tracking_errors

LIMIT_POWER = 16
"""Power of the joint-limit term, as in the learner's refinement: the lower one takes much from tracking."""
ALPHA, EPSILON = 0.01, 0.05
"""Weights of a step's change of commands and of parameters, as in the learner's own steps."""


class InformedPolicy(eqx.Module):
    """π(s, x, r): a policy that also sees the plant's state x, standardised."""

    layers: Layers
    """φ; the first layer has a column for every number of x behind those of the observation."""
    spec: ControlSpec = eqx.field(static=True)

    @staticmethod
    def of(policy: Policy, plant_size: int) -> "InformedPolicy":
        """The same function as `policy`: the weights of the new inputs are zero."""
        (weight, bias), *others = policy.layers
        more = jnp.zeros((weight.shape[0], plant_size), weight.dtype)
        return InformedPolicy(((jnp.concat([weight, more], axis=1), bias), *others), policy.spec)

    def __call__(
        self, state: Float[Array, " register_and_plant"], preview: Float[Array, "points outputs"]
    ) -> Float[Array, " commands"]:
        """The command for (s, x) and a reference preview."""
        register, plant = jnp.split(state, [self.spec.layout.size])
        return command_of(self.spec, self.layers, jnp.concat([observation(self.spec, register, preview), plant]))


class Loop(eqx.Module):
    """A plant with flat states and exact sensors, and the scales of its state's entries."""

    plant: AbstractPlant
    center: Float[Array, " plant"]
    """Mean of each entry of the plant's state."""
    scale: Float[Array, " plant"]
    """Its standard deviation; 1 where it never changes."""
    task: Task = eqx.field(static=True)
    unravel: Callable[[Array], Any] = eqx.field(static=True)
    """From the flat state to the plant's own."""

    @staticmethod
    def of(plant: AbstractPlant, task: Task) -> "Loop":
        """A loop whose state is not standardised yet, with the joint-limit term that the learner refines with."""
        task = dataclasses.replace(task, cost=task.cost.with_steeper_limits(LIMIT_POWER))
        flat, unravel = ravel_pytree(plant.reset(jnp.asarray(task.home, jnp.float32)))
        return Loop(plant, jnp.zeros_like(flat), jnp.ones_like(flat), task, unravel)

    def standardise(self, states: Float[np.ndarray, "samples plant"]) -> "Loop":
        """The same with center and scale of these states."""
        center, scale = states.mean(axis=0), states.std(axis=0)
        scale = np.where(scale > 1e-6 * np.maximum(np.abs(center), 1.0), scale, 1.0)
        return eqx.tree_at(lambda loop: (loop.center, loop.scale), self, (jnp.asarray(center), jnp.asarray(scale)))

    @property
    def size(self) -> int:
        """Numbers in the plant's state."""
        return self.center.shape[0]

    def at_rest(self, position: Float[Array, " positions"]) -> tuple[Array, Array]:
        """(x, s) of the robot standing at `position`."""
        state, register = at_rest(self.plant, self.task.spec, position, key=jax.random.key(0))
        return ravel_pytree(state)[0], register

    def step(self, state: Array, command: Array, key: PRNGKeyArray) -> Array:
        """x one control period later."""
        return ravel_pytree(self.plant.step(self.unravel(state), command, key=key))[0]

    def truth(self, state: Array) -> Array:
        """The measurement of exact sensors."""
        return self.plant.truth(self.unravel(state))

    def seen(self, state: Array, register: Array) -> Array:
        """The input of an informed policy."""
        return jnp.concat([register, (state - self.center) / self.scale])


class Batch(NamedTuple):
    """Trajectories to follow, with their random numbers."""

    states: Float[Array, "trajectories plant"]
    """x_0."""
    registers: Float[Array, "trajectories state"]
    """s_0."""
    points: Float[Array, "trajectories points outputs"]
    """References, as long as the last preview asks for."""
    keys: Any
    """One per trajectory: two policies that follow one batch meet the same noise."""


class Followed(NamedTuple):
    """The result of a batch."""

    states: Float[Array, "trajectories steps_and_last plant"]
    registers: Float[Array, "trajectories steps_and_last state"]
    commands: Float[Array, "trajectories steps commands"]
    previews: Float[Array, "trajectories steps points outputs"]
    keys: Any
    """One per step."""

    @property
    def ends(self) -> tuple[Array, Array]:
        """(x, s) at the end of each trajectory."""
        return self.states[:, -1], self.registers[:, -1]


def follow(loop: Loop, policy: InformedPolicy, batch: Batch) -> Followed:
    """Run a policy along every reference of a batch."""
    spec = loop.task.spec
    steps = batch.points.shape[1] - spec.preview[-1]

    def one(state, register, points, key):
        previews, keys = points[preview_indices(spec, steps)], jax.random.split(key, steps)

        def advance(carry, inputs):
            state, register = carry
            preview, step_key = inputs
            command = policy(loop.seen(state, register), preview)
            state = loop.step(state, command, step_key)
            register = next_state(spec.layout, register, command, loop.truth(state))
            return (state, register), (state, register, command)

        _, (states, registers, commands) = jax.lax.scan(advance, (state, register), (previews, keys))
        states, registers = jnp.concat([state[None], states]), jnp.concat([register[None], registers])
        return Followed(states, registers, commands, previews, keys)

    return jax.vmap(one)(batch.states, batch.registers, batch.points, batch.keys)


class Derivatives(NamedTuple):
    """Of every step along `Followed`, `(trajectories, steps, …)` each; the module says of what."""

    A: Array
    B: Array
    C: Array
    """∂y_{k+1}/∂x_{k+1}."""
    K: Array
    """With respect to (s, x), x in its own units."""
    S: Array
    U: Array


def differentiate(loop: Loop, policy: InformedPolicy, followed: Followed) -> Derivatives:
    """Exact derivatives of plant, policy and residuals at every step."""
    cost, previews = loop.task.cost, followed.previews
    states, registers, after = followed.states[:, :-1], followed.registers[:, :-1], followed.states[:, 1:]

    def each(function, *arrays):
        return jax.vmap(jax.vmap(function))(*arrays)

    A, B = each(jax.jacfwd(loop.step, argnums=(0, 1)), states, followed.commands, followed.keys)
    K_s, K_x = each(
        jax.jacrev(lambda s, x, preview: policy(loop.seen(x, s), preview), argnums=(0, 1)), registers, states, previews
    )
    S, U = each(jax.jacfwd(cost.residuals, argnums=(0, 1)), registers, followed.commands, previews[..., 0, :])
    return Derivatives(A, B, each(jax.jacrev(loop.truth), after), jnp.concat([K_s, K_x], axis=-1), S, U)


def linearise_loop(
    loop: Loop, policy: InformedPolicy, batch: Batch, outlier: float | None = None
) -> tuple[LeastSquares, Followed]:
    """The residuals of a batch, linearised in the policy's parameters: what `gauss_newton_step` takes."""
    followed = follow(loop, policy, batch)
    at = differentiate(loop, policy, followed)
    layout = loop.task.spec.layout
    parameters, static = split_parameters(policy)
    flat, unravel = ravel_pytree(parameters)
    seen = jax.vmap(jax.vmap(loop.seen))(followed.states, followed.registers)
    rollout = Rollout.from_arrays(seen, followed.commands, previews=followed.previews)

    def commands(phi):
        now = eqx.combine(unravel(phi), static)
        return jax.vmap(jax.vmap(now))(seen[:, :-1], followed.previews)

    _, own = jax.linearize(commands, flat)

    def along(own_change, at):
        def advance(carry, inputs):
            dx, ds = carry
            own, at = inputs
            du = at.K @ jnp.concat([ds, dx]) + own
            dr = at.S @ ds + at.U @ du
            dx = at.A @ dx + at.B @ du
            return (dx, next_state(layout, ds, du, at.C @ dx)), dr

        zero = jnp.zeros(loop.size, own_change.dtype), jnp.zeros(layout.size, own_change.dtype)
        return jax.lax.scan(advance, zero, (own_change, at))[1]

    def forward(direction):
        return jax.vmap(along)(own(direction), at)

    residuals = _residuals(loop, rollout)
    weights = trajectory_weights(residuals, rollout.valid, outlier)
    transpose = jax.linear_transpose(forward, flat)

    def pull(rows):
        return transpose(weights * rows)[0]

    r = weights * residuals
    return LeastSquares(jnp.sum(r**2), pull(r), lambda v: weights * forward(v), pull, weights, rollout), followed


def _residuals(loop: Loop, rollout: Rollout) -> Float[Array, "trajectories steps residuals"]:
    size = loop.task.spec.layout.size
    return step_residuals(lambda x, u, r: loop.task.cost.residuals(x[:size], u, r), rollout)


class Improvement(NamedTuple):
    """The result of one step."""

    policy: InformedPolicy
    direction: Float[Array, " parameters"]
    """The solution, with which the next solve begins."""
    before: Float[Array, ""]
    """Weighted mean cost of the batch before the step."""
    after: Float[Array, ""]
    """And after it, on the same batch with the same noise."""
    followed: Followed
    """The batch, followed by the policy before the step."""


@eqx.filter_jit
def improve(
    loop: Loop,
    policy: InformedPolicy,
    batch: Batch,
    damping: Float[Array, ""],
    begin: Float[Array, " parameters"],
    iterations: int,
) -> Improvement:
    """One Gauss–Newton step on one batch. The caller decides whether to keep it."""
    problem, followed = linearise_loop(loop, policy, batch, OUTLIER)
    candidate, w, _ = gauss_newton_step(
        policy, problem, damping=damping, alpha=ALPHA, epsilon=EPSILON, begin=begin, iterations=iterations
    )
    tried = follow(loop, candidate, batch)
    seen = jax.vmap(jax.vmap(loop.seen))(tried.states, tried.registers)
    rollout = Rollout.from_arrays(seen, tried.commands, previews=tried.previews)
    after = jnp.sum((problem.weights * _residuals(loop, rollout)) ** 2)
    return Improvement(candidate, w, problem.value, after, followed)


OUTLIER = 10.0
"""A trajectory that costs more than this many times the median counts as if it cost just that."""

compiled_follow = eqx.filter_jit(follow)


class Chains:
    """Robots that follow random references one after the other, each from where its last one ended."""

    def __init__(self, loop: Loop, count: int, seed: int) -> None:
        self.loop, self.rng = loop, np.random.default_rng(seed)
        self._rest = eqx.filter_jit(lambda loop, position: loop.at_rest(position))
        home = jnp.asarray(loop.task.home, jnp.float32)
        state, register = (np.asarray(part) for part in self._rest(loop, home))
        self.states, self.registers = np.tile(state, (count, 1)), np.tile(register, (count, 1))
        self._seed = seed

    def draw(self, number: int) -> Batch:
        """The next reference of every chain; `number` picks the noise."""
        spec, points = self.loop.task.spec, []
        for register in self.registers:
            measured = measured_part(spec.layout, register)
            goal = self.loop.task.sample_goals(self.rng, measured, 1)[0]
            points.append(np.asarray(build_reference(spec, measured, np.asarray(goal, np.float32)), np.float32))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(self._seed), number), len(points))
        return Batch(jnp.asarray(self.states), jnp.asarray(self.registers), jnp.asarray(np.stack(points)), keys)

    def advance(self, ends: tuple[Array, Array], restart: float = 0.0) -> None:
        """Go on from these ends; a share of the chains stands still where it is, as if switched on anew."""
        self.states, self.registers = (np.array(part) for part in ends)
        bad = np.asarray(~np.isfinite(self.states).all(axis=1))
        for i in np.flatnonzero(bad | (self.rng.random(len(bad)) < restart)):
            layout = self.loop.task.spec.layout
            position = self.registers[i][list(layout.position)]
            where = np.asarray(self.loop.task.home) if bad[i] else position
            state, register = self._rest(self.loop, jnp.asarray(where, jnp.float32))
            self.states[i], self.registers[i] = np.asarray(state), np.asarray(register)


def held_out_errors(loop: Loop, policy: InformedPolicy, *, chains: int = 10, length: int = 10) -> list[float]:
    """The mean error of each of `chains` × `length` references that no batch of training has."""
    running, means = Chains(loop, chains, HELD_OUT_SEED), []
    for number in range(length):
        batch = running.draw(number)
        followed = compiled_follow(loop, policy, batch)
        running.advance(followed.ends)
        errors = tracking_errors(loop.task.spec, _record(loop.task.spec, followed, batch.points))
        means += list(errors.reshape(chains, -1).mean(axis=1))
    return [float(mean) for mean in means]


def follow_shapes(loop: Loop, policy: InformedPolicy) -> Evaluation:
    """The task's evaluation references, each from rest."""
    task, spec = loop.task, loop.task.spec
    references = task.evaluation(task.evaluation_speed)
    longest = max(len(r.points) for r in references) + spec.preview[-1]
    held = [np.concatenate([r.points, np.repeat(r.points[-1:], longest - len(r.points), 0)]) for r in references]
    points = jnp.asarray(np.stack(held), jnp.float32)
    starts = jnp.asarray(np.stack([r.start for r in references]), jnp.float32)
    states, registers = jax.vmap(loop.at_rest)(starts)
    batch = Batch(states, registers, points, jax.random.split(jax.random.key(0), len(references)))
    followed = compiled_follow(loop, policy, batch)
    return Evaluation.of(
        spec, references, tuple(_record(spec, followed, points, i, len(r.points)) for i, r in enumerate(references))
    )


HELD_OUT_SEED = 999


def _record(
    spec: ControlSpec, followed: Followed, points: Array, row: int | None = None, steps: int | None = None
) -> EpisodeRecord:
    """What was done in a batch, or in the first `steps` of one row of it."""
    rows = slice(None) if row is None else slice(row, row + 1)
    steps = followed.commands.shape[1] if steps is None else steps
    measured = followed.registers[rows, : steps + 1, : spec.layout.num_measured]
    return EpisodeRecord.complete(
        followed.registers[rows, 0],
        measured,
        followed.commands[rows, :steps],
        points[rows, : steps + spec.preview[-1]],
        measured,
    )
