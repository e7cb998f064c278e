"""How one machine of a fleet differs from the others: a gain and an offset per command.

Machines of one kind share a model f and a policy π. Machine m behaves as if its commands were different,

    y⁺ = f(x, (1 + g_m) u + b_m),

with small g_m and b_m, and u counted from the middle of its range; the commands that the state remembers are such
commands, too. Both are estimated from what f misses on the machine's newest episodes, by least squares with a prior
around zero, relative to the fleet's mean (the common part is left to the model). The machine gets π with a changed last
layer, so that its commands are (u − b_m)/(1 + g_m). The robot itself needs no change.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from firsthand_onboard.observer import predicted_entries

from ..models import Controller, Dynamics
from ..optim.rollout import Rollout

PRIOR = 0.05
"""Standard deviation of a gain, and of an offset in half ranges, before anything is known."""
LARGEST = 0.1
"""No machine is corrected by more than this."""
INDEPENDENT_STEPS = 25
"""One in this many steps tells something new: what a model misses changes slowly."""


class Offset(NamedTuple):
    """The difference of one machine, per command."""

    gain: Float[np.ndarray, " commands"]
    """g."""
    bias: Float[np.ndarray, " commands"]
    """b, in half command ranges."""


class Evidence(NamedTuple):
    """The evidence of an episode about a machine's offset: a weighted least-squares problem."""

    information: Float[Array, "both both"]
    score: Float[Array, " both"]


@eqx.filter_jit
def gather_evidence(
    dynamics: Dynamics, rollout: Rollout, counts: Bool[Array, "trajectories steps"], scale: Float[Array, " predicted"]
) -> Evidence:
    """From the steps of an episode that count; `scale` is the usual size of what the model misses."""
    spec = dynamics.spec
    layout, entries = spec.layout, jnp.asarray(predicted_entries(spec))
    low, high = jnp.asarray(spec.limits.command_low), jnp.asarray(spec.limits.command_high)
    middle, half = (low + high) / 2, (high - low) / 2
    number, start = layout.num_commands, layout.command_start
    axes = jnp.eye(number)

    def step(state, command, following, count):
        remembered = state[start:].reshape(-1, number)

        def predict(gain, bias):
            def shift(commands):
                return middle + (commands - middle) * (1 + gain) + half * bias

            seen = jnp.concat([state[:start], shift(remembered).reshape(-1)])
            return dynamics(seen, shift(command))[entries]

        zero = jnp.zeros(number)
        gains = jax.vmap(lambda d: jax.jvp(lambda g: predict(g, zero), (zero,), (d,))[1])(axes)
        biases = jax.vmap(lambda d: jax.jvp(lambda b: predict(zero, b), (zero,), (d,))[1])(axes)
        weight = count / scale
        jacobian = jnp.concat([gains, biases]) * weight
        missed = (following[entries] - predict(zero, zero)) * weight
        return jacobian @ jacobian.T, jacobian @ missed

    parts = (rollout.states[:, :-1], rollout.commands, rollout.states[:, 1:], counts.astype(float))
    flat = (part.reshape(-1, *part.shape[2:]) for part in parts)

    def add(total, row):
        return jax.tree.map(jnp.add, total, Evidence(*step(*row))), None

    empty = Evidence(jnp.zeros((2 * number, 2 * number)), jnp.zeros(2 * number))
    return jax.lax.scan(add, empty, tuple(flat))[0]


@eqx.filter_jit
def missed_scale(
    dynamics: Dynamics, rollout: Rollout, valid: Bool[Array, "trajectories steps"]
) -> Float[Array, " predicted"]:
    """Root mean square of what the model misses of each predicted entry."""
    entries = jnp.asarray(predicted_entries(dynamics.spec))
    predicted = jax.vmap(jax.vmap(dynamics))(rollout.states[:, :-1], rollout.commands)
    squares = jnp.where(valid[..., None], (rollout.states[:, 1:] - predicted)[..., entries] ** 2, 0.0)
    return jnp.sqrt(squares.sum((0, 1)) / jnp.maximum(valid.sum(), 1)) + 1e-6 * dynamics.change_scale


class SeenEpisode(NamedTuple):
    """An episode of a fleet, as the model sees it."""

    rollout: Rollout
    sound: Bool[Array, "trajectories steps"]
    machines: np.ndarray
    """Which machine ran each trajectory."""


def fit_offsets(dynamics: Dynamics, episodes: Sequence[SeenEpisode]) -> dict[int, Offset]:
    """The offset of each machine that took part in these episodes, relative to their mean."""
    evidence: dict[int, Evidence] = {}
    for seen in episodes:
        scale = missed_scale(dynamics, seen.rollout, seen.sound)
        for machine in np.unique(seen.machines):
            counts = seen.sound & jnp.asarray(seen.machines == machine)[:, None]
            if not counts.any():  # nothing is known of it: so it is not part of the mean
                continue
            new = gather_evidence(dynamics, seen.rollout, counts, scale)
            known = evidence.get(int(machine))
            evidence[int(machine)] = new if known is None else jax.tree.map(jnp.add, known, new)
    found = {machine: _solve(part) for machine, part in evidence.items()}
    mean = np.mean(list(found.values()), axis=0) if found else 0.0
    return {machine: _split(np.clip(value - mean, -LARGEST, LARGEST)) for machine, value in found.items()}


def _solve(evidence: Evidence) -> np.ndarray:
    information = np.asarray(evidence.information, float) / INDEPENDENT_STEPS
    score = np.asarray(evidence.score, float) / INDEPENDENT_STEPS
    return np.linalg.solve(information + np.eye(len(score)) / PRIOR**2, score)


def _split(value: np.ndarray) -> Offset:
    half = len(value) // 2
    return Offset(value[:half], value[half:])


def with_offset(controller: Controller, offset: Offset) -> Controller:
    """The controller for a machine with this offset: its last layer makes up for it.

    On top of a base only the bias is: the gain of the base's own command is not the policy's to change.
    """
    *hidden, (weight, bias) = controller.policy.layers
    gain = jnp.zeros_like(bias) if controller.policy.control is not None else jnp.asarray(offset.gain, bias.dtype)
    last = (weight / (1 + gain)[:, None], (bias - jnp.asarray(offset.bias, bias.dtype)) / (1 + gain))
    return dataclasses.replace(controller, policy=dataclasses.replace(controller.policy, layers=(*hidden, last)))
