"""The corrected model's ground: where it is rolled out, on what, and with which measured errors added back."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..models import Dynamics, Policy
from ..optim.rollout import Rollout, model_errors, roll_out


class Imagined(eqx.Module):
    """Where imagined trajectories start and what they follow."""

    starts: Float[Array, "trajectories state"]
    """Initial states."""
    previews: Float[Array, "trajectories steps points outputs"]
    """Reference previews, with fresh references."""

    def joined(self, more: "Imagined") -> "Imagined":
        """These, then `more`."""
        return jax.tree.map(lambda a, b: jnp.concat([a, b]), self, more)


def half_range(policy: Policy) -> Float[Array, " commands"]:
    """Half the range of each command channel: what commands are counted in, so that every robot's are of order one."""
    limits = policy.spec.limits
    return (jnp.asarray(limits.command_high) - jnp.asarray(limits.command_low)) / 2


class Ground(NamedTuple):
    """What the model is rolled out on: the measured trajectories, then the imagined ones."""

    starts: Float[Array, "trajectories state"]
    previews: Float[Array, "trajectories steps points outputs"]
    missed: Float[Array, "trajectories steps state"]
    """The measured model errors; on imagined trajectories those of `imagined_errors`."""
    applied: Float[Array, "trajectories steps commands"]
    free: Bool[Array, "trajectories steps commands"]
    valid: Bool[Array, "trajectories steps"]
    """Steps that count. None does on a measured trajectory whose first step is not valid: it has no sound start."""


SHIFT = 37
"""Control periods by which the errors of one imagined trajectory after the other are shifted: prime to most lengths."""


def imagined_errors(
    measured: Float[Array, "measured steps state"], count: int, disturbances: int
) -> Float[Array, "imagined steps state"]:
    """Model errors for `count` imagined trajectories.

    With `disturbances`, trajectory i has those of measured trajectory i mod N, shifted cyclically in time: the policy
    meets the noise and the disturbances that the machine really has, with their size and their colour.
    """
    if not disturbances:
        return jnp.zeros((count, *measured.shape[1:]), measured.dtype)
    trajectories, steps = measured.shape[:2]
    index = jnp.arange(count)
    return jax.vmap(lambda i: jnp.roll(measured[i % trajectories], (1 + i) * SHIFT % steps, axis=0))(index)


def ground_of(dynamics: Dynamics, rollout: Rollout, imagined: Imagined | None, disturbances: int = 0) -> Ground:
    """The measured trajectories with what the model misses on them, and the imagined ones."""
    missed = model_errors(dynamics, rollout)
    starts, previews = rollout.states[:, 0], rollout.previews
    extra = 0
    if imagined is not None:
        extra = imagined.starts.shape[0]
        starts = jnp.concat([starts, imagined.starts])
        previews = jnp.concat([previews, imagined.previews])
        missed = jnp.concat([missed, imagined_errors(missed, extra, disturbances)])
    blank = jnp.zeros((extra, *rollout.commands.shape[1:]))
    return Ground(
        starts,
        previews,
        missed,
        applied=jnp.concat([rollout.commands, blank]),
        free=jnp.concat([rollout.free, jnp.ones(blank.shape, bool)]),
        valid=jnp.concat([rollout.valid & rollout.valid[:, :1], jnp.ones(blank.shape[:2], bool)]),
    )


def predicted(policy: Policy, dynamics: Dynamics, on: Ground) -> Rollout:
    """What the model says that a policy does."""
    return roll_out(
        policy,
        dynamics,
        on.starts,
        previews=on.previews,
        errors=on.missed,
        applied=on.applied,
        free=on.free,
        valid=on.valid,
    )


def deviation(
    policy: Policy,
    commands: Float[Array, "trajectories steps commands"],
    before: Float[Array, "measured steps commands"],
    on: Ground,
) -> Float[Array, ""]:
    """Root mean square by which commands differ from those of `before`, in half ranges, on measured trajectories."""
    measured = before.shape[0]
    counted = on.valid[:measured]
    change = jnp.where(counted[..., None], (commands[:measured] - before) / half_range(policy), 0.0)
    return jnp.sqrt(jnp.sum(change**2) / jnp.maximum(counted.sum() * commands.shape[-1], 1))
