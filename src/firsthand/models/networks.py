"""Policy, dynamics model, observer and controller, as pytrees that are written for one sample.

The policy π_φ and the dynamics model f_θ are networks of tanh layers; an observer estimates the state that the policy
sees. `Controller` is what runs on a robot: a policy and, where there is one, its observer.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard import ControlSpec, NumpyController, NumpyObserver, NumpyPolicy
from firsthand_onboard.base_control import BaseControl, NumpyBase, base_arrays, base_from_arrays, has_base
from firsthand_onboard.numpy_observer import has_observer, observer_arrays, observer_from_arrays
from firsthand_onboard.observer import (
    ObserverParameters,
    ObserverSettings,
    predict_change,
    predict_state,
    predicted_entries,
    register_gain,
    register_taps,
)
from firsthand_onboard.policy import policy_command

Layers = tuple[tuple[Float[Array, "_out _in"], Float[Array, " _out"]], ...]
NEVER_CLIPPED = 1e6
"""Change scales that no innovation reaches."""


def initial_layers(sizes: tuple[int, ...], *, key: PRNGKeyArray, last_gain: float = 1.0) -> Layers:
    """Random weights of variance 1/inputs, zero biases; the last layer is scaled by `last_gain`."""
    layers = []
    for i, layer_key in enumerate(jax.random.split(key, len(sizes) - 1)):
        gain = last_gain if i == len(sizes) - 2 else 1.0
        weight = gain * jax.random.normal(layer_key, (sizes[i + 1], sizes[i])) / jnp.sqrt(sizes[i])
        layers.append((weight, jnp.zeros(sizes[i + 1])))
    return tuple(layers)


class Policy(eqx.Module):
    """π_φ(x, r): the deterministic controller. φ is `layers`; the forward pass is the robot's own.

    On top of a base controller (`firsthand_onboard.base_control`) the policy has a memory m, that of the base. The
    closed loop's state is then (x, m): the policy is called with it and returns (u, m⁺), the command and the memory for
    the next step. `agent.memory` makes roll-outs, model and cost of this form.
    """

    layers: Layers
    spec: ControlSpec = eqx.field(static=True)
    control: BaseControl | None = None
    """The base, and the policy's authority over it; None without one. Its arrays are not trained."""

    @staticmethod
    def random(
        spec: ControlSpec, *, key: PRNGKeyArray, last_gain: float = 1.0, control: BaseControl | None = None
    ) -> "Policy":
        """A policy with random weights. On top of a base the last layer is zero: the commands are the base's."""
        sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
        layers = initial_layers(sizes, key=key, last_gain=0.0 if control is not None else last_gain)
        return Policy(layers, spec, control)

    @property
    def memory_size(self) -> int:
        """How many numbers the base remembers; 0 without one."""
        return 0 if self.control is None else self.control.memory_size(self.spec)

    def arrays(self) -> dict[str, np.ndarray]:
        """The weights as named arrays, for a file."""
        named = {}
        for i, (weight, bias) in enumerate(self.layers):
            named[f"policy.{i}.weight"], named[f"policy.{i}.bias"] = np.asarray(weight), np.asarray(bias)
        return named if self.control is None else {**named, **base_arrays(self.control)}

    @staticmethod
    def from_arrays(spec: ControlSpec, arrays: Mapping[str, np.ndarray]) -> "Policy":
        """The policy from named arrays; others are ignored."""
        layers = tuple(
            (jnp.asarray(arrays[f"policy.{i}.weight"]), jnp.asarray(arrays[f"policy.{i}.bias"]))
            for i in range(len(spec.policy.hidden) + 1)
        )
        control = jax.tree.map(jnp.asarray, base_from_arrays(spec, arrays)) if has_base(arrays) else None
        return Policy(layers, spec, control)

    def __call__(
        self, state: Float[Array, " state"], preview: Float[Array, "points outputs"]
    ) -> Float[Array, " commands"]:
        """The command in this state with this reference preview; with a base, (u, m⁺) in the state (x, m)."""
        if self.control is None:
            return policy_command(self.spec, self.layers, state, preview)
        size = self.spec.layout.size
        return jnp.concat(self.step(state[:size], preview, state[size:]))

    def begin(self, state: Float[Array, " state"], memory: Float[Array, " memory"] | None = None):
        """The memory when a trajectory begins, after the one before it ended with `memory`; None for a new motion."""
        if self.control is None:
            return jnp.zeros(0, state.dtype)
        if memory is None:
            return self.control.restart(self.spec, state)
        return self.control.begin(self.spec, state, memory)

    def step(
        self,
        state: Float[Array, " state"],
        preview: Float[Array, "points outputs"],
        memory: Float[Array, " memory"],
    ) -> tuple[Float[Array, " commands"], Float[Array, " memory"]]:
        """The command, and the memory for the next step; without a base it is empty."""
        if self.control is None:
            return policy_command(self.spec, self.layers, state, preview), memory
        control = jax.lax.stop_gradient(self.control)
        return control.step(self.spec, self.layers, state, preview, memory)


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


class Observer(eqx.Module):
    """The learned observer (`firsthand_onboard.observer`) as a pytree: its parameters can be trained."""

    parameters: ObserverParameters
    settings: ObserverSettings = eqx.field(static=True)
    spec: ControlSpec = eqx.field(static=True)

    @staticmethod
    def register(dynamics: Dynamics, settings: ObserverSettings | None = None) -> "Observer":
        """The observer that is the plain register, with this model: where learning begins."""
        spec = dynamics.spec
        unit = jnp.asarray(spec.scales.change_scale)
        gain, taps = (jnp.asarray(part, unit.dtype) for part in (register_gain(spec), register_taps(spec)))
        parameters = ObserverParameters(dynamics.layers, dynamics.change_scale, gain, taps, NEVER_CLIPPED * unit)
        return Observer(parameters, settings or ObserverSettings.of(spec), spec)

    def arrays(self) -> dict[str, np.ndarray]:
        """The observer as named arrays, for a file."""
        return observer_arrays(self)

    @staticmethod
    def from_arrays(spec: ControlSpec, arrays: Mapping[str, np.ndarray]) -> "Observer":
        """The observer from named arrays; others are ignored."""
        parameters, settings = observer_from_arrays(spec, arrays)
        return Observer(jax.tree.map(jnp.asarray, parameters), settings, spec)


class Controller(eqx.Module):
    """A policy with its observer; without one the policy sees the plain register of measurements and commands."""

    policy: Policy
    observer: Observer | None = None

    def __call__(
        self, state: Float[Array, " state"], preview: Float[Array, "points outputs"]
    ) -> Float[Array, " commands"]:
        """The policy's command in a state: the observer's estimate, or the register."""
        return self.policy(state, preview)

    @property
    def layers(self) -> Layers:
        """The policy's weights."""
        return self.policy.layers

    @property
    def spec(self) -> ControlSpec:
        """The policy's specification."""
        return self.policy.spec

    def arrays(self) -> dict[str, np.ndarray]:
        """Policy and observer as named arrays, for a file."""
        return {**self.policy.arrays(), **({} if self.observer is None else self.observer.arrays())}

    @staticmethod
    def from_arrays(spec: ControlSpec, arrays: Mapping[str, np.ndarray]) -> "Controller":
        """Policy and observer from named arrays; others are ignored."""
        observer = Observer.from_arrays(spec, arrays) if has_observer(arrays) else None
        return Controller(Policy.from_arrays(spec, arrays), observer)

    def for_robot(self) -> NumpyController:
        """The same in numpy, as a robot runs it."""
        spec, single = self.spec, np.float32
        control = self.policy.control
        base = None if control is None else NumpyBase(spec, control)
        layers = [(np.asarray(w, single), np.asarray(b, single)) for w, b in self.policy.layers]
        policy = NumpyPolicy(spec, layers, base)
        return NumpyController(policy, None if self.observer is None else NumpyObserver.of(spec, self.observer))


def as_controller(policy: Policy | Controller) -> Controller:
    """A bare policy as a controller without an observer."""
    return policy if isinstance(policy, Controller) else Controller(policy)
