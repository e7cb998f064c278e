"""The corrected model: the learned dynamics with their measured errors added back.

Along a measured trajectory the model f has the errors e_τ = x_{τ+1} − f(x_τ, u_τ) (`optim.rollout.model_errors`).
Rolled out with them,

    x̂_0 = x_0,   u_τ = π(x̂_τ),   x̂_{τ+1} = f(x̂_τ, u_τ) + e_τ,

the model is exact for the policy that produced the data, and its error grows only with the distance from that policy.
Imagined trajectories have other starts and references; their errors are zero, or those of a measured trajectory. Their
commands may be disturbed (`command_noise`), so that a policy learns to leave a dead band.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from firsthand_onboard.features import last_command

from ..models import Policy
from ..optim.rollout import DynamicsFunction, PolicyFunction, Rollout, model_errors, roll_out
from .buffer import ImaginedStarts


def half_range(policy: Policy) -> Float[Array, " commands"]:
    """Half the range of each command channel: the unit in which commands of every robot are of order one.

    Infinite for what a base remembers (`agent.memory`): that is not a command, and its change counts for nothing.
    """
    limits = policy.spec.limits
    half = (jnp.asarray(limits.command_high) - jnp.asarray(limits.command_low)) / 2
    return half if policy.control is None else jnp.concat([half, jnp.full(policy.memory_size, jnp.inf)])


class RolloutInputs(NamedTuple):
    """What `predict_rollout` needs besides policy and model: measured trajectories first, then imagined ones."""

    starts: Float[Array, "trajectories state"]
    """Initial states."""
    previews: Float[Array, "trajectories steps points outputs"]
    """Reference previews."""
    errors: Float[Array, "trajectories steps state"]
    """e_τ, added to each predicted state; on imagined trajectories those of `imagined_errors`."""
    applied: Float[Array, "trajectories steps commands"]
    """Commands that take the policy's place where it was not `free`."""
    free: Bool[Array, "trajectories steps commands"]
    """Whether the policy's command was applied as it was."""
    valid: Bool[Array, "trajectories steps"]
    """Steps that count. None does on a measured trajectory whose first step is not valid: it has no sound start."""
    offsets: Float[Array, "trajectories steps commands"] | None = None
    """Added to the policy's commands; see `command_noise.disturb_commands`."""
    lags: Float[Array, "trajectories commands"] | None = None
    """How late the policy's commands reach the robot; see `LatePolicy`. Zero on measured trajectories."""


ERROR_SHIFT = 37
"""Control periods by which errors are shifted from one imagined trajectory to the next: prime to most lengths."""


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
    return jax.vmap(lambda i: jnp.roll(measured[i % trajectories], (1 + i) * ERROR_SHIFT % steps, axis=0))(index)


def make_rollout_inputs(
    dynamics: DynamicsFunction, rollout: Rollout, imagined: ImaginedStarts | None, disturbances: int = 0
) -> RolloutInputs:
    """Starts, references and model errors of an episode, and of imagined trajectories behind them.

    Args:
        dynamics: the model f.
        rollout: the measured trajectories.
        imagined: further starts and references; None for none.
        disturbances: whether imagined trajectories have measured errors, or none (0); see `imagined_errors`.
    """
    errors = model_errors(dynamics, rollout)
    starts, previews = rollout.states[:, 0], rollout.previews
    extra = 0
    if imagined is not None:
        extra = imagined.starts.shape[0]
        starts = jnp.concat([starts, imagined.starts])
        previews = jnp.concat([previews, imagined.previews])
        disturbed = imagined_errors(errors, extra, disturbances)
        if imagined.disturbance is not None:
            disturbed = imagined.disturbance[:, None, None] * disturbed
        errors = jnp.concat([errors, disturbed])
    blank = jnp.zeros((extra, *rollout.commands.shape[1:]))
    counted = jnp.ones(blank.shape[:2], bool)
    if imagined is not None and imagined.steps is not None:
        counted = jnp.arange(blank.shape[1]) < imagined.steps[:, None]
    return RolloutInputs(
        starts,
        previews,
        errors,
        applied=jnp.concat([rollout.commands, blank]),
        free=jnp.concat([rollout.free, jnp.ones(blank.shape, bool)]),
        valid=jnp.concat([rollout.valid & rollout.valid[:, :1], counted]),
    )


class LatePolicy(eqx.Module):
    """A policy behind a first-order lag: what is sent is u + a (u⁻ − u), with u⁻ sent before; a < 0 is a lead.

    At a frequency well below the control rate a lag of a delays by about a / (1 − a) periods; constant commands pass
    as they are. u⁻ is in the state. What a base remembers is not a command, and is never late.
    """

    policy: Policy
    lag: Float[Array, " commands"]
    """a, for each command."""

    def __call__(
        self, state: Float[Array, " state"], preview: Float[Array, "points outputs"]
    ) -> Float[Array, " commands"]:
        """The command that is sent."""
        command, layout = self.policy(state, preview), self.policy.spec.layout
        own, memory = command[: layout.num_commands], command[layout.num_commands :]
        return jnp.concat([own + self.lag * (last_command(layout, state) - own), memory])


def draw_lags(
    policy: Policy, measured: int, imagined: int, largest: Float[Array, ""] | float, *, key: PRNGKeyArray
) -> Float[Array, "trajectories commands"]:
    """Lags of all trajectories: none on the measured ones, between −½ and 1 of the largest on the imagined ones."""
    commands = policy.spec.layout.num_commands
    drawn = largest * jax.random.uniform(key, (imagined, commands), minval=-0.5, maxval=1.0)
    return jnp.concat([jnp.zeros((measured, commands)), drawn])


def predict_rollout(policy: Policy, dynamics: DynamicsFunction, inputs: RolloutInputs) -> Rollout:
    """The trajectories that the corrected model predicts for a policy."""
    if inputs.lags is not None:
        calm = inputs._replace(lags=None)

        def late(one: RolloutInputs, lag: Float[Array, " commands"]) -> Rollout:
            alone = jax.tree.map(lambda a: a[None], one)
            return jax.tree.map(lambda a: a[0], _predict(LatePolicy(policy, lag), dynamics, alone))

        return jax.vmap(late)(calm, inputs.lags)
    return _predict(policy, dynamics, inputs)


def _predict(policy: PolicyFunction, dynamics: DynamicsFunction, inputs: RolloutInputs) -> Rollout:
    return roll_out(
        policy,
        dynamics,
        inputs.starts,
        previews=inputs.previews,
        errors=inputs.errors,
        applied=inputs.applied,
        free=inputs.free,
        valid=inputs.valid,
        offsets=inputs.offsets,
    )


def command_deviation(
    policy: Policy,
    commands: Float[Array, "trajectories steps commands"],
    before: Float[Array, "measured steps commands"],
    inputs: RolloutInputs,
) -> Float[Array, ""]:
    """Root mean square difference between `commands` and `before` on the measured trajectories, in half ranges."""
    measured = before.shape[0]
    counted = inputs.valid[:measured]
    change = jnp.where(counted[..., None], (commands[:measured] - before) / half_range(policy), 0.0)
    return jnp.sqrt(jnp.sum(change**2) / jnp.maximum(counted.sum() * policy.spec.layout.num_commands, 1))
