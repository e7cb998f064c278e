"""Random offsets on the commands of imagined trajectories, so that the policy learns its way out of a dead band.

A hydraulic valve does nothing over a part of its range, and stiction holds a joint until it is overcome. Inside such a
band the derivative of the motion with respect to the command is zero, and a policy whose commands stay there never
learns to leave. Averaging over offsets that reach beyond the band gives a useful slope (randomised smoothing). The less
a small change of the command does compared with a large one, the larger the offsets. They stay within what moves the
robot as fast as the task may ask for: half of a strong motor's torque would throw an arm about, and teach it only to
resist (`find_effects`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard import ControlSpec

from ..models import Policy
from ..optim.rollout import DynamicsFunction, Rollout
from .corrected_model import RolloutInputs, half_range
from .settings import Settings

LEVELS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Changes of a command that are tried, of half its range …"""
SMALL, LARGE = 0.05, 0.75
"""… and the two of them that are compared to find a dead band."""
FARTHEST = 2.0
"""Offsets may move the robot this many times as far, or as fast, as a reference at its full rate: further out there is
nothing that a policy will ever need, and only a gain that the loop cannot bear would hold against them."""
BEYOND = 1e6
"""Stands for an effect that is not finite, or not known."""


class CommandNoise(NamedTuple):
    """Inputs, besides the settings, that determine an episode's offsets."""

    key: PRNGKeyArray
    """For the random numbers."""
    need: Float[Array, ""]
    """1 while the policy is bad, then falling with its error: one that works may rest in a dead band."""


class Saturated(eqx.Module):
    """A model behind the limits of the commands: beyond them nothing changes, and no derivative passes."""

    dynamics: DynamicsFunction
    spec: ControlSpec = eqx.field(static=True)

    def __call__(self, state: Float[Array, " state"], command: Float[Array, " commands"]) -> Float[Array, " state"]:
        """The next state."""
        limits = self.spec.limits
        return self.dynamics(
            state, jnp.clip(command, jnp.asarray(limits.command_low), jnp.asarray(limits.command_high))
        )


class CommandEffects(NamedTuple):
    """The effect of a change of each command near the policy, as the model predicts it."""

    dead_bands: Float[Array, " commands"]
    """How much less a small change does than a large one, per unit: 0 no less, 1 nothing."""
    reach: Float[Array, " commands"]
    """The change, of half the range, that moves the robot `FARTHEST` as far as a reference goes at its full rate;
    infinite where none does. Zero where no window of this length was measured: nothing is known there."""


def find_effects(spec: ControlSpec, dynamics: DynamicsFunction, rollout: Rollout, settings: Settings) -> CommandEffects:
    """What small and large changes of each command do.

    A change is held for `model.horizon` steps, from states along the measured trajectories; its effect is that on
    what is measured at the end.
    """
    layout, limits = spec.layout, spec.limits
    steps = min(settings.model.horizon, rollout.commands.shape[1])
    count = rollout.commands.shape[1] // steps
    starts = rollout.states[:, : count * steps : steps].reshape(-1, layout.size)
    shape = (-1, steps, layout.num_commands)
    commands = rollout.commands[:, : count * steps].reshape(shape)
    counted = rollout.valid[:, : count * steps].reshape(-1, steps).all(axis=1)
    scale, change_scale = jnp.asarray(spec.scales.measured_scale), jnp.asarray(spec.scales.change_scale)
    # Per scale: a velocity as fast as the full rate counts 1; so does a position that went as far as that rate leads.
    lengths = scale / jnp.minimum(scale, steps * change_scale)
    low, high = jnp.asarray(limits.command_low), jnp.asarray(limits.command_high)
    half = (high - low) / 2

    def end(start: Array, window: Array) -> Array:
        final, _ = jax.lax.scan(lambda state, command: (dynamics(state, command), None), start, window)
        return final[: layout.num_measured] / scale

    ends = jax.vmap(end)

    def probe(change: Array) -> tuple[Array, Array]:
        """The effect of changing all windows' commands to both sides: per unit of what the limits leave of the change,
        and the median of how far it leads to one side."""
        lower, upper = (jnp.clip(commands + sign * change * half, low, high) for sign in (-1, 1))
        moved = ends(starts, upper) - ends(starts, lower)
        taken = jnp.abs((upper - lower) / half).max(axis=-1).mean(axis=-1)
        far = jnp.max(jnp.abs(moved) * lengths, axis=-1) / 2
        far = jnp.where(jnp.isfinite(far), jnp.minimum(far, BEYOND), BEYOND)
        median = jnp.nanmedian(jnp.where(counted, far, jnp.nan))
        return moved / jnp.maximum(taken, 1e-6)[:, None], jnp.where(jnp.isnan(median), BEYOND, median)

    def effects(channel: Array) -> CommandEffects:
        slopes, far = jax.lax.map(lambda level: probe(level * channel), jnp.asarray(LEVELS))
        small, large = slopes[LEVELS.index(SMALL)], slopes[LEVELS.index(LARGE)]
        # Only what a small change does in the direction of the large one: the rest is the model's error.
        small, large = (jnp.sum(jnp.where(counted[:, None], a * large, 0.0)) for a in (small, large))
        far = jax.lax.cummax(far)
        reach = jnp.interp(FARTHEST, jnp.concat([jnp.zeros(1), far]), jnp.asarray((0.0, *LEVELS)))
        return CommandEffects(
            dead_bands=jnp.clip(1 - small / jnp.maximum(large, 1e-12), 0.0, 1.0),
            reach=jnp.where(far[0] >= BEYOND, 0.0, jnp.where(far[-1] <= FARTHEST, jnp.inf, reach)),
        )

    return jax.lax.map(effects, jnp.eye(layout.num_commands))


def disturb_commands(
    inputs: RolloutInputs,
    policy: Policy,
    measured: int,
    effects: CommandEffects,
    settings: Settings,
    noise: CommandNoise,
) -> RolloutInputs:
    """The same with smooth random offsets on the commands of the imagined trajectories, all but the first `measured`.

    They are first-order filtered noise, as in excitation. Each trajectory has an amplitude of its own, between zero and
    `imagination.command_noise` times `need`, and up to `imagination.dead_band_factor` times that in a channel with a
    dead band; but at most the channel's reach times `need`.
    """
    count, steps, commands = inputs.applied.shape
    keep = jnp.exp(-policy.spec.period_s / settings.excitation.time_constant_s)
    noise_key, size_key = jax.random.split(noise.key)
    fresh = jax.random.normal(noise_key, (steps, count, commands))

    def walk(now: Array, push: Array) -> tuple[Array, Array]:
        return keep * now + jnp.sqrt(1 - keep**2) * push, now

    _, walks = jax.lax.scan(walk, fresh[0], jnp.roll(fresh, -1, axis=0))
    wider = 1 + (settings.imagination.dead_band_factor - 1) * effects.dead_bands
    largest = jnp.minimum(settings.imagination.command_noise * wider, effects.reach)
    size = noise.need * largest * jax.random.uniform(size_key, (count, 1, 1))
    offsets = size * jnp.swapaxes(walks, 0, 1) * half_range(policy)
    return inputs._replace(offsets=offsets.at[:measured].set(0.0))
