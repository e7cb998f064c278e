"""The two networks: the policy π_φ and the dynamics model f_θ, both two tanh layers written for one sample."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard import ControlSpec
from firsthand_onboard.observer import predict_change, predict_state, predicted_entries
from firsthand_onboard.policy import policy_command

Layers = tuple[tuple[Float[Array, "_out _in"], Float[Array, " _out"]], ...]


def initial_layers(sizes: tuple[int, ...], *, key: PRNGKeyArray, last_gain: float = 1.0) -> Layers:
    """Random weights of variance 1/inputs, zero biases; the last layer is scaled by `last_gain`."""
    layers = []
    for i, layer_key in enumerate(jax.random.split(key, len(sizes) - 1)):
        gain = last_gain if i == len(sizes) - 2 else 1.0
        weight = gain * jax.random.normal(layer_key, (sizes[i + 1], sizes[i])) / jnp.sqrt(sizes[i])
        layers.append((weight, jnp.zeros(sizes[i + 1])))
    return tuple(layers)


class Policy(eqx.Module):
    """π_φ(x, r): the deterministic controller. φ is `layers`; the forward pass is the robot's own."""

    layers: Layers
    spec: ControlSpec = eqx.field(static=True)

    @staticmethod
    def random(spec: ControlSpec, *, key: PRNGKeyArray, last_gain: float = 1.0) -> "Policy":
        """A policy with random weights."""
        sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
        return Policy(initial_layers(sizes, key=key, last_gain=last_gain), spec)

    def arrays(self) -> dict[str, np.ndarray]:
        """The weights as named arrays, for a file."""
        named = {}
        for i, (weight, bias) in enumerate(self.layers):
            named[f"policy.{i}.weight"], named[f"policy.{i}.bias"] = np.asarray(weight), np.asarray(bias)
        return named

    @staticmethod
    def from_arrays(spec: ControlSpec, arrays: Mapping[str, np.ndarray]) -> "Policy":
        """The policy from named arrays; others are ignored."""
        layers = tuple(
            (jnp.asarray(arrays[f"policy.{i}.weight"]), jnp.asarray(arrays[f"policy.{i}.bias"]))
            for i in range(len(spec.policy.hidden) + 1)
        )
        return Policy(layers, spec)

    def __call__(
        self, state: Float[Array, " state"], preview: Float[Array, "points outputs"]
    ) -> Float[Array, " commands"]:
        """The command in this state with this reference preview."""
        return policy_command(self.spec, self.layers, state, preview)


class Dynamics(eqx.Module):
    """f_θ(x, u): the learned one-step model.

    Only what is unknown is learned. The network predicts the change of the velocities where velocities are measured,
    else the change of everything measured. Integration of velocities and the two registers are known.
    """

    layers: Layers
    """θ."""
    change_scale: Float[Array, " predicted"]
    """What the network's output is multiplied by: the size of the changes seen so far. Not trained by gradients."""
    spec: ControlSpec = eqx.field(static=True)

    @staticmethod
    def random(spec: ControlSpec, hidden: tuple[int, ...], *, key: PRNGKeyArray) -> "Dynamics":
        """A model with random weights."""
        predicted = predicted_entries(spec)
        sizes = (spec.layout.size + spec.layout.num_commands, *hidden, len(predicted))
        scale = jnp.asarray([spec.scales.change_scale[i] for i in predicted])
        return Dynamics(initial_layers(sizes, key=key, last_gain=0.1), scale, spec)

    def change(self, state: Float[Array, " state"], command: Float[Array, " commands"]) -> Float[Array, " predicted"]:
        """The predicted change of the predicted entries over one control period, in their own units."""
        return predict_change(self.spec, self.layers, self.change_scale, state, command)

    def __call__(self, state: Float[Array, " state"], command: Float[Array, " commands"]) -> Float[Array, " state"]:
        """The predicted next state. Positions follow velocities by the trapezoidal rule."""
        return predict_state(self.spec, self.layers, self.change_scale, state, command)

    def with_change_scale(self, scale: Float[Array, " predicted"]) -> "Dynamics":
        """The same function with another `change_scale`: the last layer is rescaled to make up for it."""
        *hidden, (weight, bias) = self.layers
        ratio = self.change_scale / scale
        last = (weight * ratio[:, None], bias * ratio)
        return Dynamics((*hidden, last), scale, self.spec)
