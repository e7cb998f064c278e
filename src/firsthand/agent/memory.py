"""The closed loop of a policy on top of a base controller: the base's memory is part of the state.

With a base the policy has a memory m (`models.Policy`): z = (x, m) is the loop's state and v = (u, m⁺) what the policy
returns. The model of that loop follows from the model of x,

    F((x, m), (u, m⁺)) = (f(x, u), m⁺),

so that gradients, Gauss–Newton steps and roll-outs differentiate through the base as through the policy, and nothing of
the base is learned. Buffer, model and observer use x alone. Without a base every function here returns its input
unchanged.
"""

from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models import Dynamics, Policy
from ..optim.rollout import CostFunction, DynamicsFunction, Rollout, roll_out
from .buffer import ImaginedStarts


class LoopDynamics(eqx.Module):
    """F: the model of x, and the memory that the policy returns."""

    dynamics: Dynamics

    def __call__(self, state: Float[Array, " loop"], command: Float[Array, " loop_commands"]) -> Float[Array, " loop"]:
        """The next (x, m)."""
        layout = self.dynamics.spec.layout
        following = self.dynamics(state[: layout.size], command[: layout.num_commands])
        return jnp.concat([following, command[layout.num_commands :]])


@dataclass(frozen=True)
class LoopCost:
    """The cost of (x, u), whatever is remembered."""

    cost: Any
    """c(x, u, r), perhaps a `LeastSquaresCost`."""
    state: int
    """Length of x."""
    commands: int
    """Length of u."""

    def __call__(self, state: Array, command: Array, reference: Array) -> Float[Array, ""]:
        """c."""
        return self.cost(state[: self.state], command[: self.commands], reference)

    def residuals(self, state: Array, command: Array, reference: Array) -> Float[Array, " residuals"]:
        """The residuals; c is the sum of their squares."""
        return self.cost.residuals(state[: self.state], command[: self.commands], reference)

    def with_steeper_limits(self, power: int) -> "LoopCost":
        """The same with a joint-limit term of at least this power."""
        return LoopCost(self.cost.with_steeper_limits(power), self.state, self.commands)


def loop_dynamics(policy: Policy, dynamics: Dynamics) -> DynamicsFunction:
    """The model of the policy's closed loop."""
    return dynamics if policy.control is None else LoopDynamics(dynamics)


def loop_cost(policy: Policy, cost: CostFunction) -> CostFunction:
    """The cost in the policy's closed loop."""
    if policy.control is None:
        return cost
    layout = policy.spec.layout
    return cast(CostFunction, LoopCost(cost, layout.size, layout.num_commands))


def add_memory(policy: Policy, rollout: Rollout, memory: Float[Array, "trajectories memory"] | None = None) -> Rollout:
    """Measured trajectories of x as trajectories of (x, m): the base is run again over what was seen.

    `memory` is the base's at the start of each trajectory; by default each begins a motion of its own.
    """
    if policy.control is None:
        return rollout
    first = jax.vmap(policy.begin)(rollout.states[:, 0]) if memory is None else memory

    def one(states, previews, start):
        def step(memory, inputs):
            state, preview = inputs
            following = policy.step(state, preview, memory)[1]
            return following, following

        following = jax.lax.scan(step, start, (states[:-1], previews))[1]
        return jnp.concat([start[None], following])

    memories = jax.vmap(one)(rollout.states, rollout.previews, first)
    own = jnp.ones(memories[:, 1:].shape, bool)
    return Rollout(
        states=jnp.concat([rollout.states, memories], axis=-1),
        commands=jnp.concat([rollout.commands, memories[:, 1:]], axis=-1),
        previews=rollout.previews,
        free=jnp.concat([rollout.free, own], axis=-1),
        valid=rollout.valid,
    )


def add_memory_to_starts(policy: Policy, imagined: ImaginedStarts | None, rollout: Rollout) -> ImaginedStarts | None:
    """Imagined starts with the memory that the base would have there.

    What it has learned so far (an integral, for example) is that of the measured trajectories, one after the other;
    the memory of a learned part that was taken back is not: imagined trajectories show the learned part.
    """
    if imagined is None or policy.control is None:
        return imagined
    size = policy.spec.layout.size
    known = rollout.states[:, 0, size:]
    index = jnp.arange(imagined.starts.shape[0]) % known.shape[0]

    def start(state, memory):
        fresh = policy.begin(state)
        return jnp.concat([state, policy.begin(state, memory)[:-2], fresh[-2:]])

    return eqx.tree_at(lambda i: i.starts, imagined, jax.vmap(start)(imagined.starts, known[index]))


@eqx.filter_jit
def imagine_rollout(policy: Policy, dynamics: Dynamics, imagined: ImaginedStarts) -> Rollout:
    """Trajectories of the model alone, nothing measured added; of (x, m) where there is a base."""
    starts = imagined.starts
    if policy.control is not None:
        starts = jax.vmap(lambda x: jnp.concat([x, policy.begin(x)]))(starts)
    return roll_out(policy, loop_dynamics(policy, dynamics), starts, previews=imagined.previews)
