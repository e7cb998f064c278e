"""Numbers as distributions over bins: rewards and values are learned by classification.

A number is squeezed by symlog, and its two nearest bins share its weight ("two-hot"). Written for any leading axes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .config import Config


def symlog(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """sign(x) · log(1 + |x|)."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The inverse of `symlog`."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def bin_middles(config: Config) -> Float[Array, " bins"]:
    """The middles of the bins, in symlog units."""
    return jnp.linspace(config.bin_low, config.bin_high, config.bins)


def two_hot(x: Float[Array, "*batch"], config: Config) -> Float[Array, "*batch bins"]:
    """Weights over bins whose mean is symlog(x), on the two bins around it. Numbers beyond the last bin count as it."""
    width = (config.bin_high - config.bin_low) / (config.bins - 1)
    position = (jnp.clip(symlog(x), config.bin_low, config.bin_high) - config.bin_low) / width
    # A triangle of half-width one bin, read off at the middles, is the two-hot weight.
    return jnp.maximum(1 - jnp.abs(position[..., None] - jnp.arange(config.bins)), 0.0)


def expected_value(logits: Float[Array, "*batch bins"], config: Config) -> Float[Array, "*batch"]:
    """The number that a predicted distribution stands for."""
    return symexp(jax.nn.softmax(logits) @ bin_middles(config))


def cross_entropy(logits: Float[Array, "*batch bins"], target: Float[Array, "*batch bins"]) -> Float[Array, "*batch"]:
    """Cross entropy of predicted distributions against two-hot targets."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(target * logits, axis=-1)
