"""The networks: encoder h, latent dynamics d, reward R, policy prior π, and the ensemble of Q functions.

Every layer is written for any leading axes, so that a batch is one large matrix product. Weights are (inputs, outputs).
A network takes its input in parts, as in `dynamics(z, action)`: a part that is the same for the whole batch is given
once, without the batch's axis, and is then multiplied once.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt16

from .config import Config
from .regression import expected_value

_EPSILON = 1e-5  # of the layer normalisation
_INITIAL = 0.02  # standard deviation of initial weights


def mish(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """x · tanh(log(1 + eˣ)), with one exponential: tanh(log(1 + e)) = (e² + 2e) / (e² + 2e + 2)."""
    e = jnp.exp(jnp.minimum(x, 20.0))  # beyond, the factor is 1 in float32
    n = e * (e + 2)
    return x * (n / (n + 2))


def simnorm(x: Float[Array, "*batch latent"], group: int) -> Float[Array, "*batch latent"]:
    """A softmax over each group of `group` neighbouring entries."""
    return jax.nn.softmax(x.reshape(*x.shape[:-1], -1, group)).reshape(x.shape)


def layer_norm(x: Float[Array, "*batch units"]) -> Float[Array, "*batch units"]:
    """Zero mean and unit variance over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + _EPSILON)


class Layer(eqx.Module):
    """A linear map; with `gain` and `offset`, followed by layer normalisation."""

    weight: Float[Array, "*members inputs units"]
    """Weights."""
    bias: Float[Array, "*members units"]
    """Biases."""
    gain: Float[Array, "*members units"] | None
    """Scale after normalisation; None for a linear layer."""
    offset: Float[Array, "*members units"] | None
    """Shift after normalisation; None for a linear layer."""

    @staticmethod
    def random(
        inputs: int, units: int, *, normed: bool, zero: bool, members: int | None, rng: np.random.Generator
    ) -> "Layer":
        """Small normal weights (or zeros), zero biases; with `members`, a leading axis of that many layers."""
        lead = () if members is None else (members,)
        shape = (*lead, inputs, units)
        weight = np.zeros(shape, np.float32) if zero else _INITIAL * rng.standard_normal(shape, np.float32)
        ones, zeros = np.ones((*lead, units), np.float32), np.zeros((*lead, units), np.float32)
        gain, offset = (jnp.array(ones), jnp.array(zeros)) if normed else (None, None)
        return Layer(jnp.array(weight), jnp.array(zeros), gain, offset)

    def linear(self, *parts: Float[Array, "..."]) -> Float[Array, "..."]:
        """The product with the joined parts, and the bias."""
        out, row = self.bias, 0
        for part in parts:
            out = part @ self.weight[row : row + part.shape[-1]] + out
            row += part.shape[-1]
        return out

    def normalize(self, x: Float[Array, "*batch units"]) -> Float[Array, "*batch units"]:
        """The activation after the linear map; identity for a linear layer."""
        return x if self.gain is None or self.offset is None else layer_norm(x) * self.gain + self.offset


class Network(eqx.Module):
    """Hidden layers with layer normalisation and Mish, and a last layer."""

    layers: tuple[Layer, ...]
    """All layers, the last one included."""

    @staticmethod
    def random(
        sizes: tuple[int, ...],
        *,
        normed_last: bool = False,
        zero_last: bool = False,
        members: int | None = None,
        rng: np.random.Generator,
    ) -> "Network":
        """A network with these sizes, the input's first; with `members`, an ensemble of that many."""
        last = len(sizes) - 2
        return Network(
            tuple(
                Layer.random(
                    sizes[i],
                    sizes[i + 1],
                    normed=i < last or normed_last,
                    zero=i == last and zero_last,
                    members=members,
                    rng=rng,
                )
                for i in range(len(sizes) - 1)
            )
        )

    def __call__(self, *parts: Float[Array, "..."], kept: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """The last layer's output. The first layer's units are multiplied by `kept` before they are normalised."""
        first, *others = self.layers
        x = first.linear(*parts)
        x = first.normalize(x if kept is None else x * kept)
        for layer in others:
            x = layer.normalize(layer.linear(mish(x)))
        return x


class WorldModel(eqx.Module):
    """What is trained by the model loss: encoder, latent dynamics, reward and Q functions."""

    encoder: Network
    """h: observation → z."""
    dynamics: Network
    """d: (z, action) → z of the next step."""
    reward: Network
    """R: (z, action) → logits of the reward."""
    value: Network
    """Q: (z, action) → logits of the value; every array has a leading axis of members."""

    @staticmethod
    def random(config: Config, observation: int, action: int, *, rng: np.random.Generator) -> "WorldModel":
        """A model with random weights; rewards and values are zero everywhere at first."""
        encoder = (observation, *(config.encoder_width,) * max(config.encoder_layers - 1, 1), config.latent)
        body = (config.latent + action, config.width, config.width)
        return WorldModel(
            Network.random(encoder, normed_last=True, rng=rng),
            Network.random((*body, config.latent), normed_last=True, rng=rng),
            Network.random((*body, config.bins), zero_last=True, rng=rng),
            Network.random((*body, config.bins), zero_last=True, members=config.members, rng=rng),
        )

    def encode(self, observation: Float[Array, "*batch observation"], config: Config) -> Float[Array, "*batch latent"]:
        """z of an observation."""
        return simnorm(self.encoder(observation), config.group)

    def next(
        self, z: Float[Array, "..."], action: Float[Array, "*batch action"], config: Config
    ) -> Float[Array, "*batch latent"]:
        """z after an action."""
        return simnorm(self.dynamics(z, action), config.group)


def member(ensemble: Network, index: int) -> Network:
    """One of the networks of an ensemble."""
    return jax.tree.map(lambda x: x[index], ensemble)


def draw_pairs(count: int, members: int, rng: np.random.Generator) -> Int[np.ndarray, "count 2"]:
    """Pairs of two different members."""
    first = rng.integers(members, size=count)
    return np.stack([first, (first + rng.integers(1, members, size=count)) % members], axis=1).astype(np.int32)


def dropout_mask(bits: UInt16[Array, "*batch units"], dropout: float) -> Float[Array, "*batch units"]:
    """Factors of dropout from random bits: zero for units that are left out, the others make up for them."""
    return jnp.where(bits >= round(dropout * 2**16), 1 / (1 - dropout), 0.0)


def values_of_pair(
    ensemble: Network,
    pair: Int[Array, " 2"],
    z: Float[Array, "rows latent"],
    action: Float[Array, "rows action"],
    config: Config,
    *,
    bits: UInt16[Array, "2 rows units"] | None = None,
) -> Float[Array, "2 rows"]:
    """Values by two members of the ensemble; with random bits, with dropout."""

    def one(chosen) -> Float[Array, " rows"]:
        q, own_bits = chosen
        kept = None if own_bits is None else dropout_mask(own_bits, config.dropout)
        return expected_value(q(z, action, kept=kept), config)

    return jax.lax.map(one, (jax.tree.map(lambda x: x[pair], ensemble), bits))


class Draw(NamedTuple):
    """An action drawn from the policy prior."""

    action: Float[Array, "*batch action"]
    """The action, in [−1, 1]."""
    entropy: Float[Array, "*batch"]
    """One draw's estimate of the entropy before tanh, which is what the official code rewards."""


def draw_action(
    policy: Network, z: Float[Array, "*batch latent"], noise: Float[Array, "*batch action"], config: Config
) -> Draw:
    """tanh of a normal draw whose mean and log standard deviation are the network's output; `noise` is standard."""
    mean, log_std = jnp.split(policy(z), 2, axis=-1)
    share = 0.5 * (jnp.tanh(log_std) + 1)
    log_std = config.log_std_low + (config.log_std_high - config.log_std_low) * share
    action = jnp.tanh(mean + noise * jnp.exp(log_std))
    return Draw(action, jnp.sum(0.5 * noise**2 + log_std + 0.5 * math.log(2 * math.pi), axis=-1))
